/** Tables whose rows become cards on a phone, and tables of whatever the service answers. */

import type { ComponentChildren, JSX } from "preact";
import type { Row } from "../api/types.ts";
import { bytes, count, heading, percent } from "../format.ts";
import { named, texts } from "../i18n/texts.ts";
import { Time } from "./panel.tsx";

const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;

export interface Column {
  readonly title: string;
  readonly isNumber?: boolean;
  /** Sorts by this column; told which way it sorts now. */
  readonly sort?: () => void;
  readonly sorted?: "ascending" | "descending";
  /** A column of buttons has no visible title. */
  readonly isActs?: boolean;
}

interface GridProps {
  readonly label: string;
  readonly columns: readonly Column[];
  readonly rows: readonly { readonly key: string | number; readonly cells: readonly ComponentChildren[] }[];
}

export function Grid({ label, columns, rows }: GridProps): JSX.Element {
  const style = ({ isNumber, isActs }: Column) => (isActs ? "acts" : isNumber ? "number" : undefined);
  const head = (column: Column) => {
    const { title, isActs, sort, sorted } = column;
    return (
      <th key={title} scope="col" class={style(column)} aria-sort={sorted}>
        {isActs ? (
          <span class="unseen">{title}</span>
        ) : sort === undefined ? (
          title
        ) : (
          <button type="button" onClick={sort}>
            {title}
            <span aria-hidden="true">{sorted === undefined ? "" : sorted === "descending" ? " ↓" : " ↑"}</span>
          </button>
        )}
      </th>
    );
  };
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table class={columns.some(({ sort }) => sort) ? "cards sorts" : "cards"}>
        <thead>
          <tr>{columns.map(head)}</tr>
        </thead>
        <tbody>
          {rows.map(({ key, cells }) => (
            <tr key={key}>
              {columns.map((column, index) => (
                <td key={index} data-label={column.title} class={style(column)}>
                  {cells[index]}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A value of the API: a word of it in the reader's language, if it has one. */
export function shown(field: string, value: unknown): ComponentChildren {
  const t = texts.value;
  if (value === undefined || value === null) {
    return "–";
  }
  if (typeof value === "number") {
    if (field.endsWith("_bytes")) {
      return bytes(value);
    }
    return field.startsWith("error_rate") || field === "load" ? percent(value) : count(value);
  }
  if (typeof value === "boolean") {
    return value ? t.yes : t.no;
  }
  if (typeof value === "string") {
    return TIME.test(value) ? <Time at={value} /> : field === "outcome" || field === "status" || field === "code" ? named(t.outcomes, value) : value;
  }
  return JSON.stringify(value);
}

interface TableProps {
  readonly label: string;
  readonly rows: readonly Row[];
}

/** A column for each field. */
export function Table({ label, rows }: TableProps): JSX.Element {
  const t = texts.value;
  const fields = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const columns = fields.map((field) => ({
    title: (t.fields as Readonly<Record<string, string>>)[field] ?? heading(field),
    isNumber: rows.some((row) => typeof row[field] === "number"),
  }));
  return <Grid label={label} columns={columns} rows={rows.map((row, key) => ({ key, cells: fields.map((field) => shown(field, row[field])) }))} />;
}

const OUTCOMES = 200;

/** Items and what became of each. */
export function Outcomes({ items, outcomes }: { readonly items: readonly string[]; readonly outcomes: readonly unknown[] }) {
  const t = texts.value.items;
  const rows = items.slice(0, OUTCOMES).map((item, index) => ({ item, outcome: outcomes[index] }));
  const more = items.length - rows.length;
  return (
    <>
      <Table label={t.outcomes} rows={rows} />
      {more > 0 && <p class="hint">{t.more(more)}</p>}
    </>
  );
}
