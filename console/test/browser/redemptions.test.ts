/** Redemptions: nobody's code is taken away by accident, and a row stays where it is. */

import assert from "node:assert/strict";
import { rowsOf } from "../../src/api/csv.ts";
import { assertAccessible, assertFits } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { becomes, button, dialog, downloaded, open, panel, rows, says, send } from "../support/steps.ts";

const scene = stage();

async function fill(name: string): Promise<void> {
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 100 });
  await send(scene.url, "POST", `coupons/${name}/codes`, { codes: Array.from({ length: 10 }, (_, at) => `CODE-${at}`) });
  for (let order = 1; order <= 4; order += 1) {
    const hold_seconds = order > 2 ? 900 : 0;
    await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: `CODE-${order}`, reference: `order-${order}`, hold_seconds });
  }
}

forEachReader("redemption_is_cancelled_after_question", scene, async (page, { t, id }) => {
  await fill(id);
  await open(page, scene.url, `#/coupons/${id}`);
  const list = async () => (await rows(page, t.redemptions.list)).map(([reference, status]) => [reference, status]);
  const { redeemed, held, cancelled } = t.outcomes;
  await becomes(page, list, [["order-4", held], ["order-3", held], ["order-2", redeemed], ["order-1", redeemed]]);

  // The menu is apart from what is done to holds, and a double click on it cancels nothing.
  const menu = button(page, t.redemptions.menu("order-1"));
  await menu.dblclick();
  await menu.click();
  if (!(await button(page, `${t.redemptions.cancel}…`).first().isVisible())) {
    await menu.click();
  }
  await assertAccessible(page, "the menu");
  const box = await page.locator(".menu:popover-open").boundingBox();
  assert.ok(box !== null && box.x >= 0 && box.x + box.width <= (page.viewportSize()?.width ?? 0), "the menu is cut off");
  await page.locator(".menu:popover-open").getByRole("button").click();
  const question = dialog(page, t.redemptions.cancelTitle("order-1"));
  await question.getByText(t.redemptions.cancelWays(id)).waitFor();
  await assertAccessible(page, "the question");
  await assertFits(page, "the question");
  await page.keyboard.press("Escape");
  await question.waitFor({ state: "hidden" });
  assert.deepEqual((await list())[3], ["order-1", redeemed], "nothing was asked for");

  await menu.focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await button(question, t.redemptions.cancelReleasing).click();
  await question.waitFor({ state: "hidden" });
  await page.getByRole("cell", { name: cancelled }).first().waitFor();
  const released = cancelled + t.redemptions.isReleased;
  await becomes(page, list, [["order-4", held], ["order-3", held], ["order-2", redeemed], ["order-1", released]]);
  assert.equal(await menu.count(), 0, "it can't be cancelled twice");

  await button(page, t.redemptions.confirmOf("order-3")).click();
  await button(page, t.redemptions.confirmOf("order-3")).waitFor({ state: "detached" });
  await button(page, t.redemptions.releaseOf("order-4")).click();
  await button(dialog(page, t.redemptions.releaseTitle("order-4")), t.redemptions.release).click();
  await button(page, t.redemptions.releaseOf("order-4")).waitFor({ state: "detached" });
  await becomes(page, list, [["order-4", released], ["order-3", redeemed], ["order-2", redeemed], ["order-1", released]]);

  // The other button keeps the code, which then can not be redeemed again.
  await button(page, t.redemptions.menu("order-2")).focus();
  await page.keyboard.press("Enter");
  await page.locator(".menu:popover-open").getByRole("button").click();
  await button(dialog(page, t.redemptions.cancelTitle("order-2")), t.redemptions.cancelKeeping).click();
  await page.getByRole("cell", { name: t.redemptions.isKept }).waitFor();
  await becomes(page, async () => (await list())[2], ["order-2", cancelled + t.redemptions.isKept]);
  const { valid } = await send(scene.url, "POST", `coupons/${id}/codes/check`, { codes: ["CODE-1", "CODE-2"] });
  assert.deepEqual(valid, [true, false]);
  await assertFits(page, "redemptions");
  await assertAccessible(page, "redemptions");
});

forEachReader("redemptions_are_found_and_downloaded", scene, async (page, { t, id }) => {
  const name = `csv-${id}`;
  await fill(name);
  await open(page, scene.url, `#/coupons/${name}`);
  const all = panel(page, t.redemptions.title);
  await says(page, t.redemptions.findHint);
  const { name: file, text } = await downloaded(page, button(all, t.csv));
  assert.equal(file, `${name}-redemptions.csv`);
  const [head, ...lines] = rowsOf(text);
  assert.ok(head?.[0] === "id" && head.includes("reference"), String(head));
  assert.equal(lines.length, 4);

  await all.getByLabel(t.redemptions.find).fill("order-2");
  await all.locator("td", { hasText: /^order-1$/ }).waitFor({ state: "detached" });
  assert.equal((await rows(page, t.redemptions.list)).length, 1);
  assert.equal(rowsOf((await downloaded(page, button(all, t.csv))).text).length, 2);
  await all.getByLabel(t.redemptions.find).fill("nobody");
  await says(page, t.noMatch);

  await all.getByLabel(t.redemptions.find).fill("");
  const asked = page.waitForRequest(/changed_after=\d{4}-/);
  await all.getByLabel(t.redemptions.changed, { exact: true }).selectOption("1");
  await asked;
  await all.locator("td", { hasText: /^order-1$/ }).waitFor();
  assert.equal((await rows(page, t.redemptions.list)).length, 4);

  // Redeemed by hand; what is refused is told once, in words.
  const redeem = async (code: string, reference: string, minutes: string, verb: string) => {
    await all.getByLabel(t.redemptions.code, { exact: true }).fill(code);
    await all.getByLabel(t.redemptions.reference, { exact: true }).fill(reference);
    await all.getByLabel(t.redemptions.minutes).fill(minutes);
    await button(all, verb).click();
  };
  await redeem("CODE-7", "order-7", "", t.redemptions.redeem);
  await says(page, t.redemptions.redeemedFor("order-7"));
  await redeem("CODE-7", "order-8", "", t.redemptions.redeem);
  await says(page, t.problems["code-redeemed"]);
  assert.equal(await page.getByText(t.problems["code-redeemed"]).count(), 1);
  await redeem("CODE-8", "order-8", "10", t.redemptions.hold);
  await says(page, t.redemptions.heldFor("order-8"));
});

forEachReader("redemptions_are_listed_newest_first", scene, async (page, { t, id }) => {
  const name = `newest-${id}`;
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 100 });
  await send(scene.url, "POST", `coupons/${name}/codes`, { codes: Array.from({ length: 25 }, (_, at) => `CODE-${at + 1}`) });
  for (let order = 1; order <= 25; order += 1) {
    await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: `CODE-${order}`, reference: `order-${order}`, hold_seconds: order % 5 === 0 ? 900 : 0 });
  }
  const orders = (from: number, to: number) => Array.from({ length: from - to + 1 }, (_, at) => `order-${from - at}`);
  const listed = async () => (await rows(page, t.redemptions.list)).map(([reference]) => reference);
  const all = panel(page, t.redemptions.title);
  await open(page, scene.url, `#/coupons/${name}`);
  await becomes(page, listed, orders(25, 6));
  await button(all, `${t.pager.next} →`).click();
  await becomes(page, listed, orders(5, 1));
  await all.getByLabel(t.redemptions.status, { exact: true }).selectOption("held");
  await becomes(page, listed, ["order-25", "order-20", "order-15", "order-10", "order-5"]);
  await assertAccessible(page, "holds, newest first");

  // A change brings it to the top once the list is read again.
  await all.getByLabel(t.redemptions.status, { exact: true }).selectOption("");
  const { redemptions } = await send(scene.url, "GET", `coupons/${name}/redemptions?reference=order-5`);
  await send(scene.url, "POST", `coupons/${name}/redemptions/${redemptions[0].id}/confirm`);
  await button(all, t.refresh).click();
  await becomes(page, listed, ["order-5", ...orders(25, 7)]);
});

forEachReader("downloads_keep_references_as_text", scene, async (page, { t, id }) => {
  const name = `formula-${id}`;
  const references = ['=HYPERLINK("http://a","b")', "-1,5", "order\n41", "000123", "12345678901234567", "42"];
  await send(scene.url, "PUT", `coupons/${name}`, { capacity: 10, stock: 10 });
  for (const reference of references) {
    await send(scene.url, "POST", `coupons/${name}/redemptions`, { code: reference, reference });
  }
  const expected = ['\'=HYPERLINK("http://a","b")', "'-1,5", "order\n41", "'000123", "'12345678901234567", "42"];
  const column = (text: string) => {
    const [head = [], ...lines] = rowsOf(text);
    assert.ok(lines.every((line) => line.length === head.length), text);
    return lines.filter((line) => head.indexOf("coupon") < 0 || line[head.indexOf("coupon")] === name).map((line) => line[head.indexOf("reference")] ?? "").filter((cell) => cell !== "");
  };
  await open(page, scene.url, `#/coupons/${name}`);
  await says(page, t.csvHint);
  assert.deepEqual(column((await downloaded(page, button(panel(page, t.redemptions.title), t.csv))).text), expected);
  await open(page, scene.url, "#/activity");
  await says(page, t.csvHint);
  assert.deepEqual(column((await downloaded(page, button(page, t.csv))).text), expected);
  // The API's own is exact.
  const own = await (await fetch(`${scene.url}/v1/coupons/${name}/redemptions`, { headers: { Accept: "text/csv" } })).text();
  assert.deepEqual(column(own), references);
  await assertFits(page, "the hint");
});
