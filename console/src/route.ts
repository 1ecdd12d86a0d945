/** Where in the page we are: the part of the address behind `#`. */

import { signal } from "@preact/signals";
import type { Kind } from "./api/types.ts";

const PAGES = ["campaigns", "coupons", "line-ups", "uploads", "activity", "system", "requests"] as const;

export type Route =
  | { readonly page: (typeof PAGES)[number] | "new-line-up" | "nowhere" }
  | { readonly page: "new"; readonly kind: Kind }
  | { readonly page: "filter"; readonly kind: Kind; readonly name: string }
  | { readonly page: "line-up"; readonly name: string };

export function parse(hash: string): Route {
  const [first = "", second, ...rest] = hash.replace(/^#?\/?/, "").split("/");
  if (second !== undefined) {
    const isName = second !== "" && rest.length === 0;
    if (isName && (first === "campaigns" || first === "coupons")) {
      return { page: "filter", kind: first, name: second };
    }
    return isName && first === "line-ups" ? { page: "line-up", name: second } : { page: "nowhere" };
  }
  switch (first) {
    case "":
      return { page: "campaigns" };
    case "new-campaign":
      return { page: "new", kind: "campaigns" };
    case "new-coupon":
      return { page: "new", kind: "coupons" };
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
