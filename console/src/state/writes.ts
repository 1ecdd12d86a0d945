/**
 * Sends each intended write under one idempotency key, so that it takes effect once. The same write again repeats the key while the outcome
 * of the first is unknown: the response was lost, or the service doesn't know.
 */

import type { Call } from "../api/call.ts";
import { json, Problem } from "../api/client.ts";
import { takesKey } from "../api/document.ts";
import { document_ } from "./session.ts";

interface Attempt {
  readonly intent: string;
  readonly key: string;
}

/** The last write to each object, if its outcome is unknown. After another write to the object, the same one is a new intention. */
const unknown = new Map<string, Attempt>();

/** Statuses that decide a write. Others concern the connection, the caller, or the state of a node. */
const DECIDED: readonly number[] = [400, 404, 409, 410, 413, 415, 422, 507];

export function isUnknown(error: unknown): boolean {
  return !(error instanceof Problem) || !DECIDED.includes(error.status);
}

export function newKey(): string {
  const random = crypto.getRandomValues(new Uint8Array(12));
  return `console-${Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Sends a call. Those that only ask have no key. */
export async function write<T>(call: Call): Promise<T> {
  if (document_.value === undefined || !takesKey(document_.value, call)) {
    return json<T>(call);
  }
  const object = call.path.split("/").slice(0, 3).join("/");
  const intent = JSON.stringify(call);
  const before = unknown.get(object);
  const key = before?.intent === intent ? before.key : newKey();
  try {
    const received = await json<T>({ ...call, key });
    unknown.delete(object);
    return received;
  } catch (error) {
    isUnknown(error) ? unknown.set(object, { intent, key }) : unknown.delete(object);
    throw error;
  }
}
