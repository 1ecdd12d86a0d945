/** Uploads on record: what runs, what has ended, and how. */

import type { JSX } from "preact";
import { json } from "../api/client.ts";
import type { Import, Kind } from "../api/types.ts";
import { count, span } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { ask } from "../parts/dialog.tsx";
import { Empty, Refusal, Tag, Time, Warnings, type Tone } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { Grid } from "../parts/table.tsx";
import { fullName, lists } from "../state/filters.ts";
import { allowed } from "../state/session.ts";

const EVERY_SECONDS = 2;

const TONES: Record<Import["state"], Tone> = { running: "warn", done: "good", checked: "quiet", failed: "bad", interrupted: "bad" };

function State({ of }: { readonly of: Import }): JSX.Element {
  const t = texts.value;
  return (
    <>
      <Tag tone={TONES[of.state]}>{t.uploads.states[of.state]}</Tag>
      {of.failure !== undefined && <small>{(t.problems as Readonly<Record<string, string>>)[of.failure.code] ?? of.failure.detail}</small>}
      {of.failure?.code === "import-guarded" && <small>{t.upload.guarded[of.mode]}</small>}
      <Warnings of={of.warnings} />
    </>
  );
}

export function Uploads(): JSX.Element {
  const t = texts.value.uploads;
  const { value, error, reload } = useResource<{ imports: readonly Import[] }>({ method: "GET", path: "v1/imports" }, EVERY_SECONDS);
  const into = ({ campaign, coupon }: Import) => [campaign === undefined ? "coupons" : "campaigns", campaign ?? coupon ?? ""] as const;
  const known = (kind: Kind, name: string) => fullName(lists[kind].value.filters.find((filter) => filter.name === name) ?? { name });
  const stop = (one: Import) =>
    ask({
      title: t.stopTitle(known(...into(one))),
      text: t.stopText[one.mode],
      verb: t.stop,
      run: async () => {
        await json({ method: "DELETE", path: `v1/imports/${one.id}` });
        void reload();
      },
    });
  const imports = value?.imports ?? [];
  return (
    <>
      {error !== undefined && <Refusal error={error} />}
      {value === undefined && error === undefined && <p class="lead">{texts.value.reading}</p>}
      {value !== undefined && imports.length === 0 && (
        <Empty text={t.none}>
          <div class="buttons">
            <a class="button" href="#/campaigns">
              {texts.value.nav.campaigns}
            </a>
            <a class="button" href="#/coupons">
              {texts.value.nav.coupons}
            </a>
          </div>
        </Empty>
      )}
      {imports.length > 0 && (
        <>
          <p class="lead">{t.about}</p>
          <Grid
            label={texts.value.nav.uploads}
            columns={[
              { title: t.into },
              { title: t.state },
              { title: t.lines, isNumber: true },
              { title: t.added, isNumber: true },
              { title: t.rejected, isNumber: true },
              { title: t.began },
              { title: t.took, isNumber: true },
              { title: t.acts, isActs: true },
            ]}
            rows={imports.map((one) => {
              const [kind, name] = into(one);
              return {
                key: one.id,
                cells: [
                  <>
                    <a href={`#/${kind}/${name}`}>{name}</a>
                    <small>{t.modes[one.mode]}</small>
                  </>,
                  <State of={one} />,
                  count(one.lines),
                  count(one.added),
                  count(one.rejected),
                  <Time at={one.started_at} />,
                  span(Math.max(1, one.seconds)),
                  one.state === "running" && allowed("DELETE /v1/imports/{id}") && (
                    <button type="button" class="small" aria-label={t.stopOf(name)} onClick={() => stop(one)}>
                      {t.stop}
                    </button>
                  ),
                ],
              };
            })}
          />
        </>
      )}
    </>
  );
}
