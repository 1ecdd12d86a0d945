/** One campaign or coupon: its figures now and over time, and everything that can be done with it. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { on } from "../api/document.ts";
import { NOUN, type Filter, type Kind } from "../api/types.ts";
import { bytes, count, moment, percent, plural, short } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { Chart } from "../parts/chart.tsx";
import { CurlButton } from "../parts/curl.tsx";
import { Bar, Facts, Panel, Refusal, Tag, Text } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { Table } from "../parts/table.tsx";
import { go } from "../route.ts";
import { seen, type Seen } from "../state/seen.ts";
import { allowed } from "../state/session.ts";
import { Items } from "./items.tsx";
import { Redemptions } from "./redemptions.tsx";
import { Upload } from "./upload.tsx";
import { Change, windowTag } from "./window.tsx";

const EVERY_SECONDS = 5;

interface PartProps {
  readonly kind: Kind;
  readonly filter: Filter;
  readonly changed: () => void;
}

function Figures({ kind, filter }: Omit<PartProps, "changed">): JSX.Element {
  const { stats } = filter;
  const share = stats.items / Math.max(1, stats.capacity_now);
  const promise = filter.error_rate;
  const isOver = promise !== undefined && stats.error_rate_now > promise;
  return (
    <Panel title="Figures" aside={<CurlButton call={() => ({ method: "GET", path: `v1/${kind}/${filter.name}` })} />}>
      <Facts
        of={[
          [
            "Items",
            <>
              {count(stats.items)} of {count(stats.capacity_now)}{" "}
              <Bar share={share} label={percent(share)} {...(filter.growth === "fixed" ? { warnFrom: 0.9 } : {})} />
            </>,
          ],
          ["Available", stats.available === undefined ? undefined : count(stats.available)],
          ["Held", stats.held === undefined ? undefined : count(stats.held)],
          ["Redeemed", stats.redeemed === undefined ? undefined : count(stats.redeemed)],
          ["Stock", filter.stock === undefined ? undefined : count(filter.stock)],
          [
            "Error rate now",
            <>
              {isOver ? <Tag tone="bad">{percent(stats.error_rate_now)}</Tag> : percent(stats.error_rate_now)}
              {promise !== undefined && ` of ${percent(promise)} promised`}
            </>,
          ],
          ["Slots taken", percent(stats.load)],
          ["Memory", bytes(stats.memory_bytes)],
          ["Growth", filter.growth === "auto" ? "grows by itself" : "refuses more than its capacity"],
          ["Capacity asked for", count(filter.capacity)],
          ["Case", filter.ignore_case === undefined ? undefined : filter.ignore_case ? "ignored" : "matters"],
          ["Forgets after", filter.forget_after],
          ["Added since created", count(stats.adds)],
          ["Removed since created", count(stats.removes)],
          ["Created", <time dateTime={filter.created_at}>{moment(filter.created_at)}</time>],
        ]}
      />
    </Panel>
  );
}

function OverTime({ list, isCompact }: { readonly list: readonly Seen[]; readonly isCompact: boolean }): JSX.Element {
  const series = useMemo(
    () => ({
      times: list.map(({ at }) => at),
      items: list.map(({ items }) => items),
      held: list.map(({ held }) => held),
      redeemed: list.map(({ redeemed }) => redeemed),
      rate: list.map(({ rate }) => rate),
      memory: list.map(({ memory }) => memory),
    }),
    [list],
  );
  const isCoupon = list.some(({ redeemed }) => redeemed !== null);
  return (
    <Panel title="Over time" aside={<span class="hint">since this page was opened</span>}>
      <Chart
        title="Items"
        times={series.times}
        format={short}
        lines={[
          { label: "all", values: series.items, tone: "accent" },
          ...(isCoupon ? [{ label: "redeemed", values: series.redeemed, tone: "second" } as const] : []),
        ]}
      />
      {isCompact && (
        <Chart
          title="Error rate"
          times={series.times}
          format={percent}
          lines={[{ label: "now", values: series.rate, tone: "accent" }]}
        />
      )}
      <Chart
        title="Memory"
        times={series.times}
        format={bytes}
        isBinary
        lines={[{ label: "now", values: series.memory, tone: "accent" }]}
      />
    </Panel>
  );
}

function Tables({ filter }: { readonly filter: Filter }): JSX.Element {
  const { segments, steps } = filter.stats;
  const rows = segments.map((segment, index) => ({ segment: index + 1, ...segment }));
  return (
    <>
      {segments.length > 0 && (
        <Panel title={plural(segments.length, "segment")}>
          <Table label="Segments, oldest first" rows={rows} />
        </Panel>
      )}
      {Array.isArray(steps) && (
        <Panel title={plural(steps.length, "step")}>
          <Table label="Steps of forgetting" rows={steps} />
        </Panel>
      )}
    </>
  );
}

function Danger({ kind, filter, changed }: PartProps): JSX.Element | null {
  const [typed, setTyped] = useState("");
  const path = `v1/${kind}/${filter.name}`;
  const isTyped = typed === filter.name;
  const [mayClear, mayDelete] = [allowed(on(kind, "POST", "/clear")), allowed(on(kind, "DELETE"))];
  if (!mayClear && !mayDelete) {
    return null;
  }
  const { items } = NOUN[kind];
  return (
    <Panel title="Empty or delete">
      <Text label={`Type the name, ${filter.name}, to go on`} value={typed} change={setTyped} />
      {mayClear && (
        <Action<{ removed: number }>
          label={`Remove all ${items}`}
          tone="danger"
          call={() => (isTyped ? { method: "POST", path: `${path}/clear` } : undefined)}
          done={() => {
            setTyped("");
            changed();
          }}
          answer={({ removed }) => <p class="notice good">{plural(removed, "item")} removed.</p>}
        >
          <p class="hint">
            {kind === "campaigns" ? "It stays, empty." : "It stays, with its held and redeemed codes alone."}
          </p>
        </Action>
      )}
      {mayDelete && (
        <Action
          label={`Delete this ${NOUN[kind].one}`}
          tone="danger"
          call={() => (isTyped ? { method: "DELETE", path } : undefined)}
          done={() => go("#/filters")}
        >
          <p class="hint">It and all that it holds are gone{kind === "coupons" ? ", redemptions, too" : ""}.</p>
        </Action>
      )}
    </Panel>
  );
}

export function FilterPage({ kind, name }: { readonly kind: Kind; readonly name: string }): JSX.Element {
  const { value, error, reload } = useResource<Filter>({ method: "GET", path: `v1/${kind}/${name}` }, EVERY_SECONDS);
  const [list, setList] = useState<readonly Seen[]>([]);
  useEffect(() => {
    if (value !== undefined) {
      setList(seen(kind, value));
    }
  }, [value]);
  if (value === undefined) {
    return error === undefined ? <p class="lead">Reading…</p> : <Refusal error={error} />;
  }
  const changed = () => void reload();
  const props = { kind, filter: value, changed };
  return (
    <>
      {error !== undefined && <Refusal error={error} />}
      <p class="lead">
        {NOUN[kind].one}, {value.mode} {windowTag(value)}
      </p>
      <div class="columns">
        <div class="stack">
          <Figures kind={kind} filter={value} />
          <Items {...props} />
        </div>
        <div class="stack">
          <OverTime list={list} isCompact={value.mode === "compact"} />
          <Upload {...props} />
        </div>
      </div>
      {kind === "coupons" && value.mode === "strict" && <Redemptions {...props} />}
      <div class="columns">
        <div class="stack">
          <Tables filter={value} />
          <Change key={`${value.starts_at} ${value.ends_at} ${value.capacity} ${value.stock}`} {...props} />
        </div>
        <Danger {...props} />
      </div>
    </>
  );
}
