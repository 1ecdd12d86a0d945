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
  /** With days of a time zone: the first that lacks no hours. */
  readonly complete_from?: string;
}

/** The API counts the days of a time zone for this long. */
export const LOCAL_DAYS_MAX = 35;

/** Why days are UTC days: the period is too long, the time zone is not whole hours from UTC, or the service has no others. */
export type UtcReason = "period" | "zone" | "service";

/** Which days to ask for: those of an offset from UTC in minutes, or UTC days. */
export type Days = { readonly offset: number } | { readonly utc: UtcReason };

/** `offset` is that of the reader's time zone; `isRefused` that the service rejects it. */
export function daysOf(days: number, offset: number, isRefused: boolean): Days {
  if (offset % 60 !== 0) {
    return { utc: "zone" };
  }
  return isRefused ? { utc: "service" } : days > LOCAL_DAYS_MAX ? { utc: "period" } : { offset };
}

/** A list of buckets up to now, and their counts; the service may leave out those without events. Local days need a local time. */
export function filled(counted: readonly Counted[], seconds: number, buckets: number, now: number): { times: number[]; of: (field: Field) => number[] } {
  const last = Math.floor(now / 1000 / seconds) * seconds;
  const times = Array.from({ length: buckets }, (_, index) => last - (buckets - 1 - index) * seconds);
  const found = new Map(counted.map((entry) => [new Date(entry.date ?? entry.hour ?? "").getTime() / 1000, entry]));
  return { times, of: (field) => times.map((time) => found.get(time)?.[field] ?? 0) };
}
