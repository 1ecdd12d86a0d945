/** Imports a file: first a dry run, then the import itself, with its progress. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { json, upload } from "../api/client.ts";
import { on } from "../api/document.ts";
import { formatOf } from "../api/upload_format.ts";
import { NOUN, type Filter, type Import, type Kind } from "../api/types.ts";
import { bytes, count, percent, plural } from "../format.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Choice, Field, Panel, Refusal, Text } from "../parts/panel.tsx";
import { Table } from "../parts/table.tsx";
import { allowed } from "../state/session.ts";

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

function stopped(isDry: boolean, mode: Mode): string {
  if (isDry) {
    return "Stopped.";
  }
  return mode === "append" ? "Stopped. Import goes on where it ended." : "Stopped. Nothing was replaced.";
}

function Result({ of }: { readonly of: Import }): JSX.Element {
  const isDry = of.state === "checked";
  return (
    <div class={of.rejected > 0 || of.warnings.length > 0 ? "notice warn" : "notice good"}>
      <strong>{isDry ? "Dry run: nothing has changed." : "Imported."}</strong>{" "}
      {plural(of.lines, "line")}: {count(of.added)} {isDry ? "to add" : "added"}, {count(of.already_present)} already present
      {of.already_redeemed > 0 && `, ${count(of.already_redeemed)} already redeemed`}, {count(of.rejected)} rejected.
      {of.warnings.map((warning) => (
        <p key={warning}>Warning: {warning}</p>
      ))}
      {of.errors.length > 0 && <Table label="Rejected lines" rows={of.errors} />}
    </div>
  );
}

interface Running {
  readonly isDry: boolean;
  readonly sent: number;
  readonly total: number;
  /** What the service has read, once it tells. */
  readonly lines?: number;
}

function Progress({ of, stop }: { readonly of: Running; readonly stop: () => void }): JSX.Element {
  const share = of.total > 0 ? of.sent / of.total : 0;
  return (
    <div class="progress">
      <progress max={1} value={share} aria-label="Upload" />
      <span>
        {of.isDry ? "Dry run: " : ""}
        {percent(share)} of {bytes(of.total)}
        {of.lines !== undefined && `, ${plural(of.lines, "line")} read`}
      </span>
      <button type="button" class="plain" onClick={stop}>
        Stop
      </button>
    </div>
  );
}

interface UploadProps {
  readonly kind: Kind;
  readonly filter: Filter;
  readonly changed: () => void;
}

export function Upload({ kind, filter, changed }: UploadProps): JSX.Element | null {
  const [file, setFile] = useState<File | undefined>(undefined);
  const [mode, setMode] = useState<Mode>("append");
  const [column, setColumn] = useState("");
  const [guards, setGuards] = useState<Guards>({ min_items: "", max_shrink: "", max_rejected: "" });
  const [id, setId] = useState(newId);
  const [running, setRunning] = useState<Running | undefined>(undefined);
  const [result, setResult] = useState<Import | undefined>(undefined);
  const [error, setError] = useState<unknown>(undefined);
  const abort = useRef<AbortController>(undefined);
  // Another upload in every respect: the dry run of the one before says nothing of it, and is not waited for.
  const renew = () => {
    abort.current?.abort();
    setId(newId());
    setResult(undefined);
    setError(undefined);
  };
  useEffect(() => () => abort.current?.abort(), []);
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
    setError(undefined);
    setRunning({ isDry, sent: 0, total: file.size });
    const controller = new AbortController();
    abort.current = controller;
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
    } catch (failure) {
      setError(controller.signal.aborted ? stopped(isDry, mode) : failure);
      changed();
    } finally {
      clearInterval(look);
      setRunning(undefined);
    }
  };

  const isChecked = result?.state === "checked";
  const isCsv = file !== undefined && formatOf(file.name).type === "text/csv";
  const submit = (event: Event) => {
    event.preventDefault();
    void begin(!isChecked);
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
    <Panel title="Import a file">
      <form class="action" onSubmit={submit}>
        <Field label="File" hint={`A ${NOUN[kind].one.replace("campaign", "user").replace("coupon", "code")} a line; or .csv, .ndjson; also as .gz or .zst`}>
          {(control, hint) => (
            <input
              id={control}
              type="file"
              aria-describedby={hint}
              onChange={(event) => {
                setFile(event.currentTarget.files?.[0]);
                renew();
              }}
            />
          )}
        </Field>
        <Choice
          label="What happens to what is there"
          value={mode}
          options={[
            ["append", "It stays"],
            ["replace", "It is replaced at the end"],
          ]}
          change={(value) => {
            setMode(value);
            renew();
          }}
        />
        {isCsv && (
          <Text
            label="Column"
            value={column}
            hint="May be left out if there is only one"
            change={(value) => {
              setColumn(value);
              renew();
            }}
          />
        )}
        <details>
          <summary>Guards against the wrong file</summary>
          <div class="fields">
            {guard("min_items", "At least", "items")}
            {mode === "replace" && guard("max_shrink", "Shrinks at most by", "a share: 0.2", "any")}
            {guard("max_rejected", "Rejected at most", "lines")}
          </div>
        </details>
        <div class="buttons">
          <button type="button" class={isChecked ? "" : "primary"} disabled={file === undefined || running !== undefined} onClick={() => void begin(true)}>
            Dry run
          </button>
          <button type="submit" class={isChecked ? "primary" : ""} disabled={!isChecked || running !== undefined}>
            Import
          </button>
          {file !== undefined && <CurlButton call={() => call(!isChecked)} />}
        </div>
        {!isChecked && result === undefined && <p class="hint">The dry run reads the file and changes nothing. After it the file can be imported.</p>}
        {running !== undefined && <Progress of={running} stop={() => abort.current?.abort()} />}
        <div class="outcome" aria-live="polite">
          {error !== undefined && <Refusal error={error} />}
          {result !== undefined && error === undefined && <Result of={result} />}
        </div>
      </form>
    </Panel>
  );
}
