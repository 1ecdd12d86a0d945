/** The machines that serve one state: who they are, how far each lags behind, and whether they agree. */

import type { JSX } from "preact";
import type { Row } from "../api/types.ts";
import { heading } from "../format.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Facts, Panel, Refusal } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { shown, Table } from "../parts/table.tsx";

const CALL = { method: "GET", path: "v1/cluster" } as const;
const EVERY_SECONDS = 5;

function isRow(value: unknown): value is Row {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An answer as it comes: its figures one by one, its lists as tables. */
function Whole({ of }: { readonly of: Row }): JSX.Element {
  const fields = Object.entries(of).flatMap(([field, value]) =>
    isRow(value) ? Object.entries(value).map(([part, inner]) => [`${field} ${part}`, inner] as const) : [[field, value] as const],
  );
  const isList = (value: unknown): value is readonly Row[] => Array.isArray(value) && value.every(isRow);
  return (
    <>
      <Facts of={fields.filter(([, value]) => !isList(value)).map(([field, value]) => [heading(field), shown(field, value)])} />
      {fields.map(([field, value]) => isList(value) && value.length > 0 && <Table key={field} label={heading(field)} rows={value} />)}
    </>
  );
}

export function Cluster(): JSX.Element {
  const { value, error } = useResource<Row>(CALL, EVERY_SECONDS);
  return (
    <Panel title="Machines" wide aside={<CurlButton call={() => CALL} />}>
      {error !== undefined && <Refusal error={error} />}
      {value !== undefined && <Whole of={value} />}
    </Panel>
  );
}
