/** The page's latest requests, so that each can be looked at and copied as a command. Kept in memory only. */

import { signal } from "@preact/signals";
import { target, type Call } from "../api/call.ts";
import { observe } from "../api/client.ts";

export interface Done {
  readonly call: Call;
  readonly status: number;
  readonly milliseconds: number;
  readonly at: number;
  /** How often the same has been asked. */
  readonly times: number;
}

const KEPT = 100;

export const requests = signal<readonly Done[]>([]);

/** Puts a request first. The same question asked again takes its earlier place, or polls would fill the list. */
export function noted(list: readonly Done[], done: Done): readonly Done[] {
  const isSame = (other: Done) =>
    done.call.method === "GET" && other.call.method === "GET" && target(other.call) === target(done.call);
  const earlier = list.find(isSame);
  const others = list.filter((other) => !isSame(other));
  return [{ ...done, times: (earlier?.times ?? 0) + 1 }, ...others].slice(0, KEPT);
}

observe((call, status, milliseconds) => {
  requests.value = noted(requests.value, { call, status, milliseconds, at: Date.now(), times: 1 });
});
