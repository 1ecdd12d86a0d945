/**
 * Looks at three real nodes through the page: `node test.mjs cluster [FOLDER]`. All are told, one that dies is missed, and so is the
 * log's quorum. Takes pictures of each in both themes and two widths.
 */

import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { assertAccessible, assertFits, launch, visit } from "./support/browser.ts";
import { startCluster, type Cluster } from "./support/cluster.ts";

const SIZES = [[1280, 860], [390, 800]] as const;

const machines = (page: Page) => page.getByRole("region", { name: "Nodes", exact: true });

async function take(page: Page, folder: string, name: string): Promise<void> {
  for (const [width, height] of SIZES) {
    await page.setViewportSize({ width, height });
    for (const colorScheme of ["light", "dark"] as const) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await assertFits(page, name);
      await assertAccessible(page, name);
      await page.screenshot({ path: join(folder, `${name}-${width}-${colorScheme}.png`), fullPage: true });
    }
  }
}

async function fill(url: string): Promise<void> {
  const send = async (method: string, path: string, body: unknown) => {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(`${url}/v1/${path}`, { method, headers, body: JSON.stringify(body) });
    if (!answer.ok) {
      throw new Error(await answer.text());
    }
  };
  await send("PUT", "campaigns/spring", { capacity: 10_000 });
  for (let round = 0; round < 20; round += 1) {
    await send("POST", "campaigns/spring/users", { users: Array.from({ length: 100 }, (_, at) => `user-${round}-${at}`) });
  }
}

async function look(browser: Browser, cluster: Cluster, folder: string): Promise<void> {
  const [url] = cluster.urls as [string];
  await fill(url);
  const { page, end } = await visit(browser);
  await page.goto(`${url}/console#/system`);
  const row = (node: string) => machines(page).getByRole("row", { name: new RegExp(`^${node} `) });
  const fact = (term: string, value: string) =>
    machines(page).locator("dl > div").filter({ hasText: term }).filter({ hasText: value }).first().waitFor();
  await row("node-2").waitFor();
  await row("node-3").waitFor();
  await fact("Log quorum", "yes");
  await take(page, folder, "cluster-whole");

  // The log goes on with two nodes of three, and with two servers.
  await cluster.kill("node-3");
  await row("node-3").getByRole("cell", { name: /^(\d\d seconds|\d+ minutes?) ago$/ }).waitFor();
  await take(page, folder, "cluster-node-dead");

  // With one server nothing can be written.
  await cluster.kill("nats-2");
  await cluster.kill("nats-3");
  await fact("Log quorum", "no");
  await page.getByText("too far behind").first().waitFor();
  await take(page, folder, "cluster-no-quorum");
  await end();
}

const folder = process.argv[2] ?? "../target/pictures";
await mkdir(folder, { recursive: true });
const cluster = await startCluster(3);
const browser = await launch();
try {
  await look(browser, cluster, folder);
  console.log(`the pictures are in ${folder}`);
} finally {
  await browser.close();
  await cluster.end();
}
