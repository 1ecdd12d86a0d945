/** Makes a campaign or a coupon, and tells beforehand what it would cost. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import type { Filter, Kind } from "../api/types.ts";
import { bytes, percent, span } from "../format.ts";
import { Action } from "../parts/action.tsx";
import { Check, Choice, Facts, Panel, Text } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { go } from "../route.ts";
import { accepts, allowed, info } from "../state/session.ts";
import { utc } from "./window.tsx";

interface Plan {
  readonly memory_bytes: number;
  readonly bits_per_item: number;
  readonly error_rate_at_capacity: number;
  readonly disk_bytes: number;
  readonly replacement_peak_bytes: number;
  readonly startup_seconds: number;
}

interface Form {
  readonly kind: Kind;
  readonly name: string;
  readonly capacity: string;
  readonly mode: "compact" | "strict";
  readonly errorRate: string;
  readonly growth: "auto" | "fixed";
  readonly startsAt: string;
  readonly endsAt: string;
  readonly ignoresCase: boolean;
  readonly forgetAfter: string;
  readonly stock: string;
}

const EMPTY: Form = {
  kind: "campaigns",
  name: "",
  capacity: "100000",
  mode: "compact",
  errorRate: "0.001",
  growth: "auto",
  startsAt: "",
  endsAt: "",
  ignoresCase: false,
  forgetAfter: "",
  stock: "",
};

function bodyOf(form: Form): Record<string, unknown> {
  const isCompact = form.mode === "compact";
  const isCoupon = form.kind === "coupons";
  return {
    capacity: Number(form.capacity),
    mode: form.mode,
    error_rate: isCompact && form.errorRate !== "" ? Number(form.errorRate) : undefined,
    growth: form.growth,
    starts_at: utc(form.startsAt),
    ends_at: utc(form.endsAt),
    ignore_case: isCoupon && form.ignoresCase ? true : undefined,
    stock: isCoupon && !isCompact && form.stock !== "" ? Number(form.stock) : undefined,
    forget_after: isCompact && form.forgetAfter !== "" ? form.forgetAfter : undefined,
  };
}

function Cost({ form }: { readonly form: Form }): JSX.Element {
  const { capacity, mode, growth, errorRate } = form;
  const isSized = Number(capacity) >= 1;
  const query = { capacity, mode, growth, error_rate: mode === "compact" ? errorRate : undefined };
  const plan = useResource<Plan>(
    isSized && allowed("GET /v1/plan") ? { method: "GET", path: "v1/plan", query } : undefined,
  ).value;
  return (
    <Panel title="What it would cost">
      {plan === undefined ? (
        <p class="hint">Give a capacity that a filter can have.</p>
      ) : (
        <Facts
          of={[
            ["Memory", bytes(plan.memory_bytes)],
            ["An item", `${plan.bits_per_item.toFixed(1)} bits`],
            ["Error rate when full", percent(plan.error_rate_at_capacity)],
            ["Memory while it is replaced", bytes(plan.replacement_peak_bytes)],
            ["Disk", bytes(plan.disk_bytes)],
            ["Adds to a start", plan.startup_seconds < 1 ? "less than 1 s" : span(plan.startup_seconds)],
          ]}
        />
      )}
    </Panel>
  );
}

export function NewFilter(): JSX.Element {
  const [form, setForm] = useState<Form>({ ...EMPTY, name: info.value?.key?.prefix ?? "" });
  const change = (part: Partial<Form>) => setForm((before) => ({ ...before, ...part }));
  const schema = form.kind === "campaigns" ? "CampaignSpec" : "CouponSpec";
  const prefix = info.value?.key?.prefix;
  const call = (): Call | undefined =>
    form.name === "" || form.capacity === ""
      ? undefined
      : { method: "PUT", path: `v1/${form.kind}/${encodeURIComponent(form.name)}`, body: bodyOf(form) };
  return (
    <div class="columns">
      <Panel title="What it is">
        <Action<Filter> label="Create" call={call} done={(made) => go(`#/${form.kind}/${made.name}`)}>
          <Choice
            label="Kind"
            value={form.kind}
            options={[
              ["campaigns", "Campaign: users"],
              ["coupons", "Coupon: codes"],
            ]}
            change={(kind) => change({ kind, mode: kind === "campaigns" ? "compact" : "strict" })}
          />
          <Text
            label="Name"
            value={form.name}
            change={(name) => change({ name })}
            hint={`a–z, 0–9, “.”, “_” and “-”${prefix === undefined ? "" : `; this key's names begin with ${prefix}`}`}
            required
          />
          <Choice
            label="Mode"
            value={form.mode}
            options={[
              ["compact", "Compact: 1 to 4 bytes an item"],
              ["strict", "Strict: 8.5 bytes, practically no errors"],
            ]}
            change={(mode) => change({ mode })}
          />
          <div class="fields">
            <Text label="Capacity" type="number" min={1} value={form.capacity} change={(capacity) => change({ capacity })} required />
            {form.mode === "compact" && (
              <Text
                label="Error rate"
                type="number"
                step="any"
                value={form.errorRate}
                change={(errorRate) => change({ errorRate })}
                hint="The most wrong “yes” answers, at any size"
              />
            )}
          </div>
          <Choice
            label="When it is full"
            value={form.growth}
            options={[
              ["auto", "It grows"],
              ["fixed", "It refuses more"],
            ]}
            change={(growth) => change({ growth })}
          />
          <div class="fields">
            <Text label="Active from (UTC)" type="datetime-local" value={form.startsAt} change={(startsAt) => change({ startsAt })} />
            <Text label="Active until (UTC)" type="datetime-local" value={form.endsAt} change={(endsAt) => change({ endsAt })} />
          </div>
          {form.kind === "coupons" && (
            <Check label="Ignore case and surrounding blanks" checked={form.ignoresCase} change={(ignoresCase) => change({ ignoresCase })} />
          )}
          {form.mode === "strict" && accepts(schema, "stock") && (
            <Text
              label="Stock of an open pool"
              type="number"
              min={1}
              value={form.stock}
              change={(stock) => change({ stock })}
              hint="Any code can be redeemed once, and this many at most. Empty: codes are added first."
            />
          )}
          {form.mode === "compact" && accepts(schema, "forget_after") && (
            <Text
              label="Forget after"
              value={form.forgetAfter}
              change={(forgetAfter) => change({ forgetAfter })}
              hint="How long a user stays, 7d say. Empty: until removed."
            />
          )}
        </Action>
      </Panel>
      <Cost form={form} />
    </div>
  );
}
