/** Prometheus' text format, and the figures that two readings of it give. */

/** A sample: its labels and its value. */
interface Sample {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** All samples by name. */
export type Metrics = ReadonlyMap<string, readonly Sample[]>;

/** One reading, and when it was made (milliseconds). */
export interface Reading {
  readonly at: number;
  readonly metrics: Metrics;
}

/** What a moment looked like. Rates are of the time since the reading before. */
export interface Point {
  /** Seconds since the epoch. */
  readonly at: number;
  readonly requests: number | null;
  readonly failures: number | null;
  /** The 99th percentiles of their times, in seconds. */
  readonly reads: number | null;
  readonly writes: number | null;
  readonly commits: number | null;
  readonly entries: number | null;
  readonly memory: number;
  readonly disk: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

export function parse(text: string): Metrics {
  const found = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (match === null) {
      continue;
    }
    const [, name = "", list = "", value = ""] = match;
    const labels = Object.fromEntries([...list.matchAll(LABEL)].map(([, label, content]) => [label, content]));
    const samples = found.get(name) ?? [];
    samples.push({ labels, value: value === "+Inf" ? Infinity : Number(value) });
    found.set(name, samples);
  }
  return found;
}

/** The sum of a metric's samples that have these labels; undefined if there are none. */
export function sum(
  metrics: Metrics,
  name: string,
  is: (labels: Readonly<Record<string, string>>) => boolean = () => true,
): number | undefined {
  const samples = metrics.get(name)?.filter((sample) => is(sample.labels));
  return samples === undefined || samples.length === 0
    ? undefined
    : samples.reduce((total, sample) => total + sample.value, 0);
}

/** Requests that clients make. What a page like this one and a monitor ask all the time is left out. */
function isWork(labels: Readonly<Record<string, string>>): boolean {
  const route = labels["route"] ?? "";
  return route.startsWith("/v1/") && !["/v1/info", "/v1/imports", "/v1/imports/{id}", "/v1/cluster"].includes(route);
}

/** Groups of routes whose time says how fast the service is. Uploads and backups take as long as they take. */
function isPrompt(labels: Readonly<Record<string, string>>): boolean {
  return !/^(none|operations.*|imports.*|events.*)$/.test(labels["group"] ?? "");
}

const REQUESTS = "cuckood_http_requests_total";
const DURATIONS = "cuckood_http_request_duration_seconds_bucket";

function buckets(metrics: Metrics, isRead: boolean): Map<number, number> {
  const found = new Map<number, number>();
  for (const { labels, value } of metrics.get(DURATIONS) ?? []) {
    if (isPrompt(labels) && labels["group"]?.endsWith("-read") === isRead) {
      const limit = labels["le"] === "+Inf" ? Infinity : Number(labels["le"]);
      found.set(limit, (found.get(limit) ?? 0) + value);
    }
  }
  return found;
}

/** The quantile of cumulative buckets, with a straight line inside a bucket, as Prometheus does it. */
export function quantile(share: number, counts: ReadonlyMap<number, number>): number | null {
  const limits = [...counts].sort(([a], [b]) => a - b);
  const total = limits.at(-1)?.[1] ?? 0;
  if (total <= 0) {
    return null;
  }
  const rank = share * total;
  let [lower, below] = [0, 0];
  for (const [limit, reached] of limits) {
    if (reached >= rank && reached > below) {
      return limit === Infinity ? lower : lower + ((limit - lower) * (rank - below)) / (reached - below);
    }
    [lower, below] = [limit, reached];
  }
  return lower;
}

/** What happened between two readings. After a restart the counters begin anew, and nothing can be said. */
export function between(before: Reading | undefined, now: Reading): Point {
  const value = (name: string) => sum(now.metrics, name) ?? 0;
  const state = {
    at: now.at / 1000,
    memory: value("cuckood_tables_bytes") + value("cuckood_records_bytes"),
    disk: value("cuckood_storage_used_bytes"),
  };
  const start = "process_start_time_seconds";
  const seconds = before === undefined ? 0 : (now.at - before.at) / 1000;
  if (before === undefined || seconds <= 0 || sum(before.metrics, start) !== sum(now.metrics, start)) {
    return { ...state, requests: null, failures: null, reads: null, writes: null, commits: null, entries: null };
  }
  const rate = (name: string, is?: (labels: Readonly<Record<string, string>>) => boolean) =>
    Math.max(0, (sum(now.metrics, name, is) ?? 0) - (sum(before.metrics, name, is) ?? 0)) / seconds;
  const slowest = (isRead: boolean) => {
    const earlier = buckets(before.metrics, isRead);
    const counts = [...buckets(now.metrics, isRead)].map(([limit, c]) => [limit, c - (earlier.get(limit) ?? 0)] as const);
    return quantile(0.99, new Map(counts));
  };
  return {
    ...state,
    requests: rate(REQUESTS, isWork),
    failures: rate(REQUESTS, (labels) => isWork(labels) && (labels["status"] ?? "").startsWith("5")),
    reads: slowest(true),
    writes: slowest(false),
    commits: rate("cuckood_commits_total"),
    entries: rate("cuckood_entries_total"),
  };
}
