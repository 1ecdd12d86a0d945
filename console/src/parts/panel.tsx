/** Boxes with a heading, and small things that stand in them. */

import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import { Problem } from "../api/client.ts";
import { fullMoment, moment } from "../format.ts";
import { named, texts } from "../i18n/texts.ts";
import { warningOf } from "../state/warnings.ts";

interface PanelProps {
  readonly title: string;
  readonly aside?: ComponentChildren;
  readonly wide?: boolean;
  readonly children: ComponentChildren;
}

export function Panel({ title, aside, wide, children }: PanelProps): JSX.Element {
  const id = useId();
  return (
    <section class={wide ? "panel wide" : "panel"} aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

export type Tone = "good" | "warn" | "bad" | "quiet";

export function Tag({ tone, children }: { readonly tone: Tone; readonly children: ComponentChildren }): JSX.Element {
  return <span class={`tag ${tone}`}>{children}</span>;
}

/** A time on the reader's clock; its zone is shown with the pointer, and at the end of every page. */
export function Time({ at, children }: { readonly at: string; readonly children?: ComponentChildren }): JSX.Element {
  return (
    <time dateTime={at} title={fullMoment(at)}>
      {children ?? moment(at)}
    </time>
  );
}

/** What a pointer of a problem names, in words of the form: `/codes/3` is the fourth line. */
function place(pointer: string): string {
  const t = texts.value;
  const parts = pointer.split("/").slice(1);
  const line = parts.find((part) => /^\d+$/.test(part));
  const field = parts.findLast((part) => part !== line) ?? "";
  return line === undefined ? named(t.fields, field) : t.line(Number(line) + 1);
}

/** Why something failed: first in words for the reader, then the service's own for its operators. */
export function Refusal({ error }: { readonly error: unknown }): JSX.Element {
  const t = texts.value;
  if (!(error instanceof Problem)) {
    return <p class="notice bad">{String(error)}</p>;
  }
  const { title, detail, code, errors, request_id, expires_at } = error.document;
  const hasErrors = errors !== undefined && errors.length > 0;
  return (
    <div class="notice bad" role="alert">
      <strong>{(t.problems as Readonly<Record<string, string>>)[code] ?? title}</strong>
      {expires_at !== undefined && (
        <p>
          {t.heldUntil} <Time at={expires_at} />
        </p>
      )}
      {hasErrors && (
        <ul>
          {errors.map(({ pointer, detail }) => (
            <li key={pointer + detail}>
              {place(pointer)}: <span lang="en">{detail}</span>
            </li>
          ))}
        </ul>
      )}
      <details>
        <summary>{t.technical}</summary>
        <p lang="en">
          <code>{code}</code>
          {!hasErrors && ` ${detail}`}
          {request_id !== undefined && ` (${request_id})`}
        </p>
      </details>
    </div>
  );
}

/** What looks wrong about an upload. */
export function Warnings({ of }: { readonly of: readonly string[] }): JSX.Element {
  const t = texts.value.upload.warnings;
  return (
    <>
      {of.map((text) => {
        const kind = warningOf(text);
        return (
          <small key={text} title={text} lang={kind === undefined ? "en" : undefined}>
            {kind === undefined ? text : t[kind]}
          </small>
        );
      })}
    </>
  );
}

/** A list without entries: why, and the first step. */
export function Empty({ text, children }: { readonly text: string; readonly children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <p>{text}</p>
      {children}
    </div>
  );
}

/** What operators look at, and others need not. */
export function Technical({ children }: { readonly children: ComponentChildren }): JSX.Element {
  return (
    <details class="technical">
      <summary>{texts.value.technical}</summary>
      {children}
    </details>
  );
}

interface BarProps {
  readonly share: number;
  readonly label: string;
  /** From where on it is a warning; never by default. */
  readonly warnFrom?: number;
}

export function Bar({ share, label, warnFrom = Infinity }: BarProps): JSX.Element {
  const shown = Math.min(1, Math.max(0, share));
  return (
    <span class={shown >= warnFrom ? "bar warn" : "bar"} role="img" aria-label={label}>
      {shown > 0 && <span style={{ width: `${shown * 100}%` }} />}
    </span>
  );
}

/** Terms and what they are. What is undefined is left out. */
export function Facts({ of }: { readonly of: readonly (readonly [string, ComponentChildren])[] }): JSX.Element {
  return (
    <dl class="facts">
      {of
        .filter(([, value]) => value !== undefined)
        .map(([term, value]) => (
          <div key={term}>
            <dt>{term}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

interface FieldProps {
  readonly label: string;
  readonly hint?: string | undefined;
  readonly fault?: string | undefined;
  readonly children: (id: string, hintId: string | undefined) => ComponentChildren;
}

/** A label over its control. */
export function Field({ label, hint, fault, children }: FieldProps): JSX.Element {
  const id = useId();
  const told = fault ?? hint;
  const hintId = told === undefined ? undefined : `${id}-hint`;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id, hintId)}
      {told !== undefined && (
        <small id={hintId} class={fault === undefined ? "hint" : "fault"} aria-live="polite">
          {told}
        </small>
      )}
    </div>
  );
}

interface TextProps {
  readonly label: string;
  readonly value: string;
  readonly change: (value: string) => void;
  readonly hint?: string | undefined;
  /** What is wrong with the value as it stands. */
  readonly fault?: string | undefined;
  readonly type?: "text" | "number" | "password" | "search" | "datetime-local";
  readonly required?: boolean;
  readonly placeholder?: string;
  readonly min?: number;
  readonly max?: number;
  readonly step?: string;
  /** The id of a list of values to choose from. */
  readonly list?: string;
}

export function Text({ label, value, change, hint, fault, type = "text", ...rest }: TextProps): JSX.Element {
  return (
    <Field label={label} hint={hint} fault={fault}>
      {(id, hintId) => (
        <input
          id={id}
          type={type as "text"}
          value={value}
          autocomplete="off"
          spellcheck={false}
          aria-describedby={hintId}
          aria-invalid={fault !== undefined || undefined}
          onInput={(event) => change(event.currentTarget.value)}
          {...rest}
        />
      )}
    </Field>
  );
}

interface LinesProps {
  readonly label: string;
  readonly value: string;
  readonly change: (value: string) => void;
  readonly hint?: string | undefined;
  readonly rows?: number;
}

export function Lines({ label, value, change, hint, rows = 3 }: LinesProps): JSX.Element {
  return (
    <Field label={label} hint={hint}>
      {(id, hintId) => (
        <textarea
          id={id}
          rows={rows}
          value={value}
          autocomplete="off"
          spellcheck={false}
          aria-describedby={hintId}
          onInput={(event) => change(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

interface CheckProps {
  readonly label: string;
  readonly checked: boolean;
  readonly change: (checked: boolean) => void;
  /** The id of an explanation. */
  readonly describedBy?: string;
}

export function Check({ label, checked, change, describedBy }: CheckProps): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} aria-describedby={describedBy} onChange={(event) => change(event.currentTarget.checked)} /> {label}
    </label>
  );
}

interface ChoiceProps<T extends string> {
  readonly label: string;
  readonly value: T;
  readonly options: readonly (readonly [T, string])[];
  readonly change: (value: T) => void;
}

/** One of a few, all of them in sight. */
export function Choice<T extends string>({ label, value, options, change }: ChoiceProps<T>): JSX.Element {
  const name = useId();
  return (
    <fieldset class="choice">
      <legend>{label}</legend>
      <div>
        {options.map(([option, text]) => (
          <label key={option}>
            <input type="radio" name={name} checked={option === value} onChange={() => change(option)} />
            <span>{text}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

interface SelectProps {
  readonly label: string;
  readonly value: string;
  readonly options: readonly (readonly [string, string])[];
  readonly change: (value: string) => void;
  readonly hint?: string | undefined;
}

export function Select({ label, value, options, change, hint }: SelectProps): JSX.Element {
  return (
    <Field label={label} hint={hint}>
      {(id, hintId) => (
        <select id={id} value={value} aria-describedby={hintId} onChange={(event) => change(event.currentTarget.value)}>
          {options.map(([option, text]) => (
            <option key={option} value={option}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** The items of a text, one a line, exactly as they stand. */
export function itemsOf(text: string): string[] {
  return text.split(/\r?\n/).filter((line) => line !== "");
}
