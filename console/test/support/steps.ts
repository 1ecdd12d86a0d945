/** What an operator does with a coupon, and the words in which tests say it. */

import assert from "node:assert/strict";
import type { Page } from "playwright-core";
import { assertAccessible } from "./browser.ts";

export const button = (page: Page, name: string) => page.getByRole("button", { name, exact: true });
export const panel = (page: Page, name: string) => page.getByRole("region", { name, exact: true });
export const says = (page: Page, text: string | RegExp) => page.getByText(text).first().waitFor();

/** The words of a table's rows. */
export async function rows(page: Page, label: string): Promise<string[][]> {
  const lines = page.getByRole("region", { name: label }).locator("tbody tr");
  await lines.first().waitFor();
  return lines.evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent ?? "")));
}

export async function create(page: Page, kind: "Campaign: users" | "Coupon: codes", name: string): Promise<void> {
  await page.getByRole("link", { name: "Filters", exact: true }).click();
  await page.getByRole("link", { name: "New campaign or coupon" }).click();
  await page.getByLabel(kind).check();
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Capacity").fill("1000");
  await says(page, "Memory while it is replaced");
  await page.getByLabel("Name").press("Enter");
  await page.getByRole("heading", { level: 1, name }).waitFor();
}

/** From making a coupon to deleting it. */
export async function useCoupon(page: Page): Promise<void> {
  await create(page, "Coupon: codes", "welcome");
  await assertAccessible(page, "a new coupon");

  // A dry run changes nothing, and only after it can the file be imported.
  const upload = panel(page, "Import a file");
  const codes = Array.from({ length: 500 }, (_, index) => `CODE-${index}`);
  const buffer = Buffer.from(`${codes.join("\n")}\n\n${"x".repeat(600)}\n`);
  assert.ok(await button(page, "Import").isDisabled());
  await upload.getByLabel("File").setInputFiles({ name: "codes.txt", mimeType: "text/plain", buffer });
  await button(page, "Dry run").click();
  await says(page, "Dry run: nothing has changed.");
  await says(page, /500 to add, 0 already present, 1 rejected/);
  assert.deepEqual(await rows(page, "Rejected lines"), [["502", "item-too-long"]]);
  assert.ok((await panel(page, "Figures").textContent())?.includes("0 of 1,000"));
  await button(page, "Import").click();
  await says(page, /500 added, 0 already present, 1 rejected/);
  await says(page, /500 of /);

  // The same panel tries, looks up, adds and removes.
  const items = panel(page, "Codes");
  const act = async (name: string, text: string) => {
    await items.getByRole("radio", { name, exact: true }).check();
    await items.getByLabel("Codes, one a line").fill(text);
    await items.getByRole("button", { name, exact: true }).click();
  };
  await act("Try", "CODE-1\nit's none");
  await says(page, "not valid");
  assert.deepEqual(await rows(page, "Outcomes"), [["CODE-1", "valid"], ["it's none", "not valid"]]);
  await act("Add", "EXTRA\nCODE-1");
  await says(page, "already present");
  await act("Remove", "EXTRA");
  await items.getByText("removed", { exact: true }).waitFor();

  // One code is redeemed, another held and confirmed; the first is cancelled.
  const redemptions = panel(page, "Redemptions");
  const redeem = async (code: string, reference: string, seconds: string, name: string) => {
    await redemptions.getByLabel("Code").fill(code);
    await redemptions.getByLabel("Reference", { exact: true }).fill(reference);
    await redemptions.getByLabel("Hold for seconds").fill(seconds);
    await redemptions.getByRole("button", { name, exact: true }).click();
  };
  await redeem("CODE-1", "order-1", "0", "Redeem");
  await says(page, /^Redeemed for order-1/);
  await redeem("CODE-1", "order-2", "0", "Redeem");
  await says(page, "code-redeemed");
  await redeem("CODE-2", "order-2", "900", "Hold");
  await says(page, /^ends in/);
  await assertAccessible(page, "redemptions");
  await button(page, "Confirm order-2").click();
  await button(page, "Confirm order-2").waitFor({ state: "detached" });
  await button(page, "Cancel order-1").click();
  await redemptions.getByRole("cell", { name: "cancelled" }).waitFor();
  await redemptions.getByLabel("Search by reference").fill("order-2");
  await redemptions.getByRole("cell", { name: "cancelled" }).waitFor({ state: "detached" });
  const found = await rows(page, "Redemptions, the oldest change first");
  assert.deepEqual(found.map(([reference, status]) => [reference, status]), [["order-2", "redeemed"]]);
  await act("Look up", "CODE-2\nCODE-1");
  await says(page, "available");
  assert.deepEqual((await rows(page, "Codes")).map((row) => row.slice(0, 3)), [
    ["CODE-2", "redeemed", "order-2"],
    ["CODE-1", "available", "–"],
  ]);

  // Nothing is emptied or deleted before its name is typed.
  assert.ok((await button(page, "Remove all codes").isDisabled()) && (await button(page, "Delete this coupon").isDisabled()));
  await page.getByLabel("Type the name, welcome, to go on").fill("welcome");
  await button(page, "Remove all codes").click();
  await says(page, "499 items removed.");
  assert.ok(await button(page, "Delete this coupon").isDisabled(), "the name is typed for each");
  await page.getByLabel("Type the name, welcome, to go on").fill("welcome");
  await button(page, "Delete this coupon").click();
  await says(page, "There are no campaigns or coupons yet.");
  await assertAccessible(page, "no filters");
}
