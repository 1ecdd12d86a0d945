/** How files are read: detected as their programs mean them, and previewed as the service reads them. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { headOf, type Head } from "../../src/api/file.ts";
import { choicesOf, columnsOf, isTable, likelyColumn, namedDelimiter, previewOf, readingOf, readingsOf, typeOf } from "../../src/api/reading.ts";
import { FORMATS, FOLDER } from "../support/formats.ts";

const head = (text: string, isWhole = true): Head => ({ text, isWhole, isUtf8: true });
const read = (name: string, text: string) => readingOf(name, head(text));

test("files_of_programs_are_detected_and_previewed", async () => {
  for (const { file, media_type, parameters, items } of FORMATS) {
    const found = await headOf(new File([readFileSync(`${FOLDER}/${file}`)], file));
    assert.ok(found, file);
    assert.equal(found.unreadable !== undefined, items === undefined, file);
    if (items === undefined) {
      continue;
    }
    const reading = readingOf(file, found);
    const columns = columnsOf(found, reading);
    const column = likelyColumn(columns, "campaigns");
    assert.equal(typeOf(reading), media_type, file);
    assert.equal(isTable(reading) && reading !== "comma" ? reading : undefined, parameters.delimiter ?? namedDelimiter(found.text), file);
    assert.deepEqual(previewOf(found, reading, column).items, items.slice(0, 3), file);
    assert.equal(columns.length > 1 ? column : undefined, parameters.column, file);
  }
});

test("separator_is_that_of_the_most_regular_table", () => {
  assert.equal(read("a.csv", "user;email\nu1;a,b\nu2;\n"), "semicolon");
  assert.equal(read("a.csv", "user|note\nu1|a, b; c\n"), "pipe");
  assert.equal(read("a.csv", '"Name; first",code\n"a;b",A1\n'), "comma");
  assert.equal(read("a.csv", "Name, Vorname;Kunde\nMeier, Zoë;u1\n"), "semicolon");
  assert.equal(read("a.csv", "Kunde;Umsatz, netto\nu1;1,50\nu2;0,99\nu3;7\n"), "semicolon");
  assert.equal(read("a.csv", "user;email\n"), "semicolon");
  assert.equal(read("a.csv", "code\nA;B\n"), "comma", "the header decides");
  assert.equal(read("a.csv", ""), "comma");
  assert.equal(read("a.tsv", "code\nA\n"), "tab");
  assert.equal(read("a.csv", "sep=|\ncode;x\nA;1\n"), "pipe", "the file says so");
  assert.equal(read("a.txt", 'SEP=;\r\ncode;x\r\nA;1\r\n'), "semicolon");
});

test("named_separator_is_the_only_one", () => {
  assert.deepEqual(readingsOf(head("sep=;\ncode;x\n")), ["lines", "semicolon", "ndjson"]);
  assert.deepEqual(readingsOf(head('"sep=,"\ncode,x\n')), ["lines", "comma", "ndjson"]);
  for (const other of [head("code;x\n"), head("sep=:\ncode:x\n"), undefined]) {
    assert.equal(readingsOf(other).length, 6);
  }
});

test("list_is_a_table_only_with_tabs", () => {
  assert.equal(read("a.txt", "u1\nu2\n"), "lines");
  assert.equal(read("a.txt", "Meier, Zoë\nMüller, Jürgen\n"), "lines");
  assert.equal(read("a.txt", "user\temail\nu1\t\nu2\ta@b\n"), "tab");
  assert.equal(read("a.txt", "a\tb\nc\n"), "lines");
  assert.equal(read("a.ndjson", '{"item":"a"}\n'), "ndjson");
  assert.equal(readingOf("a.csv.zst", undefined), "comma");
  assert.equal(readingOf("a.tsv.zst", undefined), "tab");
  assert.equal(readingOf("a.zst", undefined), "lines");
});

test("preview_has_the_items_that_are_read", () => {
  const csv = head('sep=;\r\nid;code\r\n1;"a;""b"\r\n;\r\n2;\r\n3;two\r\n4;"c\r\nd"\r\n5;e\r\n');
  assert.deepEqual(previewOf(csv, "semicolon", "code"), { columns: ["id", "code"], items: ['a;"b', "two", "c\nd"] });
  assert.deepEqual(previewOf(csv, "semicolon", "none").items, []);
  const long = "x".repeat(513);
  assert.deepEqual(previewOf(head(`${long}\n\n a \r\nb\0\nc`), "lines", "").items, [" a ", "c"]);
  const ndjson = head('"a"\n\n{"item":"b"}\n7\n{"item":7}\nnull\n{\n"c"\n"d"\n');
  assert.deepEqual(previewOf(ndjson, "ndjson", "").items, ["a", "b", "c"]);
  assert.deepEqual(previewOf(head("code\nA,x\nB"), "comma", ""), { columns: ["code"], items: ["A", "B"] });
});

test("record_that_is_cut_off_is_left_out", () => {
  assert.deepEqual(previewOf(head("\ncode\nA\n\nB\n"), "comma", "").items, ["code", "A", "B"], "the first line is the header");
  assert.deepEqual(previewOf(head("code,x\nA,1\nB", false), "comma", "code").items, ["A"]);
  assert.deepEqual(previewOf(head("A\nB", false), "lines", "").items, ["A"]);
});

test("column_is_a_telling_one", () => {
  assert.equal(likelyColumn(["", "user_name", "user_id"], "campaigns"), "user_id");
  assert.equal(likelyColumn(["Betrag", "Kundennr"], "campaigns"), "Kundennr");
  assert.equal(likelyColumn(["id", "券码"], "coupons"), "券码");
  assert.equal(likelyColumn(["", "a", "b"], "coupons"), "a");
  assert.equal(likelyColumn([], "coupons"), "");
  assert.deepEqual(choicesOf(["", "a", "b", "a", ""]), ["a", "b"]);
});
