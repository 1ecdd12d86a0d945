/** Names that follow from titles, labels as they are typed, and patterns of codes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { isTitleTooLong, labelsOf, nameFault, nameFor } from "../../src/state/naming.ts";
import { patternFor, placesNeeded } from "../../src/state/pattern.ts";

test("name_follows_title", () => {
  const today = new Date(2026, 10, 5);
  const cases = { "Summer Sale 2027!": "summer-sale-2027", "  Été à Paris ": "ete-a-paris", "夏季大促": "campaign-20261105", "618 大促": "618", "": "campaign-20261105" };
  for (const [title, name] of Object.entries(cases)) {
    assert.equal(nameFor(title, "campaign", "", today), name);
    assert.equal(nameFault(nameFor(title, "campaign", "", today)), undefined);
  }
  assert.equal(nameFor("Sale", "campaign", "eu-"), "eu-sale");
  assert.equal(nameFault("Sale"), "syntax");
  assert.equal(nameFault("sale", "eu-"), "prefix");
});

test("title_is_limited_in_bytes", () => {
  assert.ok(isTitleTooLong("夏".repeat(67)) && !isTitleTooLong("夏".repeat(66)));
});

test("labels_are_read_as_typed", () => {
  assert.deepEqual(labelsOf(" team = shop，region=eu west "), { team: "shop", region: "eu west" });
  assert.deepEqual(labelsOf(""), {});
  for (const wrong of ["team", "team=", "=shop", "Team=shop", "a=1,a=2", `a=${"x".repeat(65)}`, Array.from({ length: 17 }, (_, at) => `k${at}=v`).join()]) {
    assert.equal(labelsOf(wrong), undefined, wrong);
  }
});

test("pattern_needs_enough_places", () => {
  assert.deepEqual([1, 1_073, 1_074, 1_000_000].map(placesNeeded), [4, 6, 7, 8]);
  assert.equal(patternFor("summer-2027"), "SUMMER-####-####");
  assert.equal(patternFor("618"), "####-####");
});
