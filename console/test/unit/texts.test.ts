/** The catalogs of texts: each language has all of them, in its own words, and none is left over. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { preferred } from "../../src/i18n/language.ts";
import { CATALOGS, type Catalog } from "../../src/i18n/texts.ts";

type Leaves = Map<string, unknown>;

function leaves(of: object, path = "", found: Leaves = new Map()): Leaves {
  for (const [key, value] of Object.entries(of)) {
    const place = path === "" ? key : `${path}/${key}`;
    typeof value === "object" ? leaves(value as object, place, found) : found.set(place, value);
  }
  return found;
}

test("languages_have_the_same_texts", () => {
  const english = leaves(CATALOGS.en);
  for (const [language, catalog] of Object.entries(CATALOGS) as [string, Catalog][]) {
    const own = leaves(catalog);
    assert.deepEqual([...own.keys()].sort(), [...english.keys()].sort(), language);
    for (const [place, text] of own) {
      assert.equal(typeof text, typeof english.get(place), place);
      assert.ok(text !== "", place);
    }
  }
});

test("chinese_texts_are_chinese", () => {
  const texts = leaves(CATALOGS["zh-CN"]);
  const shown = (text: unknown) => (typeof text === "function" ? String(text("1", "2", "3")) : String(text));
  const foreign = [...texts].filter(([, text]) => !/\p{Script=Han}/u.test(shown(text)));
  assert.deepEqual(foreign.map(([place]) => place), []);
  assert.deepEqual([...leaves(CATALOGS.en)].filter(([, text]) => /\p{Script=Han}/u.test(shown(text))).map(([place]) => place), []);
});

test("problems_and_events_of_the_api_have_texts", () => {
  const { components } = JSON.parse(readFileSync("../openapi/openapi.json", "utf8"));
  const { ProblemCode, EventName, LineErrorCode, ItemOutcome, CodeStatus } = components.schemas;
  const { problems, events, outcomes } = CATALOGS.en;
  for (const [names, texts] of [[ProblemCode, problems], [EventName, events], [LineErrorCode, outcomes], [ItemOutcome, outcomes], [CodeStatus, outcomes]] as const) {
    assert.deepEqual((names.enum as string[]).filter((name) => !(name in texts)), []);
  }
});

test("texts_are_all_used", () => {
  const folders = ["src", "src/pages", "src/parts", "src/state"];
  const files = folders.flatMap((folder) => readdirSync(folder).filter((name) => /\.tsx?$/.test(name)).map((name) => readFileSync(`${folder}/${name}`, "utf8")));
  const source = files.join("\n");
  /** Texts that a value of the API chooses. */
  const isChosen = (place: string) => /^(problems|events|outcomes|fields|phases|nav|spellings)\/|\/(columns|readings|unreadable|faults|themes|durabilities|states|modes|stopped|stopText|warnings|fields|acts|done|spellingExamples|campaigns|coupons)(\/|$)/.test(place);
  const unused = [...leaves(CATALOGS.en).keys()].filter((place) => !isChosen(place) && !new RegExp(`\\.${place.split("/").at(-1)}\\b`).test(source));
  assert.deepEqual(unused, []);
});

test("language_is_the_first_that_there_is", () => {
  assert.equal(preferred(["de-DE", "zh-TW", "en"]), "zh-CN");
  assert.equal(preferred(["en-GB", "zh-CN"]), "en");
  assert.equal(preferred(["fr"]), "en");
});
