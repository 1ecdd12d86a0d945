/** One line-up: its campaigns in order, who is left out, and a try with a user, also before it is saved. */

import type { JSX } from "preact";
import { useEffect, useId, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import type { Eligibility, Exclusion, Filter, LineUp } from "../api/types.ts";
import { texts } from "../i18n/texts.ts";
import { Action } from "../parts/action.tsx";
import { ask } from "../parts/dialog.tsx";
import { PhaseTag } from "../parts/filter.tsx";
import { LabelsField, named, NamingFields, UNNAMED, type Naming } from "../parts/naming.tsx";
import { Check, Panel, Refusal, Select, Tag, Text } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { Sortable } from "../parts/sortable.tsx";
import { Grid } from "../parts/table.tsx";
import { go } from "../route.ts";
import { absenceOf, fullName, lists, load, titles } from "../state/filters.ts";
import { Conflict, contentOf, save, type LineUpSpec } from "../state/line_ups.ts";
import { labelRows, labelsPatch } from "../state/naming.ts";
import { accepts, allowed, info } from "../state/session.ts";
import { write } from "../state/writes.ts";

/** The most of each that a line-up takes. */
const CAMPAIGNS_MAX = 256;
const EXCLUSIONS_MAX = 32;

interface Draft {
  readonly campaigns: readonly string[];
  readonly unless: readonly Exclusion[];
  readonly limit: string;
}

interface PartProps {
  readonly draft: Draft;
  readonly change: (part: Partial<Draft>) => void;
}

const filterOf = (name: string): Filter | undefined => lists.campaigns.value.filters.find((filter) => filter.name === name);

/** A campaign by the words that people know it by. */
const titleOf = (name: string): string => filterOf(name)?.title ?? name;

const absence = (name: string) => absenceOf(name, lists.campaigns.value, info.value?.key?.prefix);

/** The state of a campaign, if it is known. */
function State({ name }: { readonly name: string }): JSX.Element | null {
  const filter = filterOf(name);
  if (filter !== undefined) {
    return <PhaseTag filter={filter} />;
  }
  return absence(name) === "missing" ? <Tag tone="warn">{texts.value.lineUp.missing}</Tag> : null;
}

function Face({ name }: { readonly name: string }): JSX.Element {
  return (
    <>
      <a href={`#/campaigns/${name}`}>{titleOf(name)}</a> <State name={name} />
    </>
  );
}

/** Chooses a campaign by its name or title. */
function Add({ label, taken, add }: { readonly label: string; readonly taken: readonly string[]; readonly add: (name: string) => void }): JSX.Element {
  const t = texts.value.lineUp;
  const id = useId();
  const [text, setText] = useState("");
  const free = lists.campaigns.value.filters.filter(({ name }) => !taken.includes(name));
  const chosen = free.find(({ name, title }) => name === text.trim() || title === text.trim())?.name ?? text.trim();
  const isGood = /^[a-z0-9][a-z0-9._-]*$/.test(chosen) && !taken.includes(chosen);
  const submit = (event: Event) => {
    event.preventDefault();
    if (isGood) {
      add(chosen);
      setText("");
    }
  };
  return (
    <form class="tools" onSubmit={submit}>
      <Text label={label} value={text} change={setText} list={id} placeholder={t.addHint} />
      <datalist id={id}>
        {free.slice(0, 200).map(({ name, title }) => (
          <option key={name} value={name}>
            {title}
          </option>
        ))}
      </datalist>
      <button disabled={!isGood}>{t.add}</button>
    </form>
  );
}

/** Whether a list must not be missing, what that means, and a warning if it is missing now. */
function Required({ of, change }: { readonly of: Exclusion; readonly change: (isRequired: boolean) => void }): JSX.Element {
  const t = texts.value.lineUp;
  const hint = useId();
  const isRequired = of.required === true;
  const hidden = of.for === undefined ? undefined : titleOf(of.for);
  const why = isRequired ? absence(of.campaign) : undefined;
  return (
    <div class="required">
      <Check label={t.required} checked={isRequired} change={change} describedBy={hint} />
      <small id={hint} class="hint">
        {isRequired ? t.requiredHint(hidden) : t.optionalHint}
      </small>
      {why !== undefined && (
        <p class="notice warn" role="alert">
          {why === "missing" ? t.requiredMissing(titleOf(of.campaign), hidden) : t.requiredInactive(titleOf(of.campaign), hidden)}
        </p>
      )}
    </div>
  );
}

function Exclusions({ draft, change }: PartProps): JSX.Element {
  const t = texts.value.lineUp;
  const { unless, campaigns } = draft;
  const put = (at: number, part: Partial<Record<keyof Exclusion, string | number | boolean | undefined>>) =>
    change({ unless: unless.map((one, index) => (index === at ? (JSON.parse(JSON.stringify({ ...one, ...part })) as Exclusion) : one)) });
  return (
    <>
      {unless.map((one, at) => (
        <fieldset key={`${one.campaign} ${at}`} class="exclusion">
          <legend>
            {t.usersIn(titleOf(one.campaign))} <State name={one.campaign} />
          </legend>
          <Text
            label={t.atLeast}
            type="number"
            min={1}
            value={String(one.at_least ?? 1)}
            change={(value) => put(at, { at_least: Number(value) > 1 ? Number(value) : undefined })}
          />
          <Select
            label={t.dontSee}
            value={one.for ?? ""}
            options={[["", t.anything], ...[...new Set([...campaigns, ...(one.for === undefined ? [] : [one.for])])].map((name) => [name, titleOf(name)] as const)]}
            change={(value) => put(at, { for: value === "" ? undefined : value })}
          />
          <button type="button" class="plain small" aria-label={t.removeExclusion(titleOf(one.campaign))} onClick={() => change({ unless: unless.filter((_, index) => index !== at) })}>
            ✕
          </button>
          {(one.required === true || accepts("Exclusion", "required")) && (
            <Required of={one} change={(isRequired) => put(at, { required: isRequired ? true : undefined })} />
          )}
        </fieldset>
      ))}
      {unless.length < EXCLUSIONS_MAX && <Add label={t.addExclusion} taken={[]} add={(campaign) => change({ unless: [...unless, { campaign }] })} />}
    </>
  );
}

function why(name: string, answer: Eligibility, campaigns: readonly string[]): string {
  const t = texts.value.lineUp.why;
  const found = answer.explanations?.find(({ campaign }) => campaign === name);
  if (answer.unknown.includes(name)) {
    return t.unknown;
  }
  if (found === undefined) {
    return campaigns.indexOf(name) < answer.evaluated ? "–" : t.enough;
  }
  if (found.eligible) {
    return t.eligible;
  }
  if (found.window !== "inside" || !found.present) {
    return found.window === "before" ? t.before : found.window === "after" ? t.after : t.absent;
  }
  const list = found.excluded_by ?? "";
  const isAbsent = answer.unknown.includes(list) || answer.inactive.includes(list);
  return isAbsent ? t.excludedAll(titleOf(list)) : t.excluded(titleOf(list));
}

function Try({ draft }: { readonly draft: Draft }): JSX.Element {
  const t = texts.value.lineUp;
  const [user, setUser] = useState("");
  const [sent, setSent] = useState(draft);
  const { campaigns, unless, limit } = draft;
  const body = { user, campaigns, unless, limit: Number(limit), explain: true };
  const call = (): Call | undefined => (user === "" || campaigns.length === 0 ? undefined : { method: "POST", path: "v1/eligibility", body });
  return (
    <Panel title={t.try}>
      <Action<Eligibility>
        label={t.tryRun}
        call={call}
        done={() => setSent(draft)}
        answer={(answer) => (
          <>
            <p class={answer.eligible.length > 0 ? "notice good" : "notice"}>{answer.eligible.length > 0 ? t.sees(answer.eligible.map(titleOf).join(", ")) : t.seesNone}</p>
            <Grid
              label={t.reasons}
              columns={[{ title: t.campaign }, { title: t.result }, { title: t.reason }]}
              rows={sent.campaigns.map((name) => ({
                key: name,
                cells: [
                  titleOf(name),
                  answer.eligible.includes(name) ? <Tag tone="good">{t.shown}</Tag> : <Tag tone="quiet">{t.notShown}</Tag>,
                  why(name, answer, sent.campaigns),
                ],
              }))}
            />
          </>
        )}
      >
        <p class="hint">{t.tryHint}</p>
        <Text label={t.user} value={user} change={setUser} required />
      </Action>
    </Panel>
  );
}

/** What the form shows of a line-up. */
function draftOf(of: LineUp | undefined): Draft {
  return { campaigns: of?.campaigns ?? [], unless: of?.unless ?? [], limit: String(of?.limit ?? 1) };
}

function namingOf(of: LineUp | undefined): Naming {
  return of === undefined ? UNNAMED : { name: of.name, title: of.title ?? "", labels: labelRows(of.labels), isEdited: true };
}

interface ConflictNoticeProps {
  readonly conflict: Conflict;
  readonly keep: () => void;
  readonly take: () => void;
}

/** Asks which version of the line-up stays: it was saved elsewhere as well. */
function ConflictNotice({ conflict: { theirs }, keep, take }: ConflictNoticeProps): JSX.Element {
  const t = texts.value.lineUp;
  return (
    <div class="notice warn" role="alert">
      <strong>{theirs === undefined ? t.gone : t.conflict}</strong>
      {theirs !== undefined && <p>{t.theirs(theirs.campaigns.map(titleOf).join(" → "), theirs.unless.length)}</p>}
      <p>{theirs === undefined ? t.goneHint : t.conflictHint}</p>
      <div class="buttons">
        <button type="button" onClick={take}>
          {theirs === undefined ? t.leave : t.take}
        </button>
        <button type="button" onClick={keep}>
          {t.keep}
        </button>
      </div>
    </div>
  );
}

/** Edits a stored line-up, or a new one, which starts with the content of another. */
function Editor({ stored, from }: { readonly stored?: LineUp; readonly from?: LineUp }): JSX.Element {
  const t = texts.value.lineUp;
  const isNew = stored === undefined;
  /** What is stored, as the reader has seen it. */
  const [seen, setSeen] = useState(stored);
  const [draft, setDraft] = useState(draftOf(stored ?? from));
  const [naming, setNaming] = useState(stored === undefined ? { ...UNNAMED, labels: labelRows(from?.labels) } : namingOf(stored));
  const [isTaken, setTaken] = useState(false);
  const [conflict, setConflict] = useState<Conflict | undefined>(undefined);
  const change = (part: Partial<Draft>) => setDraft((before) => ({ ...before, ...part }));
  const show = (version: LineUp | undefined) => {
    setSeen(version);
    setDraft(draftOf(version));
    setNaming(namingOf(version));
  };
  const hasTitles = accepts("LineUpSpec", "title");
  const mayChange = allowed("PUT /v1/line-ups/{line_up}");
  const { campaigns, unless, limit } = draft;
  const words = named(naming);
  // Texts that are left out stay as they are.
  const { title, labels } = words ?? { title: "", labels: {} };
  const spec: LineUpSpec = {
    ...(title === (seen?.title ?? "") ? {} : { title }),
    ...(labelsPatch(seen?.labels, labels) === undefined ? {} : { labels }),
    campaigns,
    unless,
    limit: Number(limit),
  };
  const isGood = words !== undefined && campaigns.length > 0 && Number(limit) >= 1 && !(isNew && isTaken);
  const isChanged = seen !== undefined && contentOf({ ...seen, ...spec }) !== contentOf(seen);
  const remove = () =>
    ask({
      title: t.deleteTitle(fullName({ title: seen?.title, name: naming.name })),
      text: t.deleteText,
      verb: t.delete,
      typed: naming.name,
      run: async () => {
        await write({ method: "DELETE", path: `v1/line-ups/${naming.name}` });
        go("#/line-ups");
      },
    });
  const send = async () => {
    const outcome = await save(naming.name, spec, seen);
    const isConflict = outcome instanceof Conflict;
    setConflict(isConflict ? outcome : undefined);
    return isConflict ? undefined : outcome;
  };
  const field = { naming, place: "line-ups", fallback: "line-up", hasTitles, change: setNaming, taken: setTaken };
  return (
    <div class="columns">
      <div class="stack">
        <Panel title={t.campaigns}>
          <p class="hint">{t.campaignsHint}</p>
          {campaigns.length > 0 && (
            <Sortable label={t.campaigns} names={campaigns} face={(name) => <Face name={name} />} change={(campaigns) => change({ campaigns })} />
          )}
          {campaigns.length < CAMPAIGNS_MAX && <Add label={t.addCampaign} taken={campaigns} add={(name) => change({ campaigns: [...campaigns, name] })} />}
        </Panel>
        <Panel title={t.exclusions}>
          <p class="hint">{t.exclusionsHint}</p>
          <Exclusions draft={draft} change={change} />
        </Panel>
      </div>
      <div class="stack">
        {mayChange && (
          <Panel title={isNew ? t.create : t.settings}>
            <Action<LineUp>
              label={t.save}
              call={() => (isGood ? { method: "PUT", path: `v1/line-ups/${naming.name}`, body: spec } : undefined)}
              send={send}
              done={(saved) => {
                setSeen(saved);
                isNew ? go(`#/line-ups/${saved.name}`) : (titles.value = { ...titles.value, [`line-ups/${saved.name}`]: saved.title ?? "" });
              }}
              answer={() => !isChanged && conflict === undefined && <p class="notice good">{t.saved}</p>}
            >
              {isNew ? <NamingFields {...field} /> : hasTitles && <Text label={texts.value.form.title} value={naming.title} change={(title) => setNaming({ ...naming, title })} />}
              <Text label={t.limit} type="number" min={1} max={256} value={limit} change={(limit) => change({ limit })} hint={t.limitHint} />
              {hasTitles && <LabelsField labels={naming.labels} change={(labels) => setNaming({ ...naming, labels })} />}
              {conflict !== undefined && (
                <ConflictNotice
                  conflict={conflict}
                  keep={() => {
                    setSeen(conflict.theirs);
                    setConflict(undefined);
                  }}
                  take={() => {
                    setConflict(undefined);
                    conflict.theirs === undefined ? go("#/line-ups") : show(conflict.theirs);
                  }}
                />
              )}
              {isChanged && conflict === undefined && <p class="notice warn">{t.unsaved}</p>}
              {campaigns.length === 0 && <p class="hint">{t.needsCampaign}</p>}
            </Action>
          </Panel>
        )}
        {allowed("POST /v1/eligibility") && <Try draft={draft} />}
        {!isNew && allowed("DELETE /v1/line-ups/{line_up}") && (
          <Panel title={t.delete}>
            <div class="buttons">
              <button type="button" class="danger" onClick={remove}>
                {t.delete}
              </button>
            </div>
          </Panel>
        )}
      </div>
    </div>
  );
}

/** A form for a new one, or for one like another. */
export function NewLineUp({ from }: { readonly from?: string }): JSX.Element {
  useEffect(() => void load("campaigns"), []);
  const { value, error } = useResource<LineUp>(from === undefined ? undefined : { method: "GET", path: `v1/line-ups/${from}` });
  if (from !== undefined && value === undefined) {
    return error === undefined ? <p class="lead">{texts.value.reading}</p> : <Refusal error={error} />;
  }
  return (
    <>
      {value !== undefined && <p class="lead">{texts.value.lineUps.copied(fullName(value))}</p>}
      <Editor {...(value === undefined ? {} : { from: value })} />
    </>
  );
}

export function LineUpPage({ name }: { readonly name: string }): JSX.Element {
  useEffect(() => void load("campaigns"), []);
  const { value, error } = useResource<LineUp>({ method: "GET", path: `v1/line-ups/${name}` });
  useEffect(() => {
    if (value?.title !== undefined) {
      titles.value = { ...titles.value, [`line-ups/${value.name}`]: value.title };
    }
  }, [value?.title]);
  if (value === undefined) {
    return error === undefined ? <p class="lead">{texts.value.reading}</p> : <Refusal error={error} />;
  }
  const mayCopy = allowed("PUT /v1/line-ups/{line_up}");
  return (
    <>
      {(value.title !== undefined || mayCopy) && (
        <p class="about">
          {value.title !== undefined && <code>{value.name}</code>}
          {mayCopy && (
            <a class="copy" href={`#/new-line-up/${name}`}>
              {texts.value.lineUps.copy}
            </a>
          )}
        </p>
      )}
      <Editor key={name} stored={value} />
    </>
  );
}
