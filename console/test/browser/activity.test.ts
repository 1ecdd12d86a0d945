/** The feed of events: what has happened before, and what happens while somebody looks. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { rowsOf } from "../../src/api/csv.ts";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits, visit } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { button, downloaded, open, rows, says, send } from "../support/steps.ts";

const t = CATALOGS.en;

const scene = stage({ keys: [{ shop: ["write", "redeem"], root: ["admin"] }] });

async function signIn(page: Page, hash: string): Promise<void> {
  await open(page, scene.url, "#/system");
  await page.evaluate(() => sessionStorage.setItem("cuckood-key", "root"));
  await open(page, scene.url, hash);
}

test("events_arrive_automatically", async () => {
  await send(scene.url, "PUT", "coupons/welcome", { capacity: 100 }, "shop");
  await send(scene.url, "POST", "coupons/welcome/codes", { codes: ["CODE-1", "CODE-2"] }, "shop");
  await send(scene.url, "POST", "coupons/welcome/redemptions", { code: "CODE-1", reference: "order-41" }, "shop");
  const { page, end } = await visit(scene.browser());
  const asked: string[] = [];
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.pathname === "/v1/events") {
      asked.push(url.searchParams.toString());
    }
  });
  await signIn(page, "#/activity");
  const lines = page.getByRole("region", { name: t.activity.list }).locator("tbody tr");
  await lines.nth(2).waitFor();
  const before = (await rows(page, t.activity.list)).map(([, event, where, , key]) => [event, where, key]);
  const { events } = t;
  assert.deepEqual(before, [[events["redemption.created"], "welcome", "shop"], [events["codes.added"], "welcome", "shop"], [events["coupon.created"], "welcome", "shop"]]);

  // The page waits for the next one by now: nobody touches it.
  await send(scene.url, "POST", "coupons/welcome/redemptions", { code: "CODE-2", reference: "order-42" }, "shop");
  await page.getByRole("cell", { name: /order-42/ }).waitFor();
  await send(scene.url, "DELETE", "coupons/welcome?force=true", undefined, "root");
  await page.getByRole("cell", { name: events["coupon.deleted"] }).waitFor();
  assert.ok(!(await page.content()).includes("CODE-"), "an event names a code");
  await page.getByLabel(t.search).fill("order-41");
  await lines.nth(1).waitFor({ state: "detached" });
  assert.match((await rows(page, t.activity.list))[0]?.[3] ?? "", /order-41/);
  assert.ok(asked.slice(1).every((query) => /^after=\d+&limit=500&wait=25$/.test(query)), asked.join(" "));
  await end();
});

forEachReader("long_feed_has_pages_and_whole_words", scene, async (page, { t, id, width }) => {
  await send(scene.url, "PUT", `coupons/long-${id}`, { capacity: 1_000 }, "root");
  await Promise.all(Array.from({ length: 120 }, (_, at) => send(scene.url, "POST", `coupons/long-${id}/codes`, { codes: [`CODE-${at}`] }, "shop")));
  await signIn(page, "#/activity");
  await says(page, t.pager.pageOf(1, 3).slice(0, 6));
  assert.equal((await rows(page, t.activity.list)).length, 50);
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  assert.ok(height < (width < 600 ? 9_000 : 4_000), `${height} px`);
  // A word is in one line, or it has been broken in the middle.
  const lines = await page.locator("td", { hasText: t.events["codes.added"] }).first().evaluate((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size;
  });
  assert.ok(lines <= 2, `${lines} lines`);
  await assertFits(page, "activity");
  await assertAccessible(page, "activity");
  const { name, text } = await downloaded(page, button(page, t.csv));
  assert.equal(name, "events.csv");
  const [head = [], ...exported] = rowsOf(text);
  assert.deepEqual(head.slice(0, 2), ["seq", "at"]);
  assert.ok(exported.length >= 121 && exported.every((line) => /^\d+$/.test(line[0] ?? "")));
});

forEachReader("refused_feed_is_not_empty", scene, async (page, { t }) => {
  await page.route(/\/v1\/events/, (route) => route.fulfill({ status: 403, json: { code: "forbidden", title: "x", status: 403, detail: "the key lacks a scope" } }));
  await signIn(page, "#/activity");
  await page.getByRole("alert").getByText(t.problems.forbidden).waitFor();
  assert.equal(await page.getByText(t.activity.none).count(), 0);
});

forEachReader("feed_goes_on_after_a_pause", scene, async (page, { t, id }) => {
  await send(scene.url, "PUT", `coupons/pause-${id}`, { capacity: 10 }, "root");
  let asked = 0;
  await page.route(/\/v1\/events\?after=/, (route) => {
    asked += 1;
    const problem = { code: "rate-limited", title: "x", status: 429, detail: "too many requests" };
    return asked === 1 ? route.fulfill({ status: 429, headers: { "Retry-After": "600" }, json: problem }) : route.continue();
  });
  await page.clock.install();
  await signIn(page, "#/activity");
  await page.getByRole("alert").getByText(t.problems["rate-limited"]).waitFor();
  // The page asks for other things as before: by the second time, a request that came too early would be there.
  for (let round = 0; round < 2; round += 1) {
    const polled = page.waitForRequest(/\/metrics$/);
    await page.clock.fastForward(150_000);
    await polled;
  }
  assert.equal(asked, 1, "it asks before the pause is over");
  await page.clock.fastForward(301_000);
  await page.getByRole("link", { name: `pause-${id}` }).first().waitFor();
  await page.getByRole("alert").waitFor({ state: "detached" });
});
