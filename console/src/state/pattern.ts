/** Patterns of generated codes. */

import { isChanged } from "../api/csv.ts";

/** The most codes that one request generates. */
export const COUNT_MAX = 1_000_000;

/** Each `#` is one of this many characters. */
const CHARACTERS = 28;

/** A guess hits at most once in so many: the service rejects patterns that are shorter. */
const GUESSES = 1_000_000;

/** How many `#` a pattern needs so that this many codes can't be guessed. */
export function placesNeeded(codes: number): number {
  return Math.ceil(Math.log(Math.max(1, codes) * GUESSES) / Math.log(CHARACTERS) - 1e-9);
}

/** A pattern for a coupon: the first word of its name, and places for codes. */
export function patternFor(name: string): string {
  const word = /^[a-z]+/.exec(name)?.[0].toUpperCase().slice(0, 12);
  return word === undefined ? "####-####" : `${word}-####-####`;
}

/** Whether a spreadsheet would turn codes of a pattern into numbers or dates: 23456789 stays, and 2345E789 does not. */
export function mayChange(pattern: string): boolean {
  const parts = pattern.split("#");
  const withLetter = parts.slice(1).map((_, at) => `${parts.slice(0, at + 1).join("2")}E${parts.slice(at + 1).join("2")}`);
  return [parts.join("2"), ...withLetter].some(isChanged);
}
