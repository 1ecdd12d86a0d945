/** The fields that name something new: a title in any language, the name that programs use, which follows the title until it is edited, and labels. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import type { Labels } from "../api/types.ts";
import { texts } from "../i18n/texts.ts";
import { isTitleTooLong, labelFault, LABELS_MAX, labelsOf, nameFault, nameFor, type Label } from "../state/naming.ts";
import { info } from "../state/session.ts";
import { Text } from "./panel.tsx";
import { useResource } from "./resource.ts";

export interface Naming {
  readonly title: string;
  readonly name: string;
  readonly labels: readonly Label[];
  readonly isEdited: boolean;
}

export const UNNAMED: Naming = { title: "", name: "", labels: [], isEdited: false };

/** The title and the labels as the form has them; undefined if something is missing or wrong. */
export function named(naming: Naming): { readonly title: string; readonly labels: Labels } | undefined {
  const labels = labelsOf(naming.labels);
  const isGood = nameFault(naming.name, info.value?.key?.prefix) === undefined && !isTitleTooLong(naming.title);
  return isGood && labels !== undefined ? { title: naming.title, labels } : undefined;
}

/** The title and the labels of a request that creates something: those that there are. */
export function namedNew(naming: Naming): { readonly title?: string; readonly labels?: Labels } | undefined {
  const found = named(naming);
  return found && { ...(found.title === "" ? {} : { title: found.title }), ...(Object.keys(found.labels).length === 0 ? {} : { labels: found.labels }) };
}

interface NamingFieldsProps {
  readonly naming: Naming;
  /** Where such names are in the API: `campaigns`. */
  readonly place: string;
  /** What a name is if its title has no Latin letters. */
  readonly fallback: string;
  readonly hasTitles: boolean;
  readonly change: (naming: Naming) => void;
  readonly taken: (isTaken: boolean) => void;
}

export function NamingFields({ naming, place, fallback, hasTitles, change, taken }: NamingFieldsProps): JSX.Element {
  const t = texts.value.form;
  const prefix = info.value?.key?.prefix ?? "";
  const fault = naming.name === "" ? undefined : nameFault(naming.name, prefix);
  const isWhole = naming.name !== "" && fault === undefined;
  const call: Call | undefined = isWhole ? { method: "GET", path: `v1/${place}/${naming.name}` } : undefined;
  const other = useResource<{ name: string }>(call).value;
  const isTaken = isWhole && other?.name === naming.name;
  const [told, setTold] = useState(false);
  if (told !== isTaken) {
    setTold(isTaken);
    taken(isTaken);
  }
  const faultText = fault === "syntax" ? t.nameFault : fault === "prefix" ? t.prefixFault(prefix) : isTaken ? t.nameTaken : undefined;
  return (
    <>
      {hasTitles && (
        <Text
          label={t.title}
          value={naming.title}
          placeholder={t.titleExample}
          fault={isTitleTooLong(naming.title) ? t.titleTooLong : undefined}
          change={(title) => change({ ...naming, title, name: naming.isEdited ? naming.name : title === "" ? "" : nameFor(title, fallback, prefix) })}
        />
      )}
      <Text
        label={t.name}
        value={naming.name}
        hint={prefix === "" ? t.nameHint : t.prefixHint(prefix)}
        fault={faultText}
        change={(name) => change({ ...naming, name, isEdited: name !== "" })}
        required
      />
    </>
  );
}

interface LabelsFieldProps {
  readonly labels: readonly Label[];
  readonly change: (labels: readonly Label[]) => void;
}

/** A row for each label. Labels that are not edited stay exactly as they are. */
export function LabelsField({ labels, change }: LabelsFieldProps): JSX.Element {
  const t = texts.value.labels;
  const put = (at: number, part: Partial<Label>) => change(labels.map((label, index) => (index === at ? { ...label, ...part } : label)));
  return (
    <fieldset class="label-rows">
      <legend>{t.title}</legend>
      <p class="hint">{t.hint}</p>
      {labels.map((label, at) => {
        const fault = labelFault(labels, at);
        return (
          <div key={at} class="label-row">
            <Text label={t.key(at + 1)} value={label.key} fault={fault === undefined || fault === "value" ? undefined : t.faults[fault]} change={(key) => put(at, { key })} />
            <Text label={t.value(at + 1)} value={label.value} fault={fault === "value" ? t.faults.value : undefined} change={(value) => put(at, { value })} />
            <button type="button" class="plain small" aria-label={t.remove(at + 1)} onClick={() => change(labels.filter((_, index) => index !== at))}>
              ✕
            </button>
          </div>
        );
      })}
      {labels.length < LABELS_MAX && (
        <div class="buttons">
          <button type="button" class="small" onClick={() => change([...labels, { key: "", value: "" }])}>
            {t.add}
          </button>
        </div>
      )}
    </fieldset>
  );
}
