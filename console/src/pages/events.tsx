/** What has happened, as it happens. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { Problem, text } from "../api/client.ts";
import type { Row } from "../api/types.ts";
import { moment } from "../format.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Refusal, Text } from "../parts/panel.tsx";
import { metrics } from "../state/history.ts";
import { sum } from "../state/metrics.ts";

const KEPT = 1_000;
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

const HEAD = ["seq", "at", "key", "event"];

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

/** Whether asking again may help: the service does not answer, or is not ready. */
function mayPass(error: unknown): boolean {
  return !(error instanceof Problem) || error.status === 0 || error.status >= 500;
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
        if (!mayPass(error)) {
          return;
        }
        pause = RETRY_MILLISECONDS;
      }
    }
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

function rest(event: Event_): string {
  const others = Object.entries(event).filter(([field]) => !HEAD.includes(field));
  return others.map(([field, value]) => `${field} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

export function Events(): JSX.Element {
  const [events, setEvents] = useState<readonly Event_[]>([]);
  const [search, setSearch] = useState("");
  const [error, setError] = useState<unknown>(undefined);
  useEffect(() => {
    const controller = new AbortController();
    const take = (more: readonly Event_[]) =>
      setEvents((before) => [...more].reverse().concat(before).slice(0, KEPT));
    void follow(take, setError, controller.signal);
    return () => controller.abort();
  }, []);
  const words = search.toLowerCase();
  const shown = events.filter((event) => JSON.stringify(event).toLowerCase().includes(words));
  return (
    <>
      <div class="tools">
        <Text label="Search" type="search" value={search} change={setSearch} placeholder="an event, a key, a name …" />
        <CurlButton call={() => call(events[0]?.seq)} />
      </div>
      {error !== undefined && <Refusal error={error} />}
      {shown.length === 0 ? (
        <p class="lead">{events.length === 0 ? "Nothing yet. What happens from now on comes by itself." : "None of them."}</p>
      ) : (
        <div class="scroll" role="region" aria-label="Events, the newest first" tabIndex={0}>
          <table class="cards">
            <thead>
              <tr>
                {["Time", "Event", "Key", "What"].map((title) => (
                  <th key={title} scope="col">
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((event) => (
                <tr key={event.seq}>
                  <td data-label="Time">
                    <time dateTime={event.at} title={`${event.at}, ${event.seq}`}>
                      {moment(event.at)}
                    </time>
                  </td>
                  <td data-label="Event">{event.event}</td>
                  <td data-label="Key">{event.key ?? "–"}</td>
                  <td data-label="What">{rest(event)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
