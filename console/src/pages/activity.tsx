/** What has happened, as it happens. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { Problem, text } from "../api/client.ts";
import { rowsOf, spreadsheet, type Cells } from "../api/csv.ts";
import type { Row } from "../api/types.ts";
import { count } from "../format.ts";
import { named, texts } from "../i18n/texts.ts";
import { Download } from "../parts/download.tsx";
import { Pager } from "../parts/pager.tsx";
import { Empty, Refusal, Text, Time } from "../parts/panel.tsx";
import { Grid } from "../parts/table.tsx";
import { metrics } from "../state/history.ts";
import { sum } from "../state/metrics.ts";

const KEPT = 1_000;
/** How many are drawn at a time. */
const ROWS = 50;
/** The most that one answer has. */
const EXPORT_ROWS = 10_000;
/** How far back the feed begins. */
const BACK = 500;
const WAIT_SECONDS = 25;
/** A busy service is asked no more often than this. */
const PAUSE_MILLISECONDS = 500;
/** The pause after an error, such as a restart of the service. */
const RETRY_MILLISECONDS = 5_000;

interface Event_ extends Row {
  readonly seq: number;
  readonly at: string;
  readonly key?: string;
  readonly event: string;
}

function call(after: number | undefined): Call {
  return { method: "GET", path: "v1/events", query: { after, limit: BACK, wait: WAIT_SECONDS } };
}

async function read(call: Call, signal: AbortSignal): Promise<readonly Event_[]> {
  const lines = (await text(call, signal)).split("\n").filter((line) => line !== "");
  return lines.map((line) => JSON.parse(line) as Event_);
}

/** The event behind which the feed begins: near the last one, whose number nobody tells. None if there are no events. */
async function beginning(signal: AbortSignal): Promise<number | undefined> {
  const [oldest] = await read({ method: "GET", path: "v1/events", query: { limit: 1 } }, signal);
  const kept = metrics.value === undefined ? 0 : (sum(metrics.value, "cuckood_events_kept") ?? 0);
  return oldest === undefined ? undefined : oldest.seq - 1 + Math.max(0, kept - BACK);
}

/** After how long asking again may help: the service does not answer, is not ready, or is asked too often. Never, if that is not given. */
function pauseAfter(error: unknown): number | undefined {
  if (!(error instanceof Problem)) {
    return RETRY_MILLISECONDS;
  }
  const mayPass = error.status === 0 || error.status === 408 || error.status === 429 || error.status >= 500;
  return mayPass ? (error.retryAfter ?? RETRY_MILLISECONDS / 1_000) * 1_000 : undefined;
}

/** Follows the feed until it is told to stop. `tell` gets what keeps it from going on, and `undefined` once it goes on. */
async function follow(
  take: (events: readonly Event_[]) => void,
  tell: (error: unknown) => void,
  signal: AbortSignal,
): Promise<void> {
  let after: number | undefined;
  let hasBegun = false;
  while (!signal.aborted) {
    let pause = PAUSE_MILLISECONDS;
    try {
      if (!hasBegun) {
        after = await beginning(signal);
        hasBegun = true;
        if (after === undefined) {
          take([]);
        }
      }
      const events = await read(call(after), signal);
      after = events.at(-1)?.seq ?? after;
      take(events);
      tell(undefined);
    } catch (error) {
      if (error instanceof Problem && error.code === "events-gone") {
        // What comes next is no longer kept.
        hasBegun = false;
      } else if (!signal.aborted) {
        tell(error);
        const asked = pauseAfter(error);
        if (asked === undefined) {
          return;
        }
        pause = asked;
      }
    }
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

/** Everything on record as a file, which comes in several answers. */
async function exported(): Promise<Blob> {
  const all: Cells[] = [];
  let after: number | undefined;
  for (;;) {
    const part = await text({ method: "GET", path: "v1/events", query: { after, limit: EXPORT_ROWS }, headers: { Accept: "text/csv" } });
    const [head = [], ...rows] = rowsOf(part);
    all.push(...(after === undefined ? [head] : []), ...rows);
    after = Number(rows.at(-1)?.[head.indexOf("seq")]);
    if (rows.length < EXPORT_ROWS) {
      return spreadsheet(all);
    }
  }
}

/** What it is about, and where that is. */
function Subject({ of }: { readonly of: Event_ }): JSX.Element | null {
  const [place, name] = Object.entries({ campaigns: of["campaign"], coupons: of["coupon"], "line-ups": of["line_up"] }).find(([, value]) => value !== undefined) ?? [];
  return typeof name === "string" ? <a href={`#/${place}/${name}`}>{name}</a> : null;
}

const NUMBERS = ["added", "removed", "replaced", "rejected", "lines", "capacity", "stock"] as const;

/** Its other fields, in words. */
function details(event: Event_): string {
  const t = texts.value;
  const numbers = NUMBERS.flatMap((field) => (typeof event[field] === "number" ? [`${t.fields[field]} ${count(event[field])}`] : []));
  const status = event["status"] === undefined ? undefined : named(t.outcomes, String(event["status"]));
  const kept = event["released"] === false ? t.redemptions.isKept : undefined;
  const words = [event["reference"], status, kept, event["failure"] === undefined ? undefined : named(t.problems, String(event["failure"]))];
  return [...words.filter((word) => word !== undefined), ...numbers].join(", ");
}

export function Activity(): JSX.Element {
  const t = texts.value.activity;
  const [events, setEvents] = useState<readonly Event_[] | undefined>(undefined);
  const [search, setSearch] = useState("");
  const [asked, setPage] = useState(0);
  const [error, setError] = useState<unknown>(undefined);
  useEffect(() => {
    const controller = new AbortController();
    const take = (more: readonly Event_[]) => setEvents((before = []) => [...more].reverse().concat(before).slice(0, KEPT));
    void follow(take, setError, controller.signal);
    return () => controller.abort();
  }, []);
  const words = search.toLowerCase();
  const wordsOf = (event: Event_) => `${JSON.stringify(event)} ${named(texts.value.events, event.event)}`.toLowerCase();
  const shown = (events ?? []).filter((event) => wordsOf(event).includes(words));
  const pages = Math.max(1, Math.ceil(shown.length / ROWS));
  const page = Math.min(asked, pages - 1);
  if (events === undefined) {
    return error === undefined ? <p class="lead">{texts.value.reading}</p> : <Refusal error={error} />;
  }
  return (
    <>
      {error !== undefined && <Refusal error={error} />}
      {events.length === 0 ? (
        <Empty text={t.none} />
      ) : (
        <>
          <p class="lead">{t.about} {texts.value.csvHint}</p>
          <div class="tools">
            <Text label={texts.value.search} type="search" value={search} change={setSearch} placeholder={t.searchHint} />
            <Download label={texts.value.csv} name="events.csv" content={exported} />
          </div>
          {shown.length === 0 ? (
            <Empty text={texts.value.noMatch} />
          ) : (
            <Grid
              label={t.list}
              columns={[{ title: t.time }, { title: t.event }, { title: t.subject }, { title: t.details }, { title: t.key }]}
              rows={shown.slice(page * ROWS, (page + 1) * ROWS).map((event) => ({
                key: event.seq,
                cells: [<Time at={event.at} />, named(texts.value.events, event.event), <Subject of={event} />, details(event), event.key ?? ""],
              }))}
            />
          )}
          <Pager page={page} pages={pages} hasNext={page + 1 < pages} change={setPage} />
        </>
      )}
    </>
  );
}
