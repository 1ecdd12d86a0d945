/** How requests are sent: with the key, again where that may help, and with problems thrown. */

import ky, { HTTPError } from "ky";
import { createClient } from "./generated/client/index.js";
import { Cuckood } from "./generated/index.js";
import { keyed } from "./generated/keyed.js";
import { ProblemError, problemOf, retryAfterOf } from "./problem.js";
import { Upload } from "./upload.js";

const UNAVAILABLE = [502, 503, 504];
const METHODS = ["get", "put", "post", "patch", "delete"] as const;
const TIMEOUT_MS = 60_000;
const WAIT_MS_MAX = 5_000;

/** Where a service is, and how it is spoken to. */
export interface Settings {
  /** Its address, such as `https://cuckood.example`. */
  url: string;
  /** An API key, if it asks for one. */
  key?: string;
  /** How often a request is sent until it is given up; 10 unless said otherwise. */
  attempts?: number;
  /** What sends it, instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** What is not in a request itself. */
interface Sending {
  /** What each try reads from the start. */
  upload?: Blob;
  /** The answer is read piece by piece. */
  isStream: boolean;
}

/** All operations of a service. Each throws a {@link ProblemError} when it is refused. */
export function connect({ url, key, attempts = 10, fetch = globalThis.fetch }: Settings): Cuckood {
  const sendings = new WeakMap<Request, Sending>();
  const client = createClient({
    baseUrl: url.replace(/\/$/, ""),
    auth: key,
    throwOnError: true,
    fetch: (input) => {
      // The generated client makes a `Request` of whatever is called.
      const request = input as Request;
      return send(request, sendings.get(request) ?? { isStream: false }, attempts, fetch);
    },
  });
  client.interceptors.request.use((request, options) => {
    if (keyed.has(`${request.method} ${options.url}`) && !request.headers.has("Idempotency-Key")) {
      request.headers.set("Idempotency-Key", crypto.randomUUID());
    }
    const upload = options.body instanceof Blob ? options.body : undefined;
    const sent = upload ? named(request) : request;
    sendings.set(sent, { upload, isStream: options.parseAs === "stream" });
    return sent;
  });
  return new Cuckood({ client });
}

/** An import's request without its body, which each try reads from the start, and with an id to continue it under. */
function named({ url, method, headers, signal }: Request): Request {
  const address = new URL(url);
  if (!address.searchParams.has("id")) {
    address.searchParams.set("id", crypto.randomUUID());
  }
  return new Request(address, { method, headers, signal });
}

/** Waits longer and longer between tries, by a random share of it, or as long as the service says. */
async function send(
  request: Request,
  { upload, isStream }: Sending,
  limit: number,
  fetch: typeof globalThis.fetch,
): Promise<Response> {
  const own = upload instanceof Upload ? upload : undefined;
  let attempts = 0;
  try {
    return await ky(request, {
      timeout: upload || isStream ? false : TIMEOUT_MS,
      retry: {
        limit: own?.isRepeatable === false ? 0 : limit - 1,
        methods: [...METHODS],
        statusCodes: UNAVAILABLE,
        afterStatusCodes: UNAVAILABLE,
        backoffLimit: WAIT_MS_MAX,
        jitter: true,
        retryOnTimeout: true,
        shouldRetry: async ({ error }) => {
          if (own?.failure !== undefined) {
            return false;
          }
          // Most often it is the same upload that runs: the service has not yet seen that its connection is lost.
          const problem = error instanceof HTTPError ? await problemOf(error.response) : undefined;
          return problem?.code === "import-running" || undefined;
        },
      },
      fetch: async (input) => {
        attempts += 1;
        const whole = upload ? new Request(input, streamed(upload)) : input;
        const response = await fetch(whole);
        return isStream ? response : read(response);
      },
    });
  } catch (error) {
    if (own?.failure !== undefined) {
      throw own.failure;
    }
    const problem = error instanceof HTTPError ? await problemOf(error.response) : undefined;
    throw problem ? new ProblemError(problem, retryAfterOf((error as HTTPError).response), attempts) : error;
  }
}

/** A body of unknown length. The types of browsers do not know `duplex` yet. */
function streamed(upload: Blob): RequestInit {
  return { body: upload.stream(), duplex: "half" } as RequestInit;
}

/** The answer once it is whole, so that a connection that is lost in the middle of it counts as lost. */
async function read(response: Response): Promise<Response> {
  const body = await response.arrayBuffer();
  return new Response(body.byteLength > 0 ? body : null, response);
}
