/** Whether all is well, what limits the service, and its last hour. */

import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Info } from "../api/types.ts";
import { away, bytes, count, latency, moment, percent, perSecond, plural, short, span } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { Chart } from "../parts/chart.tsx";
import { CurlButton } from "../parts/curl.tsx";
import { Bar, Facts, Panel } from "../parts/panel.tsx";
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
  const state = readiness.value;
  if (state !== undefined && !state.isReady) {
    found.push(state.problem?.detail ?? "no reason is known");
  }
  if (state?.writes !== undefined) {
    found.push(`Writes are refused: ${state.writes}. Reads are answered.`);
  }
  if (metrics.value === undefined) {
    return found;
  }
  const [taken, limit] = [figure("cuckood_tables_bytes") + figure("cuckood_records_bytes"), figure("cuckood_memory_limit_bytes")];
  if (limit > 0 && taken / limit >= NEAR) {
    found.push(`Memory is at ${percent(taken / limit)} of its limit.`);
  }
  const [free, least] = [figure("cuckood_storage_free_bytes"), figure("cuckood_storage_free_min_bytes")];
  if (free < least * 4) {
    found.push(`${bytes(free)} of disk are free; below ${bytes(least)} writes are refused.`);
  }
  const [room, used] = [figure("cuckood_idempotency_room_bytes"), figure("cuckood_idempotency_bytes")];
  if (room > 0 && used / room >= NEAR) {
    found.push(`Stored answers take ${percent(used / room)} of their room: they are soon kept for less than a day.`);
  }
  const expiry = now?.key?.expires_at;
  if (expiry !== undefined && new Date(expiry).getTime() < Date.now() + 14 * 86_400_000) {
    found.push(`This key expires ${away(expiry)}.`);
  }
  return found;
}

function Verdict({ now }: { readonly now: Info | undefined }): JSX.Element {
  const state = readiness.value;
  const found = limits(now);
  if (state === undefined) {
    return <p class="verdict">Asking the service…</p>;
  }
  const tone = !state.isReady ? "bad" : found.length > 0 ? "warn" : "good";
  return (
    <div class={`verdict ${tone}`} role="status">
      <strong>{tone === "good" ? "All is well." : state.isReady ? "Ready, but limited." : "Not ready."}</strong>{" "}
      {found.length === 0 ? "The service is ready, and takes reads and writes." : found.join(" ")}
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
  const now = points.value.at(-1);
  const rate = (value: number | null | undefined) => (value === null || value === undefined ? "–" : perSecond(value));
  const wait = (value: number | null | undefined) => (value === null || value === undefined ? "–" : latency(value));
  const [memory, limit] = [now?.memory ?? 0, figure("cuckood_memory_limit_bytes")];
  const [disk, free] = [now?.disk ?? 0, figure("cuckood_storage_free_bytes")];
  const running = figure("cuckood_imports", "state", "running");
  return (
    <dl class="tiles">
      <Tile label="Requests" value={`${rate(now?.requests)}/s`} note={`${rate(now?.failures)}/s failed`} />
      <Tile label="Reads, p99" value={wait(now?.reads)} note={`writes ${wait(now?.writes)}`} />
      <Tile label="Commits" value={`${rate(now?.commits)}/s`} note={`${rate(now?.entries)} entries/s`} />
      <Tile
        label="Imports under way"
        value={count(running)}
        note={allowed("GET /v1/imports") ? <a href="#/imports">All imports</a> : undefined}
      />
      <Tile label="Memory" value={bytes(memory)} note={`${percent(limit > 0 ? memory / limit : 0)} of ${bytes(limit)}`}>
        <Bar share={limit > 0 ? memory / limit : 0} label="Memory against its limit" warnFrom={NEAR} />
      </Tile>
      <Tile label="Disk" value={bytes(disk)} note={`${bytes(free)} free`}>
        <Bar share={disk + free > 0 ? disk / (disk + free) : 0} label="Disk taken of what there is for it" warnFrom={0.9} />
      </Tile>
    </dl>
  );
}

function Charts(): JSX.Element {
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
    <Panel title="The last hour" wide aside={<span class="hint">as far as this page has seen it</span>}>
      <div class="charts">
        <Chart
          title="Requests"
          times={times}
          format={perSecondText}
          lines={[
            { label: "all", values: series.requests, tone: "accent" },
            { label: "failed", values: series.failures, tone: "bad" },
          ]}
        />
        <Chart
          title="Latency, p99"
          times={times}
          format={latency}
          lines={[
            { label: "reads", values: series.reads, tone: "accent" },
            { label: "writes", values: series.writes, tone: "second" },
          ]}
        />
        <Chart
          title="Commits"
          times={times}
          format={perSecondText}
          lines={[
            { label: "commits", values: series.commits, tone: "accent" },
            { label: "entries", values: series.entries, tone: "second" },
          ]}
        />
        <Chart
          title="Memory"
          times={times}
          format={bytes}
          isBinary
          lines={[{ label: "filters and records", values: series.memory, tone: "accent" }]}
        />
      </div>
    </Panel>
  );
}

function Content({ now }: { readonly now: Info }): JSX.Element {
  const of = (kind: string) => figure("cuckood_filters", "kind", kind);
  const codes = (status: string) => count(figure("cuckood_codes", "status", status));
  return (
    <Panel title="What it holds" aside={<a href="#/filters">All filters</a>}>
      <Facts
        of={[
          ["Campaigns", count(of("campaign"))],
          ["Coupons", count(of("coupon"))],
          ["Codes available", codes("available")],
          ["Codes held", codes("held")],
          ["Codes redeemed", codes("redeemed")],
          ["Redemptions on record", count(now.redemptions)],
          [
            "Stored answers",
            `${short(now.idempotency_records)}, ${bytes(now.idempotency_bytes)} of ${bytes(now.idempotency_room_bytes)}`,
          ],
        ]}
      />
    </Panel>
  );
}

function Service({ now }: { readonly now: Info }): JSX.Element {
  const durability: Record<string, string> = {
    fsync: "fsync: survives the machine's death",
    flush: "flush: survives the process's death",
    relaxed: "relaxed: the last 100 ms can be lost",
  };
  const { snapshot } = now;
  return (
    <Panel title="Service">
      <Facts
        of={[
          ["Version", now.version],
          ["Up for", span(now.uptime_seconds)],
          ["Durability", durability[now.durability] ?? now.durability],
          ["Last log entry", count(now.last_seq)],
          [
            "Snapshot",
            snapshot === undefined ? (
              "none yet"
            ) : (
              <time dateTime={snapshot.taken_at} title={snapshot.taken_at}>
                {moment(snapshot.taken_at)}, {plural(now.last_seq - snapshot.seq, "entry", "entries")} since
              </time>
            ),
          ],
          ["Log written", `${bytes(now.storage.wal_bytes_written)} since the start`],
        ]}
      />
      {now.key?.prefix === undefined && allowed("POST /v1/snapshots") && (
        <Action<{ bytes_written: number; seconds: number }>
          label="Take a snapshot"
          tone="quiet"
          call={() => ({ method: "POST", path: "v1/snapshots" })}
          answer={(taken) => (
            <p class="notice good">
              {bytes(taken.bytes_written)} written in {taken.seconds.toFixed(2)} s
            </p>
          )}
        />
      )}
      {now.key?.prefix === undefined && allowed("GET /v1/backup") && (
        <p class="hint">
          A backup can be large: <CurlButton call={() => ({ method: "GET", path: "v1/backup", saveAs: "cuckood.backup" })} label="get it with curl" />
        </p>
      )}
    </Panel>
  );
}

export function Overview(): JSX.Element {
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
    </>
  );
}
