/** Names that follow from titles, labels as they are typed, and patterns of codes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { isTitleTooLong, labelFault, labelRows, labelsOf, labelsPatch, nameFault, nameFor } from "../../src/state/naming.ts";
import { mayChange, patternFor, placesNeeded } from "../../src/state/pattern.ts";

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

test("labels_survive_their_form", () => {
  for (const labels of [{}, { team: "a, b=c，d", empty: "", region: " eu " }, Object.fromEntries(Array.from({ length: 16 }, (_, at) => [`k${at}`, "值"]))]) {
    assert.deepEqual(labelsOf(labelRows(labels)), labels);
    assert.equal(labelsPatch(labels, labelsOf(labelRows(labels))), undefined);
  }
  assert.deepEqual(labelsOf([{ key: "", value: "" }, { key: "team", value: "shop" }]), { team: "shop" }, "a blank row is none");
});

test("wrong_label_has_a_fault", () => {
  const rows = [{ key: "team", value: "" }, { key: "Team", value: "x" }, { key: "", value: "x" }, { key: "team", value: "x" }, { key: "a", value: "值".repeat(22) }, { key: "", value: "" }];
  assert.deepEqual(rows.map((_, at) => labelFault(rows, at)), [undefined, "key", "key", "twice", "value", undefined]);
  assert.equal(labelsOf(rows), undefined);
});

test("patch_has_only_changed_labels", () => {
  assert.deepEqual(labelsPatch({ team: "a,b", region: "eu", old: "" }, { team: "a,b", region: "us", more: "" }), { old: null, region: "us", more: "" });
  assert.deepEqual(labelsPatch(undefined, { team: "shop" }), { team: "shop" });
});

test("pattern_needs_enough_places", () => {
  assert.deepEqual([1, 17, 18, 377_801, 377_802, 1_000_000].map(placesNeeded), [5, 5, 6, 8, 9, 9]);
  assert.equal(patternFor("summer-2027"), "SUMMER-####-####");
  assert.equal(patternFor("618"), "####-####");
});

test("pattern_of_numbers_is_recognized", () => {
  assert.deepEqual(["########", "1########", "###-###", "##-####", "MAR-####"].filter((pattern) => !mayChange(pattern)), []);
  assert.deepEqual(["####-####", "###-###-###", "000-########", "SALE-########", "A########", "########-A"].filter(mayChange), []);
});
