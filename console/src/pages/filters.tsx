/** All campaigns and coupons in one table that sorts and searches. A page of it is drawn at a time. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Problem } from "../api/client.ts";
import { NOUN } from "../api/types.ts";
import { bytes, count, percent, short } from "../format.ts";
import { Bar, Refusal, Tag, Text } from "../parts/panel.tsx";
import { arranged, fill, filters, load, loading, type Column, type Listed, type Order } from "../state/filters.ts";
import { allowed } from "../state/session.ts";

const ROWS = 100;
/** More filters than this are read again only when the reader says so. */
const RELOADED_MAX = 1_000;
const EVERY_MILLISECONDS = 10_000;

const COLUMNS: readonly (readonly [Column, string])[] = [
  ["name", "Name"],
  ["kind", "Kind"],
  ["mode", "Mode"],
  ["items", "Items"],
  ["fill", "Of capacity"],
  ["error", "Error rate"],
  ["memory", "Memory"],
  ["growth", "Growth"],
];

const NUMBERS: readonly Column[] = ["items", "memory"];

function Head({ order, change }: { readonly order: Order; readonly change: (order: Order) => void }): JSX.Element {
  const sort = (column: Column) => {
    const isSame = order.column === column;
    // Of figures the largest are looked for, of names the first.
    change({ column, isDescending: isSame ? !order.isDescending : ["items", "fill", "error", "memory"].includes(column) });
  };
  return (
    <thead>
      <tr>
        {COLUMNS.map(([column, text]) => {
          const direction = order.isDescending ? "descending" : "ascending";
          const isSorted = order.column === column;
          return (
            <th
              key={column}
              scope="col"
              class={NUMBERS.includes(column) ? "number" : undefined}
              aria-sort={isSorted ? direction : undefined}
            >
              <button type="button" onClick={() => sort(column)}>
                {text}
                <span aria-hidden="true">{isSorted ? (order.isDescending ? " ↓" : " ↑") : ""}</span>
              </button>
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

function FilterRow({ kind, filter }: Listed): JSX.Element {
  const { stats } = filter;
  const share = fill(filter);
  const isOver = filter.error_rate !== undefined && stats.error_rate_now > filter.error_rate;
  return (
    <tr>
      <td data-label="Name">
        <a href={`#/${kind}/${filter.name}`}>{filter.name}</a>
      </td>
      <td data-label="Kind" class="trait">{NOUN[kind].one}</td>
      <td data-label="Mode" class="trait">{filter.mode}</td>
      <td data-label="Items" class="number">
        {short(stats.items)}
      </td>
      <td data-label="Of capacity">
        <Bar
          share={share}
          label={`${percent(share)} of ${count(stats.capacity_now)}`}
          {...(filter.growth === "fixed" ? { warnFrom: 0.9 } : {})}
        />
        <span class="beside">
          {percent(share)} of {short(stats.capacity_now)}
        </span>
      </td>
      <td data-label="Error rate">
        {isOver ? <Tag tone="bad">{percent(stats.error_rate_now)}</Tag> : percent(stats.error_rate_now)}
        {filter.error_rate !== undefined && <span class="beside"> of {percent(filter.error_rate)}</span>}
      </td>
      <td data-label="Memory" class="number">
        {bytes(stats.memory_bytes)}
      </td>
      <td data-label="Growth" class="trait">
        {filter.growth}
        {stats.segments.length > 1 && <span class="beside"> {stats.segments.length} segments</span>}
      </td>
    </tr>
  );
}

function Pages({ page, pages, change }: { page: number; pages: number; change: (page: number) => void }): JSX.Element {
  return (
    <nav class="pages" aria-label="Pages of the table">
      <button type="button" class="plain" disabled={page === 0} onClick={() => change(page - 1)}>
        ← Previous
      </button>
      <span>
        Page {count(page + 1)} of {count(pages)}
      </span>
      <button type="button" class="plain" disabled={page + 1 >= pages} onClick={() => change(page + 1)}>
        Next →
      </button>
    </nav>
  );
}

export function Filters(): JSX.Element {
  const [search, setSearch] = useState("");
  const [order, setOrder] = useState<Order>({ column: "name", isDescending: false });
  const [asked, setPage] = useState(0);
  useEffect(() => {
    void load();
    const timer = setInterval(() => filters.value.length <= RELOADED_MAX && void load(), EVERY_MILLISECONDS);
    return () => clearInterval(timer);
  }, []);
  const all = filters.value;
  const rows = useMemo(() => arranged(all, search, order), [all, search, order]);
  const pages = Math.max(1, Math.ceil(rows.length / ROWS));
  const page = Math.min(asked, pages - 1);
  const state = loading.value;
  const isFirst = state === "running" && all.length === 0;
  return (
    <>
      <div class="tools">
        <Text
          label="Search"
          type="search"
          value={search}
          placeholder="a part of a name, coupon, strict …"
          change={(text) => {
            setSearch(text);
            setPage(0);
          }}
        />
        <span role="status" class="hint">
          {isFirst ? "Reading…" : search === "" ? `${count(all.length)} filters` : `${count(rows.length)} of ${count(all.length)}`}
        </span>
        <button type="button" class="plain" onClick={() => void load()} disabled={state === "running"}>
          Read again
        </button>
        {allowed("PUT /v1/campaigns/{campaign}") && (
          <a class="button primary" href="#/new">
            New campaign or coupon
          </a>
        )}
      </div>
      {state instanceof Problem && <Refusal error={state} />}
      {all.length === 0 && state === "idle" ? (
        <p class="lead">There are no campaigns or coupons yet.</p>
      ) : (
        <div class="scroll" role="region" aria-label="Campaigns and coupons" tabIndex={0}>
          <table class="cards sorts">
            <Head order={order} change={setOrder} />
            <tbody>
              {rows.slice(page * ROWS, (page + 1) * ROWS).map((row) => (
                <FilterRow key={`${row.kind}/${row.filter.name}`} {...row} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {pages > 1 && <Pages page={page} pages={pages} change={setPage} />}
    </>
  );
}
