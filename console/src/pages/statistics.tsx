/** What happened to a campaign or coupon by day or by hour, as the service has counted it. Days are the reader's own if the service has them. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Problem } from "../api/client.ts";
import { on } from "../api/document.ts";
import type { Kind } from "../api/types.ts";
import { clock, count, day, short, zone } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { Chart } from "../parts/chart.tsx";
import { Choice, Panel, Refusal } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { allowed } from "../state/session.ts";
import { daysOf, FIELDS, filled, type Statistics, type UtcReason } from "../state/statistics.ts";

const EVERY_SECONDS = 30;
const DAY = 86_400;
const HOUR = 3_600;
const HOURS = 48;

type Period = "48h" | "30d" | "400d";

/** Which days they are, and from when on they are complete; if they are UTC days, why. */
function DaysHint({ first, completeFrom, reason }: { readonly first: number; readonly completeFrom: string | undefined; readonly reason: UtcReason | undefined }): JSX.Element {
  const t = texts.value.statistics;
  if (completeFrom === undefined) {
    const start = clock(Math.floor(Date.now() / 1_000 / DAY) * DAY);
    return (
      <p class="hint">
        {t.utcDaysHint(start, zone())} {reason !== undefined && t.utcReasons[reason]}
      </p>
    );
  }
  const complete = Date.parse(completeFrom) / 1_000;
  return <p class="hint">{(complete > first ? t.partialDaysHint : t.daysHint)(zone(), day(complete))}</p>;
}

export function StatisticsPanel({ kind, name }: { readonly kind: Kind; readonly name: string }): JSX.Element | null {
  const t = texts.value.statistics;
  const [period, setPeriod] = useState<Period>("30d");
  const isOffered = allowed(on(kind, "GET", "/statistics"));
  const days = period === "400d" ? 400 : 30;
  const [isRefused, setRefused] = useState(false);
  const offset = -new Date().getTimezoneOffset();
  const wanted = daysOf(days, offset, isRefused);
  const query = "offset" in wanted ? { days, offset_minutes: wanted.offset } : { days };
  const { value, error } = useResource<Statistics>(isOffered ? { method: "GET", path: `v1/${kind}/${name}/statistics`, query } : undefined, EVERY_SECONDS);
  // An older service rejects the offset, and a cluster that is being updated may.
  const isRefusal = "offset" in wanted && error instanceof Problem && error.status === 422;
  useEffect(() => void (isRefusal && setRefused(true)), [isRefusal]);
  const isHours = period === "48h";
  /** Days are those of the response, which may still be the one to the last question. */
  const completeFrom = value?.complete_from;
  const series = useMemo(() => {
    const today = Date.now() + (completeFrom === undefined ? 0 : offset * 60_000);
    const { times, of } = isHours ? filled(value?.hours ?? [], HOUR, HOURS, Date.now()) : filled(value?.days ?? [], DAY, days, today);
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
      {error !== undefined && !isRefusal && <Refusal error={error} />}
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
              lines={[{ label: isHours ? t.inHour : completeFrom === undefined ? t.inUtcDay : t.inDay, values, tone: field === "redeemed" || field === "added" || field === "imported" ? "accent" : "second" }]}
            />
          ))}
      {isHours ? (
        <p class="hint">{t.hoursHint(zone())}</p>
      ) : (
        value !== undefined && <DaysHint first={series.times[0] ?? 0} completeFrom={completeFrom} reason={"utc" in wanted ? wanted.utc : undefined} />
      )}
    </Panel>
  );
}
