/** Each warning that the service has is known. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { warningOf } from "../../src/state/warnings.ts";

test("warnings_of_the_service_are_known", () => {
  const source = readFileSync("../crates/cuckood-state/src/domain/import.rs", "utf8");
  const [, kinds = ""] = /enum ImportWarning \{(.*?)\n\}/s.exec(source) ?? [];
  const texts = [...kinds.matchAll(/#\[error\(\s*"(.*?)"/gs)].map(([, text = ""]) => text);
  assert.deepEqual(texts.map(warningOf), ["alike", "repeated", "present", "csv", "json", "header", "headless", "spaces", "respelled", "rejected"]);
  assert.equal(warningOf("something new"), undefined);
});
