/** When a campaign or coupon is active, and the change of it. Times are in UTC, as in the API. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { on } from "../api/document.ts";
import type { Filter, Kind } from "../api/types.ts";
import { away } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { Panel, Tag, Text } from "../parts/panel.tsx";
import { allowed } from "../state/session.ts";

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

interface WindowProps {
  readonly kind: Kind;
  readonly filter: Filter;
  readonly changed: () => void;
}

export function Window({ kind, filter, changed }: WindowProps): JSX.Element | null {
  const [starts, setStarts] = useState(local(filter.starts_at));
  const [ends, setEnds] = useState(local(filter.ends_at));
  if (!allowed(on(kind, "PATCH"))) {
    return null;
  }
  const body = { starts_at: utc(starts) ?? null, ends_at: utc(ends) ?? null };
  return (
    <Panel title="When it is active">
      <Action
        label="Change"
        call={() => ({ method: "PATCH", path: `v1/${kind}/${filter.name}`, body })}
        done={changed}
        answer={() => <p class="notice good">Changed.</p>}
      >
        <div class="fields">
          <Text label="From (UTC)" type="datetime-local" value={starts} change={setStarts} hint="Empty: it always was" />
          <Text label="Until (UTC)" type="datetime-local" value={ends} change={setEnds} hint="Empty: it never ends" />
        </div>
      </Action>
    </Panel>
  );
}
