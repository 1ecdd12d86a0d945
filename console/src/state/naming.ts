/** Names of campaigns, coupons and line-ups, which programs use, and labels, as people type them. */

import type { Labels } from "../api/types.ts";

const NAME = /^[a-z0-9][a-z0-9._-]{0,127}$/;
const NAME_LENGTH = 60;
const TITLE_BYTES = 200;
export const LABELS_MAX = 16;
const VALUE_BYTES = 64;

const bytesOf = (text: string) => new TextEncoder().encode(text).length;

/** A name for a title. One without a Latin letter or digit gets the day. */
export function nameFor(title: string, fallback: string, prefix = "", today = new Date()): string {
  const latin = title.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "");
  const slug = latin.replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, NAME_LENGTH).replace(/-+$/, "");
  const date = [today.getFullYear(), today.getMonth() + 1, today.getDate()].map((part) => String(part).padStart(2, "0")).join("");
  return prefix + (slug === "" ? `${fallback}-${date}` : slug);
}

export type NameFault = "syntax" | "prefix";

export function nameFault(name: string, prefix = ""): NameFault | undefined {
  return !NAME.test(name) ? "syntax" : name.startsWith(prefix) ? undefined : "prefix";
}

export const isTitleTooLong = (title: string): boolean => bytesOf(title) > TITLE_BYTES;

/** A label as a form has it: a row of two fields. */
export interface Label {
  readonly key: string;
  readonly value: string;
}

export const labelRows = (labels: Labels | undefined): readonly Label[] => Object.entries(labels ?? {}).map(([key, value]) => ({ key, value }));

export type LabelFault = "key" | "twice" | "value";

const isBlank = ({ key, value }: Label) => key === "" && value === "";

/** The fault of the label in a row. A blank row is no label, and has none. */
export function labelFault(labels: readonly Label[], at: number): LabelFault | undefined {
  const { key, value } = labels[at] ?? { key: "", value: "" };
  if (isBlank({ key, value })) {
    return undefined;
  }
  const isFirst = labels.findIndex((label) => label.key === key) === at;
  return !NAME.test(key) ? "key" : !isFirst ? "twice" : bytesOf(value) > VALUE_BYTES ? "value" : undefined;
}

/** The labels that the rows are; undefined if one is wrong. */
export function labelsOf(rows: readonly Label[]): Labels | undefined {
  const isGood = rows.every((_, at) => labelFault(rows, at) === undefined);
  return isGood ? Object.fromEntries(rows.filter((row) => !isBlank(row)).map(({ key, value }) => [key, value])) : undefined;
}

/** The merge-patch from one set of labels to another, without those that are equal; undefined if all are. */
export function labelsPatch(before: Labels = {}, after: Labels = {}): Readonly<Record<string, string | null>> | undefined {
  const gone = Object.keys(before).filter((key) => !(key in after)).map((key) => [key, null] as const);
  const set = Object.entries(after).filter(([key, value]) => before[key] !== value);
  return gone.length + set.length === 0 ? undefined : Object.fromEntries([...gone, ...set]);
}
