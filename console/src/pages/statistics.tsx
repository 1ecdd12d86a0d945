/** What happened to a campaign or coupon by day or by hour, as the service has counted it. */

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { on } from "../api/document.ts";
import type { Kind } from "../api/types.ts";
import { clock, count, day, short, zone } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { Chart } from "../parts/chart.tsx";
import { Choice, Panel, Refusal } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { allowed } from "../state/session.ts";
import { FIELDS, filled, type Statistics } from "../state/statistics.ts";

const EVERY_SECONDS = 30;
const DAY = 86_400;
const HOUR = 3_600;
const HOURS = 48;

type Period = "48h" | "30d" | "400d";

export function StatisticsPanel({ kind, name }: { readonly kind: Kind; readonly name: string }): JSX.Element | null {
  const t = texts.value.statistics;
  const [period, setPeriod] = useState<Period>("30d");
  const isOffered = allowed(on(kind, "GET", "/statistics"));
  const days = period === "400d" ? 400 : 30;
  const { value, error } = useResource<Statistics>(isOffered ? { method: "GET", path: `v1/${kind}/${name}/statistics`, query: { days } } : undefined, EVERY_SECONDS);
  const isHours = period === "48h";
  const series = useMemo(() => {
    const { times, of } = isHours ? filled(value?.hours ?? [], HOUR, HOURS, Date.now()) : filled(value?.days ?? [], DAY, days, Date.now());
    return { times, lines: FIELDS[kind].map((field) => ({ field, values: of(field) })) };
  }, [value, period]);
  if (!isOffered) {
    return null;
  }
  const total = (values: readonly number[]) => count(values.reduce((sum, value) => sum + value, 0));
  return (
    <Panel title={t.title}>
      <Choice
        label={t.period}
        value={period}
        options={[
          ["48h", t.hours],
          ["30d", t.month],
          ["400d", t.year],
        ]}
        change={setPeriod}
      />
      {error !== undefined && <Refusal error={error} />}
      {value !== undefined &&
        series.lines
          .filter(({ field, values }, index) => index === 0 || field === "removed" || values.some((value) => value > 0))
          .map(({ field, values }) => (
            <Chart
              key={field}
              title={`${t.fields[field]}: ${total(values)}`}
              times={series.times}
              format={short}
              formatTime={isHours ? clock : day}
              isBars
              lines={[{ label: isHours ? t.inHour : t.inDay, values, tone: field === "redeemed" || field === "added" || field === "imported" ? "accent" : "second" }]}
            />
          ))}
      <p class="hint">{isHours ? t.hoursHint(zone()) : t.daysHint(clock(Math.floor(Date.now() / 1_000 / DAY) * DAY), zone())}</p>
    </Panel>
  );
}
