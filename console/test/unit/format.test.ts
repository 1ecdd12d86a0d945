/** Figures and times as people read them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { away, bytes, heading, latency, moment, percent, perSecond, plural, short, span } from "../../src/format.ts";

test("figures are short, and say what they are", () => {
  assert.deepEqual([0, 999, 12_345, 1_234_567].map(short), ["0", "999", "12.3K", "1.23M"]);
  assert.deepEqual([0, 0.25, 12.34, 150.4, 65_432].map(perSecond), ["0", "0.25", "12.3", "150", "65.4K"]);
  assert.deepEqual([0, 1023, 1024, 1536, 10 * 2 ** 20, 3 * 2 ** 40].map(bytes), ["0 B", "1023 B", "1 KiB", "1.5 KiB", "10 MiB", "3 TiB"]);
  assert.deepEqual([0.00002, 0.0024, 0.25, 1.5].map(latency), ["20 µs", "2.4 ms", "250 ms", "1.5 s"]);
  assert.deepEqual([plural(1, "user"), plural(2, "user"), plural(0, "entry", "entries")], ["1 user", "2 users", "0 entries"]);
});

test("a share keeps the digits that count, and is never rounded to nothing", () => {
  assert.deepEqual(
    [0, 0.5, 1, 0.999, 0.001, 0.00034, 0.0000021, 4.8e-21].map(percent),
    ["0 %", "50 %", "100 %", "99.9 %", "0.1 %", "0.034 %", "0.00021 %", "5e−19 %"],
  );
});

test("times are as far away as they are", () => {
  const now = Date.parse("2026-11-22T12:00:00Z");
  assert.equal(away("2026-11-22T12:03:10Z", now), "in 3 min");
  assert.equal(away("2026-11-20T12:00:00Z", now), "2 d ago");
  assert.equal(away("2026-11-22T12:00:00.4Z", now), "now");
  assert.deepEqual([0, 59, 61, 3_600, 90_061].map(span), ["0 s", "59 s", "1 min 1 s", "1 h", "1 d 1 h"]);
});

test("a moment of another day has its date", () => {
  const now = new Date(2026, 10, 22, 12);
  assert.equal(moment(new Date(2026, 10, 22, 9, 5, 7).toISOString(), now), "09:05:07");
  assert.equal(moment(new Date(2026, 0, 2, 9, 5, 7).toISOString(), now), "2026-01-02 09:05:07");
});

test("a field is a heading", () => {
  assert.equal(heading("fingerprint_bits"), "Fingerprint bits");
});
