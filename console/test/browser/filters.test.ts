/** Campaigns and coupons in words of a business: their tables, titles, labels, statistics, generated codes, and what was once in the way. */

import assert from "node:assert/strict";
import { after, before } from "node:test";
import type { Browser, Page } from "playwright-core";
import { assertAccessible, assertFits, launch } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { serve, type Service } from "../support/service.ts";
import { button, downloaded, open, panel, rows, says, send } from "../support/steps.ts";

let browser: Browser;
let service: Service;
let empty: Service;

before(async () => {
  [browser, service, empty] = await Promise.all([launch(), serve(), serve()]);
  await send(service.url, "PUT", "campaigns/spring", { capacity: 5_000 });
  await send(service.url, "POST", "campaigns/spring/users", { users: ["u1", "u2"] });
  await send(service.url, "PUT", "campaigns/summer", { capacity: 100, starts_at: "2099-06-01T00:00:00Z" });
  await send(service.url, "PUT", "campaigns/winter", { capacity: 100, ends_at: "2020-01-01T00:00:00Z" });
  await send(service.url, "PUT", "coupons/flash", { capacity: 2, stock: 2, ends_at: "2099-11-27T22:40:00Z" });
  for (const user of ["u1", "u2"]) {
    await send(service.url, "POST", "coupons/flash/redemptions", { code: user, reference: user });
  }
  await send(service.url, "PUT", "coupons/welcome", { capacity: 100, ignore_case: true });
  await send(service.url, "POST", "coupons/welcome/codes", { codes: ["A", "B", "C"] });
  await send(service.url, "POST", "coupons/welcome/redemptions", { code: "A", reference: "order-1", hold_seconds: 900 });
});

after(async () => {
  await browser.close();
  await Promise.all([service.stop(), empty.stop()]);
});

/** What is seen without opening anything. */
const seen = (page: Page) => page.evaluate(() => document.body.innerText);

const FOREIGN = /\b(filters?|compact|strict|slots?|segments?|fingerprints?)\b|过滤器|布谷鸟|分段|槽位|指纹|e[−-]\d+\s*%/i;

/** No cell is wider than its place, where it would cover the next. */
async function assertCellsFit(page: Page): Promise<void> {
  const wide = await page.locator("td, th").evaluateAll((cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent));
  assert.deepEqual(wide, []);
}

forEachReader("tables_speak_of_business", () => browser, async (page, { t }) => {
  await open(page, service.url, "#/campaigns");
  const { phases, filters } = t;
  const campaigns = await rows(page, t.nav.campaigns);
  assert.deepEqual(campaigns.map(([name, state, , users]) => [name, state, users]), [["spring", phases.active, "2"], ["summer", phases.scheduled, "0"], ["winter", phases.ended, "0"]]);
  assert.equal(campaigns[0]?.[2], filters.noEnd);
  assert.doesNotMatch(await seen(page), FOREIGN);
  await assertAccessible(page, "campaigns");
  await assertFits(page, "campaigns");

  await open(page, service.url, "#/coupons");
  const coupons = await rows(page, t.nav.coupons);
  assert.deepEqual(coupons.map(([name, state, , available, held, redeemed]) => [name, state, available, held, redeemed]), [
    ["flash", phases.sold_out, "0", "0", "2"],
    ["welcome", phases.active, "2", "1", "0"],
  ]);
  await page.getByRole("img", { name: filters.used("100%", "2") }).waitFor();
  assert.doesNotMatch(await seen(page), FOREIGN);
  await assertAccessible(page, "coupons");
  await assertFits(page, "coupons");
  await assertCellsFit(page);

  for (const hash of ["#/campaigns/spring", "#/coupons/welcome", "#/coupons/flash", "#/new-campaign", "#/new-coupon", "#/line-ups", "#/uploads", "#/activity"]) {
    await open(page, service.url, hash);
    await page.locator("main :is(.panel, .empty, table)").first().waitFor();
    assert.doesNotMatch(await seen(page), FOREIGN, hash);
    await assertFits(page, hash);
    await assertAccessible(page, hash);
  }
  await open(page, service.url, "#/campaigns/spring");
  await page.locator("main > .technical > summary").click();
  await page.getByText(t.storage.errorRate, { exact: true }).waitFor();
  await assertAccessible(page, "technical");
});

forEachReader("empty_list_names_first_step", () => browser, async (page, { t }) => {
  for (const [hash, text, link] of [
    ["#/campaigns", t.filters.none.campaigns, t.filters.create.campaigns],
    ["#/coupons", t.filters.none.coupons, t.filters.create.coupons],
    ["#/line-ups", t.lineUps.none, t.lineUps.create],
    ["#/uploads", t.uploads.none, t.nav.campaigns],
  ] as const) {
    await open(page, empty.url, hash);
    await says(page, text);
    await page.getByRole("main").getByRole("link", { name: link }).waitFor();
    await assertAccessible(page, hash);
  }
  await open(page, empty.url, "#/activity");
  await says(page, t.activity.none);
});

forEachReader("codes_are_generated_and_downloaded", () => browser, async (page, { t, id }) => {
  const name = `gen-${id}`;
  await send(service.url, "PUT", `coupons/${name}`, { capacity: 1_000 });
  await open(page, service.url, `#/coupons/${name}`);
  const generate = panel(page, t.generate.title);
  await generate.getByLabel(t.generate.count).fill("100");
  await generate.getByLabel(t.generate.pattern).fill("SALE-####");
  await generate.getByText(t.generate.patternFault(6, 4)).waitFor();
  assert.ok(await button(generate, t.generate.run).isDisabled());
  await assertAccessible(page, "a pattern that is too short");
  await generate.getByLabel(t.generate.pattern).fill("SALE-###-###");
  const first = await downloaded(page, button(generate, t.generate.run));
  assert.equal(first.name, `${name}-codes.csv`);
  const [head, ...codes] = first.text.trim().split(/\r?\n/);
  assert.equal(head, "code");
  assert.ok(codes.length === 100 && codes.every((code) => /^SALE-[2-9A-HJ-NP-Z]{3}-[2-9A-HJ-NP-Z]{3}$/.test(code)), codes[0]);
  await says(page, t.generate.done("100"));
  await says(page, t.filter.availableOf("100", "100"));
  // The same once more, should the file be lost.
  const again = await downloaded(page, button(generate, t.generate.again));
  assert.equal(again.text, first.text);
  await says(page, t.filter.availableOf("100", "100"));
});

forEachReader("stock_below_use_is_warned_of", () => browser, async (page, { t }) => {
  await open(page, service.url, "#/coupons/flash");
  await page.locator(".about").getByText(t.phases.sold_out).waitFor();
  const edit = panel(page, t.change.title);
  await edit.getByLabel(t.change.stock, { exact: true }).fill("1");
  await edit.getByText(t.change.stockLow("2", "1")).waitFor();
  await edit.getByLabel(t.change.stock, { exact: true }).fill("3");
  await edit.getByText(t.change.stockLow("2", "1")).waitFor({ state: "detached" });
});

forEachReader("csv_column_is_chosen_from_file", () => browser, async (page, { t, id }) => {
  const name = `upload-${id}`;
  await send(service.url, "PUT", `campaigns/${name}`, { capacity: 1_000 });
  await open(page, service.url, `#/campaigns/${name}`);
  const upload = panel(page, t.upload.title);
  const buffer = Buffer.from("name,user_id\nAnna,u1\nBert,u2\n");
  await upload.getByLabel(t.upload.file, { exact: true }).setInputFiles({ name: "users.csv", mimeType: "text/csv", buffer });
  const column = upload.getByLabel(t.upload.column, { exact: true });
  await column.locator("option").nth(1).waitFor({ state: "attached" });
  assert.deepEqual(await column.locator("option").allTextContents(), ["name", "user_id"]);
  assert.equal(await column.inputValue(), "user_id", "a likely one is chosen");
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("2", "2"));
  await button(upload, t.upload.run).click();
  await says(page, t.upload.added("2", "2"));
  await assertAccessible(page, "an upload");
  await open(page, service.url, "#/uploads");
  assert.ok((await rows(page, t.nav.uploads)).some(([into, state]) => into?.startsWith(name) && state === t.uploads.states.done));
});

forEachReader("refusal_is_told_once_and_in_words", () => browser, async (page, { t }) => {
  await open(page, service.url, "#/campaigns/spring");
  const users = panel(page, t.items.titles.campaigns);
  await users.getByLabel(t.items.lines.campaigns).fill(`u1\n${"x".repeat(600)}`);
  await button(users, t.items.acts.check).click();
  const alert = users.getByRole("alert");
  await alert.getByText(t.problems["invalid-request"]).waitFor();
  const text = await alert.innerText();
  assert.ok(text.includes(t.line(2)) && !text.includes("/users"), text);
  assert.equal(text.split("512").length, 2, `once: ${text}`);
  await assertAccessible(page, "a refusal");
});

forEachReader("name_is_validated_while_typing", () => browser, async (page, { t }) => {
  await open(page, service.url, "#/new-campaign");
  const name = page.getByLabel(t.form.name, { exact: true });
  const create = button(page, t.form.create);
  await name.fill("Spring Sale");
  await says(page, t.form.nameFault);
  assert.ok(await create.isDisabled());
  await name.fill("spring");
  await says(page, t.form.nameTaken);
  assert.ok(await create.isDisabled());
  await name.fill("spring-2");
  await page.getByText(t.form.nameTaken).waitFor({ state: "detached" });
  assert.ok(await create.isEnabled());
  await page.getByLabel(t.change.starts("GMT+8")).fill("2099-01-02T00:00");
  await page.getByLabel(t.change.ends("GMT+8")).fill("2099-01-01T00:00");
  await says(page, t.form.backwards);
  assert.ok(await create.isDisabled());
});

forEachReader("times_are_in_the_zone_of_the_reader", () => browser, async (page, { t, id }) => {
  const name = `zone-${id}`;
  await send(service.url, "PUT", `campaigns/${name}`, { capacity: 10, ends_at: "2099-06-01T16:30:00Z" });
  await open(page, service.url, `#/campaigns/${name}`);
  await says(page, t.zone("Asia/Shanghai (GMT+8)"));
  const edit = panel(page, t.change.title);
  const ends = edit.getByLabel(t.change.ends("GMT+8"));
  assert.equal(await ends.inputValue(), "2099-06-02T00:30");
  await ends.fill("2099-07-01T08:00");
  await button(edit, t.change.save).click();
  await says(page, t.change.saved);
  assert.equal((await send(service.url, "GET", `campaigns/${name}`)).ends_at, "2099-07-01T00:00:00Z");
});

forEachReader("language_is_switched_and_remembered", () => browser, async (page, { language, t }) => {
  await open(page, service.url, "#/campaigns");
  await page.getByRole("heading", { level: 1, name: t.nav.campaigns }).waitFor();
  assert.equal(await page.locator("html").getAttribute("lang"), language);
  const [other, heading] = language === "en" ? (["zh-CN", "活动"] as const) : (["en", "Campaigns"] as const);
  await page.getByLabel(t.settings.language).selectOption(other);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
  await page.reload();
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
  assert.equal(await page.locator("html").getAttribute("lang"), other);
  assert.equal(await page.title(), `${heading} · cuckood`);
  await assertAccessible(page, "switched");
});

forEachReader("statistics_are_drawn_when_the_page_opens", () => browser, async (page, { t, id }) => {
  const name = `stats-${id}`;
  await send(service.url, "PUT", `coupons/${name}`, { capacity: 10 });
  await send(service.url, "POST", `coupons/${name}/codes`, { codes: ["A", "B", "C"] });
  await send(service.url, "POST", `coupons/${name}/redemptions`, { code: "A", reference: "order-1" });
  await send(service.url, "POST", `coupons/${name}/redemptions`, { code: "B", reference: "order-2" });
  const { id: held } = await send(service.url, "POST", `coupons/${name}/redemptions`, { code: "C", reference: "order-3", hold_seconds: 900 });
  await send(service.url, "POST", `coupons/${name}/redemptions/${held}/cancel`);
  await open(page, service.url, `#/coupons/${name}`);
  const { fields, hours, month, year } = t.statistics;
  const chart = (field: keyof typeof fields, count: number) => page.getByRole("img", { name: new RegExp(`^${fields[field]}: ${count}:`) }).waitFor();
  for (const period of [month, hours, year]) {
    await panel(page, t.statistics.title).getByRole("radio", { name: period }).check();
    await chart("redeemed", 2);
    await chart("held", 1);
    await chart("cancelled", 1);
  }
  await assertAccessible(page, "statistics");
  await assertFits(page, "statistics");
});
forEachReader("title_and_labels_are_set_found_and_changed", () => browser, async (page, { t, id }) => {
  await open(page, service.url, "#/new-campaign");
  const title = `夏季大促 Summer ${id}`;
  const name = `summer-${id}`;
  await page.getByLabel(t.form.title, { exact: true }).fill(title);
  assert.equal(await page.getByLabel(t.form.name, { exact: true }).inputValue(), name);
  const labels = page.getByLabel(t.form.labels, { exact: true });
  await labels.fill("team");
  await says(page, t.form.labelsFault);
  assert.ok(await button(page, t.form.create).isDisabled());
  await labels.fill(`team=${id}, region=eu`);
  await assertAccessible(page, "a new campaign");
  await button(page, t.form.create).click();
  await page.getByRole("heading", { level: 1, name: title }).waitFor();
  const made = await send(service.url, "GET", `campaigns/${name}`);
  assert.deepEqual([made.title, made.labels], [title, { team: id, region: "eu" }]);

  const edit = panel(page, t.change.title);
  await edit.getByLabel(t.change.name, { exact: true }).fill("");
  await edit.getByLabel(t.change.labels, { exact: true }).fill("region=eu");
  await button(edit, t.change.save).click();
  await says(page, t.change.saved);
  const emptied = await send(service.url, "GET", `campaigns/${name}`);
  assert.deepEqual([emptied.title, emptied.labels], [undefined, { region: "eu" }]);
  await edit.getByLabel(t.change.name, { exact: true }).fill(`${title}!`);
  await edit.getByLabel(t.change.labels, { exact: true }).fill(`team=${id}`);
  // The page still says that the earlier change was saved.
  const saved = page.waitForResponse((response) => response.request().method() === "PATCH" && response.ok());
  await button(edit, t.change.save).click();
  await saved;

  await open(page, service.url, "#/campaigns");
  await page.getByRole("link", { name: `${title}!` }).waitFor();
  await button(page, `team=${id}`).click();
  await page.locator("tbody tr").nth(1).waitFor({ state: "detached" });
  const [row, ...others] = await rows(page, t.nav.campaigns);
  assert.ok(row?.[0]?.startsWith(`${title}!`) && others.length === 0);
  await assertFits(page, "titles");
  await assertAccessible(page, "titles");

  // A line-up has them as well.
  await open(page, service.url, "#/new-line-up");
  await page.getByLabel(t.form.title, { exact: true }).fill(`Home ${id}`);
  await page.getByLabel(t.lineUp.addCampaign).fill(`${title}!`);
  await page.keyboard.press("Enter");
  await page.locator(".sortable").getByRole("link", { name: `${title}!` }).waitFor();
  await button(page, t.lineUp.save).click();
  await page.getByRole("heading", { level: 1, name: `Home ${id}` }).waitFor();
  await page.getByLabel(t.form.title, { exact: true }).fill("");
  await button(page, t.lineUp.save).click();
  await says(page, t.lineUp.saved);
  const stored = await send(service.url, "GET", `line-ups/home-${id}`);
  assert.deepEqual([stored.title, stored.campaigns], [undefined, [name]]);
});
