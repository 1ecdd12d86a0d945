/** Tries, looks up, adds and removes single users or codes. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { on } from "../api/document.ts";
import { NOUN, type CodeLookup, type CustomerLookup, type Filter, type Kind } from "../api/types.ts";
import { count } from "../format.ts";
import { named, texts } from "../i18n/texts.ts";
import { Action } from "../parts/action.tsx";
import { Check, Choice, itemsOf, Lines, Panel, Time } from "../parts/panel.tsx";
import { Outcomes, Table } from "../parts/table.tsx";
import { fullName, hasUses } from "../state/filters.ts";
import { allowed } from "../state/session.ts";
import type { PartProps } from "./filter.tsx";
import { Codes, Customers } from "./lookups.tsx";

type Act = "check" | "count" | "lookup" | "customers" | "add" | "remove";

/** The most that one request takes, and one that looks up several uses. */
const ITEMS_MAX = 10_000;
const LOOKUPS_MAX = 1_000;

interface Answer {
  readonly present?: readonly boolean[];
  readonly valid?: readonly boolean[];
  readonly counts?: readonly number[];
  readonly outcomes?: readonly string[];
  readonly codes?: readonly CodeLookup[];
  readonly customers?: readonly CustomerLookup[];
}

interface Options {
  readonly ifAbsent: boolean;
  readonly isAll: boolean;
  readonly revives: boolean;
}

/** What can be done with items of this filter, with what the caller may do. */
function acts(kind: Kind, filter: Filter): Act[] {
  const path = `/${NOUN[kind].items}`;
  const isPool = filter.stock !== undefined;
  const found: [Act, boolean][] = [
    ["check", allowed(on(kind, "POST", `${path}/check`))],
    // Copies are counted where there can be several: impressions, say.
    ["count", kind === "campaigns" && filter.mode === "compact" && allowed(on(kind, "POST", `${path}/count`))],
    ["lookup", kind === "coupons" && filter.mode === "strict" && allowed(on(kind, "POST", `${path}/lookup`))],
    ["customers", kind === "coupons" && filter.mode === "strict" && allowed("POST /v1/coupons/{coupon}/customers/lookup")],
    ["add", !isPool && allowed(on(kind, "POST", path))],
    ["remove", !isPool && allowed(on(kind, "POST", `${path}/remove`))],
  ];
  return found.filter(([, isShown]) => isShown).map(([act]) => act);
}

function callOf(act: Act, kind: Kind, filter: Filter, items: readonly string[], options: Options): Call {
  const noun = NOUN[kind].items;
  if (act === "customers") {
    return { method: "POST", path: `v1/${kind}/${filter.name}/customers/lookup`, body: { customers: items } };
  }
  const path = `v1/${kind}/${filter.name}/${noun}`;
  const extra = {
    if_absent: act === "add" && kind === "campaigns" && options.ifAbsent ? true : undefined,
    revive: act === "add" && kind === "coupons" && options.revives ? true : undefined,
    all: act === "remove" && kind === "campaigns" && options.isAll ? true : undefined,
  };
  return { method: "POST", path: act === "add" ? path : `${path}/${act}`, body: { [noun]: items, ...extra } };
}

/** How many lines one request takes. */
function mostOf(act: Act, filter: Filter): number {
  return act === "customers" || (act === "lookup" && hasUses(filter)) ? LOOKUPS_MAX : ITEMS_MAX;
}

/** The name of an act in the texts: users are removed, but codes withdrawn. */
function wordOf(act: Act, kind: Kind): Act | "withdraw" {
  return act === "remove" && kind === "coupons" ? "withdraw" : act;
}

function outcomeOf(outcome: string, kind: Kind): string {
  return named(texts.value.outcomes, outcome === "removed" && kind === "coupons" ? "withdrawn" : outcome);
}

function Shown({ kind, filter, act, items, answer }: { kind: Kind; filter: Filter; act: Act; items: readonly string[]; answer: Answer }): JSX.Element {
  const t = texts.value;
  if (answer.customers !== undefined) {
    return <Customers filter={filter} items={items} found={answer.customers} />;
  }
  if (answer.codes !== undefined && hasUses(filter)) {
    return <Codes filter={filter} items={items} found={answer.codes} />;
  }
  if (answer.codes !== undefined) {
    const rows = answer.codes.map(({ status, redemption }, index) => ({
      item: items[index],
      status,
      reference: redemption?.reference,
      until: redemption?.status === "held" ? redemption.expires_at : undefined,
      redeemed_at: redemption?.redeemed_at,
    }));
    return <Table label={t.items.outcomes} rows={rows} />;
  }
  const told =
    answer.present?.map((is) => (is ? t.items.present : t.items.absent)) ?? answer.valid?.map((is) => (is ? t.items.valid : t.items.invalid));
  const outcomes = told ?? answer.counts ?? answer.outcomes?.map((outcome) => outcomeOf(outcome, kind)) ?? [];
  return (
    <>
      <p class="hint">
        {t.items.done[wordOf(act, kind)]} <Time at={new Date().toISOString()} />
      </p>
      <Outcomes items={items} outcomes={outcomes} />
    </>
  );
}

export function Items({ kind, filter, changed }: PartProps): JSX.Element | null {
  const t = texts.value.items;
  const [asked, setAct] = useState<Act>("check");
  const [text, setText] = useState("");
  const [options, setOptions] = useState<Options>({ ifAbsent: false, isAll: false, revives: false });
  const [sent, setSent] = useState<{ act: Act; items: readonly string[] }>({ act: "check", items: [] });
  const possible = acts(kind, filter);
  const act = possible.includes(asked) ? asked : possible[0];
  if (act === undefined) {
    return null;
  }
  const items = itemsOf(text);
  const most = mostOf(act, filter);
  const change = (part: Partial<Options>) => setOptions((before) => ({ ...before, ...part }));
  const isCompact = filter.mode === "compact";
  let option: ComponentChildren = null;
  if (act === "add" && kind === "campaigns" && isCompact) {
    option = <Check label={t.ifAbsent} checked={options.ifAbsent} change={(ifAbsent) => change({ ifAbsent })} />;
  } else if (act === "add" && kind === "coupons" && !isCompact && !hasUses(filter) && allowed(on(kind, "DELETE"))) {
    option = <Check label={t.revive} checked={options.revives} change={(revives) => change({ revives })} />;
  } else if (act === "remove" && kind === "campaigns" && isCompact) {
    option = <Check label={t.all} checked={options.isAll} change={(isAll) => change({ isAll })} />;
  }
  const tooMany = most < ITEMS_MAX ? t.tooManyLookups(count(items.length), count(most)) : t.tooMany(count(items.length));
  const hint = items.length > most ? tooMany : act === "customers" ? t.customersHint : undefined;
  const name = fullName(filter);
  const question = () => {
    const one = items.length === 1 ? items[0] : undefined;
    if (act === "remove") {
      return { title: t.removeTitle[kind](one, items.length), text: hasUses(filter) ? t.removeTextUses(name) : t.removeText[kind](name) };
    }
    return act === "add" && kind === "coupons" && options.revives ? { title: t.reviveTitle(one, items.length), text: t.reviveText(name) } : undefined;
  };
  return (
    <Panel title={t.titles[kind]}>
      <Action<Answer>
        label={t.acts[wordOf(act, kind)]}
        tone={act === "remove" ? "danger" : "primary"}
        call={() => (items.length === 0 || items.length > most ? undefined : callOf(act, kind, filter, items, options))}
        question={question}
        done={() => {
          setSent({ act, items });
          changed();
        }}
        answer={(answer) => <Shown kind={kind} filter={filter} {...sent} answer={answer} />}
      >
        <Choice label={t.act} value={act} options={possible.map((name) => [name, t.acts[wordOf(name, kind)]] as const)} change={setAct} />
        <Lines label={act === "customers" ? t.customers : t.lines[kind]} value={text} change={setText} hint={hint} />
        {option}
        {act === "remove" && isCompact && <p class="hint">{t.removeHint}</p>}
      </Action>
    </Panel>
  );
}
