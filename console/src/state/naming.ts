/** Names of campaigns, coupons and line-ups, which programs use, and labels, as people type them. */

import type { Labels } from "../api/types.ts";

const NAME = /^[a-z0-9][a-z0-9._-]{0,127}$/;
const NAME_LENGTH = 60;
const TITLE_BYTES = 200;
const LABELS = 16;
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

/** The labels of `team=shop, region=eu`; none if that can't be read. */
export function labelsOf(text: string): Labels | undefined {
  const parts = text.split(/[,，]/).map((part) => part.trim()).filter((part) => part !== "");
  const pairs = parts.map((part) => {
    const at = part.indexOf("=");
    return [part.slice(0, at).trim(), part.slice(at + 1).trim()] as const;
  });
  const isGood = pairs.every(([key, value]) => NAME.test(key) && value !== "" && bytesOf(value) <= VALUE_BYTES);
  const labels = Object.fromEntries(pairs);
  return isGood && parts.every((part) => part.includes("=")) && Object.keys(labels).length === pairs.length && pairs.length <= LABELS ? labels : undefined;
}
