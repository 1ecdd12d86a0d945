/** The machines that serve one state: who they are, how far each is behind, and how the log between them does. */

import type { JSX } from "preact";
import type { Row } from "../api/types.ts";
import { away, heading } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { Facts, Panel, Refusal } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { shown, Table } from "../parts/table.tsx";

const CALL = { method: "GET", path: "v1/cluster" } as const;
const EVERY_SECONDS = 5;

function isRow(value: unknown): value is Row {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Another node: how far it is behind this one, and how long it has been silent. */
function seen(node: Row, position: unknown): Row {
  const { heard_at, ...rest } = node;
  const behind = typeof position === "number" && typeof node["position"] === "number" ? Math.max(0, position - node["position"]) : undefined;
  return { ...rest, ...(behind === undefined ? {} : { behind }), ...(typeof heard_at === "string" ? { heard: away(heard_at) } : {}) };
}

/** An answer as it comes: its figures one by one, its lists as tables. */
function Whole({ of }: { readonly of: Row }): JSX.Element {
  const { log, nodes, ...rest } = of;
  const { node, ...figures } = isRow(log) ? log : {};
  const t = texts.value.cluster;
  const title = (field: string) => (texts.value.fields as Readonly<Record<string, string>>)[field] ?? heading(field);
  const facts = [...Object.entries(rest), ...Object.entries(figures).map(([field, value]) => [`log_${field}`, value] as const)];
  const others = Array.isArray(nodes) ? nodes.filter(isRow).map((other) => seen(other, of["position"])) : [];
  return (
    <>
      <Facts of={[[t.thisNode, node === undefined ? undefined : shown("node", node)], ...facts.map(([field, value]) => [title(field), shown(field, value)] as const)]} />
      {others.length > 0 && <Table label={t.others} rows={others} />}
    </>
  );
}

export function Cluster(): JSX.Element | null {
  const { value, error } = useResource<Row>(CALL, EVERY_SECONDS);
  // A service on its own has no others.
  if (error === undefined && (value === undefined || value["journal"] === "local")) {
    return null;
  }
  return (
    <Panel title={texts.value.cluster.title} wide>
      {error !== undefined && <Refusal error={error} />}
      {value !== undefined && <Whole of={value} />}
    </Panel>
  );
}
