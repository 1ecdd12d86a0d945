/** What people do with the page, from making a coupon to deleting it, in a real browser and over a real service. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import type { Browser } from "playwright-core";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits, launch, visit } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { serve, type Service } from "../support/service.ts";
import { button, create, open, panel, rows, says, useCoupon } from "../support/steps.ts";

const t = CATALOGS.en;

let browser: Browser;
let service: Service;

before(async () => {
  [browser, service] = await Promise.all([launch(), serve()]);
});

after(async () => {
  await browser.close();
  await service.stop();
});

forEachReader("coupon_is_made_filled_used_and_deleted", () => browser, async (page, { t }) => {
  await page.goto(service.url);
  assert.match(page.url(), /\/console$/);
  await page.getByRole("heading", { level: 1, name: t.nav.campaigns }).waitFor();
  await useCoupon(page, t);
});

test("request_is_shown_as_a_command", async () => {
  const { page, end } = await visit(browser);
  await open(page, service.url, "#/campaigns");
  await create(page, t, "campaigns", "spring");
  const users = panel(page, t.items.titles.campaigns);
  await users.getByRole("radio", { name: t.items.acts.add }).check();
  await users.getByLabel(t.items.lines.campaigns).fill("u1\nu2");
  await button(users, t.items.acts.add).click();
  await says(page, t.outcomes.added);
  await users.getByRole("radio", { name: t.items.acts.check }).check();
  await users.getByLabel(t.items.lines.campaigns).fill("u1\nit's $HOME");
  await button(users, t.items.acts.check).click();
  await says(page, t.items.absent);
  await page.getByRole("link", { name: t.nav.system }).click();
  await says(page, t.system.good);
  await assertAccessible(page, "system");
  await page.getByRole("link", { name: t.nav.requests }).click();
  await page.getByRole("row", { name: /users\/check/ }).getByRole("button", { name: "curl" }).click();
  const command = page.getByRole("dialog", { name: t.curl.title });
  await assertAccessible(page, "the command");
  const text = (await command.locator("pre").textContent()) ?? "";
  assert.match(text, /^curl 'http:\/\/127\.0\.0\.1:\d+\/v1\/campaigns\/spring\/users\/check'/);
  await button(command, t.curl.copy).click();
  await command.getByText(t.curl.copied, { exact: true }).waitFor();
  await page.keyboard.press("Escape");
  await command.waitFor({ state: "hidden" });
  const hasCurl = (() => {
    try {
      return execFileSync("curl", ["--version"]).length > 0;
    } catch {
      return false;
    }
  })();
  if (hasCurl) {
    const answer = execFileSync("sh", ["-c", `${text} --silent`], { encoding: "utf8" });
    assert.deepEqual(JSON.parse(answer), { present: [true, false] });
  }
  await end();
});

test("ten_thousand_campaigns_sort_and_search", async () => {
  const { page, end } = await visit(browser);
  const filter = (index: number) => ({
    name: `f-${String(index).padStart(5, "0")}`,
    capacity: 100,
    mode: "compact",
    error_rate: 0.001,
    growth: "auto",
    created_at: "2026-11-01T00:00:00Z",
    stats: { items: index, capacity_now: 10_000, load: 0.1, error_rate_now: 0.0001, memory_bytes: 1_000, segments: [], adds: 0, removes: 0 },
  });
  await page.route(/\/v1\/campaigns\?/, (route) => {
    const from = Number(new URL(route.request().url()).searchParams.get("cursor") ?? 0);
    const campaigns = Array.from({ length: 1_000 }, (_, index) => filter(from + index));
    const next = from + 1_000 < 10_000 ? { next_cursor: String(from + 1_000) } : {};
    return route.fulfill({ json: { campaigns, ...next } });
  });
  await open(page, service.url, "#/campaigns");
  await says(page, t.filters.total.campaigns(10_000));
  await says(page, t.pager.pageOf(1, 100));
  const first = async () => (await rows(page, t.nav.campaigns))[0]?.[0];
  assert.equal(await first(), "f-00000");
  await page.getByRole("columnheader", { name: t.filters.columns.items }).getByRole("button").click();
  await page.getByRole("row", { name: "f-09999" }).waitFor();
  assert.equal(await first(), "f-09999");
  await page.getByRole("button", { name: t.pager.next }).click();
  await says(page, t.pager.pageOf(2, 100));
  assert.equal(await first(), "f-09899");
  await page.getByLabel(t.search).fill("f-0123");
  await says(page, t.filters.found(10, 10_000));
  assert.deepEqual([await first(), (await rows(page, t.nav.campaigns)).length], ["f-01239", 10]);
  await end();
});

forEachReader("navigation_fits_and_works_by_keyboard", () => browser, async (page, { t, width }) => {
  await open(page, service.url, "#/system");
  await says(page, t.system.good);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), t.skip);
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), "H1");
  const links = page.getByRole("navigation", { name: t.nav.label }).getByRole("link");
  for (const link of await links.all()) {
    const box = await link.boundingBox();
    assert.ok(box !== null && box.x >= 0 && box.x + box.width <= width, `${await link.textContent()} is cut off`);
  }
  await button(page, t.settings.title).click();
  const menu = page.locator(".menu:popover-open");
  const box = await menu.boundingBox();
  assert.ok(box !== null && box.x >= 0 && box.x + box.width <= width, "the settings are cut off");
  await assertAccessible(page, "settings");
  await menu.getByRole("radio", { name: t.settings.themes.dark }).check();
  await assertAccessible(page, "system, dark");
  await page.keyboard.press("Escape");
  for (const hash of ["#/requests", "#/nowhere", "#/system"]) {
    await open(page, service.url, hash);
    await page.getByRole("heading", { level: 1 }).waitFor();
    await assertFits(page, hash);
    await assertAccessible(page, hash);
  }
});
