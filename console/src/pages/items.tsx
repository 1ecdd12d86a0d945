/** Tries, counts, looks up, adds and removes items of one filter. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { on } from "../api/document.ts";
import { NOUN, type Filter, type Kind, type Redemption } from "../api/types.ts";
import { count, moment } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { Check, Choice, itemsOf, Lines, Panel } from "../parts/panel.tsx";
import { Outcomes, Table } from "../parts/table.tsx";
import { allowed } from "../state/session.ts";

type Act = "check" | "count" | "lookup" | "add" | "remove";

interface Answer {
  readonly present?: readonly boolean[];
  readonly valid?: readonly boolean[];
  readonly counts?: readonly number[];
  readonly outcomes?: readonly string[];
  readonly codes?: readonly { readonly status: string; readonly redemption?: Redemption }[];
}

interface Options {
  readonly ifAbsent: boolean;
  readonly isAll: boolean;
  readonly revives: boolean;
}

interface ItemsProps {
  readonly kind: Kind;
  readonly filter: Filter;
  readonly changed: () => void;
}

/** What can be done with items of this filter, with what the caller may do. */
function acts(kind: Kind, filter: Filter): (readonly [Act, string])[] {
  const path = `/${NOUN[kind].items}`;
  const isPool = filter.stock !== undefined;
  const found: [Act, string, boolean][] = [
    ["check", "Try", allowed(on(kind, "POST", `${path}/check`))],
    ["count", "Count", allowed(on(kind, "POST", `${path}/count`))],
    ["lookup", "Look up", kind === "coupons" && filter.mode === "strict" && allowed(on(kind, "POST", `${path}/lookup`))],
    ["add", "Add", !isPool && allowed(on(kind, "POST", path))],
    ["remove", "Remove", !isPool && allowed(on(kind, "POST", `${path}/remove`))],
  ];
  return found.filter(([, , isShown]) => isShown).map(([act, text]) => [act, text]);
}

function callOf(act: Act, { kind, filter }: ItemsProps, items: readonly string[], options: Options): Call {
  const noun = NOUN[kind].items;
  const path = `v1/${kind}/${filter.name}/${noun}`;
  const extra = {
    if_absent: act === "add" && kind === "campaigns" && options.ifAbsent ? true : undefined,
    revive: act === "add" && kind === "coupons" && options.revives ? true : undefined,
    all: act === "remove" && kind === "campaigns" && options.isAll ? true : undefined,
  };
  return { method: "POST", path: act === "add" ? path : `${path}/${act}`, body: { [noun]: items, ...extra } };
}

function Shown({ act, items, answer }: { act: Act; items: readonly string[]; answer: Answer }): JSX.Element {
  if (answer.codes !== undefined) {
    const rows = answer.codes.map(({ status, redemption }, index) => ({
      code: items[index],
      status,
      reference: redemption?.reference,
      until: redemption?.status === "held" ? redemption.expires_at : undefined,
      redeemed: redemption?.redeemed_at,
      id: redemption?.id,
    }));
    return <Table label="Codes" rows={rows} />;
  }
  const no = answer.valid === undefined ? "no" : "not valid";
  const yes = answer.valid === undefined ? "yes" : "valid";
  const told = (answer.present ?? answer.valid)?.map((is) => (is ? yes : no));
  const outcomes = told ?? answer.counts ?? answer.outcomes?.map((outcome) => outcome.replaceAll("_", " ")) ?? [];
  return (
    <>
      <p class="hint">
        {act === "check" ? "Tried" : act === "count" ? "Counted" : act === "add" ? "Added" : "Removed"} at{" "}
        {moment(new Date().toISOString())}
      </p>
      <Outcomes items={items} outcomes={outcomes} />
    </>
  );
}

export function Items(props: ItemsProps): JSX.Element | null {
  const { kind, filter, changed } = props;
  const [asked, setAct] = useState<Act>("check");
  const [text, setText] = useState("");
  const [options, setOptions] = useState<Options>({ ifAbsent: false, isAll: false, revives: false });
  const [sent, setSent] = useState<{ act: Act; items: readonly string[] }>({ act: "check", items: [] });
  const possible = acts(kind, filter);
  const act = possible.some(([name]) => name === asked) ? asked : possible[0]?.[0];
  if (act === undefined) {
    return null;
  }
  const { one, items: noun } = NOUN[kind];
  const items = itemsOf(text);
  const change = (part: Partial<Options>) => setOptions((before) => ({ ...before, ...part }));
  const isCompact = filter.mode === "compact";
  let option: ComponentChildren = null;
  if (act === "add" && kind === "campaigns" && isCompact) {
    option = <Check label="Only if absent" checked={options.ifAbsent} change={(ifAbsent) => change({ ifAbsent })} />;
  } else if (act === "add" && kind === "coupons" && !isCompact && allowed(on(kind, "DELETE"))) {
    option = <Check label="Bring redeemed codes back" checked={options.revives} change={(revives) => change({ revives })} />;
  } else if (act === "remove" && kind === "campaigns" && isCompact) {
    option = <Check label="Every copy" checked={options.isAll} change={(isAll) => change({ isAll })} />;
  }
  const label = possible.find(([name]) => name === act)?.[1] ?? "";
  return (
    <Panel title={noun.charAt(0).toUpperCase() + noun.slice(1)}>
      <Action<Answer>
        label={label}
        tone={act === "remove" ? "danger" : "primary"}
        call={() => (items.length === 0 ? undefined : callOf(act, props, items, options))}
        done={() => {
          setSent({ act, items });
          changed();
        }}
        answer={(answer) => <Shown {...sent} answer={answer} />}
      >
        <Choice label="What to do" value={act} options={possible} change={setAct} />
        <Lines
          label={`${noun.charAt(0).toUpperCase() + noun.slice(1)}, one a line`}
          value={text}
          change={setText}
          {...(items.length > 10_000 ? { hint: `${count(items.length)} are too many at once: import them as a file` } : {})}
        />
        {option}
        {act === "remove" && isCompact && (
          <p class="hint">Remove only what was added to this {one}: another item may look like one that never was.</p>
        )}
      </Action>
    </Panel>
  );
}
