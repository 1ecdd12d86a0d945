/** Makes a campaign or a coupon. How it is stored, and what that costs, is under "Technical". */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import type { Filter, Kind } from "../api/types.ts";
import { bytes, count, percent, span, zone } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { Action } from "../parts/action.tsx";
import { toUtc } from "../parts/local_time.ts";
import { LabelsField, named, namedNew, NamingFields, UNNAMED, type Naming } from "../parts/naming.tsx";
import { Choice, Facts, Panel, Refusal, Technical, Text } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { go } from "../route.ts";
import { fullName } from "../state/filters.ts";
import { labelRows } from "../state/naming.ts";
import { accepts, allowed } from "../state/session.ts";
import { isCount, limitsOf, spellingOf, spellingsFor, termsOf, USES_MAX, type Terms } from "../state/terms.ts";

interface Plan {
  readonly memory_bytes: number;
  readonly bits_per_item: number;
  readonly error_rate_at_capacity: number;
  readonly disk_bytes: number;
  readonly replacement_peak_bytes: number;
  readonly startup_seconds: number;
}

interface Form {
  readonly naming: Naming;
  readonly isTaken: boolean;
  /** Whether uses are counted rather than codes added. */
  readonly isPool: boolean;
  readonly size: string;
  readonly startsAt: string;
  readonly endsAt: string;
  readonly terms: Terms;
  readonly forgetDays: string;
  readonly mode: "compact" | "strict";
  readonly errorRate: string;
  readonly growth: "auto" | "fixed";
}

function Cost({ form }: { readonly form: Form }): JSX.Element | null {
  const t = texts.value.cost;
  const { size, mode, growth, errorRate } = form;
  const query = { capacity: size, mode, growth, error_rate: mode === "compact" ? errorRate : undefined };
  const call: Call | undefined = Number(size) >= 1 && allowed("GET /v1/plan") ? { method: "GET", path: "v1/plan", query } : undefined;
  const plan = useResource<Plan>(call).value;
  if (plan === undefined) {
    return null;
  }
  return (
    <Facts
      of={[
        [t.memory, bytes(plan.memory_bytes)],
        [t.item, t.bits(plan.bits_per_item.toFixed(1))],
        [t.errorRate, percent(plan.error_rate_at_capacity)],
        [t.replacing, bytes(plan.replacement_peak_bytes)],
        [t.disk, bytes(plan.disk_bytes)],
        [t.startup, plan.startup_seconds < 1 ? `< ${span(1)}` : span(plan.startup_seconds)],
      ]}
    />
  );
}

const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400 } as const;

/** A time of the API, `36h`, in days. */
function daysOf(time: string | undefined): string {
  const [, amount, unit] = /^(\d+)([smhd])$/.exec(time ?? "") ?? [];
  return amount === undefined ? "" : String((Number(amount) * SECONDS[unit as keyof typeof SECONDS]) / SECONDS.d);
}

/** What the form starts with: the settings of another one, without its name and its window. */
function formOf(kind: Kind, from: Filter | undefined): Form {
  const isCoupon = kind === "coupons";
  const size = isCoupon ? "10000" : "100000";
  return {
    naming: { ...UNNAMED, labels: labelRows(from?.labels) },
    isTaken: false,
    isPool: from?.stock !== undefined,
    size: from === undefined ? size : String(from.stock ?? from.capacity),
    startsAt: "",
    endsAt: "",
    terms: termsOf(from),
    forgetDays: daysOf(from?.forget_after),
    mode: from?.mode ?? (isCoupon ? "strict" : "compact"),
    // A layout stands in place of an error rate.
    errorRate: from?.layout === undefined ? String(from?.error_rate ?? 0.001) : "",
    growth: from?.growth ?? "auto",
  };
}

interface TermsFieldsProps {
  readonly terms: Terms;
  readonly from: Filter | undefined;
  readonly isPool: boolean;
  /** Whether uses and customers can be counted. */
  readonly isCounted: boolean;
  readonly change: (terms: Terms) => void;
}

/** How the codes of a coupon may be typed, and how often they may be used, as questions. */
function TermsFields({ terms, from, isPool, isCounted, change }: TermsFieldsProps): JSX.Element {
  const t = texts.value.form;
  const noun = isPool ? "pool" : "codes";
  const spelling = spellingOf(terms, isPool);
  const { uses, perCustomer } = terms;
  const fault = t.outOfRange(count(USES_MAX));
  return (
    <>
      <Choice
        label={t.spelling[noun]}
        value={spelling}
        options={spellingsFor(from).map((one) => [one, texts.value.spellings[one]] as const)}
        change={(spelling) => change({ ...terms, spelling })}
      />
      <p class="hint">{t.spellingExamples[spelling]}</p>
      {isCounted && (
        <div class="fields">
          <Text
            label={t.uses[noun]}
            type="number"
            min={1}
            max={USES_MAX}
            value={uses}
            change={(uses) => change({ ...terms, uses })}
            hint={t.usesHint}
            fault={isCount(uses) ? undefined : fault}
          />
          <Text
            label={t.perCustomer}
            type="number"
            min={1}
            max={USES_MAX}
            value={perCustomer}
            change={(perCustomer) => change({ ...terms, perCustomer })}
            hint={t.perCustomerHint}
            fault={perCustomer === "" || isCount(perCustomer) ? undefined : fault}
          />
        </div>
      )}
      <p class="hint">{t.fixedHint}</p>
    </>
  );
}

/** A form for a new one, or for one like another. */
export function NewFilter({ kind, from }: { readonly kind: Kind; readonly from?: string }): JSX.Element {
  const { value, error } = useResource<Filter>(from === undefined ? undefined : { method: "GET", path: `v1/${kind}/${from}` });
  if (from !== undefined && value === undefined) {
    return error === undefined ? <p class="lead">{texts.value.reading}</p> : <Refusal error={error} />;
  }
  return (
    <>
      {value !== undefined && <p class="lead">{texts.value.form.copied(fullName(value))}</p>}
      <NewForm kind={kind} {...(value === undefined ? {} : { from: value })} />
    </>
  );
}

function NewForm({ kind, from }: { readonly kind: Kind; readonly from?: Filter }): JSX.Element {
  const t = texts.value.form;
  const isCoupon = kind === "coupons";
  const [form, setForm] = useState<Form>(formOf(kind, from));
  const change = (part: Partial<Form>) => setForm((before) => ({ ...before, ...part }));
  const schema = isCoupon ? "CouponSpec" : "CampaignSpec";
  const { naming, startsAt, endsAt } = form;
  const isPool = isCoupon && form.isPool;
  const mode = isPool ? "strict" : form.mode;
  const isCompact = mode === "compact";
  const isCounted = isCoupon && !isCompact && accepts(schema, "uses");
  const limits = isCounted ? limitsOf(form.terms) : {};
  const isBackwards = startsAt !== "" && endsAt !== "" && endsAt <= startsAt;
  const body = {
    ...namedNew(naming),
    capacity: Number(form.size),
    stock: isPool ? Number(form.size) : undefined,
    mode,
    error_rate: isCompact && form.errorRate !== "" ? Number(form.errorRate) : undefined,
    growth: form.growth,
    starts_at: toUtc(startsAt),
    ends_at: toUtc(endsAt),
    normalize: isCoupon ? spellingOf(form.terms, isPool) : from?.normalize,
    ...limits,
    layout: isCompact && form.errorRate === "" ? from?.layout : undefined,
    ...(isCompact && form.forgetDays !== "" ? { forget_after: `${Math.round(Number(form.forgetDays) * SECONDS.d)}s`, forget_steps: from?.forget_steps } : {}),
  };
  const isGood = named(naming) !== undefined && !form.isTaken && Number(form.size) >= 1 && limits !== undefined && !isBackwards;
  return (
    <Panel title={t.heading[kind]}>
      <Action<Filter>
        label={t.create}
        call={() => (isGood ? { method: "PUT", path: `v1/${kind}/${naming.name}`, body } : undefined)}
        done={(made) => go(`#/${kind}/${made.name}`)}
      >
        <NamingFields
          naming={naming}
          place={kind}
          fallback={isCoupon ? "coupon" : "campaign"}
          hasTitles={accepts(schema, "title")}
          change={(naming) => change({ naming })}
          taken={(isTaken) => change({ isTaken })}
        />
        {isCoupon && accepts(schema, "stock") && (
          <Choice
            label={t.codeKind}
            value={isPool ? "pool" : "codes"}
            options={[
              ["codes", t.codes],
              ["pool", t.pool],
            ]}
            change={(value) => change({ isPool: value === "pool" })}
          />
        )}
        <p class="hint">{isCoupon ? (isPool ? t.poolHint : t.codesHint) : t.campaignHint}</p>
        <div class="fields">
          <Text
            label={isCoupon ? (isPool ? t.stock : t.codeCount) : t.userCount}
            type="number"
            min={1}
            value={form.size}
            change={(size) => change({ size })}
            hint={isPool ? t.stockHint : t.sizeHint}
            required
          />
          <Text label={texts.value.change.starts(zone())} type="datetime-local" value={startsAt} change={(startsAt) => change({ startsAt })} hint={texts.value.change.startsHint} />
          <Text
            label={texts.value.change.ends(zone())}
            type="datetime-local"
            value={endsAt}
            change={(endsAt) => change({ endsAt })}
            hint={texts.value.change.endsHint}
            fault={isBackwards ? t.backwards : undefined}
          />
          {!isCoupon && isCompact && accepts(schema, "forget_after") && (
            <Text label={t.forget} type="number" min={0} max={400} step="any" value={form.forgetDays} change={(forgetDays) => change({ forgetDays })} hint={t.forgetHint} />
          )}
        </div>
        {isCoupon && <TermsFields terms={form.terms} from={from} isPool={isPool} isCounted={isCounted} change={(terms) => change({ terms })} />}
        {accepts(schema, "labels") && <LabelsField labels={naming.labels} change={(labels) => change({ naming: { ...naming, labels } })} />}
        <Technical>
          <div class="stack">
            {!isPool && (
              <Choice
                label={t.mode}
                value={form.mode}
                options={[
                  ["compact", t.compact],
                  ["strict", t.strict],
                ]}
                change={(mode) => change({ mode })}
              />
            )}
            {isCompact && (
              <Text label={t.errorRate} type="number" step="any" value={form.errorRate} change={(errorRate) => change({ errorRate })} hint={t.errorRateHint} />
            )}
            <Choice
              label={t.growth}
              value={form.growth}
              options={[
                ["auto", t.grows],
                ["fixed", t.fixed],
              ]}
              change={(growth) => change({ growth })}
            />
            <Cost form={{ ...form, mode }} />
          </div>
        </Technical>
      </Action>
    </Panel>
  );
}
