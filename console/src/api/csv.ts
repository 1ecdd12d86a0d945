/** CSV as the service writes it, and as a file for a spreadsheet. */

import Papa from "papaparse";

/** What a spreadsheet takes for a formula, in either width. An apostrophe before it makes it a text. */
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

export const isFormula = (cell: string): boolean => FORMULA.test(cell);

/** Excel reads a file without it in the character set of its computer. */
const BYTE_ORDER_MARK = "\uFEFF";

export type Cells = readonly string[];

/** The rows of a CSV, its header being the first. Quoted cells may have commas, quotes and line breaks. */
export function rowsOf(csv: string): readonly Cells[] {
  return Papa.parse<string[]>(csv, { delimiter: ",", skipEmptyLines: true }).data;
}

/** A file whose cells no spreadsheet runs. */
export function spreadsheet(rows: readonly Cells[]): Blob {
  const text = Papa.unparse(rows as string[][], { escapeFormulae: FORMULA });
  return new Blob([BYTE_ORDER_MARK, text, "\r\n"], { type: "text/csv" });
}
