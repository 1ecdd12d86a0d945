/** Numbers and times as people read them, in their language and time zone. */

import { computed } from "@preact/signals";
import { language } from "./i18n/language.ts";

const number = (options?: Intl.NumberFormatOptions) => computed(() => new Intl.NumberFormat(language.value, options));
const date = (options: Intl.DateTimeFormatOptions) => computed(() => new Intl.DateTimeFormat(language.value, options));

const WHOLE = number();
const SHORT = number({ notation: "compact", maximumSignificantDigits: 3 });
const SIGNIFICANT = number({ maximumSignificantDigits: 3 });
const PERCENT = number({ style: "percent", maximumSignificantDigits: 2 });
const NEARLY_ALL = number({ style: "percent", maximumSignificantDigits: 3 });
const CLOCK = date({ timeStyle: "medium" });
const SHORT_CLOCK = date({ timeStyle: "short" });
const MOMENT = date({ dateStyle: "medium", timeStyle: "short" });
const FULL = date({ dateStyle: "full", timeStyle: "long" });
const ZONE = date({ timeZoneName: "shortOffset" });
const DAY = date({ month: "short", day: "numeric", timeZone: "UTC" });
const RELATIVE = computed(() => new Intl.RelativeTimeFormat(language.value, { numeric: "always", style: "long" }));

export function count(value: number): string {
  return WHOLE.value.format(value);
}

export function short(value: number): string {
  return Math.abs(value) < 10_000 ? WHOLE.value.format(Math.round(value)) : SHORT.value.format(value);
}

/** Events a second. */
export function perSecond(value: number): string {
  return value >= 10_000 ? SHORT.value.format(value) : value >= 100 ? WHOLE.value.format(Math.round(value)) : SIGNIFICANT.value.format(value);
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${(size >= 1000 ? WHOLE : SIGNIFICANT).value.format(size)} ${units[unit]}`;
}

/** A share as a percentage. What is next to nothing is not shown to the last digit. */
export function percent(share: number): string {
  if (share > 0 && share < 1e-6) {
    return `< ${PERCENT.value.format(1e-6)}`;
  }
  return (share >= 0.995 ? NEARLY_ALL : PERCENT).value.format(share);
}

/** A short time: microseconds to seconds. */
export function latency(seconds: number): string {
  const [value, unit] = seconds < 0.001 ? [seconds * 1e6, "µs"] : seconds < 1 ? [seconds * 1000, "ms"] : [seconds, "s"];
  return `${SIGNIFICANT.value.format(value)} ${unit}`;
}

const UNITS = [["day", 86_400], ["hour", 3_600], ["minute", 60], ["second", 1]] as const;

/** A long time, in its two largest units. */
export function span(seconds: number): string {
  const first = Math.max(0, UNITS.findIndex(([, size]) => seconds >= size));
  let rest = Math.floor(seconds);
  const parts: string[] = [];
  for (const [unit, size] of seconds < 1 ? UNITS.slice(-1) : UNITS.slice(first, first + 2)) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole > 0 || parts.length === 0) {
      parts.push(new Intl.NumberFormat(language.value, { style: "unit", unit, unitDisplay: "short" }).format(whole));
    }
  }
  return parts.join(" ");
}

/** How far a time is from now: `3 minutes ago`, `in 2 hours`. */
export function away(time: string, now = Date.now()): string {
  const seconds = (new Date(time).getTime() - now) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  return RELATIVE.value.format(Math.trunc(seconds / size), unit);
}

/** A time on the reader's clock: of today without the date. */
export function moment(time: string, now = new Date()): string {
  const at = new Date(time);
  return (at.toDateString() === now.toDateString() ? CLOCK : MOMENT).value.format(at);
}

/** A time with its date, its seconds and its zone. */
export function fullMoment(time: string): string {
  return FULL.value.format(new Date(time));
}

/** The offset of the reader's time zone: `GMT+8`. */
export function zone(at = new Date()): string {
  return ZONE.value.formatToParts(at).find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/** The name of the reader's time zone, and its offset. */
export function zoneName(): string {
  return `${ZONE.value.resolvedOptions().timeZone} (${zone()})`;
}

/** A day of the calendar in UTC, in seconds since the epoch. */
export function day(seconds: number): string {
  return DAY.value.format(seconds * 1000);
}

export function clock(seconds: number): string {
  return SHORT_CLOCK.value.format(seconds * 1000);
}

/** A field's name as a heading. */
export function heading(field: string): string {
  const words = field.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
