/** Boxes with a heading, and small things that stand in them. */

import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import { Problem } from "../api/client.ts";

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

/** A refusal, with its pointers to what is wrong. */
export function Refusal({ error }: { readonly error: unknown }): JSX.Element {
  if (!(error instanceof Problem)) {
    return <p class="notice bad">{String(error)}</p>;
  }
  const { title, detail, code, errors } = error.document;
  return (
    <div class="notice bad">
      <strong>{title}</strong> <code>{code}</code>
      <p>{detail}</p>
      {errors !== undefined && errors.length > 0 && (
        <ul>
          {errors.map((fault) => (
            <li key={fault.pointer + fault.detail}>
              <code>{fault.pointer || "/"}</code> {fault.detail}
            </li>
          ))}
        </ul>
      )}
    </div>
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
  readonly hint?: string;
  readonly children: (id: string, hintId: string | undefined) => ComponentChildren;
}

/** A label over its control. */
export function Field({ label, hint, children }: FieldProps): JSX.Element {
  const id = useId();
  const hintId = hint === undefined ? undefined : `${id}-hint`;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id, hintId)}
      {hint !== undefined && (
        <small id={hintId} class="hint">
          {hint}
        </small>
      )}
    </div>
  );
}

interface TextProps {
  readonly label: string;
  readonly value: string;
  readonly change: (value: string) => void;
  readonly hint?: string;
  readonly type?: "text" | "number" | "password" | "search" | "datetime-local";
  readonly required?: boolean;
  readonly placeholder?: string;
  readonly min?: number;
  readonly max?: number;
  readonly step?: string;
  readonly pattern?: string;
}

export function Text({ label, value, change, hint, type = "text", ...rest }: TextProps): JSX.Element {
  return (
    <Field label={label} {...(hint === undefined ? {} : { hint })}>
      {(id, hintId) => (
        <input
          id={id}
          type={type as "text"}
          value={value}
          autocomplete="off"
          spellcheck={false}
          aria-describedby={hintId}
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
  readonly hint?: string;
  readonly rows?: number;
}

export function Lines({ label, value, change, hint, rows = 3 }: LinesProps): JSX.Element {
  return (
    <Field label={label} {...(hint === undefined ? {} : { hint })}>
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
}

export function Check({ label, checked, change }: CheckProps): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={(event) => change(event.currentTarget.checked)} /> {label}
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

/** The items of a text, one a line, exactly as they stand. */
export function itemsOf(text: string): string[] {
  return text.split(/\r?\n/).filter((line) => line !== "");
}
