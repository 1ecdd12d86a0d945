/** Sends calls and reads answers. Everything that the page asks of the service passes through here. */

import { headers, target, type Call } from "./call.ts";
import type { ProblemDocument } from "./types.ts";

/** A refusal by the service, or a failure to reach it (status 0). */
export class Problem extends Error {
  readonly document: ProblemDocument;
  /** How many seconds the service wants to be left alone, if it says so. */
  readonly retryAfter: number | undefined;

  constructor(document: ProblemDocument, retryAfter?: number) {
    super(document.detail);
    this.document = document;
    this.retryAfter = retryAfter;
  }

  get status(): number {
    return this.document.status;
  }

  get code(): string {
    return this.document.code;
  }
}

/** What is told of each call that has been answered. */
export type Observer = (call: Call, status: number, milliseconds: number) => void;

const observers = new Set<Observer>();
let key = "";

export function observe(observer: Observer): void {
  observers.add(observer);
}

/** Sets the API key; empty for none. */
export function useKey(secret: string): void {
  key = secret;
}

function authorized(call: Call): Record<string, string> {
  const own = call.key === undefined ? {} : { "Idempotency-Key": call.key };
  return { ...headers(call), ...own, ...(key === "" ? {} : { Authorization: `Bearer ${key}` }) };
}

function told(call: Call, status: number, begun: number): void {
  for (const observer of observers) {
    observer(call, status, performance.now() - begun);
  }
}

function unreachable(): Problem {
  return new Problem({
    status: 0,
    code: "unreachable",
    title: "The service can't be reached",
    detail: "there is no answer from the service",
  });
}

/** The problem of a failed answer, also where something in between has answered. `retryAfter` is the header of that name. */
export function problemOf(status: number, text: string, retryAfter: string | null = null): Problem {
  const seconds = retryAfter !== null && /^\d+$/.test(retryAfter) ? Number(retryAfter) : undefined;
  try {
    const document = JSON.parse(text) as ProblemDocument;
    if (typeof document.code === "string" && typeof document.detail === "string") {
      return new Problem({ ...document, status }, seconds);
    }
  } catch {
    // Not from the service itself.
  }
  return new Problem({ status, code: `http-${status}`, title: `Status ${status}`, detail: text.slice(0, 300) }, seconds);
}

/** The answer as it came, whatever its status. */
export async function exchange(call: Call, signal?: AbortSignal): Promise<Response> {
  const begun = performance.now();
  const body = call.body === undefined ? null : JSON.stringify(call.body);
  try {
    const request = { method: call.method, headers: authorized(call), body, signal: signal ?? null };
    const answer = await fetch(target(call), { ...request, cache: "no-store", credentials: "omit" });
    told(call, answer.status, begun);
    return answer;
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    told(call, 0, begun);
    throw unreachable();
  }
}

/** What a good answer has, once all of it is there. */
async function content<T>(call: Call, read: (answer: Response) => Promise<T>, signal?: AbortSignal): Promise<T> {
  const answer = await exchange(call, signal);
  try {
    if (answer.ok) {
      return await read(answer);
    }
    throw problemOf(answer.status, await answer.text(), answer.headers.get("Retry-After"));
  } catch (error) {
    // An answer that breaks off is none.
    throw error instanceof Problem || signal?.aborted ? error : unreachable();
  }
}

export function text(call: Call, signal?: AbortSignal): Promise<string> {
  return content(call, (answer) => answer.text(), signal);
}

export function blob(call: Call): Promise<Blob> {
  return content(call, (answer) => answer.blob());
}

/** The JSON of a good answer. */
export async function json<T>(call: Call, signal?: AbortSignal): Promise<T> {
  const received = await text(call, signal);
  return (received === "" ? null : JSON.parse(received)) as T;
}

/** Uploads the file of a call. Not by `fetch`, which does not tell how much has been sent. */
export function upload<T>(
  call: Call,
  progress: (sent: number, total: number) => void,
  signal: AbortSignal,
): Promise<T> {
  const begun = performance.now();
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(call.method, target(call));
    for (const [name, value] of Object.entries(authorized(call))) {
      request.setRequestHeader(name, value);
    }
    request.upload.onprogress = (event) => progress(event.loaded, event.total);
    request.onload = () => {
      told(call, request.status, begun);
      const isGood = request.status >= 200 && request.status < 300;
      isGood ? resolve(JSON.parse(request.responseText)) : reject(problemOf(request.status, request.responseText, request.getResponseHeader("Retry-After")));
    };
    request.onerror = () => {
      told(call, 0, begun);
      reject(unreachable());
    };
    request.onabort = () => reject(signal.reason);
    signal.addEventListener("abort", () => request.abort());
    request.send(call.file ?? null);
  });
}
