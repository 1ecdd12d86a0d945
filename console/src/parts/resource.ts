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
  const question = JSON.stringify(call);
  const reload = useCallback(async () => {
    const asked = latest.current;
    if (asked === undefined) {
      return;
    }
    // An answer to an earlier question is none to this one.
    const isLatest = () => JSON.stringify(latest.current) === JSON.stringify(asked);
    try {
      const value = await json<T>(asked);
      isLatest() && setState({ value });
    } catch (error) {
      // What was known stays, unless it is gone.
      const isGone = error instanceof Problem && error.status === 404;
      isLatest() && setState((before) => (isGone ? { error } : { ...before, error }));
    }
  }, [question]);
  useEffect(() => {
    void reload();
    if (everySeconds === undefined) {
      return;
    }
    const timer = setInterval(() => void reload(), everySeconds * 1000);
    return () => clearInterval(timer);
  }, [reload, everySeconds]);
  return { value: state.value, error: state.error, reload };
}
