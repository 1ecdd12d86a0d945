/** What a reader does with the page, and the words in which tests say it. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { isDeepStrictEqual } from "node:util";
import type { Locator, Page } from "playwright-core";
import { CATALOGS, type Catalog } from "../../src/i18n/texts.ts";
import { assertAccessible } from "./browser.ts";

export const button = (page: Page | Locator, name: string) => page.getByRole("button", { name, exact: true });
export const panel = (page: Page, name: string) => page.getByRole("region", { name, exact: true });
export const says = (page: Page, text: string | RegExp) => page.getByText(text).first().waitFor();
export const dialog = (page: Page, name: string) => page.getByRole("dialog", { name, exact: true });

/** Goes to a page of the console as if its address were typed. */
export async function open(page: Page, url: string, hash: string): Promise<void> {
  await page.goto("about:blank");
  await page.goto(`${url}/console${hash}`);
}

/** The words of a table's rows. */
export async function rows(page: Page, label: string): Promise<string[][]> {
  const lines = page.getByRole("region", { name: label }).locator("tbody tr");
  await lines.first().waitFor();
  return lines.evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent?.trim() ?? "")));
}

/** Reads until it reads what is expected: a table keeps its old rows until the response that replaces them has come. */
export async function becomes<T>(page: Page, read: () => Promise<T>, expected: T): Promise<void> {
  const deadline = Date.now() + 10_000;
  let found = await read();
  while (!isDeepStrictEqual(found, expected) && Date.now() < deadline) {
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(drawn)));
    found = await read();
  }
  assert.deepEqual(found, expected);
}

/** The text of the file that a button downloads, and its name. */
export async function downloaded(page: Page, control: Locator): Promise<{ name: string; text: string }> {
  const [file] = await Promise.all([page.waitForEvent("download"), control.click()]);
  return { name: file.suggestedFilename(), text: await readFile(await file.path(), "utf8") };
}

/** Sends a request to the service besides the page. */
export async function send(url: string, method: string, path: string, body?: unknown, key = ""): Promise<any> {
  const headers = { "Content-Type": "application/json", ...(key === "" ? {} : { Authorization: `Bearer ${key}` }) };
  const answer = await fetch(`${url}/v1/${path}`, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  const text = await answer.text();
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return text === "" ? undefined : JSON.parse(text);
}

export async function create(page: Page, t: Catalog, kind: "campaigns" | "coupons", name: string): Promise<void> {
  await page.getByRole("navigation", { name: t.nav.label }).getByRole("link", { name: t.nav[kind] }).click();
  await page.getByRole("link", { name: t.filters.create[kind] }).first().click();
  await page.getByLabel(t.form.name, { exact: true }).fill(name);
  await button(page, t.form.create).click();
  await page.getByRole("heading", { level: 1, name }).waitFor();
}

/** Uploads a file that has been checked, and agrees to the question before it. */
export async function runUpload(page: Page, t: Catalog, fullName: string): Promise<void> {
  await button(panel(page, t.upload.title), t.upload.run).click();
  await button(dialog(page, t.upload.appendTitle(fullName)), t.upload.run).click();
}

/** From making a coupon to deleting it. */
export async function useCoupon(page: Page, t: Catalog = CATALOGS.en, name = "welcome"): Promise<void> {
  await create(page, t, "coupons", name);
  await assertAccessible(page, "a new coupon");

  // A check changes nothing, and only after it can the file be uploaded.
  const upload = panel(page, t.upload.title);
  const codes = Array.from({ length: 500 }, (_, index) => `CODE-${index}`);
  const buffer = Buffer.from(`${codes.join("\n")}\n\n${"x".repeat(600)}\n`);
  assert.ok(await button(upload, t.upload.run).isDisabled());
  await upload.getByLabel(t.upload.file, { exact: true }).setInputFiles({ name: "codes.txt", mimeType: "text/plain", buffer });
  await button(upload, t.upload.check).click();
  await says(page, t.upload.checked);
  await says(page, t.upload.wouldAdd("501", "500"));
  assert.deepEqual(await rows(page, t.upload.rejectedLines), [["502", t.outcomes["item-too-long"]]]);
  await runUpload(page, t, name);
  await says(page, t.upload.added("501", "500"));
  await says(page, t.filter.availableOf("500", "500"));

  // The same panel tries, looks up, adds and removes.
  const items = panel(page, t.items.titles.coupons);
  const act = async (name: "check" | "lookup" | "add" | "withdraw", text: string) => {
    await items.getByRole("radio", { name: t.items.acts[name], exact: true }).check();
    await items.getByLabel(t.items.lines.coupons).fill(text);
    await button(items, t.items.acts[name]).click();
  };
  await act("check", "code-1\nit's none");
  await says(page, t.items.invalid);
  assert.deepEqual(await rows(page, t.items.outcomes), [["code-1", t.items.valid], ["it's none", t.items.invalid]]);
  await act("add", "EXTRA\nCODE-1");
  await says(page, t.outcomes.already_present);
  await act("withdraw", "EXTRA");
  await button(dialog(page, t.items.removeTitle.coupons("EXTRA", 1)), t.items.acts.withdraw).click();
  await items.getByText(t.outcomes.withdrawn, { exact: true }).waitFor();
  await send(new URL(page.url()).origin, "POST", `coupons/${name}/redemptions`, { code: "CODE-2", reference: "order-2" }, await page.evaluate(() => sessionStorage.getItem("cuckood-key") ?? ""));
  await act("lookup", "CODE-2\nCODE-1");
  await says(page, t.outcomes.redeemed);
  assert.deepEqual((await rows(page, t.items.outcomes)).map((row) => row.slice(0, 3)), [
    ["CODE-2", t.outcomes.redeemed, "order-2"],
    ["CODE-1", t.outcomes.available, "–"],
  ]);
  await assertAccessible(page, "codes that are looked up");

  // Nothing is emptied or deleted before its name is typed.
  const danger = panel(page, t.danger.title);
  await button(danger, t.danger.clear.coupons).click();
  const clear = dialog(page, t.danger.clearTitle.coupons(name));
  assert.ok(await button(clear, t.danger.clear.coupons).isDisabled());
  await clear.getByRole("textbox").fill(name);
  await assertAccessible(page, "the question");
  await button(clear, t.danger.clear.coupons).click();
  await says(page, t.filter.availableOf("0", "1"));
  await button(danger, t.danger.delete.coupons).click();
  const remove = dialog(page, t.danger.deleteTitle(name));
  await remove.getByRole("textbox").fill(name);
  await button(remove, t.danger.delete.coupons).click();
  // A code was redeemed, so the page asks again.
  const used = dialog(page, t.danger.usedTitle(name));
  await used.getByRole("textbox").fill(name);
  await button(used, t.danger.deleteUsed).click();
  await says(page, t.filters.none.coupons);
  await assertAccessible(page, "no coupons");
}
