/** Changes a campaign or coupon: its title, labels and window, how many it is for, and an open pool's stock. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { on } from "../api/document.ts";
import type { Filter } from "../api/types.ts";
import { count, zone } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { Action } from "../parts/action.tsx";
import { toLocal, toUtc } from "../parts/local_time.ts";
import { LabelsField } from "../parts/naming.tsx";
import { Panel, Text } from "../parts/panel.tsx";
import { usesOf } from "../state/filters.ts";
import { isTitleTooLong, labelRows, labelsOf, labelsPatch, type Label } from "../state/naming.ts";
import { accepts, allowed } from "../state/session.ts";
import type { PartProps } from "./filter.tsx";

interface Form {
  readonly title: string;
  readonly labels: readonly Label[];
  readonly starts: string;
  readonly ends: string;
  readonly capacity: string;
  readonly stock: string;
}

/** What the form shows of a filter. */
function formOf({ title, labels, starts_at, ends_at, capacity, stock }: Filter): Form {
  return {
    title: title ?? "",
    labels: labelRows(labels),
    starts: toLocal(starts_at),
    ends: toLocal(ends_at),
    capacity: String(capacity),
    stock: String(stock ?? ""),
  };
}

/** The fields that have been changed, as a merge-patch. A time that nobody has touched is not sent, or it would lose its seconds. */
function patchOf(form: Form, base: Filter) {
  const before = formOf(base);
  const isChanged = (field: keyof Form) => form[field] !== before[field];
  return {
    title: isChanged("title") ? form.title || null : undefined,
    labels: labelsPatch(base.labels, labelsOf(form.labels)),
    starts_at: isChanged("starts") ? (toUtc(form.starts) ?? null) : undefined,
    ends_at: isChanged("ends") ? (toUtc(form.ends) ?? null) : undefined,
    capacity: isChanged("capacity") ? Number(form.capacity) : undefined,
    stock: isChanged("stock") ? Number(form.stock) : undefined,
  };
}

/** What was saved, with the fields that were typed in since it was sent. */
function rebased(typed: Form, sent: Form, saved: Form): Form {
  const fields = (Object.keys(typed) as (keyof Form)[]).filter((field) => typed[field] !== sent[field]);
  return { ...saved, ...Object.fromEntries(fields.map((field) => [field, typed[field]])) };
}

const isSame = (one: Form, other: Form): boolean => JSON.stringify(one) === JSON.stringify(other);

export function Change({ kind, filter, changed }: PartProps): JSX.Element | null {
  const { change: t, form: f } = texts.value;
  /** The form, and what it started from: somebody else's changes don't overwrite what is typed. */
  const [{ base, form }, setEdit] = useState({ base: filter, form: formOf(filter) });
  const setForm = (part: Partial<Form>) => setEdit((edit) => ({ ...edit, form: { ...edit.form, ...part } }));
  const isChanged = !isSame(form, formOf(base));
  // Judged when it takes effect: something may have been typed since this was rendered.
  useEffect(() => setEdit((edit) => (isSame(edit.form, formOf(edit.base)) ? { base: filter, form: formOf(filter) } : edit)), [JSON.stringify(formOf(filter))]);
  if (!allowed(on(kind, "PATCH"))) {
    return null;
  }
  const schema = kind === "campaigns" ? "FilterPatch" : "CouponPatch";
  const hasTitles = accepts(schema, "title");
  const mayRaise = filter.growth === "auto" && filter.stock === undefined && accepts(schema, "capacity");
  const { title, labels, starts, ends, capacity, stock } = form;
  const put = (field: Exclude<keyof Form, "labels">) => (value: string) => setForm({ [field]: value });
  const inUse = usesOf(filter).taken;
  const titleFault = isTitleTooLong(title) ? f.titleTooLong : undefined;
  const endsFault = starts !== "" && ends !== "" && ends <= starts ? f.backwards : undefined;
  const patch = patchOf(form, base);
  const hasChanges = Object.values(patch).some((value) => value !== undefined);
  const isGood = hasChanges && titleFault === undefined && endsFault === undefined && labelsOf(labels) !== undefined && (filter.stock === undefined || stock !== "");
  return (
    <Panel title={t.title}>
      <Action<Filter>
        label={t.save}
        call={() => (isGood ? { method: "PATCH", path: `v1/${kind}/${filter.name}`, body: patch } : undefined)}
        done={(saved) => {
          setEdit((edit) => ({ base: saved, form: rebased(edit.form, form, formOf(saved)) }));
          changed();
        }}
        answer={() => !isChanged && <p class="notice good">{t.saved}</p>}
      >
        {hasTitles && <Text label={t.name} value={title} change={put("title")} fault={titleFault} />}
        <div class="fields">
          <Text label={t.starts(zone())} type="datetime-local" value={starts} change={put("starts")} hint={t.startsHint} />
          <Text label={t.ends(zone())} type="datetime-local" value={ends} change={put("ends")} hint={t.endsHint} fault={endsFault} />
          {mayRaise && <Text label={t.capacity[kind]} type="number" min={filter.capacity} value={capacity} change={put("capacity")} hint={t.capacityHint} />}
          {filter.stock !== undefined && <Text label={t.stock} type="number" min={0} value={stock} change={put("stock")} hint={t.stockHint(count(inUse))} />}
        </div>
        {stock !== "" && Number(stock) < inUse && <p class="notice warn">{t.stockLow(count(inUse), count(Number(stock)))}</p>}
        {hasTitles && <LabelsField labels={labels} change={(labels) => setForm({ labels })} />}
      </Action>
    </Panel>
  );
}
