/** CSV as the service writes it, and as a file for a spreadsheet. */

import Papa from "papaparse";

/** What a spreadsheet takes for a formula, in either width. An apostrophe before it makes it a text. */
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

export const isFormula = (cell: string): boolean => FORMULA.test(cell);

/** The most digits that a spreadsheet shows: with more it writes 1.23E+16, and loses those after the 15th. */
const DIGITS_MAX = 11;
/** Spreadsheets have exponents of up to three digits. */
const NUMBER = /^\d[\d.,]*(e[+-]?\d{1,3})?%?$/i;
const DATE = /^(\d{1,4}[-/.]\d{1,2}([-/.]\d{1,4})?|\d{1,2}[-/.]\d{4})$/;
const TIME = /^\d{1,4}:\d{2}(:\d{2})?$/;
const MONTHS = "jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?";
const MONTH = new RegExp(`^(\\d{1,4}[- ./]?)?(${MONTHS})\\.?([- ./]?\\d{1,4})?$`, "i");
const BOOLEAN = /^(true|false)$/i;

/** Whether a spreadsheet would change a text: 000123 to 123, 1E5 to 100000, 1-2 to a date. */
export function isChanged(cell: string): boolean {
  // A spreadsheet ignores spaces around a number.
  const text = cell.trim();
  if ([DATE, TIME, MONTH, BOOLEAN].some((words) => words.test(text))) {
    return true;
  }
  return NUMBER.test(text) && (String(Number(text)) !== text || text.length > DIGITS_MAX);
}

/** Excel reads a file without it in the character set of its computer. */
const BYTE_ORDER_MARK = "\uFEFF";

export type Cells = readonly string[];

/** The rows of a CSV, its header being the first. Quoted cells may have commas, quotes and line breaks. */
export function rowsOf(csv: string): readonly Cells[] {
  return Papa.parse<string[]>(csv, { delimiter: ",", skipEmptyLines: true }).data;
}

/** A file whose cells no spreadsheet runs, and whose texts none turns into numbers or dates. */
export function spreadsheet(rows: readonly Cells[]): Blob {
  const kept = (cell: string) => (isFormula(cell) || isChanged(cell) ? `'${cell}` : cell);
  const text = Papa.unparse(rows.map((cells) => cells.map(kept)));
  return new Blob([BYTE_ORDER_MARK, text, "\r\n"], { type: "text/csv" });
}
