/** A small chart over time. What the pointer is at is told above it; without a pointer, the latest. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { theme } from "./theme.ts";

export interface Line {
  readonly label: string;
  readonly values: readonly (number | null)[];
  readonly tone: "accent" | "second" | "bad";
}

interface ChartProps {
  readonly title: string;
  /** Seconds since the epoch. */
  readonly times: readonly number[];
  readonly lines: readonly Line[];
  readonly format: (value: number) => string;
  /** Bytes have round figures of their own. */
  readonly isBinary?: boolean;
  /** A bar for each time, which is where a bucket of counts begins. */
  readonly isBars?: boolean;
  readonly formatTime?: (seconds: number) => string;
}

const HEIGHT = 104;
/** The least time that is shown: a new page's first readings are no cliff. */
const SECONDS_MIN = 300;
const BINARY_STEPS = [0, 10, 20, 30, 40].flatMap((power) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((step) => step * 2 ** power));
const TIME_STEPS = [60, 120, 300, 600, 900, 1_800];
const BAR_STEPS = [3, 6, 12, 24, 48, 168, 336, 720, 1_440, 2_160].map((hours) => hours * 3_600);
const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

/** From half a bar before the first to half a bar after the last. */
function around(times: uPlot.AlignedData[0]): [number, number] {
  const [first = 0, second = first + 1] = times;
  const half = (second - first) / 2;
  return [first - half, (times.at(-1) ?? first) + half];
}

/** A colour of the page as it is in the theme that is on. */
function colour(of: Element, name: string): string {
  const probe = document.createElement("i");
  probe.className = `colour-${name}`;
  of.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function options(box: HTMLElement, { lines, format, isBinary, isBars, formatTime = clock }: ChartProps): uPlot.Options {
  const [muted, grid] = [colour(box, "muted"), colour(box, "grid")];
  const axis = { stroke: muted, font: "11px system-ui", ticks: { show: false }, grid: { stroke: grid, width: 1 } };
  return {
    width: Math.max(1, box.clientWidth),
    height: HEIGHT,
    padding: [6, 16, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "hour" } },
    scales: {
      x: { time: isBars !== true, range: (chart, first, last) => (isBars ? around(chart.data[0]) : [Math.min(first, last - SECONDS_MIN), last]) },
      y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 22, grid: { show: false }, space: 70, incrs: isBars ? BAR_STEPS : TIME_STEPS, values: (_, splits) => splits.map(formatTime) },
      {
        ...axis,
        size: 62,
        gap: 4,
        space: 28,
        // Counts are whole.
        ...(isBars ? { incrs: WHOLE_STEPS } : {}),
        values: (_, splits) => splits.map((split) => format(split)),
        ...(isBinary ? { incrs: BINARY_STEPS } : {}),
      },
    ],
    series: [
      {},
      ...lines.map((line, index) => ({
        stroke: colour(box, line.tone),
        fill: isBars ? colour(box, line.tone) : index === 0 ? colour(box, "area") : "transparent",
        width: isBars ? 0 : 1.5,
        ...(isBars ? { paths: uPlot.paths.bars?.({ size: [0.7, 24] }) as uPlot.Series.PathBuilder } : {}),
        // A line needs two ends.
        points: { show: (chart: uPlot) => isBars !== true && chart.data[0].length < 2, size: 5 },
      })),
    ],
  };
}

export function Chart(props: ChartProps): JSX.Element {
  const { title, times, lines, format, formatTime = clock } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const [at, setAt] = useState<number | undefined>(undefined);
  const shape = lines.map((line) => line.label + line.tone).join();
  const data = [times, ...lines.map((line) => line.values)] as unknown as uPlot.AlignedData;

  useEffect(() => {
    const place = box.current;
    if (place === null) {
      return;
    }
    const made = new uPlot(
      {
        ...options(place, props),
        hooks: { setCursor: [(chart) => setAt(chart.cursor.idx ?? undefined)] },
      },
      data,
      place,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: Math.max(1, place.clientWidth), height: HEIGHT }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [shape, theme.value, texts.value, formatTime]);

  useEffect(() => plot.current?.setData(data), [times, ...lines.map((line) => line.values)]);

  const index = at ?? times.length - 1;
  const told = lines.map((line) => {
    const value = line.values[index];
    return { ...line, text: value === null || value === undefined ? "–" : format(value) };
  });
  const time = at === undefined ? undefined : times[at];
  const label = `${title}: ${told.map(({ label, text }) => `${label} ${text}`).join(", ")}`;
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">{title}</span>
        {time !== undefined && <span>{formatTime(time)}</span>}
        {told.map(({ label, tone, text }) => (
          <span key={label} class="reading">
            <i class={`key colour-${tone}`} />
            {label} <b>{text}</b>
          </span>
        ))}
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={label} />
    </figure>
  );
}
