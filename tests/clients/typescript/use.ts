// What a shop would write over the generated types: it only has to type-check, also where it must not.

import createClient from "openapi-fetch";
import type { components, paths } from "./cuckood";

type Problem = components["schemas"]["Problem"];
type Redemption = components["schemas"]["Redemption"];

const client = createClient<paths>({
  baseUrl: "http://127.0.0.1:8080",
  headers: { Authorization: "Bearer KEY" },
});

/** Holds a code for a quarter of an hour; tells why not, in words of this union alone. */
export async function hold(coupon: string, code: string, order: string): Promise<Redemption | Problem["code"]> {
  const { data, error } = await client.POST("/v1/coupons/{coupon}/redemptions", {
    params: { path: { coupon }, header: { "Idempotency-Key": order } },
    body: { code, reference: order, hold_seconds: 900 },
  });
  return data ?? error.code;
}

export async function confirm(coupon: string, held: Redemption): Promise<boolean> {
  const { data, error } = await client.POST("/v1/coupons/{coupon}/redemptions/{id}/confirm", {
    params: { path: { coupon, id: held.id } },
  });
  if (error?.code === "hold-expired" || error?.code === "redemption-cancelled") {
    return false;
  }
  return data?.status === "redeemed";
}

export async function show(user: string): Promise<string | undefined> {
  const { data, error } = await client.POST("/v1/eligibility", {
    body: { user, campaigns: ["spring", "summer"] },
  });
  if (error) {
    const faults: string[] = (error.errors ?? []).map((fault) => `${fault.pointer} ${fault.detail}`);
    throw new Error([error.detail, ...faults].join("\n"));
  }
  return data.eligible[0];
}

export async function create(): Promise<number> {
  const { data } = await client.PUT("/v1/campaigns/{campaign}", {
    params: { path: { campaign: "spring" } },
    body: { capacity: 1_000_000, ends_at: "2027-06-01T00:00:00Z" },
  });
  await client.PATCH("/v1/campaigns/{campaign}", {
    params: { path: { campaign: "spring" } },
    body: { ends_at: null },
  });
  await client.POST("/v1/campaigns/{campaign}/imports", {
    params: { path: { campaign: "spring" }, query: { mode: "append", id: "first" } },
    body: "u1\nu2\n",
    bodySerializer: (body) => body,
    headers: { "Content-Type": "text/plain" },
  });
  return data?.stats.items ?? 0;
}

export async function wrong(): Promise<void> {
  // @ts-expect-error: a number would be damaged on the way
  await client.POST("/v1/eligibility", { body: { user: 7, campaigns: ["spring"] } });
  // @ts-expect-error: whose redemption is it?
  await client.POST("/v1/coupons/{coupon}/redemptions", { params: { path: { coupon: "c" } }, body: { code: "K" } });
  // @ts-expect-error: null clears nothing here
  await client.PUT("/v1/campaigns/{campaign}", { params: { path: { campaign: "c" } }, body: { capacity: 1, ends_at: null } });
  // @ts-expect-error: there is no such route
  await client.GET("/v1/codes", {});
}
