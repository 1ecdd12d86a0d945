/** A service that requires keys: what a key may not do is not shown, and the key stays in its tab. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { Browser, Page } from "playwright-core";
import { assertAccessible, launch, visit } from "../support/browser.ts";
import { serve, type Service } from "../support/service.ts";
import { button, useCoupon } from "../support/steps.ts";

let browser: Browser;
let service: Service;

before(async () => {
  const keys = { reader: ["read"], shop: ["read", "redeem"], writer: ["write"], root: ["admin"] };
  [browser, service] = await Promise.all([launch(), serve(keys)]);
  const headers = { "Content-Type": "application/json", Authorization: "Bearer root" };
  const send = (method: string, path: string, body: unknown) =>
    fetch(`${service.url}/v1/${path}`, { method, headers, body: JSON.stringify(body) });
  await send("PUT", "coupons/welcome", { capacity: 100 });
  await send("POST", "coupons/welcome/codes", { codes: ["A", "B"] });
});

after(async () => {
  await browser.close();
  await service.stop();
});

async function use(page: Page, key: string): Promise<void> {
  await page.getByRole("textbox", { name: "Key" }).fill(key);
  await page.getByRole("textbox", { name: "Key" }).press("Enter");
}

async function forget(page: Page): Promise<void> {
  await button(page, "Forget key").click();
  await page.getByText("This service requires a key.").waitFor();
}

async function isThere(page: Page, ...names: string[]): Promise<boolean[]> {
  return Promise.all(names.map(async (name) => (await button(page, name).count()) > 0));
}

test("the key says what there is to see", async () => {
  const { page, end } = await visit(browser);
  const coupon = `${service.url}/console#/coupons/welcome`;
  await page.goto(coupon);
  await page.getByText("This service requires a key.").waitFor();
  await assertAccessible(page, "asked for a key");
  assert.equal(await page.getByRole("link", { name: "Filters", exact: true }).count(), 0);
  await use(page, "wrong");
  await page.getByText("unauthenticated").waitFor();

  await use(page, "reader");
  await page.getByRole("heading", { name: "Redemptions" }).waitFor();
  assert.deepEqual(await isThere(page, "Try", "Redeem", "Dry run", "Change", "Delete this coupon"), [true, false, false, false, false]);
  assert.equal(await page.getByRole("radio", { name: "Add" }).count(), 0);
  await page.getByRole("link", { name: "Filters", exact: true }).click();
  await page.getByRole("link", { name: "welcome" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "New campaign or coupon" }).count(), 0);

  await forget(page);
  await use(page, "shop");
  await page.goto(coupon);
  await page.getByRole("radio", { name: "Look up" }).waitFor();
  assert.deepEqual(await isThere(page, "Redeem", "Dry run", "Delete this coupon"), [true, false, false]);

  await forget(page);
  await use(page, "writer");
  await page.getByText("This key lacks the scope").waitFor();
  await use(page, "root");
  await page.getByRole("radio", { name: "Remove" }).waitFor();
  assert.deepEqual(await isThere(page, "Redeem", "Dry run", "Change", "Delete this coupon"), [true, true, true, true]);

  // The command takes the key from the environment.
  await page.getByLabel("Codes, one a line").fill("A");
  await page.getByRole("region", { name: "Codes", exact: true }).getByRole("button", { name: "curl" }).click();
  const command = await page.getByRole("dialog").locator("pre").textContent();
  assert.ok(command?.includes('-H "Authorization: Bearer $CUCKOOD_KEY"') && !command.includes("root"), command ?? "");
  await page.keyboard.press("Escape");

  // It survives a reload, and nothing outlives the tab.
  await page.reload();
  await page.getByRole("radio", { name: "Remove" }).waitFor();
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage)), "{}");
  const other = await page.context().newPage();
  await other.goto(coupon);
  await other.getByText("This service requires a key.").waitFor();
  await end();
});

test("a coupon is made, filled, used, emptied and deleted with a key", async () => {
  const other = await serve({ root: ["admin"] });
  const { page, end } = await visit(browser);
  await page.goto(other.url);
  await use(page, "root");
  await useCoupon(page);
  await end();
  await other.stop();
});

test("a service that is gone is told", async () => {
  const other = await serve();
  const { page, end } = await visit(browser);
  await page.goto(`${other.url}/console`);
  await page.getByText("All is well.").waitFor();
  await other.stop();
  await page.getByText("unreachable").first().waitFor();
  await page.getByText("Not ready.").waitFor();
  await end();
});
