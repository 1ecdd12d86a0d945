/** Counts of days and hours become the bars of a chart. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { daysOf, filled, LOCAL_DAYS_MAX } from "../../src/state/statistics.ts";

test("buckets_without_events_are_zero", () => {
  const now = Date.parse("2026-11-22T12:30:00Z");
  const { times, of } = filled([{ date: "2026-11-20", added: 3 }, { date: "2026-11-22", added: 1 }, { date: "2026-01-01", added: 9 }], 86_400, 3, now);
  assert.deepEqual(times.map((time) => new Date(time * 1000).toISOString().slice(0, 10)), ["2026-11-20", "2026-11-21", "2026-11-22"]);
  assert.deepEqual(of("added"), [3, 0, 1]);
  assert.deepEqual(of("removed"), [0, 0, 0]);
  assert.deepEqual(filled([{ hour: "2026-11-22T11:00:00Z", redeemed: 5 }], 3_600, 2, now).of("redeemed"), [5, 0]);
});

test("local_days_are_asked_for_if_offset_is_whole_hours", () => {
  assert.deepEqual(daysOf(30, 480, false), { offset: 480 });
  assert.deepEqual(daysOf(LOCAL_DAYS_MAX, -180, false), { offset: -180 });
  assert.deepEqual(daysOf(LOCAL_DAYS_MAX + 1, 480, false), { utc: "period" });
  assert.deepEqual(daysOf(30, 330, false), { utc: "zone" });
  assert.deepEqual(daysOf(30, -210, false), { utc: "zone" });
  assert.deepEqual(daysOf(30, 480, true), { utc: "service" });
});

test("local_days_follow_local_time", () => {
  const eight = 8 * 3_600_000;
  const { times, of } = filled([{ date: "2026-11-23", added: 4 }], 86_400, 1, Date.parse("2026-11-22T16:30:00Z") + eight);
  assert.deepEqual([times, of("added")], [[Date.parse("2026-11-23") / 1_000], [4]]);
});
