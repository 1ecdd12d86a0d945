/** CSV of the service becomes a file for a spreadsheet, which runs none of its cells. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { isChanged, isFormula, rowsOf, spreadsheet } from "../../src/api/csv.ts";

const text = async (rows: readonly (readonly string[])[]) => (await spreadsheet(rows)).text();

test("cells_with_line_breaks_stay_whole", async () => {
  const rows = rowsOf('seq,reference\n1,"order\n41, ""x"""\r\n2,plain\n');
  assert.deepEqual(rows, [["seq", "reference"], ["1", 'order\n41, "x"'], ["2", "plain"]]);
  assert.deepEqual(rowsOf(await text(rows)), rows);
});

test("random_cells_survive_the_file", async () => {
  const alphabet = ['"', ",", "\n", "\r\n", "'", "a", "券", " ", ";"];
  const cell = () => `x${Array.from({ length: 6 }, () => alphabet[Math.floor(Math.random() * alphabet.length)]).join("")}`;
  const rows = Array.from({ length: 200 }, () => [cell(), cell(), cell()]);
  assert.deepEqual(rowsOf(await text(rows)), rows);
});

test("formulas_get_an_apostrophe", async () => {
  const formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", '=HYPERLINK("http://a","b")'];
  assert.ok(formulas.every(isFormula));
  assert.deepEqual(rowsOf(await text([formulas]))[0], formulas.map((formula) => `'${formula}`));
  const harmless = ["order-1", "2026-11-26T00:00:00Z", "", "a=1", "1"];
  assert.deepEqual(rowsOf(await text([harmless]))[0], harmless);
});

test("texts_that_look_like_numbers_get_an_apostrophe", async () => {
  const numbers = ["000123", "0", "12345678901234567", "123456789012", "1E5", "2e-3", "12E45", "1.50", "1,000", " 007", "5%"];
  const dates = ["1-2", "3/4", "2026-11-26", "12.11.2026", "1.5", "11/2026", "MAR1", "mar-05", "1 Sept", "12:30", "TRUE"];
  const changed = [...numbers.filter((cell) => cell !== "0"), ...dates];
  assert.deepEqual(changed.filter((cell) => !isChanged(cell)), []);
  assert.deepEqual(rowsOf(await text([changed]))[0], changed.map((cell) => `'${cell}`));
  const kept = ["0", "7", "12345678901", "0.001", "order-000123", "SPRING-2345-6789", "2345-6789", "MARKET-1", "3f0a9c", "2026-11-26T00:00:00Z", ""];
  assert.deepEqual(kept.filter(isChanged), []);
  assert.deepEqual(rowsOf(await text([kept]))[0], kept);
});

test("file_starts_with_a_byte_order_mark", async () => {
  const bytes = new Uint8Array(await (await spreadsheet([["名称"]])).arrayBuffer());
  assert.deepEqual([...bytes.slice(0, 3)], [0xef, 0xbb, 0xbf]);
});
