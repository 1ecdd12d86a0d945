/** For operators: whether all is well, what limits the service, and its last hour. */

import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Info } from "../api/types.ts";
import { away, bytes, count, latency, percent, perSecond, short, span } from "../format.ts";
import { named, texts } from "../i18n/texts.ts";
import { Action } from "../parts/action.tsx";
import { Chart } from "../parts/chart.tsx";
import { CurlButton } from "../parts/curl.tsx";
import { Bar, Facts, Panel, Time } from "../parts/panel.tsx";
import { metrics, points, readiness } from "../state/history.ts";
import { sum } from "../state/metrics.ts";
import { allowed, info } from "../state/session.ts";
import { Cluster } from "./cluster.tsx";

/** From which share of a limit on the page warns. */
const NEAR = 0.85;

function figure(name: string, label?: string, value?: string): number {
  const is = label === undefined ? undefined : (labels: Readonly<Record<string, string>>) => labels[label] === value;
  return metrics.value === undefined ? 0 : (sum(metrics.value, name, is) ?? 0);
}

/** What limits the service now, or soon will; the worst first. */
function limits(now: Info | undefined): string[] {
  const found: string[] = [];
  const t = texts.value.system.limits;
  const state = readiness.value;
  if (state !== undefined && !state.isReady) {
    found.push(named(texts.value.problems, state.problem?.code ?? "internal"));
  }
  if (state?.writes !== undefined) {
    found.push(t.noWrites(named(texts.value.problems, state.writes)));
  }
  if (metrics.value === undefined) {
    return found;
  }
  const [taken, limit] = [figure("cuckood_tables_bytes") + figure("cuckood_records_bytes"), figure("cuckood_memory_limit_bytes")];
  if (limit > 0 && taken / limit >= NEAR) {
    found.push(t.memory(percent(taken / limit)));
  }
  const [free, least] = [figure("cuckood_storage_free_bytes"), figure("cuckood_storage_free_min_bytes")];
  if (free < least * 4) {
    found.push(t.disk(bytes(free), bytes(least)));
  }
  const [room, used] = [figure("cuckood_idempotency_room_bytes"), figure("cuckood_idempotency_bytes")];
  if (room > 0 && used / room >= NEAR) {
    found.push(t.records(percent(used / room)));
  }
  const expiry = now?.key?.expires_at;
  if (expiry !== undefined && new Date(expiry).getTime() < Date.now() + 14 * 86_400_000) {
    found.push(t.key(away(expiry)));
  }
  return found;
}

function Verdict({ now }: { readonly now: Info | undefined }): JSX.Element {
  const t = texts.value.system;
  const state = readiness.value;
  const found = limits(now);
  if (state === undefined) {
    return <p class="verdict">{texts.value.asking}</p>;
  }
  const tone = !state.isReady ? "bad" : found.length > 0 ? "warn" : "good";
  return (
    <div class={`verdict ${tone}`} role="status">
      <strong>{tone === "good" ? t.good : state.isReady ? t.limited : t.bad}</strong> {found.length === 0 ? t.goodText : found.join(" ")}
    </div>
  );
}

interface TileProps {
  readonly label: string;
  readonly value: ComponentChildren;
  readonly note?: ComponentChildren;
  readonly children?: ComponentChildren;
}

function Tile({ label, value, note, children }: TileProps): JSX.Element {
  return (
    <div class="tile">
      <dt>{label}</dt>
      <dd>
        <strong>{value}</strong>
        {children}
        {note !== undefined && <small>{note}</small>}
      </dd>
    </div>
  );
}

function Tiles(): JSX.Element {
  const t = texts.value.system;
  const now = points.value.at(-1);
  const rate = (value: number | null | undefined) => (value === null || value === undefined ? "–" : perSecond(value));
  const wait = (value: number | null | undefined) => (value === null || value === undefined ? "–" : latency(value));
  const [memory, limit] = [now?.memory ?? 0, figure("cuckood_memory_limit_bytes")];
  const [disk, free] = [now?.disk ?? 0, figure("cuckood_storage_free_bytes")];
  const running = figure("cuckood_imports", "state", "running");
  return (
    <dl class="tiles">
      <Tile label={t.requests} value={`${rate(now?.requests)}/s`} note={t.failedRate(rate(now?.failures))} />
      <Tile label={t.readTime} value={wait(now?.reads)} note={t.writeTime(wait(now?.writes))} />
      <Tile label={t.commits} value={`${rate(now?.commits)}/s`} note={t.entryRate(rate(now?.entries))} />
      <Tile
        label={t.uploads}
        value={count(running)}
        note={allowed("GET /v1/imports") ? <a href="#/uploads">{texts.value.nav.uploads}</a> : undefined}
      />
      <Tile label={t.memory} value={bytes(memory)} note={t.of(percent(limit > 0 ? memory / limit : 0), bytes(limit))}>
        <Bar share={limit > 0 ? memory / limit : 0} label={t.memory} warnFrom={NEAR} />
      </Tile>
      <Tile label={t.disk} value={bytes(disk)} note={t.free(bytes(free))}>
        <Bar share={disk + free > 0 ? disk / (disk + free) : 0} label={t.disk} warnFrom={0.9} />
      </Tile>
    </dl>
  );
}

function Charts(): JSX.Element {
  const t = texts.value.system;
  const hour = points.value;
  const series = useMemo(
    () => ({
      times: hour.map(({ at }) => at),
      requests: hour.map(({ requests }) => requests),
      failures: hour.map(({ failures }) => failures),
      reads: hour.map(({ reads }) => reads),
      writes: hour.map(({ writes }) => writes),
      commits: hour.map(({ commits }) => commits),
      entries: hour.map(({ entries }) => entries),
      memory: hour.map(({ memory }) => memory),
    }),
    [hour],
  );
  const { times } = series;
  const perSecondText = (value: number) => `${perSecond(value)}/s`;
  return (
    <Panel title={t.hour} wide aside={<span class="hint">{t.hourHint}</span>}>
      <div class="charts">
        <Chart
          title={t.requests}
          times={times}
          format={perSecondText}
          lines={[
            { label: t.all, values: series.requests, tone: "accent" },
            { label: t.failed, values: series.failures, tone: "bad" },
          ]}
        />
        <Chart
          title={t.latency}
          times={times}
          format={latency}
          lines={[
            { label: t.reads, values: series.reads, tone: "accent" },
            { label: t.writes, values: series.writes, tone: "second" },
          ]}
        />
        <Chart
          title={t.commits}
          times={times}
          format={perSecondText}
          lines={[
            { label: t.commits, values: series.commits, tone: "accent" },
            { label: t.entries, values: series.entries, tone: "second" },
          ]}
        />
        <Chart
          title={t.memory}
          times={times}
          format={bytes}
          isBinary
          lines={[{ label: t.used, values: series.memory, tone: "accent" }]}
        />
      </div>
    </Panel>
  );
}

function Content({ now }: { readonly now: Info }): JSX.Element {
  const t = texts.value;
  const of = (kind: string) => figure("cuckood_filters", "kind", kind);
  const codes = (status: string) => count(figure("cuckood_codes", "status", status));
  const { idempotency_records, idempotency_bytes, idempotency_room_bytes } = now;
  return (
    <Panel title={t.system.content}>
      <Facts
        of={[
          [t.nav.campaigns, count(of("campaign"))],
          [t.nav.coupons, count(of("coupon"))],
          [t.system.available, codes("available")],
          [t.system.held, codes("held")],
          [t.system.redeemed, codes("redeemed")],
          [t.system.redemptions, count(now.redemptions)],
          [t.system.records, `${short(idempotency_records)}, ${t.system.of(bytes(idempotency_bytes), bytes(idempotency_room_bytes))}`],
        ]}
      />
    </Panel>
  );
}

function Service({ now }: { readonly now: Info }): JSX.Element {
  const t = texts.value.system;
  const { snapshot } = now;
  return (
    <Panel title={t.service}>
      <Facts
        of={[
          [t.version, now.version],
          [t.uptime, span(now.uptime_seconds)],
          [t.durability, named(t.durabilities, now.durability)],
          [t.lastEntry, count(now.last_seq)],
          [t.snapshot, snapshot === undefined ? t.noSnapshot : <Time at={snapshot.taken_at} />],
          [t.sinceSnapshot, snapshot === undefined ? undefined : count(now.last_seq - snapshot.seq)],
          [t.logWritten, bytes(now.storage.wal_bytes_written)],
        ]}
      />
      {now.key?.prefix === undefined && allowed("POST /v1/snapshots") && (
        <Action<{ bytes_written: number; seconds: number }>
          label={t.takeSnapshot}
          tone="quiet"
          call={() => ({ method: "POST", path: "v1/snapshots" })}
          answer={(taken) => <p class="notice good">{t.snapshotTaken(bytes(taken.bytes_written), latency(taken.seconds))}</p>}
        />
      )}
      {now.key?.prefix === undefined && allowed("GET /v1/backup") && (
        <p class="hint">
          {t.backup} <CurlButton call={() => ({ method: "GET", path: "v1/backup", saveAs: "cuckood.backup" })} />
        </p>
      )}
    </Panel>
  );
}

export function System(): JSX.Element {
  const now = info.value;
  return (
    <>
      <Verdict now={now} />
      <Tiles />
      <Charts />
      {now !== undefined && (
        <div class="columns">
          <Content now={now} />
          <Service now={now} />
          {allowed("GET /v1/cluster") && <Cluster />}
        </div>
      )}
      <p class="hint">
        <a href="#/requests">{texts.value.nav.requests}</a>: {texts.value.requests.about}
      </p>
    </>
  );
}
