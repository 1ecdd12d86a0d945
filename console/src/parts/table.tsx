/** Tables of whatever the service answers: a column for each field. */

import type { ComponentChildren, JSX } from "preact";
import type { Row } from "../api/types.ts";
import { bytes, count, heading, moment, percent } from "../format.ts";

const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+Z$/;

export function shown(field: string, value: unknown): ComponentChildren {
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
    return value ? "yes" : "no";
  }
  if (typeof value === "string") {
    return TIME.test(value) ? <time dateTime={value} title={value}>{moment(value)}</time> : value;
  }
  return JSON.stringify(value);
}

interface TableProps {
  readonly label: string;
  readonly rows: readonly Row[];
  /** The fields to show and their order; all of them by default. */
  readonly fields?: readonly string[];
}

export function Table({ label, rows, fields }: TableProps): JSX.Element {
  const columns = fields ?? [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const isNumber = (field: string) => rows.some((row) => typeof row[field] === "number");
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {columns.map((field) => (
              <th key={field} scope="col" class={isNumber(field) ? "number" : undefined}>
                {heading(field)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {columns.map((field) => (
                <td key={field} class={isNumber(field) ? "number" : undefined}>
                  {shown(field, row[field])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Items and what became of each. */
export function Outcomes({ items, outcomes }: { readonly items: readonly string[]; readonly outcomes: readonly unknown[] }) {
  const most = 200;
  const rows = items.slice(0, most).map((item, index) => ({ item, outcome: outcomes[index] }));
  const more = items.length - rows.length;
  return (
    <>
      <Table label="Outcomes" rows={rows} />
      {more > 0 && <p class="hint">and {count(more)} more</p>}
    </>
  );
}
