/** Warnings of uploads, told apart by their words: the API has no codes for them. */

const WORDS = {
  alike: /are different/,
  present: /present already/,
  repeated: /are repeated/,
  csv: /CSV/,
  json: /JSON/,
  header: /first line looks like a header/,
  headless: /header row looks like an item/,
  spaces: /white space/,
  respelled: /after normalization/,
  rejected: /were rejected/,
} as const;

export type Warning = keyof typeof WORDS;

/** The kind of a warning; none if a newer service has more. */
export function warningOf(text: string): Warning | undefined {
  return (Object.keys(WORDS) as Warning[]).find((kind) => WORDS[kind].test(text));
}
