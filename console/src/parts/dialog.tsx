/** The question before an action that can't be undone. It names the object, and the action runs while the dialog is open. */

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { texts } from "../i18n/texts.ts";
import { Refusal, Text } from "./panel.tsx";

export interface Question {
  readonly title: string;
  readonly text: string;
  /** What the text is about, if that is not only a name. */
  readonly shown?: ComponentChildren;
  /** What the button does. */
  readonly verb: string;
  /** Whether it takes nothing away. */
  readonly isHarmless?: boolean;
  /** A name that has to be typed first. */
  readonly typed?: string;
  readonly run: () => Promise<void>;
  /** Another way to do it. */
  readonly other?: { readonly verb: string; readonly run: () => Promise<void> };
}

const asked = signal<Question | undefined>(undefined);

export function ask(question: Question): void {
  asked.value = question;
}

/** The one dialog that all questions share. */
export function QuestionDialog(): JSX.Element {
  const t = texts.value.dialog;
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [state, setState] = useState<{ error: unknown } | "running" | undefined>(undefined);
  const question = asked.value;
  useEffect(() => {
    setTyped("");
    setState(undefined);
    question === undefined ? dialog.current?.close() : dialog.current?.showModal();
  }, [question]);
  const close = () => {
    if (asked.value === question) {
      asked.value = undefined;
    }
  };
  const act = async (run: (() => Promise<void>) | undefined) => {
    setState("running");
    try {
      await run?.();
      close();
    } catch (error) {
      // Another question may be asked by now.
      asked.value === question && setState({ error });
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    void act(question?.run);
  };
  const isTyped = question?.typed === undefined || typed === question.typed;
  return (
    <dialog ref={dialog} class="question" aria-labelledby="question-title" aria-describedby="question-text" onClose={close}>
      {question !== undefined && (
        <form class="action" onSubmit={submit}>
          <h2 id="question-title">{question.title}</h2>
          <p id="question-text">{question.text}</p>
          {question.shown}
          {question.typed !== undefined && <Text label={t.typeName(question.typed)} value={typed} change={setTyped} />}
          <div class="buttons end">
            <button type="button" autofocus onClick={close}>
              {t.back}
            </button>
            {question.other !== undefined && (
              <button type="button" class="danger" disabled={!isTyped || state === "running"} onClick={() => void act(question.other?.run)}>
                {question.other.verb}
              </button>
            )}
            <button class={question.isHarmless ? "primary" : "primary danger"} disabled={!isTyped || state === "running"}>
              {question.verb}
            </button>
          </div>
          <div aria-live="polite">{typeof state === "object" && <Refusal error={state.error} />}</div>
        </form>
      )}
    </dialog>
  );
}
