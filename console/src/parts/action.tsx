/** A form that sends one call: its button, and below it what came back. What can't be undone is asked first. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { write } from "../state/writes.ts";
import { ask, type Question } from "./dialog.tsx";
import { Refusal } from "./panel.tsx";

interface ActionProps<T> {
  readonly label: string;
  /** The call as the form stands; undefined while something is missing. */
  readonly call: () => Call | undefined;
  readonly children?: ComponentChildren;
  /** What is shown of an answer. */
  readonly answer?: (answer: T) => ComponentChildren;
  readonly done?: (answer: T) => void;
  readonly tone?: "primary" | "danger" | "quiet";
  /** Sends the call in another way; undefined if the form is to be looked at again first. */
  readonly send?: (call: Call) => Promise<T | undefined>;
  /** The question before it, if there is one. */
  readonly question?: () => Omit<Question, "run" | "verb"> | undefined;
}

export function Action<T>({ label, call, children, answer, done, tone = "primary", send = write, question }: ActionProps<T>): JSX.Element {
  const [state, setState] = useState<{ answer: T } | { error: unknown } | "running" | undefined>(undefined);
  const isComplete = call() !== undefined;
  const run = async (now: Call) => {
    setState("running");
    try {
      const received = await send(now);
      if (received === undefined) {
        return setState(undefined);
      }
      setState({ answer: received });
      done?.(received);
    } catch (error) {
      setState({ error });
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    const now = call();
    if (now === undefined || state === "running") {
      return;
    }
    const first = question?.();
    first === undefined ? void run(now) : ask({ ...first, verb: label, run: () => run(now) });
  };
  return (
    <form class="action" onSubmit={submit}>
      {children}
      <div class="buttons">
        <button class={tone} disabled={!isComplete || state === "running"}>
          {label}
        </button>
      </div>
      <div class="outcome" aria-live="polite">
        {typeof state === "object" && "error" in state && <Refusal error={state.error} />}
        {typeof state === "object" && "answer" in state && answer?.(state.answer)}
      </div>
    </form>
  );
}
