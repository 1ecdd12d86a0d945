/** States of campaigns and coupons, and their table: ten thousand sort and search immediately. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Filter, Stats } from "../../src/api/types.ts";
import { CATALOGS } from "../../src/i18n/texts.ts";
import { absenceOf, arranged, phaseOf, stockOf, takenOf, usesOf, type SortKey } from "../../src/state/filters.ts";

const { phases } = CATALOGS.en;

function filter(name: string, part: Partial<Filter> = {}, stats: Partial<Stats> = {}): Filter {
  return {
    name,
    capacity: 1_000,
    mode: "strict",
    growth: "auto",
    created_at: "2026-11-01T00:00:00Z",
    ...part,
    stats: { items: 0, capacity_now: 1_000, load: 0.5, error_rate_now: 0, memory_bytes: 0, segments: [], adds: 0, removes: 0, copies_max: 1, ...stats },
  };
}

const rows = Array.from({ length: 10_000 }, (_, index) =>
  filter(
    `name-${String((index * 7919) % 10_000).padStart(5, "0")}`,
    { ...(index % 5 === 0 ? { title: `Title ${index % 7}` } : {}), ...(index % 4 === 0 ? { ends_at: "2020-01-01T00:00:00Z" } : {}), labels: { team: `t${index % 3}` } },
    { items: (index * 31) % 997, available: index % 11, held: index % 3, redeemed: index % 17 },
  ),
);

test("absence_is_told_only_if_known", () => {
  const now = Date.parse("2026-11-22T12:00:00Z");
  const filters = [filter("shop.now"), filter("shop.soon", { starts_at: "2026-11-23T00:00:00Z" }), filter("shop.over", { ends_at: "2026-11-22T12:00:00Z" })];
  const absence = (name: string, state: "read" | "reading", prefix?: string) => absenceOf(name, { filters, state }, prefix, now);
  assert.deepEqual(["shop.now", "shop.soon", "shop.over", "shop.none"].map((name) => absence(name, "read")), [undefined, "inactive", "inactive", "missing"]);
  assert.equal(absence("shop.none", "reading"), undefined);
  assert.equal(absence("shop.none", "read", "shop."), "missing");
  assert.equal(absence("app.none", "read", "shop."), undefined, "the key does not see it");
});

test("state_follows_window_and_stock", () => {
  const now = Date.parse("2026-11-22T12:00:00Z");
  const [past, future] = ["2026-11-22T12:00:00Z", "2026-11-22T12:00:01Z"];
  const phase = (part: Partial<Filter>, stats: Partial<Stats> = {}) => phaseOf(filter("a", part, stats), now);
  assert.equal(phase({}), "active");
  assert.equal(phase({ starts_at: future }), "scheduled");
  assert.equal(phase({ ends_at: past }), "ended");
  assert.equal(phase({ starts_at: past, ends_at: future }), "active");
  assert.equal(phase({ stock: 5 }, { available: 0, redeemed: 5 }), "sold_out");
  assert.equal(phase({}, { available: 0, redeemed: 5 }), "sold_out");
  assert.equal(phase({}, { available: 0, redeemed: 0 }), "active", "no codes yet");
  assert.equal(phase({ ends_at: past }, { available: 0, redeemed: 5 }), "ended");
  assert.equal(stockOf(filter("a", {}, { available: 1, held: 2, redeemed: 3 })), 6);
  assert.equal(stockOf(filter("a", { stock: 4 }, { available: 0, held: 2, redeemed: 3 })), 4, "lowered below what is in use");
});

test("columns_sort_both_ways", () => {
  const order = Object.keys(phases);
  const of: Record<SortKey, (row: Filter) => string | number> = {
    title: ({ title, name }) => (title ?? name).toLowerCase(),
    state: (row) => order.indexOf(phaseOf(row)),
    ends: ({ ends_at }) => ends_at ?? "~",
    items: ({ stats }) => stats.items,
    available: ({ stats }) => stats.available ?? 0,
    held: ({ stats }) => stats.held ?? 0,
    redeemed: ({ stats }) => stats.redeemed ?? 0,
  };
  for (const [column, value] of Object.entries(of) as [SortKey, (row: Filter) => string | number][]) {
    for (const isDescending of [false, true]) {
      const sorted = arranged(rows, "", { column, isDescending }, phases);
      assert.equal(sorted.length, rows.length);
      for (let index = 1; index < sorted.length; index += 1) {
        const [a, b] = [sorted[index - 1] as Filter, sorted[index] as Filter];
        const isInOrder = isDescending ? value(a) >= value(b) : value(a) <= value(b);
        assert.ok(isInOrder && (value(a) !== value(b) || a.name < b.name), `${column} at ${index}`);
      }
    }
  }
  assert.equal(rows[1]?.name, "name-07919", "the rows themselves are left alone");
});

test("search_finds_all_words", () => {
  const names = (search: string) => arranged(rows, search, { column: "title", isDescending: false }, phases).map(({ name }) => name);
  assert.deepEqual(names("name-00042"), ["name-00042"]);
  assert.deepEqual(names(" NAME-00042  "), ["name-00042"]);
  assert.deepEqual(names("nowhere"), []);
  assert.equal(names("title").length, 2_000);
  assert.ok(names("ended team=t1").length > 500 && names("ended team=t1").length < 1_000);
  assert.deepEqual(arranged([filter("a"), filter("b", { ends_at: "2020-01-01T00:00:00Z" })], "已结束", { column: "title", isDescending: false }, CATALOGS["zh-CN"].phases).map(({ name }) => name), ["b"]);
});

test("uses_count_over_all_codes", () => {
  const single = filter("a", { uses: 1 }, { available: 7, held: 1, redeemed: 2, removes: 3 });
  assert.deepEqual(usesOf(single), { taken: 3, total: 10, left: 7, isAtLeast: false });
  // One of three codes is used up.
  const several = filter("a", { uses: 2 }, { available: 2, held: 1, redeemed: 0, uses: { held: 1, redeemed: 2 } });
  assert.deepEqual(usesOf(several), { taken: 3, total: 6, left: 3, isAtLeast: false });
  assert.deepEqual(takenOf(several), { held: 1, redeemed: 2 });
  const pool = filter("a", { stock: 5, uses: 2 }, { available: 2, held: 0, redeemed: 1, uses: { held: 1, redeemed: 2 } });
  assert.deepEqual(usesOf(pool), { taken: 3, total: 5, left: 2, isAtLeast: false });
  assert.equal(usesOf(filter("a", {}, { items: 9 })).left, 9);
});

test("uses_of_withdrawn_codes_leave_lower_bound", () => {
  // A partly used code was withdrawn; its use still counts.
  const withdrawn = filter("a", { uses: 3 }, { available: 2, held: 0, redeemed: 0, removes: 1, uses: { held: 0, redeemed: 1 } });
  assert.deepEqual(usesOf(withdrawn), { taken: 1, total: 6, left: 5, isAtLeast: true });
  const unused = filter("a", { uses: 3 }, { available: 2, held: 0, redeemed: 0, removes: 1, uses: { held: 0, redeemed: 0 } });
  assert.deepEqual(usesOf(unused), { taken: 0, total: 6, left: 6, isAtLeast: false });
  const many = filter("a", { uses: 3 }, { available: 1, held: 0, redeemed: 0, removes: 9, uses: { held: 0, redeemed: 20 } });
  assert.equal(usesOf(many).left, 1);
});
