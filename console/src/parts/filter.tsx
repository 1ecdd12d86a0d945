/** Small things that both the tables and the pages of campaigns and coupons show. */

import type { JSX } from "preact";
import type { Filter, Labels, Redemption } from "../api/types.ts";
import { away, count, percent } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { labelTexts, phaseOf, usesOf, type Phase } from "../state/filters.ts";
import { Bar, Tag, Time, type Tone } from "./panel.tsx";

const TONES: Readonly<Record<Phase, Tone>> = { active: "good", scheduled: "quiet", sold_out: "warn", ended: "quiet" };

/** The tones of the statuses of a redemption. */
const STATUS_TONES: Readonly<Record<Redemption["status"], Tone>> = { held: "warn", redeemed: "good", cancelled: "quiet", expired: "quiet" };

/** From which share of its stock on a coupon is nearly sold out. */
const NEARLY = 0.9;

export function PhaseTag({ filter }: { readonly filter: Filter }): JSX.Element {
  const phase = phaseOf(filter);
  return <Tag tone={TONES[phase]}>{texts.value.phases[phase]}</Tag>;
}

export function StatusTag({ status }: { readonly status: Redemption["status"] }): JSX.Element {
  return <Tag tone={STATUS_TONES[status]}>{texts.value.outcomes[status]}</Tag>;
}

/** When it starts, if it hasn't, else when it ends. */
export function Window({ filter: { starts_at, ends_at } }: { readonly filter: Filter }): JSX.Element {
  const t = texts.value.filters;
  if (starts_at !== undefined && new Date(starts_at).getTime() > Date.now()) {
    return <Time at={starts_at}>{t.starts(away(starts_at))}</Time>;
  }
  return ends_at === undefined ? <span class="quiet">{t.noEnd}</span> : <Time at={ends_at} />;
}

/** How much of a coupon's stock, or of the uses of its codes, is used. */
export function Stock({ filter }: { readonly filter: Filter }): JSX.Element | null {
  const { taken, total, left } = usesOf(filter);
  if (total === 0 && taken === 0) {
    return null;
  }
  const share = total === 0 ? 1 : (total - left) / total;
  return <Bar share={share} label={texts.value.filters.used(percent(Math.min(1, share)), count(total))} warnFrom={NEARLY} />;
}

export function LabelList({ labels, pick }: { readonly labels: Labels | undefined; readonly pick?: (label: string) => void }): JSX.Element | null {
  const all = labelTexts(labels);
  if (all.length === 0) {
    return null;
  }
  return (
    <span class="labels">
      {all.map((label) =>
        pick === undefined ? (
          <span key={label} class="label">
            {label}
          </span>
        ) : (
          <button key={label} type="button" class="label" onClick={() => pick(label)}>
            {label}
          </button>
        ),
      )}
    </span>
  );
}
