/** Each warning that the service has is known. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { warningOf } from "../../src/state/warnings.ts";

test("warnings_of_the_service_are_known", () => {
  const source = readFileSync("../src/domain/import.rs", "utf8");
  const [, kinds = ""] = /enum ImportWarning \{(.*?)\n\}/s.exec(source) ?? [];
  const texts = [...kinds.matchAll(/#\[error\(\s*"(.*?)"\s*\)\]/gs)].map(([, text = ""]) => text);
  assert.equal(texts.length, 6);
  assert.deepEqual(texts.map(warningOf), ["alike", "present", "csv", "json", "spaces", "rejected"]);
  assert.equal(warningOf("something new"), undefined);
});
