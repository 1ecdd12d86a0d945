/** Line-ups are made, put in order by drag and by keyboard, and tried with a user. */

import assert from "node:assert/strict";
import type { Page } from "playwright-core";
import { assertAccessible, assertFits } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { button, dialog, open, panel, rows, says, send } from "../support/steps.ts";

const scene = stage({
  fill: async (url) => {
    for (const [name, spec, users] of [
      ["spring", {}, ["u1", "u2"]],
      ["summer", { starts_at: "2099-01-01T00:00:00Z" }, ["u1"]],
      ["autumn", {}, ["u1"]],
      ["opted-out", { mode: "strict" }, ["u2"]],
    ] as const) {
      await send(url, "PUT", `campaigns/${name}`, { capacity: 100, ...spec });
      await send(url, "POST", `campaigns/${name}/users`, { users });
    }
  },
});

async function order(page: Page): Promise<string[]> {
  return page.locator(".sortable .face a").allTextContents();
}

forEachReader("line_up_is_made_ordered_and_tried", scene, async (page, { t, id }) => {
  const { lineUp } = t;
  await open(page, scene.url, "#/line-ups");
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
  const stored = await send(scene.url, "GET", `line-ups/home-${id}`);
  assert.deepEqual([stored.campaigns, stored.unless, stored.limit], [["autumn", "nowhere", "spring", "summer"], [{ campaign: "opted-out", at_least: 1 }], 3]);
  await button(page, t.sortable.remove("nowhere")).click();
  await button(page, t.sortable.down("autumn")).click();
  await button(page, lineUp.save).click();
  await says(page, lineUp.saved);
  assert.deepEqual((await send(scene.url, "GET", `line-ups/home-${id}`)).campaigns, ["spring", "autumn", "summer"]);

  await open(page, scene.url, "#/line-ups");
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

forEachReader("line_up_is_copied", scene, async (page, { t, id }) => {
  const { lineUp, lineUps, form } = t;
  const path = `line-ups/original-${id}`;
  const spec = { campaigns: ["summer", "spring"], unless: [{ campaign: "opted-out", at_least: 1, for: "spring" }], limit: 2, labels: { team: "shop" } };
  await send(scene.url, "PUT", path, { ...spec, title: "Original" });
  await open(page, scene.url, `#/${path}`);
  await page.getByRole("link", { name: lineUps.copy }).click();
  await says(page, lineUps.copied(`Original (original-${id})`));
  assert.deepEqual(await order(page), ["summer", "spring"]);
  assert.equal(await page.getByLabel(form.name, { exact: true }).inputValue(), "");
  assert.ok(await button(page, lineUp.save).isDisabled());
  await page.getByLabel(form.title, { exact: true }).fill(`Copy ${id}`);
  await button(page, t.sortable.remove("summer")).click();
  await assertAccessible(page, "a copy");
  await assertFits(page, "a copy");
  await button(page, lineUp.save).click();
  await page.getByRole("heading", { level: 1, name: `Copy ${id}` }).waitFor();
  assert.deepEqual(await send(scene.url, "GET", `line-ups/copy-${id}`), { ...spec, campaigns: ["spring"], name: `copy-${id}`, title: `Copy ${id}` });
  assert.deepEqual((await send(scene.url, "GET", path)).campaigns, ["summer", "spring"]);
  await open(page, scene.url, "#/new-line-up/none-such");
  await says(page, t.problems["line-up-not-found"]);
});

forEachReader("list_that_must_not_be_missing_warns", scene, async (page, { t, id }) => {
  const { lineUp } = t;
  const [list, path] = [`optout-${id}`, `line-ups/guarded-${id}`];
  const unless = [{ campaign: list, at_least: 1, required: true }, { campaign: "opted-out", at_least: 1, for: "spring" }];
  await send(scene.url, "PUT", path, { campaigns: ["spring", "autumn"], unless });
  await open(page, scene.url, `#/${path}`);
  const group = (name: string) => page.getByRole("group", { name: lineUp.usersIn(name) });
  const required = (name: string) => group(name).getByRole("checkbox", { name: lineUp.required });
  await says(page, lineUp.requiredMissing(list, undefined));
  assert.ok((await required(list).isChecked()) && !(await required("opted-out").isChecked()));
  await group(list).getByText(lineUp.requiredHint(undefined)).waitFor();
  await group("opted-out").getByText(lineUp.optionalHint).waitFor();
  assert.equal(await page.getByRole("alert").count(), 1);
  await assertAccessible(page, "a list that is missing");
  await assertFits(page, "a list that is missing");

  // A try says why no ad is shown.
  await panel(page, lineUp.try).getByLabel(lineUp.user).fill("u1");
  await button(panel(page, lineUp.try), lineUp.tryRun).click();
  await says(page, lineUp.seesNone);
  assert.deepEqual((await rows(page, lineUp.reasons)).map(([, , reason]) => reason), [lineUp.why.excludedAll(list), lineUp.why.excludedAll(list)]);

  // Nor does a list help whose time is over.
  await send(scene.url, "PUT", `campaigns/${list}`, { capacity: 100, mode: "strict", title: "Opt-outs", ends_at: "2020-01-01T00:00:00Z" });
  await open(page, scene.url, `#/${path}`);
  await says(page, lineUp.requiredInactive("Opt-outs", undefined));
  await group("Opt-outs").getByText(t.phases.ended, { exact: true }).waitFor();
  await send(scene.url, "PATCH", `campaigns/${list}`, { ends_at: null });
  await open(page, scene.url, `#/${path}`);
  await group("Opt-outs").getByText(t.phases.active, { exact: true }).waitFor();
  assert.equal(await page.getByRole("alert").count(), 0);

  await required("opted-out").check();
  await group("opted-out").getByText(lineUp.requiredHint("spring")).waitFor();
  await required("Opt-outs").uncheck();
  await says(page, lineUp.unsaved);
  await button(page, lineUp.save).click();
  await says(page, lineUp.saved);
  const stored = (await send(scene.url, "GET", path)).unless;
  assert.deepEqual(stored, [{ campaign: list, at_least: 1 }, { campaign: "opted-out", at_least: 1, for: "spring", required: true }]);
});

/** Sends nothing itself: only counts what is written. */
function writes(page: Page): string[] {
  const found: string[] = [];
  page.on("request", (request) => request.method() === "PUT" && found.push(request.url()));
  return found;
}

forEachReader("new_line_up_replaces_no_other", scene, async (page, { t, id }) => {
  const { lineUp } = t;
  const sent = writes(page);
  const fill = async (name: string) => {
    await open(page, scene.url, "#/new-line-up");
    const looked = page.waitForResponse((response) => response.url().endsWith(`/v1/line-ups/${name}`));
    await page.getByLabel(t.form.name, { exact: true }).fill(name);
    await looked;
    await page.getByLabel(lineUp.addCampaign).fill("spring");
    await page.keyboard.press("Enter");
  };
  // The name was free while it was typed.
  await fill(`late-${id}`);
  const theirs = await send(scene.url, "PUT", `line-ups/late-${id}`, { campaigns: ["autumn"] });
  await button(page, lineUp.save).click();
  await says(page, t.problems["already-exists"]);
  await assertAccessible(page, "a name that is taken");
  assert.deepEqual(await send(scene.url, "GET", `line-ups/late-${id}`), theirs);

  // Nor is it known to be free if it can't be read.
  await page.route(`**/v1/line-ups/unread-${id}`, (route) =>
    route.request().method() === "GET" ? route.fulfill({ status: 403, json: { code: "forbidden", title: "x", status: 403, detail: "the key lacks a scope" } }) : route.continue(),
  );
  await fill(`unread-${id}`);
  await button(page, lineUp.save).click();
  await says(page, t.problems.forbidden);
  assert.deepEqual(sent, []);
});

forEachReader("concurrent_edits_are_a_choice", scene, async (page, { t, id }) => {
  const { lineUp } = t;
  const path = `line-ups/both-${id}`;
  const stored = async () => (await send(scene.url, "GET", path)).campaigns;
  const save = () => button(page, lineUp.save).click();
  await send(scene.url, "PUT", path, { campaigns: ["spring", "summer", "autumn"], title: `Both ${id}` });
  await open(page, scene.url, `#/${path}`);
  await button(page, t.sortable.down("spring")).click();
  await send(scene.url, "PUT", path, { campaigns: ["autumn"] });
  await save();
  await says(page, lineUp.conflict);
  await says(page, lineUp.theirs("autumn", 0));
  await assertAccessible(page, "a conflict");
  await assertFits(page, "a conflict");
  assert.deepEqual(await stored(), ["autumn"]);
  await button(page, lineUp.take).click();
  await page.locator(".sortable li").nth(1).waitFor({ state: "detached" });
  assert.deepEqual(await order(page), ["autumn"]);

  await page.getByLabel(lineUp.addCampaign).fill("spring");
  await page.keyboard.press("Enter");
  await send(scene.url, "PUT", path, { campaigns: ["summer"] });
  await save();
  await button(page, lineUp.keep).click();
  await says(page, lineUp.unsaved);
  assert.deepEqual(await stored(), ["summer"]);
  await save();
  await says(page, lineUp.saved);
  assert.deepEqual(await stored(), ["autumn", "spring"]);

  await send(scene.url, "DELETE", path);
  await page.getByLabel(lineUp.limit).fill("2");
  await save();
  await says(page, lineUp.gone);
  await button(page, lineUp.keep).click();
  await save();
  await says(page, lineUp.saved);
  assert.deepEqual(await send(scene.url, "GET", path), { name: `both-${id}`, title: `Both ${id}`, campaigns: ["autumn", "spring"], unless: [], limit: 2 });
});
