/** What the tests of a file share: a browser, and a service or several. What doesn't start or end in time is a failure, and holds nothing up. */

import { after, before } from "node:test";
import type { Browser } from "playwright-core";
import { launch } from "./browser.ts";
import { serve, type Keys, type Service } from "./service.ts";

/** For a busy machine. */
const PATIENCE = { timeout: 120_000 };

export interface Stage {
  readonly browser: () => Browser;
  /** The address of the first service, once tests run. */
  readonly url: string;
  /** The address of another one. */
  readonly other: string;
}

function there<T>(of: T | undefined): T {
  if (of === undefined) {
    throw new Error("the browser or a service did not start");
  }
  return of;
}

interface Plan {
  /** The keys of each service; one without keys by default. */
  readonly keys?: readonly Keys[];
  /** Puts into the first service what all tests find there. */
  readonly fill?: (url: string) => Promise<void>;
}

export function stage({ keys = [{}], fill }: Plan = {}): Stage {
  let browser: Browser | undefined;
  let services: readonly Service[] = [];
  before(async () => {
    [browser, services] = await Promise.all([launch(), Promise.all(keys.map(serve))]);
    await fill?.(there(services[0]).url);
  }, PATIENCE);
  after(async () => {
    // A service waits for requests that pages hold open.
    await browser?.close();
    await Promise.all(services.map((service) => service.stop()));
  }, PATIENCE);
  return {
    browser: () => there(browser),
    get url() {
      return there(services[0]).url;
    },
    get other() {
      return there(services[1]).url;
    },
  };
}
