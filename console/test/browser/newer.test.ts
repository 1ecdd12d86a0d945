/** What only some services have is shown where their own document has it. Such a service is acted here. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { Browser, Page } from "playwright-core";
import { assertAccessible, launch, visit } from "../support/browser.ts";
import { serve, type Service } from "../support/service.ts";

let browser: Browser;
let service: Service;

before(async () => {
  [browser, service] = await Promise.all([launch(), serve()]);
});

after(async () => {
  await browser.close();
  await service.stop();
});

/** Changes the service's document on its way to the page. */
async function describe(page: Page, change: (document: any) => void): Promise<void> {
  await page.route(`${service.url}/openapi.json`, async (route) => {
    const document = await (await route.fetch()).json();
    change(document);
    await route.fulfill({ json: document });
  });
}

test("events come by themselves", async () => {
  const { page, end } = await visit(browser);
  await describe(page, (document) => {
    document.paths["/v1/events"] = { get: { security: [{}, { bearer: ["admin"] }] } };
  });
  const asked: string[] = [];
  await page.route(/\/v1\/events\?/, async (route) => {
    const query = new URL(route.request().url()).searchParams;
    const after = Number(query.get("after") ?? 0);
    asked.push(query.toString());
    if (after > 12) {
      return; // Nothing happens any more.
    }
    const events = [
      { seq: after + 4, at: "2026-11-22T12:00:00Z", key: "shop", event: "redeemed", coupon: "welcome", reference: "order-42" },
      { seq: after + 5, at: "2026-11-22T12:00:01Z", event: "deleted", campaign: "spring" },
    ];
    await route.fulfill({ contentType: "application/x-ndjson", body: events.map((one) => `${JSON.stringify(one)}\n`).join("") });
  });
  await page.goto(`${service.url}/console`);
  await page.getByRole("link", { name: "Events" }).click();
  const lines = page.getByRole("region", { name: "Events, the newest first" }).locator("tbody tr");
  await lines.nth(3).waitFor();
  assert.match((await lines.first().textContent()) ?? "", /deleted.*spring/);
  await assertAccessible(page, "events");
  await page.getByLabel("Search").fill("order-42");
  await lines.nth(2).waitFor({ state: "detached" });
  assert.equal(await lines.count(), 2);
  assert.deepEqual(asked.slice(0, 3), ["limit=1", "after=3&limit=500&wait=25", "after=8&limit=500&wait=25"]);
  await end();
});

test("an answer is explained", async () => {
  const { page, end } = await visit(browser);
  await describe(page, (document) => {
    const { properties } = document.components.schemas.EligibilityRequest;
    Object.assign(properties, { explain: {}, unless: {}, line_up: {} });
  });
  let sent: unknown;
  await page.route(/\/v1\/eligibility$/, (route) => {
    sent = route.request().postDataJSON();
    const explanations = [
      { campaign: "summer", present: true, window: "before", error_rate: 0.001, eligible: false },
      { campaign: "spring", present: true, window: "inside", excluded_by: "opted-out", error_rate: 0.001, eligible: false },
    ];
    return route.fulfill({ json: { eligible: [], evaluated: 2, unknown: [], inactive: ["summer"], excluded: ["spring"], explanations } });
  });
  await page.goto(`${service.url}/console#/eligibility`);
  await page.getByLabel("User", { exact: true }).fill("u1");
  await page.getByLabel("Campaigns, one a line, the preferred first").fill("summer\nspring");
  await page.getByLabel("Unless the user is in").fill("opted-out\nseen 3 summer");
  await page.getByRole("button", { name: "Try" }).click();
  const lines = page.getByRole("region", { name: "Explanations" }).locator("tbody tr");
  await lines.nth(1).waitFor();
  assert.match((await lines.nth(1).textContent()) ?? "", /spring.*inside.*opted-out/);
  assert.deepEqual(sent, {
    user: "u1",
    campaigns: ["summer", "spring"],
    limit: 1,
    unless: [{ campaign: "opted-out" }, { campaign: "seen", at_least: 3, for: "summer" }],
    explain: true,
  });
  await assertAccessible(page, "an explanation");
  await end();
});

test("machines are shown with their lag", async () => {
  const { page, end } = await visit(browser);
  await describe(page, (document) => {
    document.paths["/v1/cluster"] = { get: { security: [{}, { bearer: ["read"] }] } };
  });
  const nodes = [
    { node: "a", position: 100, lag: 0, hash: "5f1e" },
    { node: "b", position: 97, lag: 3, hash: "5f1e" },
  ];
  await page.route(/\/v1\/cluster$/, (route) => route.fulfill({ json: { node: "a", quorum: true, log: { position: 100 }, nodes } }));
  await page.goto(`${service.url}/console`);
  const machines = page.getByRole("region", { name: "Machines" });
  await machines.getByRole("row", { name: "b 97 3 5f1e" }).waitFor();
  assert.match((await machines.textContent()) ?? "", /Quorumyes.*Log position100/);
  await assertAccessible(page, "machines");
  await end();
});
