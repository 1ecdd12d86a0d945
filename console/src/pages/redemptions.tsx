/** Redeems and holds codes of a coupon, and lists its redemptions, the newest first: each row stays in its place with its new status. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { text } from "../api/client.ts";
import { rowsOf, spreadsheet } from "../api/csv.ts";
import type { Filter, Redemption } from "../api/types.ts";
import { away } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { Action } from "../parts/action.tsx";
import { ask } from "../parts/dialog.tsx";
import { Download } from "../parts/download.tsx";
import { StatusTag } from "../parts/filter.tsx";
import { Menu } from "../parts/menu.tsx";
import { Pager } from "../parts/pager.tsx";
import { Empty, Panel, Refusal, Select, Text, Time } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { Grid } from "../parts/table.tsx";
import { fullName } from "../state/filters.ts";
import { accepts, allowed, hasOption } from "../state/session.ts";
import { write } from "../state/writes.ts";

const STATUSES: readonly Redemption["status"][] = ["held", "redeemed", "cancelled", "expired"];
const ROWS = 20;
const DAY_MILLISECONDS = 86_400_000;
/** Periods in days. Redemptions are on record for 30 by default. */
const PERIODS = [1, 7, 30] as const;

interface RedemptionsProps {
  readonly filter: Filter;
  readonly changed: () => void;
}

interface Page {
  readonly redemptions: readonly Redemption[];
  readonly next_cursor?: string;
}

function Redeem({ filter, changed }: RedemptionsProps): JSX.Element {
  const t = texts.value.redemptions;
  const [code, setCode] = useState("");
  const [reference, setReference] = useState("");
  const [minutes, setMinutes] = useState("");
  const [customer, setCustomer] = useState("");
  const isHold = Number(minutes) > 0;
  const isLimited = filter.per_customer !== undefined;
  const body = { code, reference, customer: customer === "" ? undefined : customer, hold_seconds: isHold ? Math.round(Number(minutes) * 60) : undefined };
  const call = (): Call | undefined =>
    code === "" || reference === "" || (isLimited && customer === "") ? undefined : { method: "POST", path: `v1/coupons/${filter.name}/redemptions`, body };
  return (
    <Action<Redemption>
      label={isHold ? t.hold : t.redeem}
      call={call}
      done={changed}
      answer={({ status, reference, expires_at }) => (
        <p class="notice good">
          {status === "held" ? t.heldFor(reference) : t.redeemedFor(reference)} {status === "held" && expires_at !== undefined && <Time at={expires_at} />}
        </p>
      )}
    >
      <div class="fields">
        <Text label={t.code} value={code} change={setCode} required />
        <Text label={t.reference} value={reference} change={setReference} hint={t.referenceHint} required />
        {accepts("RedemptionRequest", "customer") && (
          <Text label={t.customer} value={customer} change={setCustomer} hint={isLimited ? t.customerHint : t.customerOptional} required={isLimited} />
        )}
        <Text label={t.minutes} type="number" min={0} max={10_080} value={minutes} change={setMinutes} hint={t.minutesHint} />
      </div>
    </Action>
  );
}

/** When it got its status, or when its hold ends. */
function Since({ of }: { readonly of: Redemption }): JSX.Element | null {
  const { status, expires_at, redeemed_at, cancelled_at } = of;
  const at = status === "redeemed" ? redeemed_at : status === "cancelled" ? cancelled_at : expires_at;
  return at === undefined ? null : <Time at={at}>{status === "held" ? texts.value.redemptions.holdEnds(away(at)) : undefined}</Time>;
}

/** Whether its code came back, once it has ended. */
function Returned({ of: { status, released } }: { readonly of: Redemption }): JSX.Element | null {
  const t = texts.value.redemptions;
  if (status !== "cancelled" && status !== "expired") {
    return null;
  }
  return <small>{released === false ? t.isKept : t.isReleased}</small>;
}

interface ActsProps {
  readonly coupon: Filter;
  readonly of: Redemption;
  readonly changed: (redemption: Redemption) => void;
  readonly failed: (error: unknown) => void;
}

/** A hold has its two ends in sight. What takes a customer's code away is in a menu. */
function Acts({ coupon, of, changed, failed }: ActsProps): JSX.Element | null {
  const t = texts.value.redemptions;
  const step = async (name: "confirm" | "cancel", body?: object) => {
    const call: Call = { method: "POST", path: `v1/coupons/${coupon.name}/redemptions/${of.id}/${name}` };
    changed(await write<Redemption>(body === undefined ? call : { ...call, body }));
    failed(undefined);
  };
  const { status, reference } = of;
  const mayCancel = allowed("POST /v1/coupons/{coupon}/redemptions/{id}/cancel");
  const name = fullName(coupon);
  const release = () => ask({ title: t.releaseTitle(reference), text: t.releaseText(name), verb: t.release, run: () => step("cancel") });
  const cancel = () => {
    const title = t.cancelTitle(reference);
    ask(
      accepts("Cancellation", "release")
        ? {
            title,
            text: t.cancelWays(name),
            verb: t.cancelReleasing,
            run: () => step("cancel", { release: true }),
            other: { verb: t.cancelKeeping, run: () => step("cancel", { release: false }) },
          }
        : { title, text: t.cancelText(name), verb: t.cancel, run: () => step("cancel") },
    );
  };
  if (status === "held") {
    return (
      <>
        {allowed("POST /v1/coupons/{coupon}/redemptions/{id}/confirm") && (
          <button type="button" class="small" aria-label={t.confirmOf(reference)} onClick={() => void step("confirm").catch(failed)}>
            {t.confirm}
          </button>
        )}
        {mayCancel && (
          <button type="button" class="small" aria-label={t.releaseOf(reference)} onClick={release}>
            {t.release}
          </button>
        )}
      </>
    );
  }
  return status === "redeemed" && mayCancel ? (
    <Menu label={t.menu(reference)} face="⋯">
      <button type="button" class="plain danger" onClick={cancel}>
        {t.cancel}…
      </button>
    </Menu>
  ) : null;
}

function List({ filter, changed, version }: RedemptionsProps & { readonly version: number }): JSX.Element {
  const t = texts.value.redemptions;
  const [reference, setReference] = useState("");
  const [status, setStatus] = useState("");
  const [days, setDays] = useState("");
  const [cursors, setCursors] = useState<readonly string[]>([]);
  /** Rows that have changed since the page of the list was read. */
  const [news, setNews] = useState<ReadonlyMap<string, Redemption>>(new Map());
  const [failure, setFailure] = useState<unknown>(undefined);
  const path = `v1/coupons/${filter.name}/redemptions`;
  const changed_after = useMemo(() => (days === "" ? undefined : new Date(Date.now() - Number(days) * DAY_MILLISECONDS).toISOString()), [days]);
  const query = { reference, status, changed_after };
  const isNewestFirst = hasOption("GET /v1/coupons/{coupon}/redemptions", "order");
  const call: Call = { method: "GET", path, query: { ...query, order: isNewestFirst ? "newest" : undefined, limit: ROWS, cursor: cursors.at(-1) } };
  const { value, error, reload } = useResource<Page>(call);
  useEffect(() => void (version > 0 && reload()), [version]);
  const first = (set: (text: string) => void) => (text: string) => {
    set(text);
    setCursors([]);
  };
  const take = (redemption: Redemption) => {
    setNews((before) => new Map(before).set(redemption.id, redemption));
    changed();
  };
  const rows = (value?.redemptions ?? []).map((row) => news.get(row.id) ?? row);
  const isFiltered = reference !== "" || status !== "" || days !== "";
  const csv: Call = { method: "GET", path, query, headers: { Accept: "text/csv" } };
  return (
    <>
      <p class="hint">{t.findHint} {texts.value.csvHint}</p>
      <div class="tools">
        <Text label={t.find} type="search" value={reference} change={first(setReference)} />
        <Select label={t.status} value={status} options={[["", t.all], ...STATUSES.map((name) => [name, texts.value.outcomes[name]] as const)]} change={first(setStatus)} />
        <Select label={t.changed} value={days} options={[["", t.all], ...PERIODS.map((days) => [String(days), t.lastDays(days)] as const)]} change={first(setDays)} />
        <button type="button" onClick={() => (setNews(new Map()), void reload())}>
          {texts.value.refresh}
        </button>
        <Download label={texts.value.csv} name={`${filter.name}-redemptions.csv`} content={async () => spreadsheet(rowsOf(await text(csv)))} />
      </div>
      {failure !== undefined && <Refusal error={failure} />}
      {error !== undefined && <Refusal error={error} />}
      {rows.length > 0 && (
        <Grid
          label={isNewestFirst ? t.list : t.listOldest}
          columns={[{ title: t.reference }, { title: t.status }, { title: t.since }, { title: t.created }, { title: t.acts, isActs: true }]}
          rows={rows.map((row) => ({
            key: row.id,
            cells: [
              <>
                {row.reference}
                {row.ordinal !== undefined && <small>{t.ordinal(row.ordinal)}</small>}
              </>,
              <>
                <StatusTag status={row.status} />
                <Returned of={row} />
              </>,
              <Since of={row} />,
              <Time at={row.created_at} />,
              <Acts coupon={filter} of={row} changed={take} failed={setFailure} />,
            ],
          }))}
        />
      )}
      {rows.length === 0 && error === undefined && <Empty text={value === undefined ? texts.value.reading : isFiltered ? texts.value.noMatch : t.none} />}
      <Pager
        page={cursors.length}
        hasNext={value?.next_cursor !== undefined}
        change={(page) => setCursors(page < cursors.length ? cursors.slice(0, page) : [...cursors, value?.next_cursor ?? ""])}
      />
    </>
  );
}

export function Redemptions({ filter, changed }: RedemptionsProps): JSX.Element | null {
  const t = texts.value.redemptions;
  const [version, setVersion] = useState(0);
  const mayRedeem = allowed("POST /v1/coupons/{coupon}/redemptions");
  const mayList = allowed("GET /v1/coupons/{coupon}/redemptions");
  const redeemed = () => {
    setVersion(version + 1);
    changed();
  };
  return mayRedeem || mayList ? (
    <Panel title={t.title} wide>
      {mayRedeem && <Redeem filter={filter} changed={redeemed} />}
      {mayList && <List filter={filter} changed={changed} version={version} />}
    </Panel>
  ) : null;
}
