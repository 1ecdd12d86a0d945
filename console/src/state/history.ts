/** The last hour as the page has seen it: a reading of the service's metrics every few seconds. */

import { signal } from "@preact/signals";
import { exchange, problemOf, text } from "../api/client.ts";
import type { ProblemDocument } from "../api/types.ts";
import { between, parse, type Metrics, type Point, type Reading } from "./metrics.ts";
import { refresh } from "./session.ts";

export const EVERY_MILLISECONDS = 5_000;
const KEPT_SECONDS = 3_600;

export interface Readiness {
  readonly isReady: boolean;
  /** Why writes are refused. */
  readonly writes?: string;
  readonly problem?: ProblemDocument;
}

export const points = signal<readonly Point[]>([]);
export const metrics = signal<Metrics | undefined>(undefined);
export const readiness = signal<Readiness | undefined>(undefined);

let last: Reading | undefined;

export function kept(list: readonly Point[], point: Point): readonly Point[] {
  return [...list.filter(({ at }) => at > point.at - KEPT_SECONDS), point];
}

async function read(): Promise<void> {
  const now: Reading = { at: Date.now(), metrics: parse(await text({ method: "GET", path: "metrics" })) };
  points.value = kept(points.value, between(last, now));
  metrics.value = now.metrics;
  last = now;
}

async function look(): Promise<void> {
  const answer = await exchange({ method: "GET", path: "readyz" });
  const content = await answer.text();
  readiness.value = answer.ok
    ? { isReady: true, ...(JSON.parse(content) as { writes?: string }) }
    : { isReady: false, problem: problemOf(answer.status, content).document };
}

/** Reads everything once. */
export async function turn(): Promise<void> {
  const [looked] = await Promise.allSettled([look(), read(), refresh()]);
  if (looked.status === "rejected") {
    readiness.value = { isReady: false, problem: looked.reason.document };
  }
}

export async function keepReading(): Promise<never> {
  for (;;) {
    await turn();
    await new Promise((resume) => setTimeout(resume, EVERY_MILLISECONDS));
  }
}
