/** Line-ups are made, put in order by drag and by keyboard, and tried with a user. */

import assert from "node:assert/strict";
import { after, before } from "node:test";
import type { Browser, Page } from "playwright-core";
import { assertAccessible, assertFits, launch } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { serve, type Service } from "../support/service.ts";
import { button, dialog, open, panel, rows, says, send } from "../support/steps.ts";

let browser: Browser;
let service: Service;

before(async () => {
  [browser, service] = await Promise.all([launch(), serve()]);
  for (const [name, spec, users] of [
    ["spring", {}, ["u1", "u2"]],
    ["summer", { starts_at: "2099-01-01T00:00:00Z" }, ["u1"]],
    ["autumn", {}, ["u1"]],
    ["opted-out", { mode: "strict" }, ["u2"]],
  ] as const) {
    await send(service.url, "PUT", `campaigns/${name}`, { capacity: 100, ...spec });
    await send(service.url, "POST", `campaigns/${name}/users`, { users });
  }
});

after(async () => {
  await browser.close();
  await service.stop();
});

async function order(page: Page): Promise<string[]> {
  return page.locator(".sortable .face a").allTextContents();
}

forEachReader("line_up_is_made_ordered_and_tried", () => browser, async (page, { t, id }) => {
  const { lineUp } = t;
  await open(page, service.url, "#/line-ups");
  await page.getByRole("link", { name: t.lineUps.create }).first().click();
  await page.getByLabel(t.form.name, { exact: true }).fill(`home-${id}`);
  for (const name of ["spring", "summer", "autumn", "nowhere"]) {
    await page.getByLabel(lineUp.addCampaign).fill(name);
    await page.keyboard.press("Enter");
    await page.locator(".sortable").getByRole("link", { name }).waitFor();
  }
  await page.locator(".sortable").getByText(lineUp.missing).waitFor();
  await page.getByLabel(lineUp.addExclusion).fill("opted-out");
  await page.keyboard.press("Enter");
  await page.getByRole("group", { name: lineUp.usersIn("opted-out") }).waitFor();
  await assertAccessible(page, "a new line-up");

  // The keyboard moves an entry, which keeps the focus.
  await button(page, t.sortable.handle("autumn", 3, 4)).focus();
  await page.keyboard.press("ArrowUp");
  await button(page, t.sortable.handle("autumn", 2, 4)).waitFor();
  await page.keyboard.press("ArrowUp");
  await button(page, t.sortable.handle("autumn", 1, 4)).waitFor();
  assert.deepEqual(await order(page), ["autumn", "spring", "summer", "nowhere"]);
  await page.getByText(t.sortable.moved("autumn", 1, 4)).waitFor({ state: "attached" });

  // So does a drag.
  const [from, to] = await Promise.all([button(page, t.sortable.handle("nowhere", 4, 4)).boundingBox(), button(page, t.sortable.handle("spring", 2, 4)).boundingBox()]);
  assert.ok(from !== null && to !== null);
  await page.mouse.move(from.x + 5, from.y + 5);
  await page.mouse.down();
  await page.mouse.move(to.x + 5, to.y + to.height, { steps: 5 });
  await page.mouse.move(to.x + 5, to.y + 1, { steps: 5 });
  await page.mouse.up();
  assert.deepEqual(await order(page), ["autumn", "nowhere", "spring", "summer"]);

  // It is tried before it is saved.
  const trial = panel(page, lineUp.try);
  const tries = async (user: string) => {
    await trial.getByLabel(lineUp.user).fill(user);
    await button(trial, lineUp.tryRun).click();
  };
  await page.getByLabel(lineUp.limit).fill("3");
  await tries("u1");
  await says(page, lineUp.sees("autumn, spring"));
  assert.deepEqual((await rows(page, lineUp.reasons)).map(([name, , reason]) => [name, reason]), [
    ["autumn", lineUp.why.eligible],
    ["nowhere", lineUp.why.unknown],
    ["spring", lineUp.why.eligible],
    ["summer", lineUp.why.before],
  ]);
  await tries("u2");
  await says(page, lineUp.seesNone);
  assert.deepEqual((await rows(page, lineUp.reasons)).map(([, , reason]) => reason), [lineUp.why.absent, lineUp.why.unknown, lineUp.why.excluded("opted-out"), lineUp.why.before]);
  await assertAccessible(page, "a line-up that was tried");
  await assertFits(page, "a line-up");

  await button(page, lineUp.save).click();
  await page.getByRole("heading", { level: 1, name: `home-${id}` }).waitFor();
  const stored = await send(service.url, "GET", `line-ups/home-${id}`);
  assert.deepEqual([stored.campaigns, stored.unless, stored.limit], [["autumn", "nowhere", "spring", "summer"], [{ campaign: "opted-out", at_least: 1 }], 3]);
  await button(page, t.sortable.remove("nowhere")).click();
  await button(page, t.sortable.down("autumn")).click();
  await button(page, lineUp.save).click();
  await says(page, lineUp.saved);
  assert.deepEqual((await send(service.url, "GET", `line-ups/home-${id}`)).campaigns, ["spring", "autumn", "summer"]);

  await open(page, service.url, "#/line-ups");
  const listed = await rows(page, t.nav["line-ups"]);
  assert.deepEqual(listed.find(([name]) => name === `home-${id}`)?.slice(0, 2), [`home-${id}`, "spring → autumn → summer"]);
  await assertAccessible(page, "line-ups");
  await page.getByRole("link", { name: `home-${id}` }).click();
  await button(page, lineUp.delete).click();
  const question = dialog(page, lineUp.deleteTitle(`home-${id}`));
  await question.getByRole("textbox").fill(`home-${id}`);
  await button(question, lineUp.delete).click();
  await page.getByRole("heading", { level: 1, name: t.nav["line-ups"] }).waitFor();
});
