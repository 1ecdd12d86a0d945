/** Uploads a file of users or codes: first a check that changes nothing, then the upload itself, with its progress. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { json, Problem, upload } from "../api/client.ts";
import { on } from "../api/document.ts";
import { columns, formatOf } from "../api/file.ts";
import type { Import } from "../api/types.ts";
import { bytes, count, percent } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { ask } from "../parts/dialog.tsx";
import { Choice, Field, Panel, Refusal, Select, Text, Warnings } from "../parts/panel.tsx";
import { Table } from "../parts/table.tsx";
import { fullName } from "../state/filters.ts";
import { allowed } from "../state/session.ts";
import type { PartProps } from "./filter.tsx";

type Mode = "append" | "replace";

interface Guards {
  readonly min_items: string;
  readonly max_shrink: string;
  readonly max_rejected: string;
}

function newId(): string {
  const random = crypto.getRandomValues(new Uint8Array(6));
  return `console-${Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

function Result({ of }: { readonly of: Import }): JSX.Element {
  const t = texts.value.upload;
  const isDry = of.state === "checked";
  // Without headers and blank lines.
  const entries = count(of.added + of.already_present + of.already_redeemed + of.rejected);
  return (
    <div class={of.rejected > 0 || of.warnings.length > 0 ? "notice warn" : "notice good"}>
      <strong>{isDry ? t.checked : t.imported}</strong>{" "}
      {isDry ? t.wouldAdd(entries, count(of.added)) : t.added(entries, count(of.added))}
      {of.already_present > 0 && ` ${t.alreadyPresent(count(of.already_present))}`}
      {of.already_redeemed > 0 && ` ${t.alreadyRedeemed(count(of.already_redeemed))}`}
      {of.rejected > 0 && ` ${t.rejected(count(of.rejected))}`}
      <Warnings of={of.warnings} />
      {of.errors.length > 0 && <Table label={t.rejectedLines} rows={of.errors} />}
    </div>
  );
}

interface Failure {
  readonly error: unknown;
  /** What it means for the content. */
  readonly note?: string;
}

/** Asks before the tab is closed. Returns what ends that. */
function holdTab(): () => void {
  const hold = (event: BeforeUnloadEvent) => event.preventDefault();
  addEventListener("beforeunload", hold);
  return () => removeEventListener("beforeunload", hold);
}

interface Running {
  readonly isDry: boolean;
  readonly sent: number;
  readonly total: number;
  /** What the service has read, once it tells. */
  readonly lines?: number;
}

function Progress({ of, stop }: { readonly of: Running; readonly stop: () => void }): JSX.Element {
  const t = texts.value.upload;
  const share = of.total > 0 ? of.sent / of.total : 0;
  return (
    <div class="progress">
      <progress max={1} value={share} aria-label={t.title} />
      <span>
        {t.sent(percent(share), bytes(of.total))}
        {of.lines !== undefined && ` ${t.linesRead(count(of.lines))}`}
      </span>
      <button type="button" class="plain" onClick={stop}>
        {t.stop}
      </button>
      {!of.isDry && <small class="hint">{t.goesOn}</small>}
    </div>
  );
}

export function Upload({ kind, filter, changed }: PartProps): JSX.Element | null {
  const t = texts.value.upload;
  const [file, setFile] = useState<File | undefined>(undefined);
  const [mode, setMode] = useState<Mode>("append");
  const [names, setNames] = useState<readonly string[]>([]);
  const [column, setColumn] = useState("");
  const [guards, setGuards] = useState<Guards>({ min_items: "", max_shrink: "", max_rejected: "" });
  const [id, setId] = useState(newId);
  const [running, setRunning] = useState<Running | undefined>(undefined);
  const [result, setResult] = useState<Import | undefined>(undefined);
  const [failure, setFailure] = useState<Failure | undefined>(undefined);
  const newest = useRef<File>(undefined);
  /** Ends the check or the upload that is running. */
  const abort = useRef<AbortController>(undefined);
  const check = useRef<AbortController>(undefined);
  // Another upload in every respect: the check of the one before says nothing of it, and is not waited for.
  const renew = () => {
    check.current?.abort();
    setId(newId());
    setResult(undefined);
    setFailure(undefined);
  };
  useEffect(() => () => check.current?.abort(), []);
  if (!allowed(on(kind, "POST", "/imports")) || filter.stock !== undefined) {
    return null;
  }

  const call = (isDry: boolean): Call | undefined => {
    if (file === undefined) {
      return undefined;
    }
    const { type, coding } = formatOf(file.name);
    return {
      method: "POST",
      path: `v1/${kind}/${filter.name}/imports`,
      query: {
        mode,
        column: type === "text/csv" ? column : undefined,
        min_items: guards.min_items,
        max_shrink: mode === "replace" ? guards.max_shrink : undefined,
        max_rejected: guards.max_rejected,
        ...(isDry ? { dry_run: true } : { id }),
      },
      headers: { "Content-Type": type, ...(coding === undefined ? {} : { "Content-Encoding": coding }) },
      file,
    };
  };

  const begin = async (isDry: boolean) => {
    const now = call(isDry);
    if (now === undefined || file === undefined || running !== undefined) {
      return;
    }
    setFailure(undefined);
    setRunning({ isDry, sent: 0, total: file.size });
    const controller = new AbortController();
    abort.current = controller;
    check.current = isDry ? controller : undefined;
    // An upload goes on while the reader looks at other pages; only the tab has to stay.
    const release = isDry ? () => undefined : holdTab();
    const look = setInterval(async () => {
      if (!isDry) {
        const known = await json<Import>({ method: "GET", path: `v1/imports/${id}` }).catch(() => undefined);
        setRunning((before) => (before === undefined || known === undefined ? before : { ...before, lines: known.lines }));
      }
    }, 1_000);
    try {
      const received = await upload<Import>(
        now,
        (sent, total) => setRunning((before) => before && { ...before, sent, total }),
        controller.signal,
      );
      setResult(received);
      if (!isDry) {
        setId(newId());
        changed();
      }
    } catch (error) {
      const { stopped, guarded } = texts.value.upload;
      const step = isDry ? "check" : mode;
      const isGuarded = error instanceof Problem && error.code === "import-guarded";
      setFailure(controller.signal.aborted ? { error: stopped[step] } : { error, ...(isGuarded ? { note: guarded[step] } : {}) });
      changed();
    } finally {
      release();
      clearInterval(look);
      setRunning(undefined);
    }
  };

  const isChecked = result?.state === "checked";
  const isCsv = file !== undefined && formatOf(file.name).type === "text/csv";
  const choose = async (chosen: File | undefined) => {
    renew();
    setFile(chosen);
    newest.current = chosen;
    const found = chosen === undefined ? [] : await columns(chosen).catch(() => []);
    // Another file may be chosen by now.
    if (newest.current !== chosen) {
      return;
    }
    setNames(found);
    // A likely one is chosen, so that the check can begin.
    setColumn(found.length > 1 ? (found.find((name) => /code|user|id/i.test(name)) ?? found[0] ?? "") : "");
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (!isChecked || mode === "append") {
      return void begin(!isChecked);
    }
    const question = { title: t.replaceTitle(fullName(filter)), text: t.replaceText[kind](count(filter.stats.available ?? filter.stats.items), count(result?.added ?? 0)) };
    ask({ ...question, verb: t.replace, run: async () => void begin(false) });
  };
  const guard = (name: keyof Guards, label: string, hint: string, step = "1") => (
    <Text
      label={label}
      type="number"
      min={0}
      step={step}
      value={guards[name]}
      hint={hint}
      change={(value) => {
        setGuards((before) => ({ ...before, [name]: value }));
        renew();
      }}
    />
  );
  const changeColumn = (value: string) => {
    setColumn(value);
    renew();
  };
  return (
    <Panel title={t.title}>
      <form class="action" onSubmit={submit}>
        <fieldset class="action" disabled={running !== undefined && !running.isDry}>
          <Field label={t.file} hint={t.fileHint[kind]}>
            {(control, hint) => (
              <input id={control} type="file" aria-describedby={hint} onChange={(event) => void choose(event.currentTarget.files?.[0])} />
            )}
          </Field>
          {names.length > 1 ? (
            <Select label={t.column} value={column} options={names.map((name) => [name, name] as const)} hint={t.columnHint[kind]} change={changeColumn} />
          ) : (
            isCsv && names.length === 0 && <Text label={t.column} value={column} hint={t.columnHint[kind]} change={changeColumn} />
          )}
          <Choice
            label={t.mode[kind]}
            value={mode}
            options={[
              ["append", t.append],
              ["replace", t.replace],
            ]}
            change={(value) => {
              setMode(value);
              renew();
            }}
          />
          <details>
            <summary>{t.guards}</summary>
            <div class="fields">
              {guard("min_items", t.minItems, t.minItemsHint)}
              {mode === "replace" && guard("max_shrink", t.maxShrink, t.maxShrinkHint, "any")}
              {guard("max_rejected", t.maxRejected, t.maxRejectedHint)}
            </div>
          </details>
          <div class="buttons">
            <button type="button" class={isChecked ? "" : "primary"} disabled={file === undefined || running !== undefined} onClick={() => void begin(true)}>
              {t.check}
            </button>
            <button type="submit" class={isChecked ? "primary" : ""} disabled={!isChecked || running !== undefined}>
              {t.run}
            </button>
          </div>
          {!isChecked && result === undefined && <p class="hint">{t.hint}</p>}
        </fieldset>
        {running !== undefined && <Progress of={running} stop={() => abort.current?.abort()} />}
        <div class="outcome" aria-live="polite">
          {failure !== undefined && <Refusal error={failure.error} />}
          {failure?.note !== undefined && <p>{failure.note}</p>}
          {result !== undefined && failure === undefined && <Result of={result} />}
        </div>
      </form>
    </Panel>
  );
}
