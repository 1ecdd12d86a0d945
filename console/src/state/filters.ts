/** All campaigns and coupons, and the order in which the table shows them. */

import { signal } from "@preact/signals";
import { json, type Problem } from "../api/client.ts";
import type { Filter, Kind } from "../api/types.ts";

/** A row of the table. */
export interface Listed {
  readonly kind: Kind;
  readonly filter: Filter;
}

export type Column = "name" | "kind" | "mode" | "items" | "fill" | "error" | "memory" | "growth";

export interface Order {
  readonly column: Column;
  readonly isDescending: boolean;
}

export const filters = signal<readonly Listed[]>([]);
export const loading = signal<"idle" | "running" | Problem>("idle");

const PAGE = 1_000;

async function all(kind: Kind): Promise<Listed[]> {
  const found: Listed[] = [];
  let cursor: string | undefined;
  do {
    const page = await json<Record<string, unknown>>({ method: "GET", path: `v1/${kind}`, query: { limit: PAGE, cursor } });
    found.push(...(page[kind] as Filter[]).map((filter) => ({ kind, filter })));
    cursor = page["next_cursor"] as string | undefined;
  } while (cursor !== undefined);
  return found;
}

export async function load(): Promise<void> {
  loading.value = "running";
  try {
    filters.value = (await Promise.all([all("campaigns"), all("coupons")])).flat();
    loading.value = "idle";
  } catch (error) {
    loading.value = error as Problem;
  }
}

/** How full it is: of what it may hold before it grows or refuses more. */
export function fill({ stats }: Filter): number {
  return stats.items / Math.max(1, stats.capacity_now);
}

function value(column: Column, { kind, filter }: Listed): string | number {
  switch (column) {
    case "name":
      return filter.name;
    case "kind":
      return kind;
    case "mode":
      return filter.mode;
    case "items":
      return filter.stats.items;
    case "fill":
      return fill(filter);
    case "error":
      return filter.stats.error_rate_now;
    case "memory":
      return filter.stats.memory_bytes;
    case "growth":
      return filter.growth;
  }
}

/** The rows that match all words of a search, in order. Equal ones are in the order of their names. */
export function arranged(rows: readonly Listed[], search: string, order: Order): readonly Listed[] {
  const words = search.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const text = ({ kind, filter }: Listed) => `${filter.name} ${kind} ${filter.mode} ${filter.growth}`;
  const found = words.length === 0 ? rows : rows.filter((row) => words.every((word) => text(row).includes(word)));
  const compare = (a: string | number, b: string | number) => (a < b ? -1 : a > b ? 1 : 0);
  const keyed = found.map((row) => ({ row, key: value(order.column, row) }));
  keyed.sort(
    (a, b) =>
      (order.isDescending ? compare(b.key, a.key) : compare(a.key, b.key)) ||
      compare(a.row.filter.name, b.row.filter.name),
  );
  return keyed.map(({ row }) => row);
}
