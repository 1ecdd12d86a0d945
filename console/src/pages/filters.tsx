/** All campaigns, or all coupons, in a table that sorts and searches. A page of it is drawn at a time. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Problem } from "../api/client.ts";
import { on } from "../api/document.ts";
import type { Filter, Kind } from "../api/types.ts";
import { short } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { LabelList, PhaseTag, Stock, Window } from "../parts/filter.tsx";
import { Pager } from "../parts/pager.tsx";
import { Empty, Refusal, Text } from "../parts/panel.tsx";
import { Grid } from "../parts/table.tsx";
import { arranged, lists, load, takenOf, usesOf, type Order, type SortKey } from "../state/filters.ts";
import { allowed } from "../state/session.ts";

const ROWS = 100;
/** More than this are read again only when the reader says so. */
const RELOADED_MAX = 1_000;
const EVERY_MILLISECONDS = 10_000;

const COLUMNS: Readonly<Record<Kind, readonly SortKey[]>> = {
  campaigns: ["title", "state", "ends", "items"],
  coupons: ["title", "state", "ends", "available", "held", "redeemed"],
};

const NUMBERS: readonly SortKey[] = ["items", "held", "redeemed"];

export function Filters({ kind }: { readonly kind: Kind }): JSX.Element {
  const t = texts.value;
  const [search, setSearch] = useState("");
  const [order, setOrder] = useState<Order>({ column: "title", isDescending: false });
  const [asked, setPage] = useState(0);
  const list = lists[kind];
  useEffect(() => {
    void load(kind);
    const timer = setInterval(() => list.value.filters.length <= RELOADED_MAX && void load(kind), EVERY_MILLISECONDS);
    return () => clearInterval(timer);
  }, [kind]);
  const { filters: all, state } = list.value;
  const rows = useMemo(() => arranged(all, search, order, t.phases), [all, search, order, t]);
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  const page = Math.min(asked, pages - 1);
  const find = (text: string) => {
    setSearch(text);
    setPage(0);
  };
  const sort = (column: SortKey) => {
    const isSame = order.column === column;
    // Of numbers the largest are looked for, of names the first.
    setOrder({ column, isDescending: isSame ? !order.isDescending : [...NUMBERS, "available"].includes(column) });
  };
  const cell = (column: SortKey, filter: Filter): ComponentChildren => {
    switch (column) {
      case "title":
        return (
          <>
            <a href={`#/${kind}/${filter.name}`}>{filter.title ?? filter.name}</a>
            {filter.title !== undefined && <small>{filter.name}</small>}
            <LabelList labels={filter.labels} pick={find} />
          </>
        );
      case "state":
        return <PhaseTag filter={filter} />;
      case "ends":
        return <Window filter={filter} />;
      case "items":
        return short(filter.stats.items);
      case "available": {
        const { left, isAtLeast } = usesOf(filter);
        return (
          <>
            {isAtLeast && "≥ "}
            {short(left)} <Stock filter={filter} />
          </>
        );
      }
      case "held":
      case "redeemed":
        return filter.stats[column] === undefined ? "–" : short(takenOf(filter)[column]);
    }
  };
  const columns = COLUMNS[kind].map((column) => ({
    title: t.filters.columns[column],
    isNumber: NUMBERS.includes(column),
    sort: () => sort(column),
    ...(order.column === column ? { sorted: order.isDescending ? ("descending" as const) : ("ascending" as const) } : {}),
  }));
  const create = allowed(on(kind, "PUT")) && (
    <a class="button primary" href={kind === "campaigns" ? "#/new-campaign" : "#/new-coupon"}>
      {t.filters.create[kind]}
    </a>
  );
  if (all.length === 0) {
    return (
      <>
        {state instanceof Problem && <Refusal error={state} />}
        {state === "read" ? (
          <Empty text={t.filters.none[kind]}>{create || <p class="hint">{t.filters.noneAsk}</p>}</Empty>
        ) : (
          !(state instanceof Problem) && <p class="lead">{t.reading}</p>
        )}
      </>
    );
  }
  return (
    <>
      <div class="tools">
        <Text label={t.search} type="search" value={search} placeholder={t.filters.searchHint} change={find} />
        <span role="status" class="hint">
          {search === "" ? t.filters.total[kind](all.length) : t.filters.found(rows.length, all.length)}
        </span>
        {all.length > RELOADED_MAX && (
          <button type="button" onClick={() => void load(kind)} disabled={state === "reading"}>
            {t.refresh}
          </button>
        )}
        {create}
      </div>
      {state instanceof Problem && <Refusal error={state} />}
      {rows.length === 0 ? (
        <Empty text={t.noMatch} />
      ) : (
        <Grid
          label={t.nav[kind]}
          columns={columns}
          rows={rows.slice(page * ROWS, (page + 1) * ROWS).map((filter) => ({ key: filter.name, cells: COLUMNS[kind].map((column) => cell(column, filter)) }))}
        />
      )}
      <Pager page={page} pages={pages} hasNext={page + 1 < pages} change={setPage} />
    </>
  );
}
