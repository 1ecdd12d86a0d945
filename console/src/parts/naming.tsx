/** The fields that name something new: a title in any language, and the name that programs use, which follows the title until it is edited. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { texts } from "../i18n/texts.ts";
import { isTitleTooLong, labelsOf, nameFault, nameFor } from "../state/naming.ts";
import { info } from "../state/session.ts";
import { Text } from "./panel.tsx";
import { useResource } from "./resource.ts";

export interface Naming {
  readonly title: string;
  readonly name: string;
  readonly labels: string;
  readonly isEdited: boolean;
}

export const UNNAMED: Naming = { title: "", name: "", labels: "", isEdited: false };

/** The fields of a request; undefined if something is missing or wrong. */
export function named(naming: Naming): { title?: string; labels?: Readonly<Record<string, string>> } | undefined {
  const labels = labelsOf(naming.labels);
  if (nameFault(naming.name, info.value?.key?.prefix) !== undefined || isTitleTooLong(naming.title) || labels === undefined) {
    return undefined;
  }
  return { ...(naming.title === "" ? {} : { title: naming.title }), ...(Object.keys(labels).length === 0 ? {} : { labels }) };
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

export function LabelsField({ naming, change }: Pick<NamingFieldsProps, "naming" | "change">): JSX.Element {
  const t = texts.value.form;
  const fault = labelsOf(naming.labels) === undefined ? t.labelsFault : undefined;
  return <Text label={t.labels} value={naming.labels} hint={t.labelsHint} fault={fault} change={(labels) => change({ ...naming, labels })} />;
}
