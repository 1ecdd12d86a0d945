/** Uploads a file of users or codes: first a check that changes nothing, then the upload itself, with its progress. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { json, Problem, upload } from "../api/client.ts";
import { on } from "../api/document.ts";
import { codingOf, headOf, type Head } from "../api/file.ts";
import { columnsOf, isTable, likelyColumn, previewOf, readingOf, typeOf, type Reading } from "../api/reading.ts";
import type { Import } from "../api/types.ts";
import { bytes, count, percent } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { ask } from "../parts/dialog.tsx";
import { Check, Choice, Field, Panel, Refusal, Text, Warnings } from "../parts/panel.tsx";
import { Table } from "../parts/table.tsx";
import { fullName } from "../state/filters.ts";
import { allowed } from "../state/session.ts";
import type { PartProps } from "./filter.tsx";
import { Entries, Excerpt, Unreadable } from "./preview.tsx";

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

/** A chosen file, and how it is to be read. */
interface Chosen {
  readonly file: File;
  /** Its beginning; undefined if the browser can't read it. */
  readonly head: Head | undefined;
  readonly reading: Reading;
  readonly column: string;
}

async function examine(file: File, kind: PartProps["kind"]): Promise<Chosen> {
  // A damaged archive is the service's to refuse.
  const head = await headOf(file).catch(() => undefined);
  const reading = readingOf(file.name, head);
  const columns = head === undefined ? [] : columnsOf(head, reading);
  return { file, head, reading, column: likelyColumn(columns, kind) };
}

/** The name of the column, where the service needs it: a table of one column has no other. */
function columnOf({ head, reading, column }: Chosen): string | undefined {
  const isOnly = head !== undefined && columnsOf(head, reading).length === 1;
  return isTable(reading) && !isOnly ? column : undefined;
}

/** Whether it can be sent. A name with a character that is not UTF-8 can't be. */
function isSendable(chosen: Chosen): boolean {
  return chosen.head?.unreadable === undefined && !columnOf(chosen)?.includes("\uFFFD");
}

export function Upload({ kind, filter, changed }: PartProps): JSX.Element | null {
  const t = texts.value.upload;
  const [chosen, setChosen] = useState<Chosen | undefined>(undefined);
  const [mode, setMode] = useState<Mode>("append");
  const [isOnce, setOnce] = useState(false);
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

  // Others have each item once anyway.
  const isCounting = filter.mode === "compact";
  const call = (isDry: boolean): Call | undefined => {
    if (chosen === undefined) {
      return undefined;
    }
    const { file, reading } = chosen;
    const coding = codingOf(file.name);
    return {
      method: "POST",
      path: `v1/${kind}/${filter.name}/imports`,
      query: {
        mode,
        column: columnOf(chosen),
        // The service takes a comma for granted.
        delimiter: isTable(reading) && reading !== "comma" ? reading : undefined,
        if_absent: isCounting && isOnce ? true : undefined,
        min_items: guards.min_items,
        max_shrink: mode === "replace" ? guards.max_shrink : undefined,
        max_rejected: guards.max_rejected,
        ...(isDry ? { dry_run: true } : { id }),
      },
      headers: { "Content-Type": typeOf(reading), ...(coding === undefined ? {} : { "Content-Encoding": coding }) },
      file,
    };
  };

  const begin = async (isDry: boolean) => {
    const now = call(isDry);
    if (now?.file === undefined || running !== undefined) {
      return;
    }
    setFailure(undefined);
    setRunning({ isDry, sent: 0, total: now.file.size });
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
      const code = error instanceof Problem ? error.code : undefined;
      const isGuarded = code === "import-guarded";
      if (code === "import-overtaken") {
        // What the first attempt has added is gone: the next one starts over.
        setId(newId());
      }
      setFailure(controller.signal.aborted ? { error: stopped[step] } : { error, ...(isGuarded ? { note: guarded[step] } : {}) });
      changed();
    } finally {
      release();
      clearInterval(look);
      setRunning(undefined);
    }
  };

  const isChecked = result?.state === "checked";
  const items = chosen?.head === undefined ? undefined : previewOf(chosen.head, chosen.reading, chosen.column).items;
  const canSend = chosen !== undefined && isSendable(chosen) && running === undefined;
  const choose = async (file: File | undefined) => {
    renew();
    setChosen(undefined);
    newest.current = file;
    const examined = file === undefined ? undefined : await examine(file, kind);
    // Another file may be chosen by now.
    if (newest.current === file) {
      setChosen(examined);
    }
  };
  const readAs = (reading: Reading) => {
    renew();
    setChosen((before) => before && { ...before, reading, column: before.head === undefined ? before.column : likelyColumn(columnsOf(before.head, reading), kind) });
  };
  const takeColumn = (column: string) => {
    renew();
    setChosen((before) => before && { ...before, column });
  };
  const submit = (event: Event) => {
    event.preventDefault();
    if (!isChecked) {
      return void begin(true);
    }
    const added = count(result.added);
    const isReplacing = mode === "replace";
    ask({
      title: isReplacing ? t.replaceTitle(fullName(filter)) : t.appendTitle(fullName(filter)),
      text: isReplacing ? t.replaceText[kind](count(filter.stats.available ?? filter.stats.items), added) : t.appendText(added),
      shown: <Entries of={items} />,
      verb: isReplacing ? t.replace : t.run,
      isHarmless: !isReplacing,
      run: async () => void begin(false),
    });
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
  return (
    <Panel title={t.title}>
      <form class="action" onSubmit={submit}>
        <fieldset class="action" disabled={running !== undefined && !running.isDry}>
          <Field label={t.file} hint={t.fileHint[kind]}>
            {(control, hint) => (
              <input id={control} type="file" aria-describedby={hint} onChange={(event) => void choose(event.currentTarget.files?.[0])} />
            )}
          </Field>
          {chosen?.head?.unreadable !== undefined && <Unreadable why={chosen.head.unreadable} />}
          {chosen !== undefined && chosen.head?.unreadable === undefined && <Excerpt kind={kind} of={chosen} readAs={readAs} takeColumn={takeColumn} />}
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
          {isCounting && (
            <Check
              label={t.once}
              checked={isOnce}
              change={(checked) => {
                setOnce(checked);
                renew();
              }}
            />
          )}
          <details>
            <summary>{t.guards}</summary>
            <div class="fields">
              {guard("min_items", t.minItems, t.minItemsHint)}
              {mode === "replace" && guard("max_shrink", t.maxShrink, t.maxShrinkHint, "any")}
              {guard("max_rejected", t.maxRejected, t.maxRejectedHint)}
            </div>
          </details>
          <div class="buttons">
            <button type="button" class={isChecked ? "" : "primary"} disabled={!canSend} onClick={() => void begin(true)}>
              {t.check}
            </button>
            <button type="submit" class={isChecked ? "primary" : ""} disabled={!isChecked || !canSend}>
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
