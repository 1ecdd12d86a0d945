/** When a campaign or coupon is active, and how it is changed. Times are in UTC, as in the API. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { on } from "../api/document.ts";
import type { Filter, Kind } from "../api/types.ts";
import { away } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { Panel, Tag, Text } from "../parts/panel.tsx";
import { accepts, allowed } from "../state/session.ts";

/** What a `datetime-local` control holds as a time of the API. */
export function utc(local: string): string | undefined {
  return local === "" ? undefined : new Date(`${local}Z`).toISOString();
}

function local(time: string | undefined): string {
  return time === undefined ? "" : new Date(time).toISOString().slice(0, 16);
}

export function windowTag({ starts_at, ends_at }: Filter): JSX.Element {
  const now = Date.now();
  if (starts_at !== undefined && new Date(starts_at).getTime() > now) {
    return <Tag tone="quiet">begins {away(starts_at)}</Tag>;
  }
  if (ends_at !== undefined) {
    const isOver = new Date(ends_at).getTime() <= now;
    return <Tag tone={isOver ? "warn" : "good"}>{isOver ? `ended ${away(ends_at)}` : `active, ends ${away(ends_at)}`}</Tag>;
  }
  return <Tag tone="good">active</Tag>;
}

interface ChangeProps {
  readonly kind: Kind;
  readonly filter: Filter;
  readonly changed: () => void;
}

/** Changes the window, and what else of a filter can be changed. */
export function Change({ kind, filter, changed }: ChangeProps): JSX.Element | null {
  const [starts, setStarts] = useState(local(filter.starts_at));
  const [ends, setEnds] = useState(local(filter.ends_at));
  const [capacity, setCapacity] = useState(String(filter.capacity));
  const [stock, setStock] = useState(String(filter.stock ?? ""));
  if (!allowed(on(kind, "PATCH"))) {
    return null;
  }
  const mayRaise = filter.growth === "auto" && accepts("FilterPatch", "capacity");
  // The controls show minutes: a time that nobody has touched is not sent, or it would lose its seconds.
  const changedTime = (shown: string, time: string | undefined) =>
    shown === local(time) ? undefined : (utc(shown) ?? null);
  const body = {
    starts_at: changedTime(starts, filter.starts_at),
    ends_at: changedTime(ends, filter.ends_at),
    capacity: mayRaise && capacity !== String(filter.capacity) ? Number(capacity) : undefined,
    stock: filter.stock !== undefined && stock !== String(filter.stock) ? Number(stock) : undefined,
  };
  return (
    <Panel title="Change">
      <Action
        label="Change"
        call={() => ({ method: "PATCH", path: `v1/${kind}/${filter.name}`, body })}
        done={changed}
        answer={() => <p class="notice good">Changed.</p>}
      >
        <div class="fields">
          <Text label="From (UTC)" type="datetime-local" value={starts} change={setStarts} hint="Empty: it always was" />
          <Text label="Until (UTC)" type="datetime-local" value={ends} change={setEnds} hint="Empty: it never ends" />
          {mayRaise && (
            <Text
              label="Capacity"
              type="number"
              min={filter.capacity}
              value={capacity}
              change={setCapacity}
              hint="Higher: takes the memory at once"
            />
          )}
          {filter.stock !== undefined && <Text label="Stock" type="number" min={0} value={stock} change={setStock} />}
        </div>
      </Action>
    </Panel>
  );
}
