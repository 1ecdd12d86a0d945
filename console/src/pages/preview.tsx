/** What of a chosen file will be uploaded: how it is read, and its first entries. */

import type { JSX } from "preact";
import type { Head, Unreadable as Reason } from "../api/file.ts";
import { choicesOf, isTable, previewOf, readingsOf, type Reading } from "../api/reading.ts";
import type { Kind } from "../api/types.ts";
import { texts } from "../i18n/texts.ts";
import { Select, Text } from "../parts/panel.tsx";

/** White space and invisible characters, which are not seen at an end of an entry. */
const UNSEEN = /[\s\p{Default_Ignorable_Code_Point}\p{Cc}]/u;
const ENDS = new RegExp(`^(${UNSEEN.source}*)(.*?)(${UNSEEN.source}*)$`, "su");

function Unseen({ of }: { readonly of: string }): JSX.Element | null {
  return of === "" ? null : <mark title={texts.value.upload.unseen}>{"␣".repeat([...of].length)}</mark>;
}

function Entry({ of }: { readonly of: string }): JSX.Element {
  const [, before = "", middle = "", after = ""] = ENDS.exec(of) ?? [];
  return (
    <code>
      <Unseen of={before} />
      {middle}
      <Unseen of={after} />
    </code>
  );
}

/** The first entries of an upload; undefined if the browser can't read the file. */
export function Entries({ of }: { readonly of: readonly string[] | undefined }): JSX.Element {
  const t = texts.value.upload;
  if (of === undefined) {
    return <p class="notice warn">{t.noPreview}</p>;
  }
  if (of.length === 0) {
    return <p class="notice warn">{t.noEntries}</p>;
  }
  return (
    <div class="entries">
      <p>{t.first}</p>
      <ol aria-label={t.first}>
        {of.map((item, at) => (
          <li key={at}>
            <Entry of={item} />
          </li>
        ))}
      </ol>
    </div>
  );
}

/** Why a file can't be uploaded as it is, and how its program saves it as one that can. */
export function Unreadable({ why }: { readonly why: Reason | "column" }): JSX.Element {
  const t = texts.value.upload;
  return (
    <div class="notice bad" role="alert">
      <strong>{t.unreadable[why]}</strong>
      <ul>
        <li>{t.saveAs.excel}</li>
        <li>{t.saveAs.others}</li>
      </ul>
    </div>
  );
}

interface ExcerptProps {
  readonly kind: Kind;
  readonly of: { readonly head: Head | undefined; readonly reading: Reading; readonly column: string };
  readonly readAs: (reading: Reading) => void;
  readonly takeColumn: (column: string) => void;
}

export function Excerpt({ kind, of, readAs, takeColumn }: ExcerptProps): JSX.Element {
  const t = texts.value.upload;
  const { head, reading, column } = of;
  const preview = head && previewOf(head, reading, column);
  const columns = preview?.columns ?? [];
  const isForeign = column.includes("\uFFFD") && columns.length > 1;
  return (
    <>
      <div class="fields">
        <Select label={t.readAs} value={reading} options={readingsOf(head).map((name) => [name, t.readings[name]] as const)} hint={t.readAsHint} change={(name) => readAs(name as Reading)} />
        {columns.length > 1 && (
          <Select label={t.column} value={column} options={choicesOf(columns).map((name) => [name, name] as const)} hint={t.columnHint[kind]} change={takeColumn} />
        )}
        {isTable(reading) && head === undefined && <Text label={t.column} value={column} hint={t.columnHint[kind]} change={takeColumn} />}
      </div>
      {isForeign && <Unreadable why="column" />}
      {!isForeign && head?.isUtf8 === false && <p class="notice warn">{t.notUtf8}</p>}
      <Entries of={preview?.items} />
      {columns.some((name) => name !== "") && <p class="hint">{t.header(columns.join(" · "))}</p>}
    </>
  );
}
