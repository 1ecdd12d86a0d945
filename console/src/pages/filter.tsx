/** One campaign or coupon: how it does, and everything that can be done with it. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Problem } from "../api/client.ts";
import { on } from "../api/document.ts";
import type { Filter, Kind } from "../api/types.ts";
import { bytes, count, percent } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { ask } from "../parts/dialog.tsx";
import { LabelList, PhaseTag, Stock } from "../parts/filter.tsx";
import { Facts, Panel, Refusal, Tag, Technical, Time } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { Table } from "../parts/table.tsx";
import { go } from "../route.ts";
import { fullName, hasUses, stockOf, takenOf, titles, usesOf } from "../state/filters.ts";
import { allowed } from "../state/session.ts";
import { write } from "../state/writes.ts";
import { Change } from "./change.tsx";
import { Generate } from "./generate.tsx";
import { Items } from "./items.tsx";
import { Redemptions } from "./redemptions.tsx";
import { StatisticsPanel } from "./statistics.tsx";
import { Upload } from "./upload.tsx";

const EVERY_SECONDS = 5;

export interface PartProps {
  readonly kind: Kind;
  readonly filter: Filter;
  readonly changed: () => void;
}

function Summary({ kind, filter }: Omit<PartProps, "changed">): JSX.Element {
  const t = texts.value.filter;
  const { stats, starts_at, ends_at } = filter;
  const isCoupon = kind === "coupons";
  const isStrict = isCoupon && stats.redeemed !== undefined;
  const hasSeveral = isCoupon && hasUses(filter);
  const { held, redeemed } = takenOf(filter);
  const { taken, total, left, isAtLeast } = usesOf(filter);
  return (
    <Panel title={t.summary}>
      <Facts
        of={[
          [t.users, isCoupon ? undefined : count(stats.items)],
          [
            t.available,
            isCoupon ? (
              <>
                {t.availableOf(count(stats.available ?? stats.items), count(stockOf(filter)))} <Stock filter={filter} />
              </>
            ) : undefined,
          ],
          [t.held, isStrict && !hasSeveral ? count(held) : undefined],
          [t.redeemed, isStrict && !hasSeveral ? count(redeemed) : undefined],
          [t.perCode, hasSeveral ? count(filter.uses ?? 1) : undefined],
          [t.usesTaken, hasSeveral ? t.usesHeld(count(taken), count(held)) : undefined],
          [t.usesLeft, hasSeveral && filter.stock === undefined ? (isAtLeast ? t.usesLeftAtLeast(count(left)) : t.usesLeftOf(count(left), count(total))) : undefined],
          [t.perCustomer, filter.per_customer === undefined ? undefined : t.perCustomerMost(count(filter.per_customer))],
          [t.spelling, isCoupon && filter.normalize !== undefined ? texts.value.spellings[filter.normalize] : undefined],
          [t.kind, isCoupon ? (filter.stock === undefined ? t.codes : t.pool) : undefined],
          [t.starts, starts_at === undefined ? undefined : <Time at={starts_at} />],
          [t.ends, ends_at === undefined ? t.noEnd : <Time at={ends_at} />],
          [t.forgets, filter.forget_after],
          [t.created, <Time at={filter.created_at} />],
        ]}
      />
    </Panel>
  );
}

/** How it is stored: for operators. */
function Storage({ filter }: { readonly filter: Filter }): JSX.Element {
  const t = texts.value.storage;
  const { stats, error_rate } = filter;
  const isOver = error_rate !== undefined && stats.error_rate_now > error_rate;
  return (
    <Technical>
      <Facts
        of={[
          [t.mode, filter.mode],
          [t.capacity, `${count(stats.items)} / ${count(stats.capacity_now)}`],
          [t.asked, count(filter.capacity)],
          [t.growth, filter.growth === "auto" ? t.grows : t.fixed],
          [t.errorRate, isOver ? <Tag tone="bad">{percent(stats.error_rate_now)}</Tag> : percent(stats.error_rate_now)],
          [t.promised, error_rate === undefined ? undefined : percent(error_rate)],
          [t.load, percent(stats.load)],
          [t.memory, bytes(stats.memory_bytes)],
          [t.spelling, filter.normalize],
          [t.added, count(stats.adds)],
          [t.removed, count(stats.removes)],
        ]}
      />
      {stats.segments.length > 0 && <Table label={t.segments} rows={[...stats.segments] as never} />}
      {stats.steps !== undefined && <Table label={t.steps} rows={stats.steps} />}
    </Technical>
  );
}

function Danger({ kind, filter, changed }: PartProps): JSX.Element | null {
  const t = texts.value.danger;
  const path = `v1/${kind}/${filter.name}`;
  const name = fullName(filter);
  const mayClear = filter.stock === undefined && allowed(on(kind, "POST", "/clear"));
  const mayDelete = allowed(on(kind, "DELETE"));
  if (!mayClear && !mayDelete) {
    return null;
  }
  const clear = () =>
    ask({
      title: t.clearTitle[kind](name),
      text: t.clearText[kind](count(filter.stats.available ?? filter.stats.items)),
      verb: t.clear[kind],
      typed: filter.name,
      run: async () => {
        await write({ method: "POST", path: `${path}/clear` });
        changed();
      },
    });
  /** The service has rejected the deletion: shows its reasons, and asks again. */
  const removeUsed = (refusal: Problem) =>
    ask({
      title: t.usedTitle(name),
      text: t.usedText[kind],
      shown: <Refusal error={refusal} />,
      verb: t.deleteUsed,
      typed: filter.name,
      run: async () => {
        await write({ method: "DELETE", path, query: { force: true } });
        go(`#/${kind}`);
      },
    });
  const remove = () =>
    ask({
      title: t.deleteTitle(name),
      text: t.deleteText[kind],
      verb: t.delete[kind],
      typed: filter.name,
      run: async () => {
        try {
          await write({ method: "DELETE", path });
          go(`#/${kind}`);
        } catch (error) {
          if (!(error instanceof Problem) || error.code !== "in-use") {
            throw error;
          }
          removeUsed(error);
        }
      },
    });
  return (
    <Panel title={t.title}>
      <div class="buttons">
        {mayClear && (
          <button type="button" class="danger" onClick={clear}>
            {t.clear[kind]}
          </button>
        )}
        {mayDelete && (
          <button type="button" class="danger" onClick={remove}>
            {t.delete[kind]}
          </button>
        )}
      </div>
    </Panel>
  );
}

export function FilterPage({ kind, name }: { readonly kind: Kind; readonly name: string }): JSX.Element {
  const { value, error, reload } = useResource<Filter>({ method: "GET", path: `v1/${kind}/${name}` }, EVERY_SECONDS);
  useEffect(() => {
    if (value?.title !== undefined) {
      titles.value = { ...titles.value, [`${kind}/${name}`]: value.title };
    }
  }, [value?.title]);
  if (value === undefined) {
    return error === undefined ? <p class="lead">{texts.value.reading}</p> : <Refusal error={error} />;
  }
  const props = { kind, filter: value, changed: () => void reload() };
  return (
    <>
      {error !== undefined && <Refusal error={error} />}
      <p class="about">
        <PhaseTag filter={value} />
        {value.title !== undefined && <code>{value.name}</code>}
        <LabelList labels={value.labels} />
        {allowed(on(kind, "PUT")) && (
          <a class="copy" href={`#/${kind === "campaigns" ? "new-campaign" : "new-coupon"}/${name}`}>
            {texts.value.filter.copy[kind]}
          </a>
        )}
      </p>
      <div class="columns">
        <div class="stack">
          <Summary kind={kind} filter={value} />
          <Items {...props} />
          <Change {...props} />
        </div>
        <div class="stack">
          <StatisticsPanel kind={kind} name={name} />
          {kind === "coupons" && value.stock === undefined && <Generate {...props} />}
          <Upload {...props} />
          <Danger {...props} />
        </div>
      </div>
      {kind === "coupons" && value.mode === "strict" && <Redemptions {...props} />}
      <Storage filter={value} />
    </>
  );
}
