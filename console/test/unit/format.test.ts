/** Numbers and times as people read them, in each language. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { away, bytes, heading, latency, moment, percent, perSecond, short, span, zone } from "../../src/format.ts";
import { language } from "../../src/i18n/language.ts";

afterEach(() => {
  language.value = "en";
});

test("numbers_are_short", () => {
  language.value = "en";
  assert.deepEqual([0, 999, 12_345, 1_234_567].map(short), ["0", "999", "12.3K", "1.23M"]);
  assert.deepEqual([0, 0.25, 12.34, 150.4, 65_432].map(perSecond), ["0", "0.25", "12.3", "150", "65.4K"]);
  assert.deepEqual([0, 1023, 1024, 1536, 10 * 2 ** 20, 3 * 2 ** 40].map(bytes), ["0 B", "1,023 B", "1 KiB", "1.5 KiB", "10 MiB", "3 TiB"]);
  assert.deepEqual([0.00002, 0.0024, 0.25, 1.5].map(latency), ["20 µs", "2.4 ms", "250 ms", "1.5 s"]);
  language.value = "zh-CN";
  assert.deepEqual([12_345, 123_456_789].map(short), ["1.23万", "1.23亿"]);
});

test("share_is_never_an_exponent", () => {
  language.value = "en";
  assert.deepEqual([0, 0.5, 1, 0.999, 0.001, 0.00034, 4.8e-21].map(percent), ["0%", "50%", "100%", "99.9%", "0.1%", "0.034%", "< 0.0001%"]);
});

test("times_are_relative", () => {
  const now = Date.parse("2026-11-22T12:00:00Z");
  language.value = "en";
  assert.equal(away("2026-11-22T12:03:10Z", now), "in 3 minutes");
  assert.equal(away("2026-11-20T12:00:00Z", now), "2 days ago");
  assert.deepEqual([0, 59, 61, 3_600, 90_061].map(span), ["0 sec", "59 sec", "1 min 1 sec", "1 hr", "1 day 1 hr"]);
  language.value = "zh-CN";
  assert.equal(away("2026-11-22T12:03:10Z", now), "3分钟后");
  assert.equal(away("2026-11-20T12:00:00Z", now), "2天前");
});

test("moment_of_another_day_has_its_date", () => {
  const now = new Date(2026, 10, 22, 12);
  language.value = "zh-CN";
  assert.equal(moment(new Date(2026, 10, 22, 9, 5, 7).toISOString(), now), "09:05:07");
  assert.equal(moment(new Date(2026, 0, 2, 9, 5, 7).toISOString(), now), "2026年1月2日 09:05");
  assert.match(zone(), /^(GMT|UTC)/);
});

test("field_is_a_heading", () => {
  assert.equal(heading("fingerprint_bits"), "Fingerprint bits");
});
