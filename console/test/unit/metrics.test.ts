/** From Prometheus' text to figures. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { between, parse, quantile, sum } from "../../src/state/metrics.ts";

const START = "process_start_time_seconds";

function reading(at: number, lines: readonly string[], start = 1) {
  return { at, metrics: parse([...lines, `${START} ${start}`].join("\n")) };
}

test("a text is read with labels, escapes and comments", () => {
  const metrics = parse('# HELP a Help.\n# TYPE a counter\na{b="c,d",e="f\\"}"} 3\na{b="x"} 4 1700\nplain 1e-3\nbig +Inf\n');
  assert.equal(sum(metrics, "a"), 7);
  assert.equal(sum(metrics, "a", (labels) => labels["b"] === "c,d"), 3);
  assert.equal(sum(metrics, "plain"), 0.001);
  assert.equal(sum(metrics, "big"), Infinity);
  assert.equal(sum(metrics, "absent"), undefined);
});

test("rates are of the clients' requests, and of the time between", () => {
  const requests = (route: string, status: number, count: number) =>
    `cuckood_http_requests_total{route="${route}",method="POST",status="${status}"} ${count}`;
  const check = "/v1/campaigns/{campaign}/users/check";
  const before = reading(10_000, [requests(check, 200, 100), requests("/metrics", 200, 5), "cuckood_commits_total 7"]);
  const now = reading(15_000, [
    requests(check, 200, 600),
    requests(check, 503, 10),
    requests("/metrics", 200, 50),
    requests("/v1/info", 200, 50),
    requests("none", 404, 50),
    "cuckood_commits_total 17",
    "cuckood_tables_bytes 100",
    "cuckood_records_bytes 20",
  ]);
  const point = between(before, now);
  assert.deepEqual(
    [point.at, point.requests, point.failures, point.commits, point.memory],
    [15, 102, 2, 2, 120],
  );
  assert.deepEqual([point.reads, point.writes], [null, null], "nothing was measured");
});

test("a first reading and a restart have no rates", () => {
  const lines = ["cuckood_commits_total 7"];
  assert.equal(between(undefined, reading(1, lines)).commits, null);
  assert.equal(between(reading(0, ["cuckood_commits_total 9"], 1), reading(5_000, lines, 2)).commits, null);
});

test("a quantile lies in its bucket", () => {
  const counts = new Map([[0.1, 10], [0.2, 10], [0.4, 30], [Infinity, 40]]);
  assert.equal(quantile(0.25, counts), 0.1);
  assert.ok(Math.abs((quantile(0.5, counts) ?? 0) - 0.3) < 1e-9);
  assert.equal(quantile(0.99, counts), 0.4, "beyond the last limit nothing is known");
  assert.equal(quantile(0.5, new Map([[1, 0], [Infinity, 0]])), null);
});

test("latency is of what should be fast, and of the last moments", () => {
  const bucket = (group: string, le: string, count: number) =>
    `cuckood_http_request_duration_seconds_bucket{le="${le}",group="${group}"} ${count}`;
  const before = reading(0, [
    bucket("codes-read", "0.001", 100),
    bucket("codes-read", "0.002", 100),
    bucket("codes-read", "+Inf", 100),
  ]);
  const now = reading(5_000, [
    bucket("codes-read", "0.001", 100),
    bucket("codes-read", "0.002", 200),
    bucket("codes-read", "+Inf", 200),
    bucket("redemptions-redeem", "0.008", 0),
    bucket("redemptions-redeem", "0.016", 50),
    bucket("redemptions-redeem", "+Inf", 50),
    bucket("imports-write", "0.001", 0),
    bucket("imports-write", "+Inf", 900),
  ]);
  const { reads, writes } = between(before, now);
  assert.ok(reads !== null && reads > 0.0019 && reads <= 0.002, `${reads}`);
  assert.ok(writes !== null && writes > 0.015 && writes <= 0.016, `${writes}`);
});
