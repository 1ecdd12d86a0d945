/** A service that requires keys: what a key may not do is not shown, and the key stays in its tab. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits, visit } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { serve } from "../support/service.ts";
import { stage } from "../support/stage.ts";
import { button, open, says, send, useCoupon } from "../support/steps.ts";

const t = CATALOGS.en;

const scene = stage({
  keys: [{ reader: ["read"], shop: ["read", "redeem"], writer: ["write"], root: ["admin"] }],
  fill: async (url) => {
    await send(url, "PUT", "coupons/welcome", { capacity: 100 }, "root");
    await send(url, "POST", "coupons/welcome/codes", { codes: ["A", "B"] }, "root");
  },
});

async function use(page: Page, key: string): Promise<void> {
  await page.getByRole("textbox", { name: t.signIn.key }).fill(key);
  await page.getByRole("textbox", { name: t.signIn.key }).press("Enter");
  await page.getByRole("textbox", { name: t.signIn.key }).waitFor({ state: "detached" });
}

async function forget(page: Page): Promise<void> {
  await button(page, t.settings.title).click();
  await button(page, t.settings.forget).click();
  await page.getByText(t.signIn.needed).waitFor();
}

async function isThere(page: Page, ...names: string[]): Promise<boolean[]> {
  return Promise.all(names.map(async (name) => (await button(page, name).count()) > 0));
}

forEachReader("sign_in_says_where_keys_come_from", scene, async (page, { t }) => {
  await open(page, scene.url, "#/coupons");
  await says(page, t.signIn.needed);
  await says(page, t.signIn.ask);
  await says(page, /cuckood key new --name marketing/);
  await assertAccessible(page, "asked for a key");
  await assertFits(page, "asked for a key");
  await page.getByRole("textbox", { name: t.signIn.key }).fill("wrong");
  await button(page, t.signIn.use).click();
  await says(page, t.signIn.wrong);
  await page.getByRole("textbox", { name: t.signIn.key }).fill("writer");
  await button(page, t.signIn.use).click();
  await says(page, t.signIn.noRead);
});

test("key_decides_what_is_shown", async () => {
  const { page, end } = await visit(scene.browser());
  const coupon = `${scene.url}/console#/coupons/welcome`;
  await page.goto(coupon);
  await says(page, t.signIn.needed);
  assert.equal(await page.getByRole("link", { name: t.nav.coupons, exact: true }).count(), 0);
  const acts = [t.items.acts.check, t.redemptions.redeem, t.upload.check, t.change.save, t.danger.delete.coupons] as const;

  await use(page, "reader");
  await page.getByRole("heading", { name: t.redemptions.title }).waitFor();
  assert.deepEqual(await isThere(page, ...acts), [true, false, false, false, false]);
  assert.equal(await page.getByRole("radio", { name: t.items.acts.add }).count(), 0);
  assert.equal(await page.getByRole("link", { name: t.nav.activity }).count(), 0);
  await page.getByRole("link", { name: t.nav.coupons, exact: true }).click();
  await page.getByRole("link", { name: "welcome" }).waitFor();
  assert.equal(await page.getByRole("link", { name: t.filters.create.coupons }).count(), 0);

  await forget(page);
  await use(page, "shop");
  await page.goto(coupon);
  await page.getByRole("radio", { name: t.items.acts.lookup }).waitFor();
  assert.deepEqual(await isThere(page, ...acts), [true, true, false, false, false]);

  await forget(page);
  await use(page, "root");
  await page.getByRole("radio", { name: t.items.acts.withdraw }).waitFor();
  assert.deepEqual(await isThere(page, ...acts), [true, true, true, true, true]);

  // The command takes the key from the environment.
  await page.getByLabel(t.items.lines.coupons).fill("A");
  await button(page, t.items.acts.check).click();
  await says(page, t.items.valid);
  await page.evaluate(() => (location.hash = "#/requests"));
  await page.getByRole("row", { name: /codes\/check/ }).getByRole("button", { name: "curl" }).click();
  const command = await page.getByRole("dialog").locator("pre").textContent();
  assert.ok(command?.includes('-H "Authorization: Bearer $CUCKOOD_KEY"') && !command.includes("root"), command ?? "");
  await page.keyboard.press("Escape");

  // It survives a reload, and nothing outlives the tab.
  await page.goto(coupon);
  await page.reload();
  await page.getByRole("radio", { name: t.items.acts.withdraw }).waitFor();
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage)), "{}");
  const other = await page.context().newPage();
  await other.goto(coupon);
  await other.getByText(t.signIn.needed).waitFor();
  await end();
});

test("sign_out_drops_what_was_read", async () => {
  const { page, end } = await visit(scene.browser());
  await page.goto(`${scene.url}/console#/coupons/welcome`);
  await use(page, "root");
  await page.getByRole("radio", { name: t.items.acts.lookup }).waitFor();
  await page.evaluate(() => Object.assign(globalThis, { isEarlier: true }));
  await forget(page);
  assert.equal(await page.evaluate(() => "isEarlier" in globalThis), false, "the page was not loaded again");
  await page.evaluate(() => (location.hash = "#/requests"));
  await page.getByRole("row", { name: /v1\/info/ }).waitFor();
  assert.equal(await page.getByText("welcome").count(), 0);
  // A click on the browser's arrow brings nothing back.
  await page.goBack();
  await page.getByText(t.signIn.needed).waitFor();
  assert.equal(await page.getByRole("radio").count(), 0);
  await end();
});

test("coupon_is_used_with_a_key", async (context) => {
  const other = await serve({ root: ["admin"] });
  context.after(() => other.stop());
  const { page, end } = await visit(scene.browser());
  await page.goto(other.url);
  await use(page, "root");
  await page.getByRole("heading", { level: 1, name: t.nav.campaigns }).waitFor();
  await useCoupon(page);
  await end();
});

test("unreachable_service_is_reported", async () => {
  const other = await serve();
  const { page, end } = await visit(scene.browser());
  await page.goto(`${other.url}/console#/system`);
  await says(page, t.system.good);
  await other.stop();
  await says(page, t.problems.unreachable);
  await says(page, t.system.bad);
  await end();
});
