/** How a file is read: as a list, a table or NDJSON; and its first items in each way, as the service reads them. */

import Papa from "papaparse";
import type { Cells } from "./csv.ts";
import { endingOf, type Head } from "./file.ts";
import type { Kind } from "./types.ts";

/** The separators of tables, by their names in the API. */
export const DELIMITERS = { comma: ",", semicolon: ";", tab: "\t", pipe: "|" } as const;

export type Delimiter = keyof typeof DELIMITERS;

/** A list with an item per line, a table with a separator, or NDJSON. */
export type Reading = "lines" | Delimiter | "ndjson";

export type MediaType = "text/plain" | "text/csv" | "application/x-ndjson";

const NAMES = Object.keys(DELIMITERS) as Delimiter[];

export function isTable(reading: Reading): reading is Delimiter {
  return reading in DELIMITERS;
}

export function typeOf(reading: Reading): MediaType {
  return isTable(reading) ? "text/csv" : reading === "ndjson" ? "application/x-ndjson" : "text/plain";
}

/** Excel's first line, which names the separator. */
const SEP_LINE = /^"?sep=(.)"?\r?\n/i;

/** The separator that the first line names. */
export function namedDelimiter(text: string): Delimiter | undefined {
  const [, sign] = SEP_LINE.exec(text) ?? [];
  return NAMES.find((name) => DELIMITERS[name] === sign);
}

/** The records of a table, its header being the first. Blank ones are left out after it, and so is one that is cut off. */
function recordsOf(head: Head, delimiter: Delimiter): readonly Cells[] {
  const text = head.text.replace(SEP_LINE, "").replaceAll("\r\n", "\n");
  const { data } = Papa.parse<string[]>(text, { delimiter: DELIMITERS[delimiter], newline: "\n" });
  const whole = head.isWhole ? data : data.slice(0, -1);
  return whole.filter((cells, at) => at === 0 || cells.some((cell) => cell !== ""));
}

interface Guess {
  readonly delimiter: Delimiter;
  readonly columns: number;
  /** The share of records that have as many fields as the header, without a space after a separator. */
  readonly regular: number;
}

function guessesOf(head: Head): readonly Guess[] {
  const guesses = NAMES.map((delimiter) => {
    const records = recordsOf(head, delimiter);
    const columns = records[0]?.length ?? 0;
    const isRegular = (cells: Cells) => cells.length === columns && !cells.slice(1).some((cell) => cell.startsWith(" "));
    return { delimiter, columns, regular: records.filter(isRegular).length / Math.max(1, records.length) };
  });
  return guesses.filter(({ columns }) => columns > 1);
}

/** The separator that gives the most regular table of several columns. */
function delimiterOf(head: Head): Guess | undefined {
  const isBetter = (one: Guess, other: Guess) => (one.regular === other.regular ? one.columns > other.columns : one.regular > other.regular);
  return guessesOf(head).reduce<Guess | undefined>((best, guess) => (best === undefined || isBetter(guess, best) ? guess : best), undefined);
}

/** How a file is likely meant: by its name, and by its content as far as that can be read. */
export function readingOf(name: string, head: Head | undefined): Reading {
  const ending = endingOf(name);
  if (ending === "ndjson" || ending === "jsonl") {
    return "ndjson";
  }
  const named = head && namedDelimiter(head.text);
  if (named !== undefined) {
    return named;
  }
  const found = head && delimiterOf(head);
  if (ending === "csv") {
    return found?.delimiter ?? "comma";
  }
  if (ending === "tsv" || ending === "tab") {
    return found?.delimiter ?? "tab";
  }
  // Excel's "Text (Tab delimited)" ends in .txt. Other separators may be a part of the entries of a list.
  return found?.delimiter === "tab" && found.regular === 1 ? "tab" : "lines";
}

/** The ways to read a file. A separator that the first line names is the only one. */
export function readingsOf(head: Head | undefined): readonly Reading[] {
  const named = head && namedDelimiter(head.text);
  return ["lines", ...(named === undefined ? NAMES : [named]), "ndjson"];
}

/** What of a file will be uploaded. */
export interface Preview {
  /** The columns of a table; none otherwise. */
  readonly columns: readonly string[];
  /** The first items, without those that the service rejects. */
  readonly items: readonly string[];
}

const SHOWN = 3;
const ITEM_BYTES_MAX = 512;

function isItem(text: string | undefined): text is string {
  return text !== undefined && text !== "" && !text.includes("\0") && new TextEncoder().encode(text).length <= ITEM_BYTES_MAX;
}

function linesOf({ text, isWhole }: Head): readonly string[] {
  const lines = text.split("\n").map((line) => line.replace(/\r$/, ""));
  return isWhole ? lines : lines.slice(0, -1);
}

/** The item of a line of NDJSON: a string, or `{"item":…}`. */
function itemOf(line: string): string | undefined {
  try {
    const value: unknown = JSON.parse(line);
    const item: unknown = typeof value === "object" && value !== null ? (value as { item?: unknown }).item : value;
    return typeof item === "string" ? item : undefined;
  } catch {
    return undefined;
  }
}

/** The columns that can be chosen: a column without a name can't be. */
export function choicesOf(columns: readonly string[]): readonly string[] {
  return [...new Set(columns)].filter((name) => name !== "");
}

export function columnsOf(head: Head, reading: Reading): readonly string[] {
  return isTable(reading) ? (recordsOf(head, reading)[0] ?? []) : [];
}

export function previewOf(head: Head, reading: Reading, column: string): Preview {
  if (!isTable(reading)) {
    const items = reading === "ndjson" ? linesOf(head).map(itemOf) : linesOf(head);
    return { columns: [], items: items.filter(isItem).slice(0, SHOWN) };
  }
  const [columns = [], ...records] = recordsOf(head, reading);
  const place = columns.length > 1 ? columns.indexOf(column) : 0;
  return { columns, items: records.map((cells) => cells[place]).filter(isItem).slice(0, SHOWN) };
}

/** Names of the columns with the items, the most telling first. */
const LIKELY: Readonly<Record<Kind, readonly RegExp[]>> = {
  campaigns: [/(user|customer|client|member|kunden?).?(id|nr|no)/i, /user|customer|client|member|kunde|用户|客户|会员/i, /id$/i],
  coupons: [/code|voucher|券|码/i, /id$/i],
};

/** The column that likely has the items. */
export function likelyColumn(columns: readonly string[], kind: Kind): string {
  const choices = choicesOf(columns);
  const likely = LIKELY[kind].map((words) => choices.find((name) => words.test(name))).find((name) => name !== undefined);
  return likely ?? choices[0] ?? "";
}
