/** What a reader does with the panel that uploads a file. */

import assert from "node:assert/strict";
import type { Locator, Page } from "playwright-core";
import type { Catalog } from "../../src/i18n/texts.ts";
import { open, panel, send } from "./steps.ts";

/** Opens the page of a new campaign, and returns the panel that uploads. */
export async function openUpload(page: Page, t: Catalog, url: string, name: string, spec = {}): Promise<Locator> {
  await send(url, "PUT", `campaigns/${name}`, { capacity: 100, mode: "strict", ...spec });
  await open(page, url, `#/campaigns/${name}`);
  return panel(page, t.upload.title);
}

export function choose(upload: Locator, t: Catalog, name: string, content: string | Buffer): Promise<void> {
  const files = { name, mimeType: "application/octet-stream", buffer: Buffer.from(content) };
  return upload.getByLabel(t.upload.file, { exact: true }).setInputFiles(files);
}

/** The entries that are shown, once they are these. */
export async function shows(within: Locator, t: Catalog, items: readonly string[]): Promise<void> {
  const entries = within.getByRole("list", { name: t.upload.first }).getByRole("listitem");
  for (const [at, item] of items.entries()) {
    await entries.nth(at).getByText(item, { exact: true }).waitFor();
  }
  assert.equal(await entries.count(), items.length);
}

/** Whether a campaign has each of these users. */
export const present = async (url: string, name: string, users: readonly string[]) => (await send(url, "POST", `campaigns/${name}/users/check`, { users })).present as boolean[];
