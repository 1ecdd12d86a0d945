/** Campaigns and coupons in words of a business: their tables, titles, labels, statistics, generated codes, and what was once in the way. */

import assert from "node:assert/strict";
import type { Page } from "playwright-core";
import { assertAccessible, assertFits } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { button, downloaded, open, panel, rows, runUpload, says, send } from "../support/steps.ts";

const scene = stage({
  keys: [{}, {}],
  fill: async (url) => {
    await send(url, "PUT", "campaigns/spring", { capacity: 5_000 });
    await send(url, "POST", "campaigns/spring/users", { users: ["u1", "u2"] });
    await send(url, "PUT", "campaigns/summer", { capacity: 100, starts_at: "2099-06-01T00:00:00Z" });
    await send(url, "PUT", "campaigns/winter", { capacity: 100, ends_at: "2020-01-01T00:00:00Z" });
    await send(url, "PUT", "coupons/flash", { capacity: 2, stock: 2, ends_at: "2099-11-27T22:40:00Z" });
    for (const user of ["u1", "u2"]) {
      await send(url, "POST", "coupons/flash/redemptions", { code: user, reference: user });
    }
    await send(url, "PUT", "coupons/welcome", { capacity: 100, normalize: "case" });
    await send(url, "POST", "coupons/welcome/codes", { codes: ["A", "B", "C"] });
    await send(url, "POST", "coupons/welcome/redemptions", { code: "A", reference: "order-1", hold_seconds: 900 });
  },
});

/** What is seen without opening anything. */
const seen = (page: Page) => page.evaluate(() => document.body.innerText);

const FOREIGN = /\b(filters?|compact|strict|slots?|segments?|fingerprints?)\b|过滤器|布谷鸟|分段|槽位|指纹|e[−-]\d+\s*%/i;

/** No cell is wider than its place, where it would cover the next. */
async function assertCellsFit(page: Page): Promise<void> {
  const wide = await page.locator("td, th").evaluateAll((cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent));
  assert.deepEqual(wide, []);
}

forEachReader("tables_use_business_words", scene, async (page, { t }) => {
  await open(page, scene.url, "#/campaigns");
  const { phases, filters } = t;
  const campaigns = await rows(page, t.nav.campaigns);
  assert.deepEqual(campaigns.map(([name, state, , users]) => [name, state, users]), [["spring", phases.active, "2"], ["summer", phases.scheduled, "0"], ["winter", phases.ended, "0"]]);
  assert.equal(campaigns[0]?.[2], filters.noEnd);
  assert.doesNotMatch(await seen(page), FOREIGN);
  await assertAccessible(page, "campaigns");
  await assertFits(page, "campaigns");

  await open(page, scene.url, "#/coupons");
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
    await open(page, scene.url, hash);
    await page.locator("main :is(.panel, .empty, table)").first().waitFor();
    assert.doesNotMatch(await seen(page), FOREIGN, hash);
    await assertFits(page, hash);
    await assertAccessible(page, hash);
  }
  await open(page, scene.url, "#/campaigns/spring");
  await page.locator("main > .technical > summary").click();
  await page.getByText(t.storage.errorRate, { exact: true }).waitFor();
  await assertAccessible(page, "technical");
});

forEachReader("empty_list_names_first_step", scene, async (page, { t }) => {
  for (const [hash, text, link] of [
    ["#/campaigns", t.filters.none.campaigns, t.filters.create.campaigns],
    ["#/coupons", t.filters.none.coupons, t.filters.create.coupons],
    ["#/line-ups", t.lineUps.none, t.lineUps.create],
    ["#/uploads", t.uploads.none, t.nav.campaigns],
  ] as const) {
    await open(page, scene.other, hash);
    await says(page, text);
    await page.getByRole("main").getByRole("link", { name: link }).waitFor();
    await assertAccessible(page, hash);
  }
  await open(page, scene.other, "#/activity");
  await says(page, t.activity.none);
});

forEachReader("codes_are_generated_and_downloaded", scene, async (page, { t, id }) => {
  const name = `gen-${id}`;
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 1_000 });
  await open(page, scene.url, `#/coupons/${name}`);
  const generate = panel(page, t.generate.title);
  await generate.getByLabel(t.generate.count).fill("100");
  await generate.getByLabel(t.generate.pattern).fill("SALE-####");
  await generate.getByText(t.generate.patternFault(6, 4)).waitFor();
  assert.ok(await button(generate, t.generate.run).isDisabled());
  await assertAccessible(page, "a pattern that is too short");
  await generate.getByLabel(t.generate.pattern).fill("########");
  await generate.getByText(t.generate.patternNumber).waitFor();
  assert.ok(await button(generate, t.generate.run).isDisabled());
  await generate.getByLabel(t.generate.pattern).fill("SALE-###-###");
  const first = await downloaded(page, button(generate, t.generate.run));
  assert.equal(first.name, `${name}-codes.csv`);
  const [head, ...codes] = first.text.trim().split(/\r?\n/);
  assert.equal(head, "code");
  assert.ok(codes.length === 100 && codes.every((code) => /^SALE-[2-9BCDFGHJ-NP-TV-XZ]{3}-[2-9BCDFGHJ-NP-TV-XZ]{3}$/.test(code)), codes[0]);
  await says(page, t.generate.done("100"));
  await says(page, t.filter.availableOf("100", "100"));
  // The same once more, should the file be lost.
  const again = await downloaded(page, button(generate, t.generate.again));
  assert.equal(again.text, first.text);
  await says(page, t.filter.availableOf("100", "100"));
});

forEachReader("csv_column_is_chosen_from_file", scene, async (page, { t, id }) => {
  const name = `upload-${id}`;
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 1_000 });
  await open(page, scene.url, `#/campaigns/${name}`);
  const upload = panel(page, t.upload.title);
  const buffer = Buffer.from("name,user_id\nAnna,u1\nBert,u2\n");
  await upload.getByLabel(t.upload.file, { exact: true }).setInputFiles({ name: "users.csv", mimeType: "text/csv", buffer });
  const column = upload.getByLabel(t.upload.column, { exact: true });
  await column.locator("option").nth(1).waitFor({ state: "attached" });
  assert.deepEqual(await column.locator("option").allTextContents(), ["name", "user_id"]);
  assert.equal(await column.inputValue(), "user_id", "a likely one is chosen");
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("2", "2"));
  await runUpload(page, t, name);
  await says(page, t.upload.added("2", "2"));
  await assertAccessible(page, "an upload");
  await open(page, scene.url, "#/uploads");
  assert.ok((await rows(page, t.nav.uploads)).some(([into, state]) => into?.startsWith(name) && state === t.uploads.states.done));
});

forEachReader("refusal_is_shown_once_in_words", scene, async (page, { t }) => {
  await open(page, scene.url, "#/campaigns/spring");
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

forEachReader("language_is_switched_and_remembered", scene, async (page, { language, t }) => {
  await open(page, scene.url, "#/campaigns");
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

forEachReader("statistics_are_drawn_when_the_page_opens", scene, async (page, { language, t, id }) => {
  const name = `stats-${id}`;
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 10 });
  await send(scene.url, "POST", `coupons/${name}/codes`, { codes: ["A", "B", "C"] });
  await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: "A", reference: "order-1" });
  await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: "B", reference: "order-2" });
  const { id: held } = await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: "C", reference: "order-3", hold_seconds: 900 });
  await send(scene.url, "POST", `coupons/${name}/redemptions/${held}/cancel`);
  await open(page, scene.url, `#/coupons/${name}`);
  const { fields, hours, month, year, utcReasons, daysHint, hoursHint } = t.statistics;
  await says(page, daysHint("GMT+8", await completeFrom(name, language)));
  const chart = (field: keyof typeof fields, count: number) => page.getByRole("img", { name: new RegExp(`^${fields[field]}: ${count}:`) }).waitFor();
  for (const period of [month, hours, year]) {
    await panel(page, t.statistics.title).getByRole("radio", { name: period }).check();
    await says(page, { [month]: daysHint("GMT+8", await completeFrom(name, language)), [hours]: hoursHint("GMT+8") }[period] ?? utcReasons.period);
    await chart("redeemed", 2);
    await chart("held", 1);
    await chart("cancelled", 1);
  }
  // Midnight in UTC is at eight in the morning there.
  await says(page, /UTC.*GMT\+8.*[08]:00|UTC.*8:00.*GMT\+8/);
  await assertAccessible(page, "statistics");
  await assertFits(page, "statistics");
});

/** A date as the page writes it. */
const dayOf = (date: string, language: string) => new Intl.DateTimeFormat(language, { month: "short", day: "numeric", timeZone: "UTC" }).format(new Date(date));

async function completeFrom(name: string, language: string): Promise<string> {
  return dayOf((await send(scene.url, "GET", `coupons/${name}/statistics?offset_minutes=480`)).complete_from, language);
}

forEachReader("days_that_the_service_lacks_are_named", scene, async (page, { language, t, id }) => {
  const { inDay, inUtcDay, partialDaysHint, utcReasons } = t.statistics;
  const name = `days-${id}`;
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 10 });
  await send(scene.url, "POST", `campaigns/${name}/users`, { users: ["u1"] });
  const bar = (label: string) => page.getByRole("img", { name: new RegExp(`${label.replace(/[()]/g, "\\$&")} 1$`) }).waitFor();
  // Hours are missing that were counted before an update.
  const complete = new Date(Date.now() - 3 * 86_400_000).toISOString().slice(0, 10);
  await page.route(/statistics\?.*offset_minutes=480/, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), complete_from: complete } });
  });
  await open(page, scene.url, `#/campaigns/${name}`);
  await says(page, partialDaysHint("GMT+8", dayOf(complete, language)));
  await bar(inDay);
  await assertFits(page, "days that are incomplete");

  // An older service knows no offset.
  await page.unrouteAll();
  await page.route(/offset_minutes/, (route) =>
    route.fulfill({ status: 422, json: { code: "invalid-request", title: "x", status: 422, detail: "unknown field", errors: [{ pointer: "/offset_minutes", detail: "unknown field" }] } }),
  );
  await open(page, scene.url, `#/campaigns/${name}`);
  await says(page, utcReasons.service);
  await bar(inUtcDay);
  assert.equal(await page.getByRole("alert").count(), 0, "it is no refusal");
  await assertAccessible(page, "days of an older service");
});
