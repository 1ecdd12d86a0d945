/** Several nodes are shown where there are some. Such a service is acted here; `npm run cluster` looks at a real one. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { assertAccessible, visit } from "../support/browser.ts";
import { stage } from "../support/stage.ts";

const scene = stage();

/** Changes the service's document on its way to the page. */
async function describe(page: Page, change: (document: any) => void): Promise<void> {
  await page.route(`${scene.url}/openapi.json`, async (route) => {
    const document = await (await route.fetch()).json();
    change(document);
    await route.fulfill({ json: document });
  });
}

test("nodes_are_shown_with_their_lag", async () => {
  const { page, end } = await visit(scene.browser());
  await describe(page, (document) => {
    document.paths["/v1/cluster"] = { get: { security: [{}, { bearer: ["read"] }] } };
  });
  const heard_at = new Date(Date.now() - 65_000).toISOString();
  const nodes = [
    { node: "b", position: 100, heard_at, hash: "5f1e" },
    { node: "c", position: 97, heard_at, hash: "5f1e" },
  ];
  const log = { node: "a", quorum: true, lag_seconds: 0 };
  await page.route(/\/v1\/cluster$/, (route) => route.fulfill({ json: { journal: "nats", position: 100, log, nodes } }));
  await page.goto(`${scene.url}/console#/system`);
  const region = page.getByRole("region", { name: "Nodes", exact: true });
  await region.getByRole("row", { name: "c 97 5f1e 3 1 minute ago", exact: true }).waitFor();
  assert.match((await region.textContent()) ?? "", /This nodea.*Log quorumyes/);
  await assertAccessible(page, "nodes");
  await end();
});

test("single_service_has_no_nodes_to_show", async () => {
  const { page, end } = await visit(scene.browser());
  const asked = page.waitForResponse(`${scene.url}/v1/cluster`);
  await page.goto(`${scene.url}/console#/system`);
  assert.equal((await (await asked).json()).journal, "local");
  await page.getByText("All is well.").waitFor();
  assert.equal(await page.getByRole("region", { name: "Nodes" }).count(), 0);
  await end();
});
