/** Redeems and holds codes of a coupon, lists its redemptions, confirms and cancels them. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { json } from "../api/client.ts";
import type { Filter, Redemption } from "../api/types.ts";
import { away, moment } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { CurlButton } from "../parts/curl.tsx";
import { Field, Panel, Refusal, Tag, Text, type Tone } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { allowed } from "../state/session.ts";

const TONES: Record<Redemption["status"], Tone> = { held: "warn", redeemed: "good", cancelled: "quiet", expired: "quiet" };
const ROWS = 20;

interface RedemptionsProps {
  readonly filter: Filter;
  readonly changed: () => void;
}

interface Page {
  readonly redemptions: readonly Redemption[];
  readonly next_cursor?: string;
}

function Redeem({ filter, changed }: RedemptionsProps): JSX.Element {
  const [code, setCode] = useState("");
  const [reference, setReference] = useState("");
  const [seconds, setSeconds] = useState("0");
  const isHold = Number(seconds) > 0;
  const call = (): Call | undefined =>
    code === "" || reference === ""
      ? undefined
      : {
          method: "POST",
          path: `v1/coupons/${filter.name}/redemptions`,
          body: { code, reference, hold_seconds: isHold ? Number(seconds) : undefined },
        };
  return (
    <Action<Redemption>
      label={isHold ? "Hold" : "Redeem"}
      call={call}
      done={changed}
      answer={({ id, status, reference: of, expires_at }) => (
        <p class="notice good">
          {status === "held" ? `Held until ${moment(expires_at ?? "")}` : "Redeemed"} for {of}: <code>{id}</code>
        </p>
      )}
    >
      <div class="fields">
        <Text label="Code" value={code} change={setCode} required />
        <Text label="Reference" value={reference} change={setReference} hint="Your own id, order-42 say" required />
        <Text label="Hold for seconds" type="number" min={0} max={604_800} value={seconds} change={setSeconds} hint="0 redeems at once" />
      </div>
    </Action>
  );
}

interface StepProps {
  readonly coupon: string;
  readonly redemption: Redemption;
  readonly step: "confirm" | "cancel";
  readonly changed: () => void;
  readonly failed: (error: unknown) => void;
}

function Step({ coupon, redemption, step, changed, failed }: StepProps): JSX.Element {
  const [isRunning, setRunning] = useState(false);
  const call: Call = { method: "POST", path: `v1/coupons/${coupon}/redemptions/${redemption.id}/${step}` };
  const run = async () => {
    setRunning(true);
    try {
      await json(call);
      failed(undefined);
    } catch (error) {
      failed(error);
    }
    setRunning(false);
    changed();
  };
  const verb = step === "confirm" ? "Confirm" : "Cancel";
  return (
    <button type="button" class="small" disabled={isRunning} aria-label={`${verb} ${redemption.reference}`} onClick={run}>
      {verb}
    </button>
  );
}

interface RowProps {
  readonly coupon: string;
  readonly redemption: Redemption;
  readonly changed: () => void;
  readonly failed: (error: unknown) => void;
}

function Line({ coupon, redemption, changed, failed }: RowProps): JSX.Element {
  const { id, status, reference, created_at, expires_at, redeemed_at, cancelled_at, ordinal } = redemption;
  const isHeld = status === "held";
  const mayConfirm = isHeld && allowed("POST /v1/coupons/{coupon}/redemptions/{id}/confirm");
  const mayCancel = (isHeld || status === "redeemed") && allowed("POST /v1/coupons/{coupon}/redemptions/{id}/cancel");
  const since = status === "redeemed" ? redeemed_at : status === "cancelled" ? cancelled_at : expires_at;
  return (
    <tr>
      <td data-label="Reference">
        {reference}
        {ordinal !== undefined && <span class="beside"> no. {ordinal}</span>}
      </td>
      <td data-label="Status">
        <Tag tone={TONES[status]}>{status}</Tag>
      </td>
      <td data-label="Ends, or since">
        {since !== undefined && (
          <time dateTime={since} title={since}>
            {isHeld ? `ends ${away(since)}` : moment(since)}
          </time>
        )}
      </td>
      <td data-label="Created">
        <time dateTime={created_at} title={created_at}>
          {moment(created_at)}
        </time>
      </td>
      <td data-label="Id">
        <code title={id}>{id.slice(0, 8)}…</code>
      </td>
      <td class="acts">
        {mayConfirm && <Step step="confirm" {...{ coupon, redemption, changed, failed }} />}
        {mayCancel && <Step step="cancel" {...{ coupon, redemption, changed, failed }} />}
      </td>
    </tr>
  );
}

export function Redemptions({ filter, changed }: RedemptionsProps): JSX.Element | null {
  const [reference, setReference] = useState("");
  const [status, setStatus] = useState("");
  const [cursors, setCursors] = useState<readonly string[]>([]);
  const [failure, setFailure] = useState<unknown>(undefined);
  const mayList = allowed("GET /v1/coupons/{coupon}/redemptions");
  const call: Call = {
    method: "GET",
    path: `v1/coupons/${filter.name}/redemptions`,
    query: { reference, status, limit: ROWS, cursor: cursors.at(-1) },
  };
  const { value, error, reload } = useResource<Page>(mayList ? call : undefined, 5);
  const again = () => {
    void reload();
    changed();
  };
  const first = (set: (text: string) => void) => (text: string) => {
    set(text);
    setCursors([]);
  };
  const rows = value?.redemptions ?? [];
  const next = value?.next_cursor;
  return (
    <Panel title="Redemptions" wide aside={<CurlButton call={() => call} />}>
      {allowed("POST /v1/coupons/{coupon}/redemptions") && <Redeem filter={filter} changed={again} />}
      <div class="fields">
        <Text label="Search by reference" type="search" value={reference} change={first(setReference)} />
        <Field label="Status">
          {(id) => (
            <select id={id} value={status} onChange={(event) => first(setStatus)(event.currentTarget.value)}>
              <option value="">all</option>
              {Object.keys(TONES).map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
        </Field>
      </div>
      {failure !== undefined && <Refusal error={failure} />}
      {error !== undefined && <Refusal error={error} />}
      {rows.length === 0 ? (
        <p class="hint">{value === undefined ? "Reading…" : "No redemptions."}</p>
      ) : (
        <div class="scroll" role="region" aria-label="Redemptions, the oldest change first" tabIndex={0}>
          <table class="cards">
            <thead>
              <tr>
                {["Reference", "Status", "Ends, or since", "Created", "Id"].map((text) => (
                  <th key={text} scope="col">
                    {text}
                  </th>
                ))}
                <th scope="col">
                  <span class="unseen">What to do</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((redemption) => (
                <Line key={redemption.id} coupon={filter.name} redemption={redemption} changed={again} failed={setFailure} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {(cursors.length > 0 || next !== undefined) && (
        <nav class="pages" aria-label="Pages of redemptions">
          <button type="button" class="plain" disabled={cursors.length === 0} onClick={() => setCursors(cursors.slice(0, -1))}>
            ← Previous
          </button>
          <span>Page {cursors.length + 1}</span>
          <button type="button" class="plain" disabled={next === undefined} onClick={() => next && setCursors([...cursors, next])}>
            Next →
          </button>
        </nav>
      )}
    </Panel>
  );
}
