/** What a file's name and its first bytes tell. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { codingOf, endingOf, headOf } from "../../src/api/file.ts";

const utf16 = (text: string) => Buffer.from(text, "utf16le");
const file = (parts: BlobPart[], name = "codes.csv") => new File(parts, name);

test("ending_and_compression_follow_name", () => {
  assert.deepEqual(["users", "users.TXT", "users.csv.gz", "users.jsonl.zst", "users.gz"].map(endingOf), ["", "txt", "csv", "jsonl", ""]);
  assert.deepEqual(["users.csv", "users.csv.gz", "users.ZST"].map(codingOf), [undefined, "gzip", "zstd"]);
});

test("head_is_text_without_byte_order_mark", async () => {
  const text = "code,名称\r\nA,1\r\n";
  const whole = { text, isWhole: true, isUtf8: true };
  assert.deepEqual(await headOf(file([text])), whole);
  assert.deepEqual(await headOf(file(["\uFEFF", text])), whole);
  assert.deepEqual(await headOf(file([gzipSync(`\uFEFF${text}`)], "codes.csv.gz")), whole);
  assert.equal(await headOf(file([text], "codes.csv.zst")), undefined, "browsers don't read zstd");
  assert.deepEqual(await headOf(file([])), { text: "", isWhole: true, isUtf8: true });
});

test("head_of_long_file_is_bounded", async () => {
  // Of three bytes each: one is cut off.
  const text = "券".repeat(50_000);
  for (const long of [file([text]), file([gzipSync(text)], "codes.txt.gz")]) {
    const head = await headOf(long);
    assert.deepEqual([head?.isWhole, head?.isUtf8, head?.text], [false, true, "券".repeat(21_845)]);
  }
});

test("unreadable_files_are_recognized", async () => {
  const reason = async (part: BlobPart) => (await headOf(file([part])))?.unreadable;
  assert.equal(await reason(utf16("\uFEFFcode\r\nA\r\n")), "utf16");
  assert.equal(await reason(utf16("\uFEFFcode\r\nA\r\n").swap16()), "utf16");
  assert.equal(await reason(utf16("code\r\nA\r\n")), "utf16");
  assert.equal(await reason(utf16("用户\n券")), "utf16");
  assert.equal(await reason(new Uint8Array([0x50, 0x4b, 3, 4, 0, 0])), "workbook");
  assert.equal(await reason(new Uint8Array([0xd0, 0xcf, 0x11, 0xe0, 0, 0])), "workbook");
  assert.equal(await reason("code\rA\rB\r"), "macintosh");
  for (const readable of ["", "code", "code\r\nA", "PK\nA", "code\n\"a\rb\""]) {
    assert.equal(await reason(readable), undefined, readable);
  }
});

test("text_of_another_encoding_is_recognized", async () => {
  const head = await headOf(file([new Uint8Array([0x5a, 0x6f, 0xeb, 0x0a])]));
  assert.deepEqual([head?.isUtf8, head?.text], [false, "Zo\uFFFD\n"]);
});
