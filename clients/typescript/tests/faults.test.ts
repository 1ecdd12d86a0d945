/** Connections that are lost, and a service that is busy: a request is repeated, and has one effect. */

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { connect, ProblemError } from "cuckood-client";
import { type Fault, KEY, proxy, serve } from "./service.js";

const url = await serve();
const cuckood = connect({ url, key: KEY });

/** As long as the service says to wait. */
const WAIT_MS = 7_000;

/** Ends these waits at once, and tells how many they were. */
function waits(context: TestContext): () => number {
  let waits = 0;
  const wait = globalThis.setTimeout;
  context.mock.method(globalThis, "setTimeout", (done: () => void, ms: number, ...rest: unknown[]) => {
    waits += Number(ms === WAIT_MS);
    return wait(done, ms === WAIT_MS ? 0 : ms, ...rest);
  });
  return () => waits;
}

for (const [name, fault] of [["lost", "no answer"], ["busy", { retryAfter: WAIT_MS / 1_000 }]] satisfies [string, Fault][]) {
  test(`a write is repeated under one key: ${name}`, async (context) => {
    const path = { campaign: name };
    await cuckood.putCampaign({ path, body: { capacity: 100 } });
    const { url: weak, sent } = await proxy(url, fault, fault);
    waits(context);
    const client = connect({ url: weak, key: KEY });
    assert.deepEqual((await client.addUsers({ path, body: { users: ["u1"] } })).outcomes, ["added"]);
    await client.addUsers({ path, body: { users: ["u2"] } });
    // A copy more for each try that counts.
    const { counts } = await cuckood.countUsers({ path, body: { users: ["u1", "u2"] } });
    assert.deepEqual(counts, [1, 1]);
    const [first, second, third, fourth] = sent().match(/idempotency-key: [^\r]*/gi) ?? [];
    assert.ok(first && first === second && second === third && fourth && fourth !== first);
  });
}

test("a redemption is repeated by its reference", async (context) => {
  const path = { coupon: "welcome" };
  await cuckood.putCoupon({ path, body: { capacity: 100 } });
  await cuckood.addCodes({ path, body: { codes: ["K7Q2"] } });
  const { url: weak, sent } = await proxy(url, "no answer", "no answer");
  waits(context);
  const { status } = await connect({ url: weak, key: KEY }).redeem({
    path,
    body: { code: "K7Q2", reference: "order-1" },
  });
  assert.equal(status, "redeemed");
  assert.doesNotMatch(sent(), /idempotency-key/i);
});

test("who gives up tells why", async (context) => {
  const told = waits(context);
  const busy = await proxy(url, ...Array<Fault>(3).fill({ retryAfter: WAIT_MS / 1_000 }));
  await assert.rejects(connect({ url: busy.url, key: KEY, attempts: 3 }).info(), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.deepEqual([error.code, error.attempts, error.retryAfter], ["overloaded", 3, 7]);
    return true;
  });
  assert.equal(told(), 2);
  const lost = await proxy(url, ...Array<Fault>(3).fill("no answer"));
  await assert.rejects(connect({ url: lost.url, key: KEY, attempts: 3 }).info(), TypeError);
});
