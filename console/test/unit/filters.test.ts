/** The table of all filters: ten thousand of them sort and search at once. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Filter } from "../../src/api/types.ts";
import { arranged, fill, type Column, type Listed } from "../../src/state/filters.ts";

function listed(index: number): Listed {
  const isCoupon = index % 3 === 0;
  const filter: Filter = {
    name: `name-${String((index * 7919) % 10_000).padStart(5, "0")}`,
    capacity: 1_000,
    mode: isCoupon ? "strict" : "compact",
    growth: index % 2 === 0 ? "auto" : "fixed",
    created_at: "2026-11-01T00:00:00Z",
    stats: {
      items: (index * 31) % 997,
      capacity_now: 1_000,
      load: 0.5,
      error_rate_now: (index % 13) / 1e5,
      memory_bytes: (index % 101) * 1_000,
      segments: [],
      adds: 0,
      removes: 0,
    },
  };
  return { kind: isCoupon ? "coupons" : "campaigns", filter };
}

const rows = Array.from({ length: 10_000 }, (_, index) => listed(index));

test("every column sorts both ways, and names decide between equals", () => {
  const of: Record<Column, (row: Listed) => string | number> = {
    name: ({ filter }) => filter.name,
    kind: ({ kind }) => kind,
    mode: ({ filter }) => filter.mode,
    items: ({ filter }) => filter.stats.items,
    fill: ({ filter }) => fill(filter),
    error: ({ filter }) => filter.stats.error_rate_now,
    memory: ({ filter }) => filter.stats.memory_bytes,
    growth: ({ filter }) => filter.growth,
  };
  for (const [column, value] of Object.entries(of) as [Column, (row: Listed) => string | number][]) {
    for (const isDescending of [false, true]) {
      const sorted = arranged(rows, "", { column, isDescending });
      assert.equal(sorted.length, rows.length);
      for (let index = 1; index < sorted.length; index += 1) {
        const [a, b] = [sorted[index - 1] as Listed, sorted[index] as Listed];
        const isInOrder = isDescending ? value(a) >= value(b) : value(a) <= value(b);
        assert.ok(isInOrder && (value(a) !== value(b) || a.filter.name < b.filter.name), `${column} at ${index}`);
      }
    }
  }
  assert.equal(rows[1]?.filter.name, "name-07919", "the rows themselves are left alone");
});

test("a search has all its words somewhere in the row", () => {
  const order = { column: "name", isDescending: false } as const;
  const names = (search: string) => arranged(rows, search, order).map(({ filter }) => filter.name);
  assert.deepEqual(names("name-00042"), ["name-00042"]);
  assert.deepEqual(names(" NAME-00042  "), ["name-00042"]);
  assert.deepEqual(names("nowhere"), []);
  const coupons = arranged(rows, "coupon fixed", order);
  assert.ok(coupons.length > 1_000 && coupons.every(({ kind, filter }) => kind === "coupons" && filter.growth === "fixed"));
});
