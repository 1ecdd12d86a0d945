/** The feed of events: what has happened before, and what happens while somebody looks. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { Browser } from "playwright-core";
import { assertAccessible, launch, visit } from "../support/browser.ts";
import { serve, type Service } from "../support/service.ts";
import { rows } from "../support/steps.ts";

const FEED = "Events, the newest first";

let browser: Browser;
let service: Service;

before(async () => {
  [browser, service] = await Promise.all([launch(), serve({ shop: ["write", "redeem"], root: ["admin"] })]);
});

after(async () => {
  await browser.close();
  await service.stop();
});

async function send(key: string, method: string, path: string, body?: unknown): Promise<void> {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };
  const answer = await fetch(`${service.url}/v1/${path}`, { method, headers, body: JSON.stringify(body) ?? null });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.text()}`);
}

test("events come by themselves", async () => {
  await send("shop", "PUT", "coupons/welcome", { capacity: 100 });
  await send("shop", "POST", "coupons/welcome/codes", { codes: ["CODE-1", "CODE-2"] });
  await send("shop", "POST", "coupons/welcome/redemptions", { code: "CODE-1", reference: "order-41" });

  const { page, end } = await visit(browser);
  const asked: string[] = [];
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.pathname === "/v1/events") {
      asked.push(url.searchParams.toString());
    }
  });
  await page.goto(`${service.url}/console`);
  await page.getByRole("textbox", { name: "Key" }).fill("root");
  await page.getByRole("textbox", { name: "Key" }).press("Enter");
  await page.getByRole("link", { name: "Events" }).click();
  const lines = page.getByRole("region", { name: FEED }).locator("tbody tr");
  await lines.nth(2).waitFor();
  const before = (await rows(page, FEED)).map(([, event, key]) => [event, key]);
  assert.deepEqual(before, [["redemption.created", "shop"], ["codes.added", "shop"], ["coupon.created", "shop"]]);

  // The page waits for the next one by now: nobody touches it.
  await send("shop", "POST", "coupons/welcome/redemptions", { code: "CODE-2", reference: "order-42" });
  await page.getByRole("cell", { name: /order-42/ }).waitFor();
  await send("root", "DELETE", "coupons/welcome");
  await page.getByRole("cell", { name: "coupon.deleted" }).waitFor();
  const [newest, next] = await rows(page, FEED);
  assert.deepEqual([newest?.[1], newest?.[2], next?.[1]], ["coupon.deleted", "root", "redemption.created"]);
  assert.ok(!(await page.content()).includes("CODE-"), "an event names a code");
  await assertAccessible(page, "events");

  await page.getByLabel("Search").fill("order-41");
  await lines.nth(1).waitFor({ state: "detached" });
  assert.match((await rows(page, FEED))[0]?.[3] ?? "", /reference order-41/);
  assert.ok(asked.slice(1).every((query) => /^after=\d+&limit=500&wait=25$/.test(query)), asked.join(" "));
  await end();
});
