/** Where in the page we are: the part of the address behind `#`. */

import { signal } from "@preact/signals";
import type { Kind } from "./api/types.ts";

export type Route =
  | { readonly page: "overview" | "filters" | "new" | "eligibility" | "imports" | "events" | "requests" | "nowhere" }
  | { readonly page: "filter"; readonly kind: Kind; readonly name: string };

export function parse(hash: string): Route {
  const [first = "", second, ...rest] = hash.replace(/^#?\/?/, "").split("/");
  if (rest.length === 0 && (first === "campaigns" || first === "coupons") && second) {
    return { page: "filter", kind: first, name: second };
  }
  if (second !== undefined) {
    return { page: "nowhere" };
  }
  switch (first) {
    case "":
      return { page: "overview" };
    case "filters":
    case "new":
    case "eligibility":
    case "imports":
    case "events":
    case "requests":
      return { page: first };
    default:
      return { page: "nowhere" };
  }
}

export const route = signal<Route>(parse(location.hash));

export function go(hash: string): void {
  location.hash = hash;
}

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});
