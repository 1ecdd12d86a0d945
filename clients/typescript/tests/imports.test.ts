/** Imports from files and iterables, in every format, over connections that hold and that don't. */

import assert from "node:assert/strict";
import { createReadStream, openAsBlob } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { connect, ProblemError, Upload } from "cuckood-client";
import { KEY, proxy, serve } from "./service.js";

const url = await serve();
const cuckood = connect({ url, key: KEY, readDeadlineMs: 60_000, writeDeadlineMs: 60_000 });
const folder = await mkdtemp(join(tmpdir(), "cuckood-"));
after(() => rm(folder, { recursive: true }));

const USERS = ["u1", 'ü "2"', "u\n3"];
const MANY = 4_000;

function* many(): Generator<string> {
  for (let number = 0; number < MANY; number += 1) {
    yield String(number).padStart(500, "0");
  }
}

/** A campaign of the test's own. */
async function campaign(name: string): Promise<{ campaign: string }> {
  await cuckood.putCampaign({ path: { campaign: name }, body: { capacity: 10_000 } });
  return { campaign: name };
}

async function items(path: { campaign: string }): Promise<number> {
  return (await cuckood.getCampaign({ path })).stats.items;
}

for (const [format, column, delimiter, content] of [
  ["text", undefined, undefined, "u1\r\nu2\n"],
  ["ndjson", undefined, undefined, '"u1"\n{"item":"u2"}\n'],
  ["csv", "id", undefined, 'name,id\n"Ann, A",u1\nBob,u2\n'],
  ["csv", "id", "semicolon", "\ufeffname;id\r\nAnn;u1\r\nBob;u2\r\n"],
] as const) {
  test(`a file has a format: ${format}, ${delimiter ?? "comma"}`, async () => {
    const path = await campaign(delimiter ? `${format}-${delimiter}` : format);
    const file = join(folder, format);
    await writeFile(file, content);
    const query = { format, ...(column && { column }), ...(delimiter && { delimiter }) };
    const done = await cuckood.importUsers({ path, query, body: await openAsBlob(file) });
    assert.deepEqual([done.state, done.added], ["done", 2]);
    const body = new Upload(() => createReadStream(file));
    const again = await cuckood.importUsers({ path, query: { ...query, mode: "replace" }, body });
    assert.equal(again.added, 2);
    const { counts } = await cuckood.countUsers({ path, body: { users: ["u1", "u2"] } });
    assert.deepEqual(counts, [1, 1]);
  });
}

test("an iterable that may be read only once is not sent again", () => {
  const pieces = ["u1"].values();
  const once = { [Symbol.iterator]: () => ({ next: () => pieces.next() }) };
  assert.ok(!new Upload(once).isRepeatable);
  assert.ok(new Upload(["u1"]).isRepeatable && new Upload(() => once).isRepeatable);
});

test("strings are items", async () => {
  const path = await campaign("strings");
  async function* later(): AsyncGenerator<string> {
    yield* USERS;
  }
  for (const source of [USERS, USERS.values(), later(), later]) {
    const done = await cuckood.importUsers({ path, query: { format: "ndjson" }, body: new Upload(source) });
    assert.equal(done.added, 3);
  }
  const { counts } = await cuckood.countUsers({ path, body: { users: USERS } });
  assert.deepEqual(counts, [4, 4, 4]);
});

test("codes", async () => {
  const path = { coupon: "codes" };
  await cuckood.putCoupon({ path, body: { capacity: 100 } });
  const pieces = ["K7", "Q2\nB3TT\n"].map((piece) => new TextEncoder().encode(piece));
  const query = { format: "text", id: "codes" } as const;
  const done = await cuckood.importCodes({ path, query, body: new Upload(pieces) });
  assert.equal(done.added, 2);
  assert.deepEqual(await cuckood.getImport({ path: { id: "codes" } }), done);
});

test("a broken import goes on", async () => {
  const path = await campaign("broken");
  const weak = await proxy(url, { cutAfter: 300_000 }, { cutAfter: 900_000 }, { cutAfter: 1_500_000 }, "no answer");
  const done = await connect({ url: weak.url, key: KEY }).importUsers({
    path,
    query: { format: "ndjson" },
    body: new Upload(many),
  });
  assert.deepEqual([done.state, done.lines, done.added], ["done", MANY, MANY]);
  assert.equal(await items(path), MANY);
});

test("each attempt of an import has the complete deadline", async (context) => {
  const path = await campaign("deadline");
  const { mock } = context.mock.method(globalThis, "setTimeout");
  const query = { format: "ndjson" } as const;
  await cuckood.within(60_000).importUsers({ path, query, body: new Upload(USERS) });
  const times = mock.calls.map(({ arguments: [, ms] }) => ms ?? 0);
  // Others are those of sockets.
  assert.deepEqual([...new Set(times.filter((ms) => ms > 10_000))], [60_000]);
});

test("what is read once is sent once", async () => {
  const path = await campaign("once");
  const weak = connect({ url: (await proxy(url, { cutAfter: 300_000 })).url, key: KEY });
  const query = { format: "ndjson", id: "once" } as const;
  await assert.rejects(weak.importUsers({ path, query, body: new Upload(many()) }), TypeError);
  // Whoever has named it goes on with another source.
  await weak.importUsers({ path, query, body: new Upload(many) });
  assert.equal(await items(path), MANY);
});

test("an import is never whole in memory", async () => {
  const path = await campaign("memory");
  let ahead = 0;
  let most = 0;
  function* counted(): Generator<Uint8Array> {
    for (const user of many()) {
      yield new TextEncoder().encode(`${user}\n`);
      ahead += 1;
      most = Math.max(most, ahead);
    }
  }
  const counting: typeof fetch = (input, init) => {
    const request = input as Request;
    const body = request.body?.pipeThrough(
      new TransformStream({
        transform(block, controller) {
          ahead = 0;
          controller.enqueue(block);
        },
      }),
    );
    return fetch(new Request(request, { body, duplex: "half" } as RequestInit), init);
  };
  const client = connect({ url, key: KEY, fetch: counting });
  await client.importUsers({ path, query: { format: "text" }, body: new Upload(counted()) });
  assert.equal(await items(path), MANY);
  assert.ok(most < MANY / 10, `${most}`);
});

test("a refusal comes through", async () => {
  const refused = (code: string) => (error: unknown) => error instanceof ProblemError && error.code === code;
  const path = { campaign: "nowhere" };
  const query = { format: "ndjson" } as const;
  await assert.rejects(cuckood.importUsers({ path, query, body: new Upload(many) }), refused("campaign-not-found"));
  await assert.rejects(
    cuckood.importUsers({ path: await campaign("formless"), body: new Upload(many) }),
    refused("unsupported-media-type"),
  );
  const broken = function* (): Generator<string> {
    yield "u1";
    throw new RangeError("the source is broken");
  };
  const source = { path: await campaign("source"), query, body: new Upload(broken) };
  await assert.rejects(cuckood.importUsers(source), RangeError);
});
