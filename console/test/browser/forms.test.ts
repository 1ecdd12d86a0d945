/** Forms of campaigns, coupons and line-ups: names, titles, labels, times, copies, and the questions before what can't be undone. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits, visit } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { button, dialog, open, panel, rows, says, send } from "../support/steps.ts";

const scene = stage({
  fill: async (url) => {
    await send(url, "PUT", "campaigns/spring", { capacity: 5_000 });
    await send(url, "PUT", "coupons/flash", { capacity: 2, stock: 2, ends_at: "2099-11-27T22:40:00Z" });
    for (const user of ["u1", "u2"]) {
      await send(url, "POST", "coupons/flash/redemptions", { code: user, reference: user });
    }
  },
});

forEachReader("name_is_validated_while_typing", scene, async (page, { t }) => {
  await open(page, scene.url, "#/new-campaign");
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

forEachReader("times_are_in_the_zone_of_the_reader", scene, async (page, { t, id }) => {
  const name = `zone-${id}`;
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 10, ends_at: "2099-06-01T16:30:00Z" });
  await open(page, scene.url, `#/campaigns/${name}`);
  await says(page, t.zone("Asia/Shanghai (GMT+8)"));
  const edit = panel(page, t.change.title);
  const ends = edit.getByLabel(t.change.ends("GMT+8"));
  assert.equal(await ends.inputValue(), "2099-06-02T00:30");
  await ends.fill("2099-07-01T08:00");
  await button(edit, t.change.save).click();
  await says(page, t.change.saved);
  assert.equal((await send(scene.url, "GET", `campaigns/${name}`)).ends_at, "2099-07-01T00:00:00.000Z");
});

forEachReader("title_and_labels_are_set_found_and_changed", scene, async (page, { t, id }) => {
  await open(page, scene.url, "#/new-campaign");
  const title = `夏季大促 Summer ${id}`;
  const name = `summer-${id}`;
  await page.getByLabel(t.form.title, { exact: true }).fill(title);
  assert.equal(await page.getByLabel(t.form.name, { exact: true }).inputValue(), name);
  const label = async (place: number, key: string, value: string) => {
    await page.getByLabel(t.labels.key(place), { exact: true }).fill(key);
    await page.getByLabel(t.labels.value(place), { exact: true }).fill(value);
  };
  await button(page, t.labels.add).click();
  await label(1, "Team", id);
  await says(page, t.labels.faults.key);
  assert.ok(await button(page, t.form.create).isDisabled());
  await label(1, "team", id);
  await button(page, t.labels.add).click();
  await label(2, "team", "eu");
  await says(page, t.labels.faults.twice);
  await label(2, "region", "eu");
  await assertAccessible(page, "a new campaign");
  await assertFits(page, "a new campaign");
  await button(page, t.form.create).click();
  await page.getByRole("heading", { level: 1, name: title }).waitFor();
  const made = await send(scene.url, "GET", `campaigns/${name}`);
  assert.deepEqual([made.title, made.labels], [title, { team: id, region: "eu" }]);

  const edit = panel(page, t.change.title);
  await edit.getByLabel(t.change.name, { exact: true }).fill("");
  // The service sorts them: region is the first.
  await button(page, t.labels.remove(2)).click();
  await button(edit, t.change.save).click();
  await says(page, t.change.saved);
  const emptied = await send(scene.url, "GET", `campaigns/${name}`);
  assert.deepEqual([emptied.title, emptied.labels], [undefined, { region: "eu" }]);
  await button(page, t.labels.remove(1)).click();
  await button(page, t.labels.add).click();
  await label(1, "team", id);
  await edit.getByLabel(t.change.name, { exact: true }).fill(`${title}!`);
  // The page still says that the earlier change was saved.
  const saved = page.waitForResponse((response) => response.request().method() === "PATCH" && response.ok());
  await button(edit, t.change.save).click();
  await saved;

  await open(page, scene.url, "#/campaigns");
  await page.getByRole("link", { name: `${title}!` }).waitFor();
  await button(page, `team=${id}`).click();
  await page.locator("tbody tr").nth(1).waitFor({ state: "detached" });
  const [row, ...others] = await rows(page, t.nav.campaigns);
  assert.ok(row?.[0]?.startsWith(`${title}!`) && others.length === 0);
  await assertFits(page, "titles");
  await assertAccessible(page, "titles");

  // A line-up has them as well.
  await open(page, scene.url, "#/new-line-up");
  await page.getByLabel(t.form.title, { exact: true }).fill(`Home ${id}`);
  const adding = page.getByLabel(t.lineUp.addCampaign);
  await adding.fill(`${title}!`);
  // Once the page has read the titles.
  await page.locator("form.tools").filter({ has: adding }).getByRole("button").click();
  await page.locator(".sortable").getByRole("link", { name: `${title}!` }).waitFor();
  await button(page, t.lineUp.save).click();
  await page.getByRole("heading", { level: 1, name: `Home ${id}` }).waitFor();
  await page.getByLabel(t.form.title, { exact: true }).fill("");
  await button(page, t.lineUp.save).click();
  await says(page, t.lineUp.saved);
  const stored = await send(scene.url, "GET", `line-ups/home-${id}`);
  assert.deepEqual([stored.title, stored.campaigns], [undefined, [name]]);
});

forEachReader("untouched_labels_stay", scene, async (page, { t, id }) => {
  const name = `labels-${id}`;
  const labels = { empty: "", team: "a, b=c，d" };
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 10, labels });
  await open(page, scene.url, `#/campaigns/${name}`);
  const edit = panel(page, t.change.title);
  const bodies: unknown[] = [];
  page.on("request", (request) => request.method() === "PATCH" && bodies.push(request.postDataJSON()));
  await edit.getByLabel(t.change.name, { exact: true }).fill("Title");
  await button(edit, t.change.save).click();
  await says(page, t.change.saved);
  // Another program adds one while this form is open: it stays, too.
  await send(scene.url, "PATCH", `campaigns/${name}`, { labels: { other: "x" } });
  await edit.getByLabel(t.labels.value(1), { exact: true }).fill("not any more");
  const saved = page.waitForResponse((response) => response.request().method() === "PATCH" && response.ok());
  await button(edit, t.change.save).click();
  await saved;
  assert.deepEqual(bodies, [{ title: "Title" }, { labels: { empty: "not any more" } }]);
  assert.deepEqual((await send(scene.url, "GET", `campaigns/${name}`)).labels, { empty: "not any more", team: "a, b=c，d", other: "x" });

  await send(scene.url, "PUT", `line-ups/${name}`, { campaigns: ["spring"], labels });
  await open(page, scene.url, `#/line-ups/${name}`);
  await page.getByLabel(t.lineUp.limit).fill("2");
  await button(page, t.lineUp.save).click();
  await says(page, t.lineUp.saved);
  const { labels: stored, limit } = await send(scene.url, "GET", `line-ups/${name}`);
  assert.deepEqual([stored, limit], [labels, 2]);
  await assertAccessible(page, "labels");
  await assertFits(page, "labels");
});

test("what_is_typed_during_an_update_stays", async () => {
  const { page, end } = await visit(scene.browser());
  await send(scene.url, "PUT", "campaigns/busy", { capacity: 10, title: "Before" });
  await open(page, scene.url, "#/campaigns/busy");
  const edit = panel(page, CATALOGS.en.change.title);
  const title = edit.getByLabel(CATALOGS.en.change.name, { exact: true });
  // Typed as soon as the page shows the other program's change, and before its effects run.
  await title.evaluate((field: HTMLInputElement) => {
    const type = () => {
      field.value = "Typed";
      field.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const about = document.querySelector(".about") as HTMLElement;
    new MutationObserver((_, observer) => (observer.disconnect(), type())).observe(about, { characterData: true, childList: true, subtree: true });
  });
  await send(scene.url, "PATCH", "campaigns/busy", { title: "After", labels: { other: "x" } });
  await page.getByRole("heading", { level: 1, name: "After" }).waitFor();
  await button(edit, CATALOGS.en.change.save).click();
  await says(page, CATALOGS.en.change.saved);
  const { title: stored, labels } = await send(scene.url, "GET", "campaigns/busy");
  assert.deepEqual([stored, labels], ["Typed", { other: "x" }]);
  await end();
});

forEachReader("campaign_and_coupon_are_copied", scene, async (page, { t, id }) => {
  const forget = { forget_after: "36h", forget_steps: 4 };
  const specs = {
    campaigns: { capacity: 777, error_rate: 0.01, growth: "fixed", labels: { team: "shop" }, ...forget },
    coupons: { capacity: 40, stock: 40, normalize: "code", uses: 3, per_customer: 2, labels: { team: "shop" } },
  };
  for (const kind of ["campaigns", "coupons"] as const) {
    const name = `copied-${id}`;
    const made = await send(scene.url, "PUT", `${kind}/${name}`, { ...specs[kind], title: "Original", ends_at: "2099-06-01T00:00:00Z" });
    await open(page, scene.url, `#/${kind}/${name}`);
    await page.getByRole("link", { name: t.filter.copy[kind] }).click();
    await says(page, t.form.copied(`Original (${name})`));
    await page.getByLabel(t.form.title, { exact: true }).fill(`Copy ${id}`);
    await assertAccessible(page, "a copy");
    await assertFits(page, "a copy");
    await button(page, t.form.create).click();
    await page.getByRole("heading", { level: 1, name: `Copy ${id}` }).waitFor();
    const copy = await send(scene.url, "GET", `${kind}/copy-${id}`);
    const { name: _, title: __, ends_at, created_at: ___, stats: ____, ...settings } = made;
    const { name: _1, title: _2, created_at: _3, stats: _4, ...copied } = copy;
    assert.deepEqual(copied, settings);
    assert.ok(ends_at !== undefined);
  }
});

forEachReader("questions_name_title_and_name", scene, async (page, { t, id }) => {
  const name = `asked-${id}`;
  const fullName = `Spring (${name})`;
  await send(scene.url, "PUT", `campaigns/${name}`, { capacity: 10, title: "Spring" });
  await send(scene.url, "POST", `campaigns/${name}/users`, { users: ["u1"] });
  await open(page, scene.url, `#/campaigns/${name}`);
  const { danger, items } = t;
  for (const [verb, title, text] of [
    [danger.clear.campaigns, danger.clearTitle.campaigns(fullName), danger.clearText.campaigns("1")],
    [danger.delete.campaigns, danger.deleteTitle(fullName), danger.deleteText.campaigns],
  ] as const) {
    await button(panel(page, danger.title), verb).click();
    const question = dialog(page, title);
    await question.getByText(text).waitFor();
    await button(question, t.dialog.back).click();
    await question.waitFor({ state: "hidden" });
  }
  const users = panel(page, items.titles.campaigns);
  await users.getByRole("radio", { name: items.acts.remove, exact: true }).check();
  await users.getByLabel(items.lines.campaigns).fill("u1");
  await button(users, items.acts.remove).click();
  await dialog(page, items.removeTitle.campaigns("u1", 1)).getByText(items.removeText.campaigns(fullName)).waitFor();
  await assertAccessible(page, "a question");
});

forEachReader("used_coupon_is_deleted_after_second_question", scene, async (page, { t, id }) => {
  const name = `used-${id}`;
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 2, stock: 2 });
  await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: "u1", reference: "r1", hold_seconds: 600 });
  await open(page, scene.url, `#/coupons/${name}`);
  const { danger } = t;
  await button(panel(page, danger.title), danger.delete.coupons).click();
  const first = dialog(page, danger.deleteTitle(name));
  await first.getByLabel(t.dialog.typeName(name)).fill(name);
  await button(first, danger.delete.coupons).click();
  const second = dialog(page, danger.usedTitle(name));
  await second.getByText("codes are held: 1").waitFor();
  await assertAccessible(page, "the reasons against a deletion");
  await assertFits(page, "the reasons against a deletion");
  assert.equal((await send(scene.url, "GET", `coupons/${name}`)).stats.held, 1);
  assert.ok(await button(second, danger.deleteUsed).isDisabled());
  await second.getByLabel(t.dialog.typeName(name)).fill(name);
  await button(second, danger.deleteUsed).click();
  await second.waitFor({ state: "hidden" });
  assert.ok((await send(scene.url, "GET", "coupons")).coupons.every((coupon: { name: string }) => coupon.name !== name));
});

forEachReader("stock_below_use_shows_warning", scene, async (page, { t }) => {
  await open(page, scene.url, "#/coupons/flash");
  await page.locator(".about").getByText(t.phases.sold_out).waitFor();
  const edit = panel(page, t.change.title);
  await edit.getByLabel(t.change.stock, { exact: true }).fill("1");
  await edit.getByText(t.change.stockLow("2", "1")).waitFor();
  await edit.getByLabel(t.change.stock, { exact: true }).fill("3");
  await edit.getByText(t.change.stockLow("2", "1")).waitFor({ state: "detached" });
});
