/** What a shop would write: it has to type-check, also where it must not, and to do its work. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { connect, type EventLine, ProblemError, type ProblemCode } from "cuckood-client";
import { KEY, serve } from "./service.js";

const url = await serve();
const cuckood = connect({ url, key: KEY, readDeadlineMs: 60_000, writeDeadlineMs: 60_000 });

function refused(status: number, code: ProblemCode, pointer?: string) {
  return (error: unknown) =>
    error instanceof ProblemError &&
    error.status === status &&
    error.code === code &&
    (pointer === undefined || error.faults.some((fault) => fault.pointer === pointer));
}

test("campaigns", async () => {
  const path = { campaign: "spring" };
  const made = await cuckood.putCampaign({ path, body: { capacity: 1_000, ends_at: "2099-06-01T00:00:00Z" } });
  assert.deepEqual([made.name, made.mode, made.stats.items], ["spring", "compact", 0]);
  await assert.rejects(
    cuckood.putCampaign({ path, body: { capacity: 2_000 } }),
    refused(409, "already-exists", "/capacity"),
  );
  const added = await cuckood.addUsers({ path, body: { users: ["u1", "ü/2"] } });
  assert.deepEqual(added.outcomes, ["added", "added"]);
  const { present } = await cuckood.checkUsers({ path, body: { users: ["u1", "u3", "ü/2"] } });
  assert.deepEqual(present, [true, false, true]);
  const { eligible } = await cuckood.checkEligibility({ body: { user: "u1", campaigns: ["nowhere", "spring"] } });
  assert.deepEqual(eligible, ["spring"]);
  // In a merge-patch null clears.
  const patched = await cuckood.patchCampaign({ path, body: { ends_at: null } });
  assert.equal(patched.ends_at, undefined);
  const { campaigns } = await cuckood.listCampaigns({ query: { limit: 1 } });
  assert.deepEqual(campaigns.map(({ name }) => name), ["spring"]);
  await cuckood.deleteCampaign({ path });
  await assert.rejects(cuckood.getCampaign({ path }), refused(404, "campaign-not-found"));
});

test("coupons", async () => {
  const path = { coupon: "welcome" };
  await cuckood.putCoupon({ path, body: { capacity: 1_000 } });
  await cuckood.addCodes({ path, body: { codes: ["K7Q2-9FXM"] } });
  const held = await cuckood.redeem({ path, body: { code: "K7Q2-9FXM", reference: "order-42", hold_seconds: 900 } });
  assert.equal(held.status, "held");
  await assert.rejects(
    cuckood.redeem({ path, body: { code: "K7Q2-9FXM", reference: "order-43" } }),
    (error) => refused(409, "code-held")(error) && (error as ProblemError).expiresAt === held.expires_at,
  );
  const used = await cuckood.confirmRedemption({ path: { coupon: "welcome", id: held.id } });
  assert.deepEqual([used.id, used.status], [held.id, "redeemed"]);
});

test("uses and customers", async () => {
  const path = { coupon: "uses" };
  const made = await cuckood.putCoupon({ path, body: { capacity: 100, uses: 2, per_customer: 1, normalize: "code" } });
  assert.deepEqual([made.uses, made.per_customer, made.normalize], [2, 1, "code"]);
  assert.deepEqual(made.stats.uses, { held: 0, redeemed: 0 });
  await cuckood.addCodes({ path, body: { codes: ["SPRING-10"] } });
  const redeem = (reference: string, customer?: string, hold_seconds = 0) =>
    cuckood.redeem({ path, body: { code: "spring10", reference, customer, hold_seconds } });
  await assert.rejects(redeem("order-1"), refused(422, "invalid-request", "/customer"));
  const used = await redeem("order-1", "c-7");
  await assert.rejects(redeem("order-2", "c-7"), refused(409, "customer-limit"));
  const hold = await redeem("order-2", "c-8", 900);
  await assert.rejects(
    redeem("order-3", "c-9"),
    (error) => refused(409, "code-held")(error) && (error as ProblemError).expiresAt === hold.expires_at,
  );
  const { codes } = await cuckood.lookUpCodes({ path, body: { codes: ["spring10"] } });
  assert.deepEqual(codes, [{ status: "held", uses: { taken: 2, held: 1 }, redemptions: [hold, used] }]);
  // A use that is not released stays taken.
  const cancelled = await cuckood.cancelRedemption({ path: { ...path, id: used.id }, body: { release: false } });
  assert.deepEqual([cancelled.status, cancelled.released], ["cancelled", false]);
  assert.equal((await cuckood.cancelRedemption({ path: { ...path, id: hold.id } })).released, undefined);
  const { customers } = await cuckood.lookUpCustomers({ path, body: { customers: ["c-7", "c-8"] } });
  assert.deepEqual(customers, [
    { taken: 1, redemptions: [] },
    { taken: 0, redemptions: [] },
  ]);
  const answer = await cuckood.listEvents({ query: { limit: 10_000 } });
  const events = (await answer.text()).trimEnd().split("\n").map((line) => JSON.parse(line) as EventLine);
  const ended = events.filter(({ coupon, event }) => coupon === "uses" && event === "redemption.cancelled");
  assert.deepEqual(ended.map(({ reference, released }) => [reference, released]), [
    ["order-1", false],
    ["order-2", undefined],
  ]);
});

test("events", async () => {
  await cuckood.putCoupon({ path: { coupon: "told" }, body: { capacity: 10 } });
  await cuckood.addCodes({ path: { coupon: "told" }, body: { codes: ["K7Q2", "9FXM"] } });
  const answer = await cuckood.listEvents({ query: { limit: 10_000 } });
  const events = (await answer.text()).trimEnd().split("\n").map((line) => JSON.parse(line) as EventLine);
  const told = events.filter(({ coupon }) => coupon === "told");
  assert.deepEqual(told.map(({ event, key }) => [event, key]), [
    ["coupon.created", "admin"],
    ["codes.added", "admin"],
  ]);
  assert.equal(told[1]?.added, 2);
  // There are no new ones.
  const last = events.at(-1)?.seq;
  assert.equal(await (await cuckood.listEvents({ query: { after: last } })).text(), "");
  // A stream gives them as they come.
  const stream: unknown = await cuckood.listEvents({ query: { limit: 1 }, parseAs: "stream" });
  assert.equal((await new Response(stream as ReadableStream).text()).split("\n").length, 2);
  await assert.rejects(cuckood.listEvents({ query: { limit: 0 } }), refused(422, "invalid-request"));
});

test("operations", async () => {
  assert.match(await cuckood.metrics({ parseAs: "text" }), /cuckood_/);
  const backup = await cuckood.backup({ parseAs: "stream" });
  assert.ok(backup);
  await assert.rejects(connect({ url, key: "another" }).info(), refused(401, "unauthenticated"));
});

/** Only compiled. */
export async function wrong(): Promise<void> {
  // @ts-expect-error: a number would be damaged on the way
  await cuckood.checkEligibility({ body: { user: 7, campaigns: ["spring"] } });
  // @ts-expect-error: whose redemption is it?
  await cuckood.redeem({ path: { coupon: "c" }, body: { code: "K" } });
  // @ts-expect-error: null clears nothing here
  await cuckood.putCampaign({ path: { campaign: "c" }, body: { capacity: 1, ends_at: null } });
}
