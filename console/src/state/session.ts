/** Who uses the page: the key, kept for this browser session only, and what it may do. */

import { computed, signal } from "@preact/signals";
import { json, Problem, useKey } from "../api/client.ts";
import { has, hasParameter, may, takes, type OpenApi, type Operation } from "../api/document.ts";
import type { Info } from "../api/types.ts";

const PLACE = "cuckood-key";

/** Empty for none. */
export const key = sessionStorage.getItem(PLACE) ?? "";
export const document_ = signal<OpenApi | undefined>(undefined);
export const info = signal<Info | undefined>(undefined);
/** Why the key is not enough, or why one is needed. */
export const refusal = signal<Problem | undefined>(undefined);

/** Whether the service has said who we are, or that it doesn't know. */
export const isKnown = computed(() => info.value !== undefined || refusal.value !== undefined);

useKey(key);

/** Changes with whatever decides what the caller may do, and with nothing else. */
const scopes = computed(() => info.value?.key?.scopes.join(" "));

export function allowed(operation: Operation): boolean {
  return document_.value !== undefined && may(document_.value, operation, scopes.value?.split(" "));
}

export function offers(operation: Operation): boolean {
  return document_.value !== undefined && has(document_.value, operation);
}

export function accepts(schema: string, field: string): boolean {
  return document_.value !== undefined && takes(document_.value, schema, field);
}

export function hasOption(operation: Operation, parameter: string): boolean {
  return document_.value !== undefined && hasParameter(document_.value, operation, parameter);
}

/** Asks who we are. */
export async function refresh(): Promise<void> {
  try {
    document_.value ??= await json<OpenApi>({ method: "GET", path: "openapi.json" });
    info.value = await json<Info>({ method: "GET", path: "v1/info" });
    refusal.value = undefined;
  } catch (error) {
    if (!(error instanceof Problem)) {
      throw error;
    }
    if (error.status === 401 || error.status === 403) {
      info.value = undefined;
      refusal.value = error;
    }
  }
}

/** Changes the key and loads the page again: nothing that was read with the earlier key stays in memory. */
function become(secret: string): void {
  secret === "" ? sessionStorage.removeItem(PLACE) : sessionStorage.setItem(PLACE, secret);
  location.reload();
}

export const signIn = become;
export const signOut = () => become("");
