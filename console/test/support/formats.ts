/** Small files as programs export them, with the items that each has. The service's tests read the same ones. */

import { readFileSync } from "node:fs";

export const FOLDER = "../tests/fixtures/uploads";

export interface Format {
  readonly file: string;
  readonly program: string;
  readonly media_type: string;
  readonly parameters: { readonly column?: string; readonly delimiter?: string };
  /** None if the file can't be read. */
  readonly items?: readonly string[];
}

export const FORMATS = JSON.parse(readFileSync(`${FOLDER}/formats.json`, "utf8")) as readonly Format[];
