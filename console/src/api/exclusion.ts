/** Exclusions of an eligibility request, as they are typed in. */

import type { Row } from "./types.ts";

/** A line of exclusions: `seen 3 summer` leaves a user out of `summer` who is in `seen` three times. */
export function exclusionOf(line: string): Row {
  const [campaign = "", second, third] = line.trim().split(/\s+/);
  const isNumber = second !== undefined && /^\d+$/.test(second);
  return {
    campaign,
    at_least: isNumber ? Number(second) : undefined,
    for: isNumber ? third : second,
  };
}
