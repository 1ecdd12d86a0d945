/** What the page has seen of each filter that was looked at, for its charts. */

import type { Filter, Kind } from "../api/types.ts";

export interface Seen {
  readonly at: number;
  readonly items: number;
  readonly held: number | null;
  readonly redeemed: number | null;
  readonly rate: number;
  readonly memory: number;
}

const KEPT_SECONDS = 3_600;
const FILTERS = 50;

const lists = new Map<string, readonly Seen[]>();

/** Adds what is known now, and returns the last hour. Of filters only the last ones looked at are kept. */
export function seen(kind: Kind, filter: Filter, now = Date.now()): readonly Seen[] {
  // Made again under its name, a filter has another past.
  const place = `${kind}/${filter.name}/${filter.created_at}`;
  const { stats } = filter;
  const at = now / 1000;
  const list = [
    ...(lists.get(place) ?? []).filter((earlier) => earlier.at > at - KEPT_SECONDS),
    {
      at,
      items: stats.items,
      held: stats.held ?? null,
      redeemed: stats.redeemed ?? null,
      rate: stats.error_rate_now,
      memory: stats.memory_bytes,
    },
  ];
  lists.delete(place);
  lists.set(place, list);
  const [oldest] = lists.keys();
  if (lists.size > FILTERS && oldest !== undefined) {
    lists.delete(oldest);
  }
  return list;
}
