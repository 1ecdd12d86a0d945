/** Chromium as the tests use it: what a page complains about is a failure. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** How long anything may take before it counts as never. */
const PATIENCE = 120_000;

export function launch(): Promise<Browser> {
  const executablePath = process.env["CHROMIUM"] ?? PLACES.find((place) => existsSync(place));
  assert.ok(executablePath, `no Chromium in ${PLACES}`);
  return chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    timeout: PATIENCE,
  });
}

/** Files of the page as its sources build them. Without them it is the program's, which may be older. */
const BUILT = process.env["CONSOLE"];

export interface Visit {
  readonly page: Page;
  /** Ends the visit; fails if the page has complained meanwhile. */
  end(): Promise<void>;
}

export async function visit(browser: Browser, options: BrowserContextOptions = {}): Promise<Visit> {
  const context = await browser.newContext({ locale: "en-US", viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  if (BUILT !== undefined) {
    await context.route(/\/console\/[a-z.]+$/, async (route) => {
      const path = join(BUILT, new URL(route.request().url()).pathname.split("/").at(-1) ?? "");
      // With the headers of the program, of which the security policy is one.
      const { "content-encoding": _, etag: __, ...headers } = (await route.fetch()).headers();
      await route.fulfill({ headers, body: readFileSync(path) });
    });
  }
  const page = await context.newPage();
  const complaints: string[] = [];
  // A refused request is the test's business. What breaks the content security policy is told as an error.
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) {
      complaints.push(message.text());
    }
  });
  page.on("pageerror", (error) => complaints.push(error.stack ?? error.message));
  page.on("request", (request) => {
    if (new URL(request.url()).hostname !== "127.0.0.1") {
      complaints.push(`asked elsewhere: ${request.url()}`);
    }
  });
  return {
    page,
    async end() {
      // Files that are still asked for are of no interest.
      await context.unrouteAll({ behavior: "ignoreErrors" });
      await context.close();
      assert.deepEqual(complaints, []);
    },
  };
}

interface Violation {
  readonly id: string;
  readonly impact: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
}

/** Lets axe look at the page as it stands. */
export async function assertAccessible(page: Page, where: string): Promise<void> {
  if (await page.evaluate(() => !("axe" in globalThis))) {
    await page.evaluate(AXE);
  }
  const violations = await page.evaluate(async () => {
    // Loaded above. Details of what is good take half of its time.
    const { axe } = globalThis as unknown as { axe: { run(options: object): Promise<{ violations: Violation[] }> } };
    return (await axe.run({ resultTypes: ["violations"] })).violations;
  });
  const told = violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes[0]?.html} ${nodes[0]?.failureSummary}`);
  assert.deepEqual(told, [], where);
}

/** Nothing sticks out at the side. */
export async function assertFits(page: Page, where: string): Promise<void> {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok((content ?? 0) <= (window ?? 0), `${where}: ${content} of ${window}`);
}
