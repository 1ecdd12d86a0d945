/** A coupon's terms: how its codes may be typed, and how often they may be used. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Filter } from "../../src/api/types.ts";
import { limitsOf, spellingOf, spellingsFor, termsOf } from "../../src/state/terms.ts";

const coupon = (part: Partial<Filter>) => part as Filter;

test("new_coupon_ignores_separators_and_pool_nothing", () => {
  const terms = termsOf(undefined);
  assert.equal(spellingOf(terms, false), "code");
  assert.equal(spellingOf(terms, true), "exact");
  assert.equal(spellingOf({ ...terms, spelling: "case" }, true), "case");
  assert.deepEqual(limitsOf(terms), {});
});

test("copy_has_terms_of_original", () => {
  const terms = termsOf(coupon({ normalize: "ascii", uses: 3, per_customer: 2 }));
  assert.deepEqual([spellingOf(terms, false), limitsOf(terms)], ["ascii", { uses: 3, per_customer: 2 }]);
  assert.ok(spellingsFor(coupon({ normalize: "ascii" })).includes("ascii"));
  assert.ok(!spellingsFor(coupon({ normalize: "case" })).includes("ascii"));
});

test("limits_are_whole_numbers_in_range", () => {
  const of = (uses: string, perCustomer = "") => limitsOf({ spelling: undefined, uses, perCustomer });
  assert.deepEqual(of("1000000", "1"), { uses: 1_000_000, per_customer: 1 });
  for (const wrong of ["", "0", "-1", "1.5", "1e3", "1000001"]) {
    assert.equal(of(wrong), undefined, wrong);
    assert.ok(wrong === "" || of("1", wrong) === undefined, wrong);
  }
});
