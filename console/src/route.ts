/** Where in the page we are: the part of the address behind `#`. */

import { signal } from "@preact/signals";
import type { Kind } from "./api/types.ts";

const NEW: Readonly<Record<string, Kind>> = { "new-campaign": "campaigns", "new-coupon": "coupons" };

const PAGES = ["campaigns", "coupons", "line-ups", "uploads", "activity", "system", "requests"] as const;

export type Route =
  | { readonly page: (typeof PAGES)[number] | "nowhere" }
  /** `from` is one to copy. */
  | { readonly page: "new-line-up"; readonly from?: string }
  | { readonly page: "new"; readonly kind: Kind; readonly from?: string }
  | { readonly page: "filter"; readonly kind: Kind; readonly name: string }
  | { readonly page: "line-up"; readonly name: string };

export function parse(hash: string): Route {
  const [first = "", second, ...rest] = hash.replace(/^#?\/?/, "").split("/");
  if (second !== undefined) {
    const isName = second !== "" && rest.length === 0;
    if (isName && (first === "campaigns" || first === "coupons")) {
      return { page: "filter", kind: first, name: second };
    }
    if (isName && NEW[first] !== undefined) {
      return { page: "new", kind: NEW[first], from: second };
    }
    if (isName && first === "new-line-up") {
      return { page: first, from: second };
    }
    return isName && first === "line-ups" ? { page: "line-up", name: second } : { page: "nowhere" };
  }
  if (NEW[first] !== undefined) {
    return { page: "new", kind: NEW[first] };
  }
  switch (first) {
    case "":
      return { page: "campaigns" };
    case "new-line-up":
      return { page: first };
    default:
      return { page: PAGES.find((page) => page === first) ?? "nowhere" };
  }
}

export const route = signal<Route>(parse(location.hash));

export function go(hash: string): void {
  location.hash = hash;
}

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});
