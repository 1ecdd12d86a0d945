/** Saves a line-up only over the version that its reader has seen: the API replaces any version. */

import { json, Problem } from "../api/client.ts";
import type { Exclusion, Labels, LineUp } from "../api/types.ts";
import { write } from "./writes.ts";

/** What is sent: texts that are left out stay as they are. */
export interface LineUpSpec {
  readonly title?: string;
  readonly labels?: Labels;
  readonly campaigns: readonly string[];
  readonly unless: readonly Exclusion[];
  readonly limit: number;
}

/** A line-up as a text: two that are equal have the same. */
export function contentOf({ title = "", labels = {}, campaigns, unless, limit }: LineUpSpec): string {
  const exclusions = unless.map(({ campaign, at_least = 1, for: of = "", required = false }) => [campaign, at_least, of, required]);
  return JSON.stringify([title, Object.entries(labels).sort(), campaigns, exclusions, limit]);
}

/** What is stored under a path now, on any node; undefined if there is nothing. Fails if that can't be learned. */
async function stored(path: string): Promise<LineUp | undefined> {
  try {
    return await json<LineUp>({ method: "GET", path, headers: { "X-Cuckood-Consistency": "strong" } });
  } catch (error) {
    if (error instanceof Problem && error.code === "line-up-not-found") {
      return undefined;
    }
    throw error;
  }
}

/** The line-up was saved elsewhere since it was read. */
export class Conflict {
  readonly theirs: LineUp | undefined;

  constructor(theirs: LineUp | undefined) {
    this.theirs = theirs;
  }
}

/** Saves a line-up: a new one without `seen`, else over `seen`. Returns a conflict, and writes nothing, if another version is stored. */
export async function save(name: string, spec: LineUpSpec, seen: LineUp | undefined): Promise<LineUp | Conflict> {
  const path = `v1/line-ups/${name}`;
  const now = await stored(path);
  const wanted = contentOf({ ...seen, ...spec });
  // What is stored as it is wanted was saved by an attempt whose answer never came.
  const isExpected = now === undefined ? seen === undefined : contentOf(now) === wanted || (seen !== undefined && contentOf(now) === contentOf(seen));
  if (!isExpected && seen === undefined) {
    throw new Problem({ status: 409, code: "already-exists", title: "The name is taken", detail: `line-up ${name} exists` });
  }
  return isExpected ? write<LineUp>({ method: "PUT", path, body: spec }) : new Conflict(now);
}
