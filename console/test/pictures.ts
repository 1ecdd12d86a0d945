/**
 * Takes pictures of the page: `node test.mjs pictures [FOLDER]`. In both themes and two widths, over a service that has had an
 * hour of traffic in a few seconds: the page's clock is turned on by hand. The three of the README go to docs/pictures.
 */

import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { assertAccessible, assertFits, launch, visit } from "./support/browser.ts";
import { serve } from "./support/service.ts";

const README = "../docs/pictures";
const EVERY_SECONDS = 30;
const MOMENTS = 100;
/** Which of them go there. */
const CHOSEN: Readonly<Record<string, string>> = { "overview-1280-light": "overview", "filters-1280-dark": "filters", "coupon-1280-light": "coupon" };

type Send = (method: string, path: string, body: unknown) => Promise<unknown>;

function sender(url: string): Send {
  return async (method, path, body) => {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(`${url}/v1/${path}`, { method, headers, body: JSON.stringify(body) });
    return answer.status === 204 ? undefined : answer.json();
  };
}

const items = (prefix: string, from: number, count: number) =>
  Array.from({ length: count }, (_, index) => `${prefix}-${from + index}`);

async function fill(url: string): Promise<void> {
  const send = sender(url);
  const campaigns: [string, Record<string, unknown>, number][] = [
    ["spring-sale", { capacity: 40_000 }, 31_400],
    ["summer-teaser", { capacity: 20_000, error_rate: 0.01, starts_at: "2099-06-01T00:00:00Z" }, 4_200],
    ["opted-out", { capacity: 60_000, mode: "strict" }, 48_000],
    ["app-install.de", { capacity: 10_000, growth: "fixed" }, 9_600],
    ["app-install.fr", { capacity: 10_000, growth: "fixed" }, 6_100],
    ["loyalty-gold", { capacity: 5_000, error_rate: 0.0001 }, 16_500],
    ["newsletter", { capacity: 50_000 }, 22_000],
    ["winback-90d", { capacity: 30_000, ends_at: "2099-01-01T00:00:00Z" }, 12_750],
  ];
  for (const [name, spec, count] of campaigns) {
    await send("PUT", `campaigns/${name}`, spec);
    for (let from = 0; from < count; from += 10_000) {
      await send("POST", `campaigns/${name}/users`, { users: items(name, from, Math.min(10_000, count - from)) });
    }
  }
  for (const [name, count] of [["welcome-10", 8_000], ["black-friday", 6_000], ["refer-a-friend", 3_500]] as const) {
    await send("PUT", `coupons/${name}`, { capacity: 10_000 });
    await send("POST", `coupons/${name}/codes`, { codes: items(name, 0, count) });
  }
  for (let order = 0; order < 40; order += 1) {
    const hold_seconds = order % 4 === 3 ? 900 : 0;
    await send("POST", "coupons/welcome-10/redemptions", { code: `welcome-10-${order}`, reference: `order-${7_100 + order}`, hold_seconds });
  }
}

/** The work of one moment: more at some times than at others. */
async function work(send: Send, moment: number): Promise<void> {
  const strength = 14 + 8 * Math.sin(moment / 11) + 5 * Math.sin(moment / 3.1);
  const sent: Promise<unknown>[] = [];
  for (let index = 0; index < strength * 8; index += 1) {
    sent.push(send("POST", "eligibility", { user: `spring-sale-${index}`, campaigns: ["summer-teaser", "spring-sale"] }));
  }
  for (let index = 0; index < strength / 4; index += 1) {
    sent.push(send("POST", "campaigns/newsletter/users", { users: items(`new-${moment}-${index}`, 0, 60) }));
  }
  sent.push(
    send("POST", "coupons/welcome-10/redemptions", { code: `welcome-10-${moment % 8_000}`, reference: `order-${8_000 + moment}` }),
  );
  await Promise.all(sent);
}

/** Lets the page see so many moments, each when it asks for this path. */
async function live(page: Page, url: string, path: string, from: number, moments: number, seconds: number): Promise<void> {
  const send = sender(url);
  for (let moment = from; moment < from + moments; moment += 1) {
    await work(send, moment);
    const seen = page.waitForResponse(`${url}/${path}`);
    await page.clock.runFor(seconds * 1_000);
    await seen;
  }
}

async function take(page: Page, folder: string, name: string, isWhole: boolean): Promise<void> {
  await assertFits(page, name);
  await assertAccessible(page, name);
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: isWhole });
}

async function all(browser: Browser, url: string, folder: string): Promise<void> {
  for (const [width, height] of [[1280, 860], [390, 800]] as const) {
    const { page, end } = await visit(browser, { viewport: { width, height }, colorScheme: "light", reducedMotion: "reduce" });
    const from = width * 10;
    await page.clock.install({ time: Date.now() - (MOMENTS * EVERY_SECONDS + 330) * 1_000 });
    await page.goto(`${url}/console`);
    await page.getByText("All is well.").waitFor();
    // The first rates are of a shorter time.
    const first = page.waitForResponse(`${url}/metrics`);
    await page.clock.runFor(EVERY_SECONDS * 1_000);
    await first;
    await live(page, url, "metrics", from, MOMENTS, EVERY_SECONDS);
    for (const [name, hash, text] of [
      ["overview", "#/", "All is well."],
      ["filters", "#/filters", "winback-90d"],
      ["coupon", "#/coupons/welcome-10", "order-7103"],
      ["campaign", "#/campaigns/loyalty-gold", "Empty or delete"],
      ["new", "#/new", "What it would cost"],
      ["eligibility", "#/eligibility", "Which campaigns"],
      ["imports", "#/imports", "none on record"],
      ["requests", "#/requests", "GET /v1/info"],
    ] as const) {
      // Not by a new address, which would forget the hour.
      await page.evaluate((to) => (location.hash = to), hash);
      await page.getByText(text).first().waitFor();
      if (hash.includes("coupons")) {
        await live(page, url, `v1${hash.slice(1)}`, from + MOMENTS, 40, 5);
      }
      for (const theme of ["light", "dark"] as const) {
        await page.emulateMedia({ colorScheme: theme });
        await page.clock.runFor(100);
        await take(page, folder, `${name}-${width}-${theme}`, true);
        const chosen = CHOSEN[`${name}-${width}-${theme}`];
        if (chosen !== undefined) {
          await take(page, README, chosen, false);
        }
      }
    }
    await end();
  }
}

const folder = process.argv[2] ?? "../target/pictures";
await mkdir(folder, { recursive: true });
await mkdir(README, { recursive: true });
const [browser, service] = await Promise.all([launch(), serve()]);
try {
  await fill(service.url);
  await all(browser, service.url, folder);
} finally {
  await browser.close();
  await service.stop();
}
