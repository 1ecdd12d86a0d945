/** Figures and times as people read them. */

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function count(value: number): string {
  return WHOLE.format(value);
}

export function short(value: number): string {
  return Math.abs(value) < 10_000 ? WHOLE.format(Math.round(value)) : SHORT.format(value);
}

/** Events a second. */
export function perSecond(value: number): string {
  if (value >= 10_000) {
    return SHORT.format(value);
  }
  return value >= 100 ? WHOLE.format(Math.round(value)) : String(Number(value.toFixed(value >= 10 ? 1 : 2)));
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${Number(size.toFixed(digits))} ${units[unit]}`;
}

/** A share as a percentage, with two digits that count. */
export function percent(share: number): string {
  if (share === 0) {
    return "0 %";
  }
  const value = share * 100;
  if (value < 1e-6) {
    return `${value.toExponential(0).replace("e-", "e−")} %`;
  }
  return `${Number(value.toPrecision(value >= 99.5 ? 3 : 2))
    .toFixed(12)
    .replace(/\.?0+$/, "")} %`;
}

/** A short time: microseconds to seconds. */
export function latency(seconds: number): string {
  if (seconds < 0.001) {
    return `${Math.round(seconds * 1e6)} µs`;
  }
  const milliseconds = seconds * 1000;
  return seconds < 1
    ? `${Number(milliseconds.toFixed(milliseconds < 10 ? 1 : 0))} ms`
    : `${Number(seconds.toFixed(2))} s`;
}

/** A long time, in its two largest units. */
export function span(seconds: number): string {
  const units: [string, number][] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first === -1) {
    return "0 s";
  }
  let rest = Math.floor(seconds);
  const parts: string[] = [];
  for (const [unit, size] of units.slice(first, first + 2)) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole > 0) {
      parts.push(`${whole} ${unit}`);
    }
  }
  return parts.join(" ");
}

/** How far a time is from now: `3 min ago`, `in 2 h`. */
export function away(time: string, now = Date.now()): string {
  const seconds = (new Date(time).getTime() - now) / 1000;
  if (Math.abs(seconds) < 1) {
    return "now";
  }
  const distance = span(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds > 0 ? `in ${distance}` : `${distance} ago`;
}

/** A time on the reader's clock: of today without the date. */
export function moment(time: string, now = new Date()): string {
  const at = new Date(time);
  const clock = at.toLocaleTimeString("en-GB");
  if (at.toDateString() === now.toDateString()) {
    return clock;
  }
  const date = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${date.join("-")} ${clock}`;
}

/** A field's name as a heading. */
export function heading(field: string): string {
  const words = field.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** `1 user`, `2 users`. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
