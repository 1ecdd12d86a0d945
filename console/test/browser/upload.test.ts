/** The panel that uploads a file: how it is read, the question before it, and what looks wrong about it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { assertAccessible, assertFits, visit } from "../support/browser.ts";
import { forEachReader } from "../support/readers.ts";
import { stage } from "../support/stage.ts";
import { button, dialog, runUpload, says, send } from "../support/steps.ts";
import { choose, openUpload, present, shows } from "../support/uploads.ts";

const scene = stage();

forEachReader("reading_and_column_are_shown_and_changed", scene, async (page, { t, id }) => {
  const name = `reading-${id}`;
  const upload = await openUpload(page, t, scene.url, name);
  await choose(upload, t, "kunden.csv", "\uFEFFName;Kunde;Umsatz\r\nMeier, Zoë;u-1;1,50\r\nMüller;u-2;2\r\n;u-3;\r\n;u-4;\r\n");
  const reading = upload.getByLabel(t.upload.readAs, { exact: true });
  const column = upload.getByLabel(t.upload.column, { exact: true });
  await shows(upload, t, ["u-1", "u-2", "u-3"]);
  assert.deepEqual([await reading.inputValue(), await column.inputValue()], ["semicolon", "Kunde"]);
  await upload.getByText(t.upload.header("Name · Kunde · Umsatz")).waitFor();
  await column.selectOption("Name");
  await shows(upload, t, ["Meier, Zoë", "Müller"]);
  await reading.selectOption("lines");
  await shows(upload, t, ["Name;Kunde;Umsatz", "Meier, Zoë;u-1;1,50", "Müller;u-2;2"]);
  await reading.selectOption("semicolon");
  await shows(upload, t, ["u-1", "u-2", "u-3"]);
  await assertAccessible(page, "a preview");
  await assertFits(page, "a preview");
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("4", "4"));
  // A check of another reading says nothing of this one.
  await reading.selectOption("lines");
  assert.ok(await button(upload, t.upload.run).isDisabled());
  await reading.selectOption("semicolon");
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("4", "4"));
  await button(upload, t.upload.run).click();
  const question = dialog(page, t.upload.appendTitle(name));
  await question.getByText(t.upload.appendText("4")).waitFor();
  await shows(question, t, ["u-1", "u-2", "u-3"]);
  await assertAccessible(page, "the question before an upload");
  await assertFits(page, "the question before an upload");
  await button(question, t.dialog.back).click();
  assert.equal((await send(scene.url, "GET", `campaigns/${name}`)).stats.items, 0);
  await runUpload(page, t, name);
  await says(page, t.upload.added("4", "4"));
});

forEachReader("replacement_shows_its_entries", scene, async (page, { t, id }) => {
  const name = `replaced-${id}`;
  const upload = await openUpload(page, t, scene.url, name);
  await send(scene.url, "POST", `campaigns/${name}/users`, { users: ["old"] });
  await choose(upload, t, "export.csv", "sep=;\r\nuser;email\r\nnew-1;\r\nnew-2;a@b\r\n");
  await upload.getByRole("radio", { name: t.upload.replace }).check();
  await shows(upload, t, ["new-1", "new-2"]);
  await button(upload, t.upload.check).click();
  await says(page, t.upload.checked);
  await button(upload, t.upload.run).click();
  const question = dialog(page, t.upload.replaceTitle(name));
  await shows(question, t, ["new-1", "new-2"]);
  await button(question, t.upload.replace).click();
  await says(page, t.upload.imported);
  assert.deepEqual(await present(scene.url, name, ["old", "new-1", "new-2"]), [false, true, true]);
});

test("overtaken_upload_starts_over", async () => {
  const t = CATALOGS.en;
  const { page, end } = await visit(scene.browser());
  const upload = await openUpload(page, t, scene.url, "overtaken");
  const ids: string[] = [];
  await page.route(/\/imports\?.*\bid=/, (route) => {
    ids.push(new URL(route.request().url()).searchParams.get("id") ?? "");
    const problem = { code: "import-overtaken", title: "x", status: 409, detail: "the campaign was cleared" };
    return ids.length === 1 ? route.fulfill({ status: 409, json: problem }) : route.continue();
  });
  await choose(upload, t, "users.txt", "u-1\nu-2\n");
  await button(upload, t.upload.check).click();
  await says(page, t.upload.checked);
  await runUpload(page, t, "overtaken");
  await says(page, t.problems["import-overtaken"]);
  await runUpload(page, t, "overtaken");
  await says(page, t.upload.added("2", "2"));
  assert.equal(new Set(ids).size, 2, ids.join());
  await end();
});

forEachReader("repeated_users_are_added_once", scene, async (page, { t, id }) => {
  const name = `once-${id}`;
  // None of them is taken for another one.
  const spec = { mode: "compact", error_rate: 0.000_000_1 };
  const upload = await openUpload(page, t, scene.url, name, spec);
  const lines = Array.from({ length: 300 }, (_, at) => `user-${at % 200}\n`).join("");
  await choose(upload, t, "users.txt", lines);
  await button(upload, t.upload.check).click();
  await says(page, t.upload.warnings.repeated);
  await upload.getByLabel(t.upload.once, { exact: true }).check();
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("300", "200"));
  assert.equal(await page.getByText(t.upload.warnings.repeated).count(), 0);
  await runUpload(page, t, name);
  await says(page, t.upload.added("300", "200"));
  assert.equal((await send(scene.url, "GET", `campaigns/${name}`)).stats.items, 200);
});

forEachReader("suspicious_file_is_explained", scene, async (page, { t, id }) => {
  const upload = await openUpload(page, t, scene.url, `suspicious-${id}`);
  const users = Array.from({ length: 20 }, (_, at) => `u-${1_000 + at}`);
  const { warnings } = t.upload;
  for (const [name, content, text] of [
    ["users.txt", ["user_id", ...users].join("\n"), warnings.header],
    ["users.csv", users.join("\r\n"), warnings.headless],
    ["users.txt", users.map((user) => `\u00a0${user}\u200b`).join("\n"), warnings.spaces],
    ["users.txt", users.map((user) => `${user};x`).join("\n"), warnings.csv],
  ] as const) {
    await choose(upload, t, name, content);
    await button(upload, t.upload.check).click();
    await upload.getByText(text).waitFor();
    await assertAccessible(page, text);
    await assertFits(page, text);
  }
  // Invisible characters are marked.
  await choose(upload, t, "users.txt", "\u00a0u-1\u200b\n");
  await shows(upload, t, ["␣u-1␣"]);
  await assertAccessible(page, "marks");
  // The first line is an entry again.
  await choose(upload, t, "users.csv", users.join("\n"));
  await shows(upload, t, users.slice(1, 4));
  await upload.getByLabel(t.upload.readAs, { exact: true }).selectOption("lines");
  await shows(upload, t, users.slice(0, 3));
  await button(upload, t.upload.check).click();
  await says(page, t.upload.wouldAdd("20", "20"));
});

forEachReader("unreadable_file_is_explained", scene, async (page, { t, id }) => {
  const upload = await openUpload(page, t, scene.url, `unreadable-${id}`);
  const check = button(upload, t.upload.check);
  const gbk = Buffer.from([0xd3, 0xc3, 0xbb, 0xa7, ...Buffer.from(",id\r\nu-1,7\r\n")]);
  for (const [name, content, text] of [
    ["unicode.txt", Buffer.from("\uFEFFuser\temail\r\nu-1\t\r\n", "utf16le"), t.upload.unreadable.utf16],
    ["users.xlsx", Buffer.from([0x50, 0x4b, 3, 4, 20, 0]), t.upload.unreadable.workbook],
    ["mac.csv", "user,email\ru-1,\r", t.upload.unreadable.macintosh],
  ] as const) {
    await choose(upload, t, name, content);
    await upload.getByRole("alert").getByText(text).waitFor();
    await upload.getByText(t.upload.saveAs.excel).waitFor();
    assert.ok(await check.isDisabled(), name);
    await assertAccessible(page, name);
    await assertFits(page, name);
  }
  // A column whose name is readable can be uploaded all the same.
  await choose(upload, t, "gbk.csv", gbk);
  await shows(upload, t, ["7"]);
  await upload.getByText(t.upload.notUtf8).waitFor();
  assert.ok(await check.isEnabled());
  await upload.getByLabel(t.upload.column, { exact: true }).selectOption({ index: 0 });
  await upload.getByRole("alert").getByText(t.upload.unreadable.column).waitFor();
  assert.ok(await check.isDisabled());
  // The next file is another matter.
  await choose(upload, t, "users.csv", "\uFEFFuser\r\nu-1\r\n");
  await shows(upload, t, ["u-1"]);
  await upload.getByRole("alert").waitFor({ state: "detached" });
  assert.ok(await check.isEnabled());
});
