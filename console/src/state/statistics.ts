/** Counts by day and by hour, as the service has them. */

import type { Kind } from "../api/types.ts";

/** What is counted, and drawn, of each kind; the first is drawn even if there is none. */
export const FIELDS = {
  campaigns: ["added", "imported", "removed"],
  coupons: ["redeemed", "held", "cancelled", "expired"],
} as const;

export type Field = (typeof FIELDS)[Kind][number];

export interface Counted extends Partial<Readonly<Record<Field, number>>> {
  readonly date?: string;
  readonly hour?: string;
}

export interface Statistics {
  readonly days: readonly Counted[];
  readonly hours: readonly Counted[];
}

/** A list of buckets up to now, and their counts; the service may leave out those without events. */
export function filled(counted: readonly Counted[], seconds: number, buckets: number, now: number): { times: number[]; of: (field: Field) => number[] } {
  const last = Math.floor(now / 1000 / seconds) * seconds;
  const times = Array.from({ length: buckets }, (_, index) => last - (buckets - 1 - index) * seconds);
  const found = new Map(counted.map((entry) => [new Date(entry.date ?? entry.hour ?? "").getTime() / 1000, entry]));
  return { times, of: (field) => times.map((time) => found.get(time)?.[field] ?? 0) };
}
