/** Services that are gone, hang, are slow or busy, and lost connections: deadlines hold, and a write has one effect. */

import assert from "node:assert/strict";
import { rm } from "node:fs/promises";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { type Client, connect, type EventLine, HttpError, ProblemError } from "cuckood-client";
import { answering, type Fault, KEY, proxy, serve, start } from "./service.js";

const url = await serve();
const PATIENT = { key: KEY, readDeadlineMs: 60_000, writeDeadlineMs: 60_000 };
const cuckood = connect({ url, ...PATIENT });

/** A bound for deadlines of 250 ms on a busy machine. */
const SOON_MS = 5_000;

const read = (client: Client) => client.checkUsers({ path: { campaign: "spring" }, body: { users: ["u1"] } });
const write = (client: Client) =>
  client.within(250).addUsers({ path: { campaign: "spring" }, body: { users: ["u1"] } });

for (const [name, call] of [["read", read], ["write", write]] as const) {
  async function fails(at: string, ...errors: (new () => Error)[]): Promise<void> {
    const started = performance.now();
    await assert.rejects(call(connect({ url: at, key: KEY })), (error) => errors.some((one) => error instanceof one));
    assert.ok(performance.now() - started < SOON_MS);
  }

  test(`a ${name} to a refused port ends by the deadline`, async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    server.close();
    const refused = `http://127.0.0.1:${port}`;
    // The deadline may pass during the last attempt.
    await fails(refused, TypeError, DOMException);
    const patient = connect({ url: refused, key: KEY }).within(60_000, { attempts: 2 });
    await assert.rejects(patient.info(), TypeError);
  });

  for (const fault of ["hang", "drip"] as const) {
    test(`a ${name} ends by the deadline: ${fault}`, async () => {
      await fails((await proxy(url, ...Array<Fault>(20).fill(fault))).url, DOMException);
    });
  }
}

for (const fault of ["hang", "drip"] as const) {
  test(`a write is repeated if an attempt does not end: ${fault}`, async () => {
    const path = { campaign: fault };
    await cuckood.putCampaign({ path, body: { capacity: 100 } });
    const { url: weak, sent } = await proxy(url, fault);
    const client = connect({ url: weak, key: KEY, writeDeadlineMs: 3_000 });
    assert.deepEqual((await client.addUsers({ path, body: { users: ["u1"] } })).outcomes, ["added"]);
    const [first, second] = sent().match(/idempotency-key: [^\r]*/gi) ?? [];
    assert.ok(first && first === second);
  });
}

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

for (const [name, errorOf] of [
  ["deadline", "TimeoutError"],
  ["signal", "AbortError"],
] as const) {
  test(`a ${name} outlives a garbage collection during a body`, async () => {
    const abort = new AbortController();
    const endless = await answering((_, response) => {
      response.writeHead(200, { "Content-Type": "application/json" });
      const drip = setInterval(() => response.write(" "), 20);
      response.on("close", () => clearInterval(drip));
      response.write(" ", () => {
        setTimeout(() => {
          collectGarbage();
          if (name === "signal") {
            abort.abort();
          }
        }, 50);
      });
    });
    const started = performance.now();
    const client = connect({ url: endless, readDeadlineMs: name === "signal" ? 60_000 : 250 });
    await assert.rejects(client.info({ signal: abort.signal }), { name: errorOf });
    assert.ok(performance.now() - started < SOON_MS);
  });
}

/** A patient write at an address. */
const addUser = (at: string) =>
  connect({ url: at, ...PATIENT }).addUsers({ path: { campaign: "spring" }, body: { users: ["u1"] } });

test("a redirect is an error, and is not followed", async () => {
  let count = 0;
  const front = await answering((request, response) => {
    count += 1;
    response.writeHead(301, { Location: `${url}${request.url}` }).end();
  });
  await assert.rejects(addUser(front), HttpError);
  assert.equal(count, 1);
});

test("a response that is none of the operation is an error", async () => {
  for (const [status, type, body] of [
    [200, "text/html", "<p>Log in</p>"],
    [200, "application/json", ""],
    [200, "application/json", "null"],
    [200, "application/json", "[]"],
    [200, "application/json", "{}"],
    [200, "application/json", '{"outcomes":["add'],
    [202, "application/json", '{"outcomes":[]}'],
    [404, "application/problem+json", "{"],
    [404, "application/problem+json", "null"],
    [404, "application/problem+json", "[1]"],
  ] as const) {
    const front = await answering((_, response) => {
      response.writeHead(status, { "Content-Type": type, "X-Cuckood-Position": "abc" }).end(body);
    });
    await assert.rejects(addUser(front), HttpError, `${status} ${body}`);
  }
});

test("a broken problem is repeated as its status is", async () => {
  let count = 0;
  const front = await answering((_, response) => {
    count += 1;
    if (count === 1) {
      response.writeHead(503, { "Content-Type": "application/problem+json; charset=utf-8" }).end("{");
    } else {
      response.writeHead(200, { "Content-Type": "application/json" }).end('{"outcomes":["added"],"added":1}');
    }
  });
  assert.equal((await addUser(front)).added, 1);
});

test("a wait that makes no sense is ignored, and a long one ends the call", async () => {
  for (const [retryAfter, isLong] of [["-5", false], ["Wed, 21 Oct 2026 07:28:00 GMT", false], ["99999999", true]] as const) {
    let count = 0;
    const busy = await answering((_, response) => {
      count += 1;
      response.writeHead(count < 3 || isLong ? 429 : 404, { "Retry-After": retryAfter }).end();
    });
    await assert.rejects(addUser(busy), HttpError);
    assert.equal(count, isLong ? 1 : 3, retryAfter);
  }
});

test("a signal ends a wait between two attempts", async () => {
  const abort = new AbortController();
  const busy = await answering((_, response) => {
    response.writeHead(503, { "Retry-After": "50" }).end();
    setTimeout(() => abort.abort(new RangeError("enough")), 50);
  });
  const call = { path: { campaign: "spring" }, body: { users: ["u1"] }, signal: abort.signal };
  const started = performance.now();
  await assert.rejects(connect({ url: busy }).within(60_000).addUsers(call), RangeError);
  assert.ok(performance.now() - started < SOON_MS);
});

test("a deadline may be longer than a timer", async () => {
  assert.ok(await cuckood.within(30 * 86_400_000).info());
});

test("a name that would lead to another operation is rejected", async () => {
  for (const campaign of ["", ".", ".."]) {
    await assert.rejects(cuckood.getCampaign({ path: { campaign } }), TypeError);
  }
  assert.throws(() => connect({ url: "ftp://127.0.0.1" }), TypeError);
});

test("events with line separators are read", async () => {
  const path = { coupon: "separators" };
  await cuckood.putCoupon({ path, body: { capacity: 10, stock: 5 } });
  const reference = "a\u2028b\u2029c\u0085d";
  await cuckood.redeem({ path, body: { code: "K7Q2", reference } });
  for await (const event of cuckood.events.follow()) {
    if (event.coupon === "separators" && event.reference !== undefined) {
      assert.equal(event.reference, reference);
      break;
    }
  }
});

test("generated codes are the same under one key", async () => {
  const path = { coupon: "generated" };
  await cuckood.putCoupon({ path, body: { capacity: 100 } });
  const body = { count: 5, pattern: "##########" };
  const headers = { "Idempotency-Key": "summer" };
  const codes = await cuckood.generateCodes({ path, body, headers });
  assert.equal(await cuckood.generateCodes({ path, body, headers }), codes);
  assert.notEqual(await cuckood.generateCodes({ path, body }), codes);
});

for (const [name, fault] of [["lost", "no answer"], ["busy", { retryAfter: 0 }]] satisfies [string, Fault][]) {
  test(`a write is repeated under one key: ${name}`, async () => {
    const path = { campaign: name };
    await cuckood.putCampaign({ path, body: { capacity: 100 } });
    const { url: weak, sent } = await proxy(url, fault, fault);
    const client = connect({ url: weak, ...PATIENT });
    assert.deepEqual((await client.addUsers({ path, body: { users: ["u1"] } })).outcomes, ["added"]);
    await client.addUsers({ path, body: { users: ["u2"] } });
    // Each attempt with another key would add a copy.
    const { counts } = await cuckood.countUsers({ path, body: { users: ["u1", "u2"] } });
    assert.deepEqual(counts, [1, 1]);
    const [first, second, third, fourth] = sent().match(/idempotency-key: [^\r]*/gi) ?? [];
    assert.ok(first && first === second && second === third && fourth && fourth !== first);
  });
}

test("a redemption is repeated by its reference", async () => {
  const path = { coupon: "welcome" };
  await cuckood.putCoupon({ path, body: { capacity: 100 } });
  await cuckood.addCodes({ path, body: { codes: ["K7Q2"] } });
  const { url: weak, sent } = await proxy(url, "no answer", "no answer");
  const { status } = await connect({ url: weak, ...PATIENT }).redeem({
    path,
    body: { code: "K7Q2", reference: "order-1" },
  });
  assert.equal(status, "redeemed");
  assert.doesNotMatch(sent(), /idempotency-key/i);
});

function requests(sent: string): number {
  return sent.match(/ HTTP\/1\.1\r\n/g)?.length ?? 0;
}

/** Whether an error is this problem, and after how many attempts. */
function problem(code: string, attempts: number, retryAfter?: number) {
  return (error: unknown) =>
    error instanceof ProblemError &&
    error.code === code &&
    error.attempts === attempts &&
    error.retryAfter === retryAfter;
}

test("a read is repeated only on request", async () => {
  const { url: weak, sent } = await proxy(url, ...Array<Fault>(3).fill({ retryAfter: 0 }));
  const client = connect({ url: weak, ...PATIENT });
  await assert.rejects(client.info(), problem("overloaded", 1, 0));
  assert.equal(requests(sent()), 1);
  assert.ok(await client.within(60_000, { attempts: 3 }).info());
  assert.equal(requests(sent()), 4);
});

test("the last error is thrown if no attempt is left", async () => {
  const busy = connect({ url: (await proxy(url, { retryAfter: 7 })).url, key: KEY });
  // `Retry-After` exceeds the deadline.
  await assert.rejects(write(busy.within(5_000)), problem("overloaded", 1, 7));
  const { url: weak, sent } = await proxy(url, ...Array<Fault>(3).fill("no answer"));
  const lost = connect({ url: weak, key: KEY }).within(60_000, { attempts: 3 });
  await assert.rejects(lost.addUsers({ path: { campaign: "spring" }, body: { users: ["u1"] } }), TypeError);
  assert.equal(requests(sent()), 3);
});

test("a permanent error is never repeated", async () => {
  const { url: weak, sent } = await proxy(url);
  const client = connect({ url: weak, ...PATIENT });
  const call = { path: { campaign: "nowhere" }, body: { users: ["u1"] } };
  await assert.rejects(client.addUsers(call), problem("campaign-not-found", 1));
  assert.equal(requests(sent()), 1);
});

test("a read passes on the highest position", async () => {
  const path = { campaign: "position" };
  await cuckood.putCampaign({ path, body: { capacity: 100 } });
  const { url: weak, sent } = await proxy(url);
  const client = connect({ url: weak, ...PATIENT });
  await client.addUsers({ path, body: { users: ["u1"] } });
  const written = client.position;
  await client.within(60_000).checkUsers({ path, body: { users: ["u1"] } });
  await client.checkUsers({ path, body: { users: ["u1"] }, headers: { "X-Cuckood-Min-Position": 1 } });
  assert.ok(written);
  const asked = [...sent().matchAll(/x-cuckood-min-position: (\d+)/gi)].map(([, position]) => Number(position));
  assert.deepEqual(asked, [written, 1]);
});

test("a position of other data expires", async (context) => {
  const service = await start();
  const weak = await proxy(service.url);
  const client = connect({ url: weak.url, ...PATIENT });
  await client.putCampaign({ path: { campaign: "other" }, body: { capacity: 100 } });
  // Restored data has lower positions.
  await service.kill();
  await rm(join(service.directory, "data"), { recursive: true });
  await service.start();
  weak.service = service.url;
  await assert.rejects(client.within(60_000, { attempts: 2 }).info(), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.equal(error.code, "too-far-behind");
    return true;
  });
  const now = performance.now();
  context.mock.method(performance, "now", () => now + 30_000);
  assert.ok(await client.info());
});

/** The next events of a campaign. */
async function take(events: AsyncIterable<EventLine>, campaign: string, count: number): Promise<EventLine[]> {
  const taken: EventLine[] = [];
  for await (const event of events) {
    if (event.campaign === campaign && taken.push(event) === count) {
      break;
    }
  }
  return taken;
}

test("events survive kills and lost connections", async () => {
  const service = await start();
  const weak = await proxy(service.url, { answerOf: 300 }, "no answer");
  const client = connect({ url: weak.url, ...PATIENT });
  const path = { campaign: "e" };
  const following = take(client.events.follow(), "e", 7);
  await client.putCampaign({ path, body: { capacity: 100 } });
  for (let round = 0; round < 3; round += 1) {
    await client.addUsers({ path, body: { users: ["u1"] } });
    await service.kill();
    // Another service may get its port.
    weak.service = "http://127.0.0.1:1";
    // A write that starts now succeeds once the service is back.
    const writing = client.removeUsers({ path, body: { users: ["u1"] } });
    await service.start();
    weak.service = service.url;
    assert.equal((await writing).removed, 1);
  }
  const rounds = Array<string[]>(3).fill(["users.added", "users.removed"]).flat();
  const events = (await following).map(({ event }) => event as string);
  assert.deepEqual(events, ["campaign.created", ...rounds]);
});

test("events continue after a number, until they are aborted", async () => {
  for (const campaign of ["e-0", "e-1"]) {
    await cuckood.putCampaign({ path: { campaign }, body: { capacity: 100 } });
  }
  const [first] = await take(cuckood.events.follow(), "e-0", 1);
  const [second] = await take(cuckood.events.follow(first?.seq), "e-1", 1);
  assert.ok(first && second && second.seq > first.seq);
  const abort = new AbortController();
  const waiting = cuckood.events.follow(Number.MAX_SAFE_INTEGER, abort.signal).next();
  abort.abort(new RangeError("enough"));
  await assert.rejects(waiting, RangeError);
});

test("an export survives lost connections", async () => {
  const path = { coupon: "export" };
  await cuckood.putCoupon({ path, body: { capacity: 100, stock: 10 } });
  const orders = ["order-0", "order-1", "order-2"];
  for (const order of orders) {
    await cuckood.redeem({ path, body: { code: order, reference: order } });
  }
  const { url: weak } = await proxy(url, "no answer", { answerOf: 300 });
  const exported: string[] = [];
  for await (const { reference } of connect({ url: weak, ...PATIENT }).redemptions.export({ path, query: { limit: 2 } })) {
    exported.push(reference);
  }
  assert.deepEqual(exported, orders);
});
