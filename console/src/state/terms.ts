/** What a marketer decides of a new coupon: how its codes may be typed, and how often they may be used. */

import type { Filter } from "../api/types.ts";

export type Spelling = NonNullable<Filter["normalize"]>;

/** The most uses of a code, and of a customer. */
export const USES_MAX = 1_000_000;

/** Terms as a form has them. */
export interface Terms {
  /** Undefined until it is chosen. */
  readonly spelling: Spelling | undefined;
  readonly uses: string;
  /** Empty for no limit. */
  readonly perCustomer: string;
}

/** The terms of another coupon, or those that a new one starts with. */
export function termsOf(from: Filter | undefined): Terms {
  return { spelling: from?.normalize, uses: String(from?.uses ?? 1), perCustomer: String(from?.per_customer ?? "") };
}

/** The spelling that applies: ids in an open pool are used exactly, as they may differ only in a dash. */
export function spellingOf({ spelling }: Terms, isPool: boolean): Spelling {
  return spelling ?? (isPool ? "exact" : "code");
}

/** The spellings to choose from: `ascii` only for a copy of a coupon that has it. */
export function spellingsFor(from: Filter | undefined): readonly Spelling[] {
  return from?.normalize === "ascii" ? ["code", "case", "ascii", "exact"] : ["code", "case", "exact"];
}

export function isCount(text: string): boolean {
  return /^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= USES_MAX;
}

/** The numbers of a request; undefined if one is wrong. A single use, and no limit, are what a coupon has by default. */
export function limitsOf({ uses, perCustomer }: Terms): { readonly uses?: number; readonly per_customer?: number } | undefined {
  if (!isCount(uses) || (perCustomer !== "" && !isCount(perCustomer))) {
    return undefined;
  }
  return { ...(Number(uses) === 1 ? {} : { uses: Number(uses) }), ...(perCustomer === "" ? {} : { per_customer: Number(perCustomer) }) };
}
