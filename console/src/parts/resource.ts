/** Something asked of the service, and asked again from time to time. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { json, Problem } from "../api/client.ts";

export interface Resource<T> {
  readonly value: T | undefined;
  readonly error: unknown;
  readonly reload: () => Promise<void>;
}

/** Asks whenever the call changes, and every few seconds if it is said how many. No call, no question. */
export function useResource<T>(call: Call | undefined, everySeconds?: number): Resource<T> {
  const [state, setState] = useState<{ value?: T; error?: unknown }>({});
  const latest = useRef(call);
  latest.current = call;
  /** How often it has asked, and the question whose answer is shown: answers to earlier ones are outdated. */
  const turns = useRef({ asked: 0, shown: 0 });
  const question = JSON.stringify(call);
  const look = useCallback(async () => {
    const asked = latest.current;
    if (asked === undefined) {
      return;
    }
    // An answer to an earlier question is none to this one.
    const turn = ++turns.current.asked;
    const isLatest = () => turn > turns.current.shown && JSON.stringify(latest.current) === JSON.stringify(asked);
    const show = (next: (before: { value?: T; error?: unknown }) => { value?: T; error?: unknown }) => {
      if (isLatest()) {
        turns.current.shown = turn;
        setState(next);
      }
    };
    try {
      const value = await json<T>(asked);
      show(() => ({ value }));
    } catch (error) {
      // What was known stays, unless it is gone.
      const isGone = error instanceof Problem && error.status === 404;
      show((before) => (isGone ? { error } : { ...before, error }));
    }
  }, [question]);
  const reload = useCallback(() => {
    // Something was changed: what was asked before doesn't know it.
    turns.current.shown = turns.current.asked;
    return look();
  }, [look]);
  useEffect(() => {
    void look();
    if (everySeconds === undefined) {
      return;
    }
    const timer = setInterval(() => void look(), everySeconds * 1000);
    return () => clearInterval(timer);
  }, [look, everySeconds]);
  return { value: state.value, error: state.error, reload };
}
