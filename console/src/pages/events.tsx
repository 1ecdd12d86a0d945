/** What has happened, as it happens. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { Problem, text } from "../api/client.ts";
import type { Row } from "../api/types.ts";
import { moment } from "../format.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Refusal, Text } from "../parts/panel.tsx";
import { info } from "../state/session.ts";

const KEPT = 1_000;
/** How far back the feed begins. */
const BACK = 500;
const WAIT_SECONDS = 25;
/** A busy service is asked no more often than this. */
const PAUSE_MILLISECONDS = 500;

interface Event_ extends Row {
  readonly seq: number;
  readonly at: string;
  readonly key?: string;
  readonly event: string;
}

const HEAD = ["seq", "at", "key", "event"];

function call(after: number): Call {
  return { method: "GET", path: "v1/events", query: { after, limit: BACK, wait: WAIT_SECONDS } };
}

/** Follows the feed from here on, until it is told to stop. */
async function follow(from: number, take: (events: readonly Event_[]) => void, signal: AbortSignal): Promise<void> {
  let after = from;
  while (!signal.aborted) {
    try {
      const lines = (await text(call(after), signal)).split("\n").filter((line) => line !== "");
      const events = lines.map((line) => JSON.parse(line) as Event_);
      after = events.at(-1)?.seq ?? after;
      take(events);
      await new Promise((resume) => setTimeout(resume, PAUSE_MILLISECONDS));
    } catch (error) {
      // What is older has been forgotten: from now on, then.
      if (!(error instanceof Problem) || error.code !== "events-gone" || after === info.value?.last_seq) {
        throw error;
      }
      after = info.value?.last_seq ?? after;
    }
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
    const after = Math.max(0, (info.value?.last_seq ?? 0) - BACK);
    const take = (more: readonly Event_[]) =>
      setEvents((before) => [...more].reverse().concat(before).slice(0, KEPT));
    follow(after, take, controller.signal).catch((failure) => controller.signal.aborted || setError(failure));
    return () => controller.abort();
  }, []);
  const words = search.toLowerCase();
  const shown = events.filter((event) => JSON.stringify(event).toLowerCase().includes(words));
  return (
    <>
      <div class="tools">
        <Text label="Search" type="search" value={search} change={setSearch} placeholder="an event, a key, a name …" />
        <CurlButton call={() => call(events[0]?.seq ?? 0)} />
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
