/** Generates random codes, which are added to a coupon and saved as a file. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { blob } from "../api/client.ts";
import { isFormula } from "../api/csv.ts";
import { count } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { save } from "../parts/download.tsx";
import { Panel, Refusal, Text } from "../parts/panel.tsx";
import { COUNT_MAX, mayChange, patternFor, placesNeeded } from "../state/pattern.ts";
import { allowed } from "../state/session.ts";
import { isUnknown, newKey } from "../state/writes.ts";
import type { PartProps } from "./filter.tsx";

/** The same request under the same key gets the same codes: a download that broke off is repeated. */
interface Made {
  readonly key: string;
  readonly count: number;
  readonly pattern: string;
}

export function Generate({ filter, changed }: PartProps): JSX.Element | null {
  const t = texts.value.generate;
  const [amount, setAmount] = useState("1000");
  const [pattern, setPattern] = useState(patternFor(filter.name));
  const [made, setMade] = useState<Made | undefined>(undefined);
  const [state, setState] = useState<{ error: unknown } | "running" | "done" | undefined>(undefined);
  if (!allowed("POST /v1/coupons/{coupon}/codes/generate")) {
    return null;
  }
  const codes = Number(amount);
  const isSized = Number.isInteger(codes) && codes >= 1 && codes <= COUNT_MAX;
  const places = pattern.split("#").length - 1;
  const needed = placesNeeded(codes + (filter.stats.available ?? filter.stats.items) + (filter.stats.held ?? 0));
  const isShort = isSized && places < needed;
  const shortFault = isShort ? t.patternFault(needed, places) : undefined;
  const patternFault = isFormula(pattern) ? t.patternFormula : mayChange(pattern) ? t.patternNumber : shortFault;
  const run = async (wanted: Made) => {
    setState("running");
    setMade(wanted);
    try {
      const content = await blob({
        method: "POST",
        path: `v1/coupons/${filter.name}/codes/generate`,
        headers: { Accept: "text/csv" },
        key: wanted.key,
        body: { count: wanted.count, pattern: wanted.pattern },
      });
      save(content, `${filter.name}-codes.csv`);
      setState("done");
    } catch (error) {
      setState({ error });
    }
    changed();
  };
  const submit = (event: Event) => {
    event.preventDefault();
    const isAgain = typeof state === "object" && isUnknown(state.error) && made?.count === codes && made.pattern === pattern;
    void run(isAgain ? made : { key: newKey(), count: codes, pattern });
  };
  const isBusy = state === "running";
  return (
    <Panel title={t.title}>
      <form class="action" onSubmit={submit}>
        <p class="hint">{t.hint}</p>
        <div class="fields">
          <Text label={t.count} type="number" min={1} max={COUNT_MAX} value={amount} change={setAmount} fault={isSized ? undefined : t.countFault(count(COUNT_MAX))} />
          <Text
            label={t.pattern}
            value={pattern}
            change={setPattern}
            hint={t.patternHint}
            fault={patternFault}
          />
        </div>
        <div class="buttons">
          <button class="primary" disabled={isBusy || !isSized || patternFault !== undefined}>
            {t.run}
          </button>
          {made !== undefined && !isBusy && (
            <button type="button" onClick={() => void run(made)}>
              {t.again}
            </button>
          )}
        </div>
        <div class="outcome" aria-live="polite">
          {isBusy && <p class="hint">{t.running}</p>}
          {state === "done" && made !== undefined && <p class="notice good">{t.done(count(made.count))}</p>}
          {typeof state === "object" && <Refusal error={state.error} />}
        </div>
      </form>
    </Panel>
  );
}
