/** What a help desk sees of codes with several uses, and of customers: how many uses are taken, and by which redemptions. */

import type { ComponentChildren, JSX } from "preact";
import type { CodeLookup, CustomerLookup, Filter, Redemption } from "../api/types.ts";
import { texts } from "../i18n/texts.ts";
import { StatusTag } from "../parts/filter.tsx";
import { Time } from "../parts/panel.tsx";
import { Grid } from "../parts/table.tsx";

/** The redemptions that take uses, and how many uses are taken besides. */
function Taken({ taken, redemptions }: { readonly taken: number; readonly redemptions: readonly Redemption[] }): JSX.Element {
  const t = texts.value;
  const unlisted = Math.max(0, taken - redemptions.length);
  return (
    <>
      {redemptions.length > 0 && (
        <ul class="uses">
          {redemptions.map(({ id, status, reference, redeemed_at, created_at, ordinal }) => (
            <li key={id}>
              {reference} <StatusTag status={status} /> <Time at={redeemed_at ?? created_at} />
              {ordinal !== undefined && <small>{t.redemptions.ordinal(ordinal)}</small>}
            </li>
          ))}
        </ul>
      )}
      {unlisted > 0 && <small>{t.items.unlisted(unlisted)}</small>}
      {taken === 0 && redemptions.length === 0 && "–"}
    </>
  );
}

interface LookupsProps<T> {
  readonly filter: Filter;
  readonly items: readonly string[];
  readonly found: readonly T[];
}

export function Codes({ filter, items, found }: LookupsProps<CodeLookup>): JSX.Element {
  const t = texts.value;
  const most = filter.uses ?? 1;
  const rows = found.map(({ status, uses = { taken: 0, held: 0 }, redemptions = [] }, index): { key: number; cells: ComponentChildren[] } => ({
    key: index,
    cells: [
      items[index],
      t.outcomes[status],
      status === "absent" && uses.taken === 0 ? (
        "–"
      ) : (
        <>
          {t.items.takenOf(uses.taken, most)}
          {uses.held > 0 && <small>{t.items.heldOf(uses.held)}</small>}
        </>
      ),
      <Taken taken={uses.taken} redemptions={redemptions} />,
    ],
  }));
  return <Grid label={t.items.outcomes} columns={[{ title: t.items.code }, { title: t.fields.status }, { title: t.items.uses }, { title: t.items.redemptions }]} rows={rows} />;
}

export function Customers({ filter, items, found }: LookupsProps<CustomerLookup>): JSX.Element {
  const t = texts.value;
  const most = filter.per_customer;
  const rows = found.map(({ taken, redemptions }, index) => ({
    key: index,
    cells: [items[index], most === undefined ? t.items.taken(taken) : t.items.takenOf(taken, most), <Taken taken={taken} redemptions={redemptions} />],
  }));
  return <Grid label={t.items.outcomes} columns={[{ title: t.items.customer }, { title: t.items.uses }, { title: t.items.redemptions }]} rows={rows} />;
}
