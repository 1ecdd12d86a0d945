/** All line-ups: named lists of campaigns in order of preference, which programs ask for by name. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { LineUp } from "../api/types.ts";
import { texts } from "../i18n/texts.ts";
import { LabelList } from "../parts/filter.tsx";
import { Empty, Refusal, Text } from "../parts/panel.tsx";
import { Grid } from "../parts/table.tsx";
import { all, labelTexts } from "../state/filters.ts";
import { allowed } from "../state/session.ts";

export function LineUps(): JSX.Element {
  const t = texts.value;
  const [list, setList] = useState<readonly LineUp[] | undefined>(undefined);
  const [error, setError] = useState<unknown>(undefined);
  const [search, setSearch] = useState("");
  useEffect(() => void all<LineUp>("v1/line-ups", "line_ups").then(setList, setError), []);
  const create = allowed("PUT /v1/line-ups/{line_up}") && (
    <a class="button primary" href="#/new-line-up">
      {t.lineUps.create}
    </a>
  );
  if (list === undefined) {
    return error === undefined ? <p class="lead">{t.reading}</p> : <Refusal error={error} />;
  }
  if (list.length === 0) {
    return <Empty text={t.lineUps.none}>{create || <p class="hint">{t.filters.noneAsk}</p>}</Empty>;
  }
  const words = search.toLowerCase();
  const rows = list.filter((one) => [one.name, one.title, ...one.campaigns, ...labelTexts(one.labels)].join(" ").toLowerCase().includes(words));
  return (
    <>
      <p class="lead">{t.lineUps.about}</p>
      <div class="tools">
        <Text label={t.search} type="search" value={search} change={setSearch} />
        {create}
      </div>
      {rows.length === 0 ? (
        <Empty text={t.noMatch} />
      ) : (
        <Grid
          label={t.nav["line-ups"]}
          columns={[{ title: t.filters.columns.title }, { title: t.lineUps.campaigns }, { title: t.lineUps.exclusions, isNumber: true }]}
          rows={rows.map((one) => ({
            key: one.name,
            cells: [
              <>
                <a href={`#/line-ups/${one.name}`}>{one.title ?? one.name}</a>
                {one.title !== undefined && <small>{one.name}</small>}
                <LabelList labels={one.labels} pick={setSearch} />
              </>,
              one.campaigns.join(" → "),
              one.unless.length,
            ],
          }))}
        />
      )}
    </>
  );
}
