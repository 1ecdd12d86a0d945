/** All campaigns and all coupons, their states, and the order in which a table shows them. */

import { signal, type Signal } from "@preact/signals";
import { json, type Problem } from "../api/client.ts";
import type { Filter, Kind, Labels } from "../api/types.ts";

export type Phase = "active" | "scheduled" | "sold_out" | "ended";

export type SortKey = "title" | "state" | "ends" | "items" | "available" | "held" | "redeemed";

export interface Order {
  readonly column: SortKey;
  readonly isDescending: boolean;
}

export interface List {
  readonly filters: readonly Filter[];
  readonly state: "unread" | "reading" | "read" | Problem;
}

export const lists: Readonly<Record<Kind, Signal<List>>> = {
  campaigns: signal<List>({ filters: [], state: "unread" }),
  coupons: signal<List>({ filters: [], state: "unread" }),
};

/** Titles that pages have come to know, by address: `campaigns/spring`. */
export const titles = signal<Readonly<Record<string, string>>>({});

const PAGE = 1_000;

/** Reads all pages of a list of the API. */
export async function all<T>(path: string, field: string): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | undefined;
  do {
    const page = await json<Record<string, unknown>>({ method: "GET", path, query: { limit: PAGE, cursor } });
    found.push(...(page[field] as T[]));
    cursor = page["next_cursor"] as string | undefined;
  } while (cursor !== undefined);
  return found;
}

export async function load(kind: Kind): Promise<void> {
  const list = lists[kind];
  list.value = { ...list.value, state: "reading" };
  try {
    list.value = { filters: await all<Filter>(`v1/${kind}`, kind), state: "read" };
  } catch (error) {
    list.value = { ...list.value, state: error as Problem };
  }
}

/** Whether a code has several uses. */
export const hasUses = ({ uses = 1 }: Filter): boolean => uses > 1;

/** How many codes of a coupon there are in all; the stock of an open pool. */
export function stockOf({ stock, stats }: Filter): number {
  return stock ?? (stats.available ?? stats.items) + (stats.held ?? 0) + (stats.redeemed ?? 0);
}

/** The uses of a coupon that are held, and those that are redeemed. */
export function takenOf({ stats }: Filter): { readonly held: number; readonly redeemed: number } {
  return stats.uses ?? { held: stats.held ?? 0, redeemed: stats.redeemed ?? 0 };
}

export interface Uses {
  readonly taken: number;
  readonly total: number;
  readonly left: number;
  /** Uses of withdrawn codes are among those taken, so more may be left. */
  readonly isAtLeast: boolean;
}

/** The uses of a coupon: of its stock, or of all its codes together. */
export function usesOf(filter: Filter): Uses {
  const { uses = 1, stock, stats } = filter;
  const { held, redeemed } = takenOf(filter);
  const taken = held + redeemed;
  if (stock !== undefined) {
    return { taken, total: stock, left: stats.available ?? Math.max(0, stock - taken), isAtLeast: false };
  }
  const available = stats.available ?? stats.items;
  const total = stockOf(filter) * uses;
  // Each available code has at least one use left, and at most `uses`.
  const left = Math.max(available, total - taken);
  return { taken, total, left, isAtLeast: stats.removes > 0 && left < available * uses };
}

export function phaseOf(filter: Filter, now = Date.now()): Phase {
  const { starts_at, ends_at, stats } = filter;
  if (ends_at !== undefined && new Date(ends_at).getTime() <= now) {
    return "ended";
  }
  if (starts_at !== undefined && new Date(starts_at).getTime() > now) {
    return "scheduled";
  }
  return stats.available === 0 && (filter.stock !== undefined || stockOf(filter) > 0) ? "sold_out" : "active";
}

/** Why a list has no effect now: it is missing, or outside its window. */
export type Absence = "missing" | "inactive";

/** Undefined if the campaign is active, or if that isn't known. */
export function absenceOf(name: string, { filters, state }: List, prefix = "", now = Date.now()): Absence | undefined {
  const found = filters.find((filter) => filter.name === name);
  if (found !== undefined) {
    const phase = phaseOf(found, now);
    return phase === "scheduled" || phase === "ended" ? "inactive" : undefined;
  }
  // A key sees only names with its prefix.
  return state === "read" && name.startsWith(prefix) ? "missing" : undefined;
}

const PHASES: readonly Phase[] = ["active", "scheduled", "sold_out", "ended"];

function value(column: SortKey, filter: Filter): string | number {
  switch (column) {
    case "title":
      return (filter.title ?? filter.name).toLowerCase();
    case "state":
      return PHASES.indexOf(phaseOf(filter));
    case "ends":
      return filter.ends_at ?? "~";
    case "items":
      return filter.stats.items;
    case "available":
      return filter.stats.available === undefined ? 0 : usesOf(filter).left;
    case "held":
    case "redeemed":
      return takenOf(filter)[column];
  }
}

/** How a dialog names an object: its title may be another one's too. */
export const fullName = ({ title, name }: { readonly title?: string | undefined; readonly name: string }): string => (title === undefined || title === "" ? name : `${title} (${name})`);

export const labelTexts = (labels: Labels | undefined): string[] => Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);

/** The rows that match all words of a search, in order. `states` are the words for each phase. Equal ones are in the order of their names. */
export function arranged(rows: readonly Filter[], search: string, order: Order, states: Readonly<Record<Phase, string>>): readonly Filter[] {
  const words = search.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const text = (filter: Filter) =>
    [filter.name, filter.title, states[phaseOf(filter)], ...labelTexts(filter.labels)].join(" ").toLowerCase();
  const matches = (filter: Filter) => {
    const whole = text(filter);
    return words.every((word) => whole.includes(word));
  };
  const found = words.length === 0 ? rows : rows.filter(matches);
  const compare = (a: string | number, b: string | number) => (a < b ? -1 : a > b ? 1 : 0);
  const keyed = found.map((row) => ({ row, key: value(order.column, row) }));
  keyed.sort((a, b) => (order.isDescending ? compare(b.key, a.key) : compare(a.key, b.key)) || compare(a.row.name, b.row.name));
  return keyed.map(({ row }) => row);
}
