/** What the service's own document says of what may be done, and that the page asks for nothing else. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { has, hasParameter, may, takes, takesKey, type OpenApi, type Operation } from "../../src/api/document.ts";

const document: OpenApi = JSON.parse(readFileSync("../openapi/openapi.json", "utf8"));

/** Operations that older services don't have, without which the page does. */
const OPTIONAL: readonly string[] = ["GET /v1/events", "GET /v1/cluster"];

test("scopes decide", () => {
  const of = (operation: Operation, ...scopes: string[]) => may(document, operation, scopes);
  assert.ok(of("GET /v1/campaigns", "read") && !of("GET /v1/campaigns", "write"));
  assert.ok(of("PUT /v1/campaigns/{campaign}", "write") && !of("PUT /v1/campaigns/{campaign}", "read", "redeem"));
  assert.ok(!of("DELETE /v1/campaigns/{campaign}", "read", "write", "redeem"));
  assert.ok(of("DELETE /v1/campaigns/{campaign}", "admin") && of("GET /v1/info", "admin"));
  assert.ok(of("GET /metrics") && !of("GET /v1/info"));
  assert.ok(!of("GET /v1/nothing", "admin"));
});

test("where no key is needed everything may be done", () => {
  const open = { ...document, paths: { "/v1/info": { get: { security: [{}, { bearer: ["read"] }] } } } };
  assert.ok(may(open, "GET /v1/info", undefined));
});

test("fields are found", () => {
  assert.ok(takes(document, "CouponSpec", "ignore_case") && !takes(document, "CampaignSpec", "ignore_case"));
  assert.ok(takes(document, "Exclusion", "required"));
  assert.ok(!takes(document, "Nothing", "at_all"));
});

test("parameters are found", () => {
  assert.ok(hasParameter(document, "GET /v1/coupons/{coupon}/redemptions", "order"));
  assert.ok(!hasParameter(document, "GET /v1/coupons", "order") && !hasParameter(document, "GET /v1/nothing", "order"));
});

test("writes_take_an_idempotency_key", () => {
  const takenBy = (method: "PUT" | "POST" | "DELETE" | "PATCH" | "GET", path: string) => takesKey(document, { method, path });
  for (const [method, path] of [
    ["PUT", "v1/line-ups/home"],
    ["PATCH", "v1/campaigns/app-install.de"],
    ["POST", "v1/coupons/welcome/redemptions"],
    ["POST", "v1/coupons/welcome/redemptions/1f/cancel"],
    ["POST", "v1/campaigns/spring/users/remove"],
    ["DELETE", "v1/coupons/welcome"],
  ] as const) {
    assert.ok(takenBy(method, path), `${method} ${path}`);
  }
  for (const [method, path] of [
    ["GET", "v1/campaigns/spring"],
    ["POST", "v1/campaigns/spring/users/check"],
    ["POST", "v1/campaigns/spring/imports"],
    ["POST", "v1/eligibility"],
    ["POST", "v1/nothing"],
  ] as const) {
    assert.ok(!takenBy(method, path), `${method} ${path}`);
  }
});

test("the page asks only for operations that there are", () => {
  const asked = new Set<string>();
  for (const folder of ["src", "src/pages", "src/parts", "src/state"]) {
    for (const name of readdirSync(folder).filter((name) => /\.tsx?$/.test(name))) {
      const text = readFileSync(`${folder}/${name}`, "utf8");
      for (const [, operation = ""] of text.matchAll(/(?:allowed|offers)\("([A-Z]+ \/[^"]+)"\)/g)) {
        asked.add(operation);
      }
    }
  }
  assert.ok(asked.size > 8, `${[...asked]}`);
  const missing = [...asked].filter((operation) => !OPTIONAL.includes(operation) && !has(document, operation as Operation));
  assert.deepEqual(missing, []);
});
