/** What operators do with the page, from making a coupon to deleting it, in a real browser and over a real service. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import type { Browser } from "playwright-core";
import { assertAccessible, assertFits, launch, visit } from "../support/browser.ts";
import { serve, type Service } from "../support/service.ts";
import { button, create, panel, rows, says, useCoupon } from "../support/steps.ts";

let browser: Browser;
let service: Service;

before(async () => {
  [browser, service] = await Promise.all([launch(), serve()]);
});

after(async () => {
  await browser.close();
  await service.stop();
});

test("a coupon is made, filled, used, emptied and deleted", async () => {
  const { page, end } = await visit(browser);
  await page.goto(service.url);
  assert.match(page.url(), /\/console$/);
  await says(page, "All is well.");
  await assertAccessible(page, "overview");
  await useCoupon(page);
  await end();
});

test("a campaign's users are tried for their eligibility", async () => {
  const { page, end } = await visit(browser, { colorScheme: "dark" });
  await page.goto(`${service.url}/console`);
  await create(page, "Campaign: users", "spring");
  const items = panel(page, "Users");
  await items.getByRole("radio", { name: "Add" }).check();
  await items.getByLabel("Users, one a line").fill("u1\nu2");
  await items.getByRole("button", { name: "Add" }).click();
  await says(page, "added");
  await assertAccessible(page, "a campaign, dark");
  await page.getByLabel("Until (UTC)").fill("2099-01-01T00:00");
  await page.getByLabel("Capacity").fill("5000");
  await button(page, "Change").click();
  await says(page, /active, ends in/);
  await panel(page, "Figures").getByText(/^2 of 5,\d{3}/).waitFor();

  await page.getByRole("link", { name: "Eligibility" }).click();
  await page.getByLabel("User", { exact: true }).fill("u1");
  await page.getByLabel("Campaigns, one a line, the preferred first").fill("nowhere\nspring");
  await button(page, "Try").click();
  await says(page, "Eligible: spring");
  await says(page, "There is no campaign nowhere.");
  const explained = (await rows(page, "Explanations"))[0];
  assert.deepEqual([explained?.slice(0, 3), explained?.at(-1)], [["spring", "yes", "inside"], "yes"]);
  await page.getByLabel("Unless the user is in").fill("spring 1 spring");
  await button(page, "Try").click();
  await says(page, "None of them");
  assert.equal((await rows(page, "Explanations"))[0]?.filter((cell) => cell === "spring").length, 2, "campaign, and what excludes");
  await assertAccessible(page, "eligibility, dark");
  await page.getByRole("link", { name: "Imports" }).click();
  await says(page, "welcome");
  await assertAccessible(page, "imports, dark");
  await page.getByRole("link", { name: "Requests" }).click();
  await says(page, "POST /v1/eligibility");
  await assertAccessible(page, "requests, dark");
  await end();
});

test("what the page does can be done by the command that it shows", async () => {
  const { page, end } = await visit(browser);
  await page.goto(`${service.url}/console#/campaigns/spring`);
  await page.getByLabel("Users, one a line").fill("u1\nit's $HOME");
  await panel(page, "Users").getByRole("button", { name: "curl" }).click();
  const dialog = page.getByRole("dialog", { name: "As a command" });
  await assertAccessible(page, "the command");
  const command = (await dialog.locator("pre").textContent()) ?? "";
  assert.match(command, /^curl 'http:\/\/127\.0\.0\.1:\d+\/v1\/campaigns\/spring\/users\/check'/);
  await dialog.getByRole("button", { name: "Copy" }).click();
  await dialog.getByText("Copied").waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  const hasCurl = (() => {
    try {
      return execFileSync("curl", ["--version"]).length > 0;
    } catch {
      return false;
    }
  })();
  if (hasCurl) {
    const answer = execFileSync("sh", ["-c", `${command} --silent`], { encoding: "utf8" });
    assert.deepEqual(JSON.parse(answer), { present: [true, false] });
  }
  await end();
});

test("ten thousand filters sort and search", async () => {
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
  await page.goto(`${service.url}/console#/filters`);
  await says(page, "10,000 filters");
  await says(page, "Page 1 of 100");
  const first = async () => (await rows(page, "Campaigns and coupons"))[0]?.[0];
  assert.equal(await first(), "f-00000");
  await page.getByRole("columnheader", { name: "Items" }).getByRole("button").click();
  await page.getByRole("row", { name: "f-09999" }).waitFor();
  assert.equal(await first(), "f-09999");
  await button(page, "Next →").click();
  await says(page, "Page 2 of 100");
  assert.equal(await first(), "f-09899");
  await page.getByLabel("Search").fill("f-0123");
  await says(page, "10 of 10,000");
  assert.deepEqual([await first(), (await rows(page, "Campaigns and coupons")).length], ["f-01239", 10]);
  await end();
});

test("a keyboard and a phone are enough", async () => {
  const { page, end } = await visit(browser, { viewport: { width: 360, height: 740 }, hasTouch: true });
  await page.goto(`${service.url}/console`);
  await says(page, "All is well.");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), "H1");
  for (const [hash, text] of [
    ["#/", "All is well."],
    ["#/filters", "spring"],
    ["#/campaigns/spring", "Empty or delete"],
    ["#/new", "What it would cost"],
    ["#/eligibility", "Which campaigns"],
    ["#/imports", "welcome"],
    ["#/requests", "GET /v1/info"],
    ["#/nowhere", "There is nothing here."],
  ] as const) {
    await page.goto(`${service.url}/console${hash}`);
    await says(page, text);
    await assertFits(page, hash);
  }
  await page.goto(`${service.url}/console#/campaigns/spring`);
  const choice = page.getByRole("radio", { name: "Try" });
  await choice.focus();
  await page.keyboard.press("ArrowRight");
  assert.ok(await page.getByRole("radio", { name: "Count" }).isChecked());
  await page.keyboard.press("Tab");
  await page.keyboard.type("u1");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByText(/^Counted at/).waitFor();
  await end();
});
