/** What people do with the page, from making a coupon to deleting it, in a real browser and over a real service. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits, visit } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { becomes, button, create, dialog, downloaded, open, panel, rows, runUpload, says, send, useCoupon } from "../support/steps.ts";

const t = CATALOGS.en;

const scene = stage();

forEachReader("coupon_is_made_filled_used_and_deleted", scene, async (page, { t }) => {
  await page.goto(scene.url);
  assert.match(page.url(), /\/console$/);
  await page.getByRole("heading", { level: 1, name: t.nav.campaigns }).waitFor();
  await useCoupon(page, t);
});

test("request_is_shown_as_a_command", async () => {
  const { page, end } = await visit(scene.browser());
  await open(page, scene.url, "#/campaigns");
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
  const { page, end } = await visit(scene.browser());
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
  await open(page, scene.url, "#/campaigns");
  await says(page, t.filters.total.campaigns(10_000));
  await says(page, t.pager.pageOf(1, 100));
  const first = async () => (await rows(page, t.nav.campaigns))[0]?.[0];
  await becomes(page, first, "f-00000");
  await page.getByRole("columnheader", { name: t.filters.columns.items }).getByRole("button").click();
  await page.getByRole("row", { name: "f-09999" }).waitFor();
  await becomes(page, first, "f-09999");
  await page.getByRole("button", { name: t.pager.next }).click();
  await says(page, t.pager.pageOf(2, 100));
  await becomes(page, first, "f-09899");
  await page.getByLabel(t.search).fill("f-0123");
  await says(page, t.filters.found(10, 10_000));
  assert.deepEqual([await first(), (await rows(page, t.nav.campaigns)).length], ["f-01239", 10]);
  await end();
});

forEachReader("navigation_fits_and_works_by_keyboard", scene, async (page, { t, width }) => {
  await open(page, scene.url, "#/system");
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
    await open(page, scene.url, hash);
    await page.getByRole("heading", { level: 1 }).waitFor();
    await assertFits(page, hash);
    await assertAccessible(page, hash);
  }
});

/** Lets a write reach the service and loses its answer, once for each failure; notes the keys of all. */
async function loseAnswers(page: Page, path: string, failures: readonly ("broken" | "unknown")[]): Promise<string[]> {
  const keys: string[] = [];
  const left = [...failures];
  await page.route(`**/v1/${path}`, async (route) => {
    if (route.request().method() !== "POST") {
      return route.continue();
    }
    keys.push(route.request().headers()["idempotency-key"] ?? "none");
    const failure = left.shift();
    if (failure === undefined) {
      return route.continue();
    }
    await route.fetch();
    const problem = { code: "storage-failed", title: "x", status: 503, detail: "the outcome is unknown" };
    return failure === "broken" ? route.abort() : route.fulfill({ status: 503, json: problem });
  });
  return keys;
}

forEachReader("repeated_write_takes_effect_once", scene, async (page, { t, id }) => {
  const name = `once-${id}`;
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 100 });
  await open(page, scene.url, `#/campaigns/${name}`);
  const keys = await loseAnswers(page, `campaigns/${name}/users`, ["broken", "unknown"]);
  const users = panel(page, t.items.titles.campaigns);
  await users.getByRole("radio", { name: t.items.acts.add, exact: true }).check();
  await users.getByLabel(t.items.lines.campaigns).fill("u1");
  const add = () => button(users, t.items.acts.add).click();
  await add();
  await says(page, t.problems.unreachable);
  await add();
  await says(page, t.problems["storage-failed"]);
  await assertAccessible(page, "an unknown outcome");
  await add();
  await users.getByText(t.outcomes.added, { exact: true }).waitFor();
  const counted = async () => (await send(scene.url, "POST", `campaigns/${name}/users/count`, { users: ["u1"] })).counts[0];
  assert.equal(await counted(), 1);
  assert.ok(keys.length === 3 && new Set(keys).size === 1 && keys[0]?.startsWith("console-"), keys.join());

  // Once its outcome is known, the same is another intention.
  const answered = page.waitForResponse((response) => response.url().endsWith(`${name}/users`));
  await add();
  await answered;
  assert.equal(await counted(), 2);
  assert.equal(new Set(keys).size, 2);
});

forEachReader("lost_codes_are_fetched_again", scene, async (page, { t, id }) => {
  const name = `lost-${id}`;
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 100 });
  await open(page, scene.url, `#/coupons/${name}`);
  const keys = await loseAnswers(page, `coupons/${name}/codes/generate`, ["broken"]);
  const generate = panel(page, t.generate.title);
  await generate.getByLabel(t.generate.count).fill("10");
  await generate.getByLabel(t.generate.pattern).fill("=###-###-###");
  await generate.getByText(t.generate.patternFormula).waitFor();
  assert.ok(await button(generate, t.generate.run).isDisabled());
  await generate.getByLabel(t.generate.pattern).fill("###-###-###");
  await button(generate, t.generate.run).click();
  await says(page, t.problems.unreachable);
  const { text } = await downloaded(page, button(generate, t.generate.run));
  assert.equal(text.trim().split(/\r?\n/).length, 11);
  assert.equal((await send(scene.url, "GET", `coupons/${name}`)).stats.available, 10);
  assert.equal(new Set(keys).size, 1);
});

forEachReader("upload_goes_on_while_its_reader_does", scene, async (page, { t, id }) => {
  const name = `upload-${id}`;
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 100, title: "Upload" });
  await open(page, scene.url, `#/campaigns/${name}`);
  const upload = panel(page, t.upload.title);
  const choose = (lines: string) => upload.getByLabel(t.upload.file, { exact: true }).setInputFiles({ name: "users.txt", mimeType: "text/plain", buffer: Buffer.from(lines) });
  await choose("u1\nu2\n");

  // A guard says what it means for the content.
  await upload.getByText(t.upload.guards).click();
  await upload.getByLabel(t.upload.minItems).fill("3");
  await button(upload, t.upload.check).click();
  await says(page, t.problems["import-guarded"]);
  await says(page, t.upload.guarded.check);
  await upload.getByLabel(t.upload.minItems).fill("2");
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("2", "2"));

  // While it runs, nothing in the form ends it.
  let letGo = () => {};
  const gate = new Promise<void>((resolve) => (letGo = resolve));
  await page.route(/\/imports\?/, async (route) => {
    await gate;
    await route.continue();
  });
  await runUpload(page, t, `Upload (${name})`);
  await says(page, t.upload.goesOn);
  assert.ok(await upload.getByRole("radio", { name: t.upload.replace }).isDisabled());
  assert.ok(await upload.getByLabel(t.upload.file, { exact: true }).isDisabled());
  await assertAccessible(page, "a running upload");
  await assertFits(page, "a running upload");
  await page.getByRole("navigation", { name: t.nav.label }).getByRole("link", { name: t.nav.uploads }).click();
  await page.getByRole("heading", { level: 1, name: t.nav.uploads }).waitFor();
  letGo();
  await page.locator("tbody tr").filter({ hasText: name }).filter({ hasText: t.uploads.states.done }).waitFor();
  assert.equal((await send(scene.url, "GET", `campaigns/${name}`)).stats.items, 2);

  // The question before a replacement names it.
  await open(page, scene.url, `#/campaigns/${name}`);
  await choose("u3\n");
  await upload.getByRole("radio", { name: t.upload.replace }).check();
  await button(upload, t.upload.check).click();
  await says(page, t.upload.checked);
  await button(upload, t.upload.run).click();
  await dialog(page, t.upload.replaceTitle(`Upload (${name})`)).getByText(t.upload.replaceText.campaigns("2", "1")).waitFor();
});
