/** Files as programs export them: a person sees what will be uploaded before it is. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { count } from "../../src/format.ts";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { visit } from "../support/browser.ts";
import { FOLDER, FORMATS } from "../support/formats.ts";
import { stage } from "../support/stage.ts";
import { button, dialog, says, send } from "../support/steps.ts";
import { choose, openUpload, present, shows } from "../support/uploads.ts";

const scene = stage();

test("files_of_programs_are_shown_then_uploaded", async (context) => {
  const t = CATALOGS.en;
  const { page, end } = await visit(scene.browser());
  const name = "programs";
  const upload = await openUpload(page, t, scene.url, name);
  for (const { file, program, items } of FORMATS) {
    await context.test(`${file}: ${program}`, async () => {
      await choose(upload, t, file, readFileSync(`${FOLDER}/${file}`));
      if (items === undefined) {
        await upload.getByText(t.upload.saveAs.excel).waitFor();
        assert.ok(await button(upload, t.upload.check).isDisabled());
        return;
      }
      const entries = count(items.length);
      await shows(upload, t, items.slice(0, 3));
      await button(upload, t.upload.check).click();
      await says(page, t.upload.wouldAdd(entries, entries));
      await button(upload, t.upload.run).click();
      const question = dialog(page, t.upload.appendTitle(name));
      await shows(question, t, items.slice(0, 3));
      assert.deepEqual(await present(scene.url, name, items), items.map(() => false));
      await button(question, t.upload.run).click();
      await says(page, t.upload.added(entries, entries));
      assert.deepEqual(await present(scene.url, name, items), items.map(() => true));
      // No other item was added.
      assert.equal((await send(scene.url, "POST", `campaigns/${name}/clear`)).removed, items.length);
    });
  }
  await end();
});
