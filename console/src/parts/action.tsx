/** A form that sends one call: its button, the same as a curl command, and below it what came back. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { json } from "../api/client.ts";
import { CurlButton } from "./curl.tsx";
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
}

export function Action<T>({ label, call, children, answer, done, tone = "primary" }: ActionProps<T>): JSX.Element {
  const [state, setState] = useState<{ answer: T } | { error: unknown } | "running" | undefined>(undefined);
  const isComplete = call() !== undefined;
  const submit = async (event: Event) => {
    event.preventDefault();
    const now = call();
    if (now === undefined || state === "running") {
      return;
    }
    setState("running");
    try {
      const received = await json<T>(now);
      setState({ answer: received });
      done?.(received);
    } catch (error) {
      setState({ error });
    }
  };
  return (
    <form class="action" onSubmit={submit}>
      {children}
      <div class="buttons">
        <button class={tone} disabled={!isComplete || state === "running"}>
          {label}
        </button>
        {isComplete && <CurlButton call={call} />}
      </div>
      <div class="outcome" aria-live="polite">
        {typeof state === "object" && "error" in state && <Refusal error={state.error} />}
        {typeof state === "object" && "answer" in state && answer?.(state.answer)}
      </div>
    </form>
  );
}
