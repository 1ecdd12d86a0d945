/** Coupons whose codes have several uses, and customers with a limit: made in a marketer's words, redeemed, and looked up by a help desk. */

import assert from "node:assert/strict";
import type { Page } from "playwright-core";
import type { Catalog } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { button, open, panel, rows, says, send } from "../support/steps.ts";

const scene = stage();

const MOST = "1,000,000";

/** Makes a coupon with two codes of three uses each, and takes some of them. */
async function fill(name: string): Promise<void> {
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 10, uses: 3, per_customer: 2, normalize: "code" });
  await send(scene.url, "POST", `coupons/${name}/codes`, { codes: ["ONE", "TWO"] });
  const redeem = (reference: string, customer: string, hold_seconds = 0) =>
    send(scene.url, "POST", `coupons/${name}/redemptions`, { code: "ONE", reference, customer, hold_seconds });
  const kept = await redeem("order-1", "c-7");
  await send(scene.url, "POST", `coupons/${name}/redemptions/${kept.id}/cancel`, { release: false });
  await redeem("order-2", "c-7", 900);
  await redeem("order-3", "c-8");
}

forEachReader("coupon_is_made_in_words_of_marketer", scene, async (page, { t, id }) => {
  const { form, spellings } = t;
  const name = `words-${id}`;
  await open(page, scene.url, "#/new-coupon");
  await page.getByLabel(form.name, { exact: true }).fill(name);
  const spelling = page.getByRole("group", { name: form.spelling.codes });
  assert.ok(await spelling.getByRole("radio", { name: spellings.code, exact: true }).isChecked());
  await says(page, form.spellingExamples.code);
  const uses = page.getByLabel(form.uses.codes, { exact: true });
  const perCustomer = page.getByLabel(form.perCustomer, { exact: true });
  assert.deepEqual([await uses.inputValue(), await perCustomer.inputValue()], ["1", ""]);
  await says(page, form.perCustomerHint);
  await uses.fill("0");
  await says(page, form.outOfRange(MOST));
  assert.ok(await button(page, form.create).isDisabled());
  await uses.fill("500");
  await perCustomer.fill("1");
  await spelling.getByRole("radio", { name: spellings.case, exact: true }).check();
  await says(page, form.spellingExamples.case);
  await assertAccessible(page, "the questions of a new coupon");
  await assertFits(page, "the questions of a new coupon");
  await button(page, form.create).click();
  await page.getByRole("heading", { level: 1, name }).waitFor();
  const made = await send(scene.url, "GET", `coupons/${name}`);
  assert.deepEqual([made.normalize, made.uses, made.per_customer], ["case", 500, 1]);

  // Ids of users are exact, unless the reader says otherwise; what is only checked has no uses.
  await open(page, scene.url, "#/new-coupon");
  await page.getByLabel(form.name, { exact: true }).fill(`pool-${id}`);
  await page.getByRole("radio", { name: form.pool, exact: true }).check();
  const ids = page.getByRole("group", { name: form.spelling.pool });
  assert.ok(await ids.getByRole("radio", { name: spellings.exact, exact: true }).isChecked());
  await page.getByLabel(form.uses.pool, { exact: true }).fill("2");
  await assertAccessible(page, "the questions of an open pool");
  await button(page, form.create).click();
  await page.getByRole("heading", { level: 1, name: `pool-${id}` }).waitFor();
  const pool = await send(scene.url, "GET", `coupons/pool-${id}`);
  assert.deepEqual([pool.normalize, pool.uses, pool.per_customer], ["exact", 2, undefined]);
});

forEachReader("coupon_shows_uses_and_limit_and_asks_for_customer", scene, async (page, { t, id }) => {
  const name = `summary-${id}`;
  await fill(name);
  await open(page, scene.url, `#/coupons/${name}`);
  const summary = panel(page, t.filter.summary);
  await summary.getByText(t.filter.usesHeld("3", "1")).waitFor();
  await summary.getByText(t.filter.usesLeftOf("3", "6"), { exact: true }).waitFor();
  await summary.getByText(t.filter.perCustomerMost("2"), { exact: true }).waitFor();
  await summary.getByText(t.spellings.code, { exact: true }).waitFor();

  const all = panel(page, t.redemptions.title);
  const redeem = async (code: string, reference: string, customer: string) => {
    await all.getByLabel(t.redemptions.code, { exact: true }).fill(code);
    await all.getByLabel(t.redemptions.reference, { exact: true }).fill(reference);
    await all.getByLabel(t.redemptions.customer, { exact: true }).fill(customer);
    const verb = button(all, t.redemptions.redeem);
    if (customer === "") {
      assert.ok(await verb.isDisabled());
      return;
    }
    await verb.click();
  };
  await says(page, t.redemptions.customerHint);
  await redeem("two", "order-4", "");
  await redeem("two", "order-4", "c-7");
  await says(page, t.problems["customer-limit"]);
  await redeem("o-n-e", "order-4", "c-9");
  await says(page, t.problems["code-held"]);
  await all.getByText(t.heldUntil).waitFor();
  await assertAccessible(page, "a code that is held");
  await redeem("two", "order-4", "c-9");
  await says(page, t.redemptions.redeemedFor("order-4"));
  await summary.getByText(t.filter.usesLeftOf("2", "6"), { exact: true }).waitFor();
  await all.getByRole("cell", { name: t.redemptions.isKept }).waitFor();
  await assertAccessible(page, "a coupon with uses");
  await assertFits(page, "a coupon with uses");
  await open(page, scene.url, "#/activity");
  await page.locator("td", { hasText: t.redemptions.isKept }).first().waitFor();

  await send(scene.url, "POST", `coupons/${name}/codes/remove`, { codes: ["TWO"] });
  await open(page, scene.url, `#/coupons/${name}`);
  await summary.getByText(t.filter.usesLeftOf("0", "3"), { exact: true }).waitFor();
  await open(page, scene.url, "#/coupons");
  const [row] = (await rows(page, t.nav.coupons)).filter(([title]) => title === name);
  assert.deepEqual(row?.slice(-2), ["1", "3"]);
});

async function lookUp(page: Page, t: Catalog, act: "lookup" | "customers", text: string): Promise<void> {
  const items = panel(page, t.items.titles.coupons);
  await items.getByRole("radio", { name: t.items.acts[act], exact: true }).check();
  await items.getByLabel(act === "customers" ? t.items.customers : t.items.lines.coupons).fill(text);
  await button(items, t.items.acts[act]).click();
}

forEachReader("codes_and_customers_are_looked_up", scene, async (page, { t, id }) => {
  const name = `desk-${id}`;
  await fill(name);
  await open(page, scene.url, `#/coupons/${name}`);
  const { items, outcomes } = t;
  await lookUp(page, t, "lookup", "o-n-e\nTWO\nNONE");
  const cells = await rows(page, items.outcomes);
  assert.deepEqual(cells.map((row) => row.slice(0, 3)), [
    ["o-n-e", outcomes.held, items.takenOf(3, 3) + items.heldOf(1)],
    ["TWO", outcomes.available, items.takenOf(0, 3)],
    ["NONE", outcomes.absent, "–"],
  ]);
  const [taken = "", untaken] = cells.map((row) => row[3]);
  assert.match(taken, new RegExp(`^order-3.*${outcomes.redeemed}.*order-2.*${outcomes.held}`, "s"));
  assert.ok(taken.endsWith(items.unlisted(1)), taken);
  assert.equal(untaken, "–");
  await assertAccessible(page, "codes that are looked up");
  await assertFits(page, "codes that are looked up");

  await lookUp(page, t, "customers", "c-7\nC-7");
  await says(page, items.customersHint);
  await page.getByRole("cell", { name: "c-7", exact: true }).waitFor();
  const customers = await rows(page, items.outcomes);
  assert.deepEqual(customers.map((row) => row.slice(0, 2)), [["c-7", items.takenOf(2, 2)], ["C-7", items.takenOf(0, 2)]]);
  assert.match(customers[0]?.[2] ?? "", new RegExp(`^order-2.*${outcomes.held}`, "s"));
  await assertAccessible(page, "customers that are looked up");
  await assertFits(page, "customers that are looked up");

  // More than one request takes.
  await panel(page, items.titles.coupons).getByLabel(items.customers).fill(Array.from({ length: 1_001 }, (_, at) => `c-${at}`).join("\n"));
  await says(page, items.tooManyLookups("1,001", "1,000"));
  assert.ok(await button(panel(page, items.titles.coupons), items.acts.customers).isDisabled());
});
