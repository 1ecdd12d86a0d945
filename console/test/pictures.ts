/**
 * Takes pictures of each page: `node test.mjs pictures [FOLDER] [PAGE…]`. In both languages, two widths and both themes. The hour of
 * traffic on the page for operators takes two minutes: the page's clock is turned on by hand. Three go to docs/pictures.
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
const CHOSEN: Readonly<Record<string, string>> = { "system-en-1280-light": "overview", "coupons-en-1280-dark": "filters", "coupon-en-1280-light": "coupon" };

/** Every page, and a dialog. */
const PAGES: Readonly<Record<string, string>> = {
  campaigns: "#/campaigns",
  coupons: "#/coupons",
  campaign: "#/campaigns/spring-sale",
  coupon: "#/coupons/welcome-10",
  pool: "#/coupons/flash-sale",
  uses: "#/coupons/podcast",
  "lookup-codes": "#/coupons/podcast",
  "lookup-customers": "#/coupons/podcast",
  "new-campaign": "#/new-campaign",
  "new-coupon": "#/new-coupon",
  "line-ups": "#/line-ups",
  "line-up": "#/line-ups/home",
  "line-up-missing": "#/line-ups/checkout",
  "new-line-up": "#/new-line-up",
  "copied-line-up": "#/new-line-up/home",
  upload: "#/campaigns/newsletter",
  "upload-question": "#/campaigns/newsletter",
  "upload-unreadable": "#/campaigns/newsletter",
  uploads: "#/uploads",
  activity: "#/activity",
  requests: "#/requests",
  nowhere: "#/nowhere",
  "sign-in": "#/coupons",
  empty: "#/coupons",
  question: "#/coupons/welcome-10",
  menu: "#/coupons/welcome-10",
  system: "#/system",
};

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

const day = (days: number) => new Date(Date.now() + days * 86_400_000).toISOString();

async function fill(url: string): Promise<void> {
  const send = sender(url);
  const put = (path: string, title: string, spec: object, labels = {}) => send("PUT", path, { ...spec, title, labels });
  const campaigns: [string, string, Record<string, unknown>, number][] = [
    ["spring-sale", "春季大促 · Spring sale", { capacity: 40_000, starts_at: day(-9), ends_at: day(21) }, 31_400],
    ["summer-teaser", "Summer teaser", { capacity: 20_000, error_rate: 0.01, starts_at: day(60), ends_at: day(120) }, 4_200],
    ["opted-out", "Opted out", { capacity: 60_000, mode: "strict" }, 48_000],
    ["app-install.de", "App install, Germany", { capacity: 10_000, growth: "fixed" }, 9_600],
    ["app-install.fr", "App install, France", { capacity: 10_000, growth: "fixed", ends_at: day(-3) }, 6_100],
    ["loyalty-gold", "Loyalty gold", { capacity: 5_000, error_rate: 0.0001 }, 16_500],
    ["newsletter", "Newsletter", { capacity: 50_000 }, 22_000],
    ["spring-sale.seen", "Seen: spring sale", { capacity: 30_000, forget_after: "7d" }, 12_750],
  ];
  for (const [name, title, spec, count] of campaigns) {
    await put(`campaigns/${name}`, title, spec, name.startsWith("app") ? { team: "app", region: name.slice(-2) } : {});
    for (let from = 0; from < count; from += 10_000) {
      await send("POST", `campaigns/${name}/users`, { users: items(name, from, Math.min(10_000, count - from)) });
    }
  }
  const coupons: [string, string, object, number, object][] = [
    ["welcome-10", "Welcome: 10 off · 新客立减", {}, 8_000, { team: "shop", region: "cn" }],
    ["black-friday", "Black Friday", { starts_at: day(2), ends_at: day(5) }, 6_000, { team: "shop" }],
    ["refer-a-friend", "Refer a friend · 邀请有礼", { ends_at: day(90) }, 3_500, { team: "growth" }],
    ["spring-vip", "Spring, gold members", { ends_at: day(-12) }, 1_200, { team: "loyalty" }],
  ];
  for (const [name, title, spec, count, labels] of coupons) {
    await put(`coupons/${name}`, title, { capacity: 10_000, ...spec }, labels);
    await send("POST", `coupons/${name}/codes`, { codes: items(name, 0, count) });
  }
  await put("coupons/flash-sale", "Flash sale", { capacity: 20, stock: 20, ends_at: day(1) }, { team: "shop" });
  for (let order = 0; order < 40; order += 1) {
    const hold_seconds = order % 4 === 3 ? 900 : 0;
    await send("POST", "coupons/welcome-10/redemptions", { code: `welcome-10-${order}`, reference: `order-${7_100 + order}`, hold_seconds });
    await send("POST", "coupons/flash-sale/redemptions", { code: `user-${order}`, reference: `order-${7_100 + order}`, hold_seconds });
  }
  await put("coupons/podcast", "Podcast codes · 播客专属", { capacity: 10, uses: 500, per_customer: 2, normalize: "code" }, { team: "growth" });
  await send("POST", "coupons/podcast/codes", { codes: ["PODCAST-10", "RADIO-10"] });
  for (let order = 0; order < 12; order += 1) {
    const path = "coupons/podcast/redemptions";
    const made = await send("POST", path, { code: "PODCAST-10", reference: `order-${9_100 + order}`, customer: `c-${order % 6}`, hold_seconds: order % 5 === 4 ? 900 : 0 });
    if (order % 6 === 1) {
      await send("POST", `${path}/${(made as { id: string }).id}/cancel`, { release: order === 1 });
    }
  }
  await put("line-ups/home", "Start page", {
    campaigns: ["summer-teaser", "spring-sale", "app-install.fr", "nowhere", "newsletter"],
    unless: [{ campaign: "opted-out", required: true }, { campaign: "spring-sale.seen", at_least: 3, for: "spring-sale" }],
  });
  await put("line-ups/checkout", "Checkout", {
    campaigns: ["loyalty-gold", "newsletter"],
    unless: [{ campaign: "employees", required: true }, { campaign: "app-install.fr", for: "newsletter", required: true }],
  });
  const body = `id,name\n${items("user", 0, 500).map((user) => `${user},x`).join("\n")}\n`;
  await fetch(`${url}/v1/campaigns/newsletter/imports?column=id`, { method: "POST", headers: { "Content-Type": "text/csv" }, body });
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

/** Waits for metrics that are newer than now: the service returns the same ones for a second. */
async function refreshed(page: Page, url: string): Promise<void> {
  const read = async () => (await fetch(`${url}/metrics`)).text();
  const before = await read();
  while ((await read()) === before) {
    await page.waitForTimeout(100);
  }
}

/** Lets the page see an hour of traffic, a reading of the metrics at each moment. */
async function live(page: Page, url: string): Promise<void> {
  const send = sender(url);
  for (let moment = 0; moment < MOMENTS; moment += 1) {
    await work(send, moment);
    await refreshed(page, url);
    const seen = page.waitForResponse(`${url}/metrics`);
    await page.clock.runFor(EVERY_SECONDS * 1_000);
    await seen;
  }
}

async function take(page: Page, folder: string, name: string, isWhole: boolean): Promise<void> {
  await assertFits(page, name);
  await assertAccessible(page, name);
  if (isWhole) {
    await page.evaluate(() => scrollTo(0, 0));
  }
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: isWhole });
}

/** A list as Excel exports it in Germany; the last user has a space. */
const LIST = "\uFEFFName;Kunde;E-Mail\r\nMeier, Zoë;k-20931;zoe@example.com\r\n;k-20932;\r\nLi;k-20933;\r\nCy;k-20934 ;\r\n";

async function prepareUpload(page: Page, isReadable: boolean, isQuestion: boolean): Promise<void> {
  const buffer = isReadable ? Buffer.from(LIST) : Buffer.from(LIST, "utf16le");
  await page.locator("input[type=file]").setInputFiles({ name: "kunden.csv", mimeType: "text/csv", buffer });
  await page.locator(".entries, [role=alert]").waitFor();
  if (isReadable) {
    const [check, run] = [page.locator(".panel:has(input[type=file]) .buttons button").first(), page.locator(".panel:has(input[type=file]) .buttons button").last()];
    await check.click();
    await page.locator(".outcome .notice").waitFor();
    await (isQuestion ? run.click() : Promise.resolve());
  }
}

/** Opens what a picture shows besides its page. */
async function prepare(page: Page, name: string): Promise<void> {
  if (name.startsWith("upload") && name !== "uploads") {
    await prepareUpload(page, name !== "upload-unreadable", name === "upload-question");
  }
  if (name === "line-up") {
    await page.locator("form.action").last().getByRole("textbox").fill("spring-sale-7");
    await page.locator("form.action").last().getByRole("button").click();
    await page.locator(".notice.good").waitFor();
  }
  if (name.startsWith("lookup")) {
    // The acts are: check, look up codes, look up customers.
    const form = page.locator("form.action:has(textarea)");
    await form.getByRole("radio").nth(name === "lookup-codes" ? 1 : 2).check();
    await form.locator("textarea").fill(name === "lookup-codes" ? "podcast 10\nRADIO-10\nTV-10" : "c-1\nc-4\nc-99");
    await form.locator("button").click();
    await form.locator("tbody tr").first().waitFor();
  }
  if (name === "menu" || name === "question") {
    await page.locator("tbody button[popovertarget]").first().click();
  }
  if (name === "question") {
    await page.locator(".menu:popover-open button").click();
    await page.locator("dialog[open]").waitFor();
  }
}

async function all(browser: Browser, urlOf: (name: string) => string, folder: string, wanted: readonly string[]): Promise<void> {
  for (const [language, locale] of [["en", "en-GB"], ["zh", "zh-CN"]] as const) {
    for (const [width, height] of [[1280, 860], [390, 800]] as const) {
      const { page, end } = await visit(browser, { viewport: { width, height }, locale, timezoneId: "Asia/Shanghai", reducedMotion: "reduce" });
      for (const [name, hash] of Object.entries(PAGES).filter(([name]) => wanted.length === 0 || wanted.includes(name))) {
        if (name === "system") {
          await page.clock.install({ time: Date.now() - (MOMENTS * EVERY_SECONDS + 330) * 1_000 });
        }
        await page.goto("about:blank");
        await page.goto(`${urlOf(name)}/console${hash}`);
        await page.locator("main :is(.panel, table, .empty, .verdict, p a)").first().waitFor();
        if (name === "system") {
          await page.locator(".verdict.good").waitFor();
          await live(page, urlOf(name));
        } else {
          await page.waitForTimeout(500);
        }
        await prepare(page, name);
        for (const colorScheme of ["light", "dark"] as const) {
          await page.emulateMedia({ colorScheme });
          const place = `${name}-${language}-${width}-${colorScheme}`;
          await take(page, folder, place, !["question", "menu", "upload-question"].includes(name));
          const chosen = CHOSEN[place];
          if (chosen !== undefined) {
            await take(page, README, chosen, false);
          }
        }
      }
      await end();
    }
  }
}

const [folder = "../target/pictures", ...wanted] = process.argv.slice(2);
await mkdir(folder, { recursive: true });
await mkdir(README, { recursive: true });
const [browser, service, locked, empty] = await Promise.all([launch(), serve(), serve({ marketing: ["read"] }), serve()]);
try {
  await fill(service.url);
  const urlOf = (name: string) => (name === "sign-in" ? locked : name === "empty" ? empty : service).url;
  await all(browser, urlOf, folder, wanted);
} finally {
  await browser.close();
  await Promise.all([service.stop(), locked.stop(), empty.stop()]);
}
