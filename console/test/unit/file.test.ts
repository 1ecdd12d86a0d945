/** What a file's name and its first line tell. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { columns, formatOf } from "../../src/api/file.ts";

test("format_follows_name", () => {
  assert.deepEqual(formatOf("users"), { type: "text/plain" });
  assert.deepEqual(formatOf("users.TXT"), { type: "text/plain" });
  assert.deepEqual(formatOf("users.csv.gz"), { type: "text/csv", coding: "gzip" });
  assert.deepEqual(formatOf("users.jsonl.zst"), { type: "application/x-ndjson", coding: "zstd" });
  assert.deepEqual(formatOf("users.gz"), { type: "text/plain", coding: "gzip" });
});

test("columns_are_those_of_the_header", async () => {
  assert.deepEqual(await columns(new File(['id,"a ""b"", c",券码\n1,2,3\n'], "a.csv")), ["id", 'a "b", c', "券码"]);
  const text = "id,code\r\n1,A\r\n";
  assert.deepEqual(await columns(new File([text], "a.csv")), ["id", "code"]);
  assert.deepEqual(await columns(new File([gzipSync(text)], "a.csv.gz")), ["id", "code"]);
  assert.deepEqual(await columns(new File([text], "a.csv.zst")), [], "browsers don't read zstd");
  assert.deepEqual(await columns(new File([text], "a.txt")), []);
});
