/** Readers of the page: each language at a desk and on a phone. A test that is for all of them uses the texts of the reader's catalog. */

import { test } from "node:test";
import type { Page } from "playwright-core";
import { CATALOGS, type Catalog } from "../../src/i18n/texts.ts";
import { visit } from "./browser.ts";
import type { Stage } from "./stage.ts";

export interface Reader {
  readonly language: "en" | "zh-CN";
  readonly width: number;
  readonly t: Catalog;
  /** What a test adds to the names of its campaigns, so that readers don't meet. */
  readonly id: string;
}

const READERS: readonly Reader[] = (["en", "zh-CN"] as const).flatMap((language) =>
  [1280, 390].map((width) => ({ language, width, t: CATALOGS[language], id: `${language.toLowerCase()}-${width}` })),
);

export function forEachReader(name: string, { browser }: Stage, run: (page: Page, reader: Reader) => Promise<void>): void {
  for (const reader of READERS) {
    test(`${name}_${reader.id}`, async () => {
      const { language, width } = reader;
      const { page, end } = await visit(browser(), { locale: language, timezoneId: "Asia/Shanghai", viewport: { width, height: 860 }, acceptDownloads: true });
      await run(page, reader);
      await end();
    });
  }
}
