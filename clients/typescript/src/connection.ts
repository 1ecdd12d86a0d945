/** Sends requests: within a deadline, with repetitions, after the position last seen, and with problems as errors. */

import { type Client as Generated, createClient } from "./generated/client/index.js";
import { type Sending, sendings } from "./generated/sendings.js";
import { Limit, pause } from "./limit.js";
import { errorOf, HttpError, isPassing } from "./problem.js";
import { Upload } from "./upload.js";

const READ_DEADLINE_MS = 250;
const WRITE_DEADLINE_MS = 5_000;
const TRANSFER_ATTEMPTS = 10;
/** How often a request is sent if each attempt hangs. A load balancer may choose another node. */
const ATTEMPTS_PER_DEADLINE = 3;
export const WAIT_MS_MAX = 1_000;
/** All attempts of an import together outlast a restart of the service. */
const TRANSFER_WAIT_MS_MAX = 5_000;
/** The longest wait that a response can ask for. */
const RETRY_AFTER_MS_MAX = 3_600_000;
/** How long a position is passed on. A node that is behind for longer than `cluster.lag_max` (10 s) is not ready. */
const POSITION_MS = 30_000;

/** The address of a service and the limits of its calls. */
export interface Settings {
  /** Its address, such as `https://cuckood.example`. */
  url: string;
  /** An API key, if the service requires one. */
  key?: string;
  /** Milliseconds for a read in all; 250 by default. Reads are not repeated. */
  readDeadlineMs?: number;
  /** Milliseconds for a write in all; 5,000 by default. While they last, a write is repeated under its idempotency key. */
  writeDeadlineMs?: number;
  /** Replaces the global `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** The limits of a call. */
export interface Limits {
  /** Milliseconds for the call in all. */
  deadlineMs: number;
  /** How often the request may be sent; a write without an idempotency key never more than once. */
  attempts?: number;
  /** Milliseconds for one attempt. */
  attemptMs?: number;
}

/**
 * The highest position of the log in any response.
 *
 * Another cluster, or a restored one, may have lower positions than were seen before. Its nodes never reach the old one, so
 * a position expires unless responses confirm it.
 */
class Position {
  #highest = 0;
  #seenAt = -Infinity;

  get value(): number | undefined {
    return performance.now() - this.#seenAt < POSITION_MS ? this.#highest : undefined;
  }

  observe({ headers }: Response): void {
    const position = Number(headers.get("X-Cuckood-Position"));
    if (position > 0 && position >= (this.value ?? 0)) {
      this.#highest = position;
      this.#seenAt = performance.now();
    }
  }
}

/** How a request is sent. */
interface Call extends Sending {
  /** What each attempt reads from the start. */
  upload?: Blob;
  /** The response is read incrementally. */
  isStream: boolean;
  /** Each attempt carries the highest position seen. */
  setsPosition: boolean;
}

const MIN_POSITION = "X-Cuckood-Min-Position";

/** Sends the requests of a generated client. */
export class Connection {
  readonly client: Generated;
  readonly #calls = new WeakMap<Request, Call>();

  constructor(
    readonly settings: Settings,
    readonly limits?: Limits,
    readonly position = new Position(),
  ) {
    if (/^(?!https?:)[a-z][a-z0-9+.-]*:/i.test(settings.url)) {
      throw new TypeError("the address of a service starts with http:// or https://");
    }
    this.client = createClient({
      baseUrl: settings.url.replace(/\/$/, ""),
      auth: settings.key,
      throwOnError: true,
      // The generated client makes a `Request` of whatever is called.
      fetch: (input) => this.#send(input as Request),
    });
    this.client.interceptors.request.use((request, { url, body, parseAs, path = {} }) => {
      // In a URL they would lead to another operation.
      if (Object.values(path).some((name) => ["", ".", ".."].includes(name as string))) {
        throw new TypeError("a name is neither empty nor . or ..");
      }
      const sending = sendings[`${request.method} ${url}`]!;
      if (sending.isKeyed && !request.headers.has("Idempotency-Key")) {
        request.headers.set("Idempotency-Key", crypto.randomUUID());
      }
      const setsPosition = sending.isRead && !request.headers.has(MIN_POSITION);
      const upload = body instanceof Blob ? body : undefined;
      const sent = upload ? withoutBody(request, sending) : request;
      this.#calls.set(sent, { ...sending, upload, isStream: parseAs === "stream", setsPosition });
      return sent;
    });
  }

  /** The same connection with other limits. */
  within(limits: Limits): Connection {
    return new Connection(this.settings, limits, this.position);
  }

  get writeDeadlineMs(): number {
    return this.limits?.deadlineMs ?? this.settings.writeDeadlineMs ?? WRITE_DEADLINE_MS;
  }

  #limitsOf({ kind, isRead, isRepeated, upload }: Call): Required<Limits> {
    const deadlines = {
      read: this.limits?.deadlineMs ?? this.settings.readDeadlineMs ?? READ_DEADLINE_MS,
      write: this.writeDeadlineMs,
      transfer: this.limits?.deadlineMs ?? Infinity,
    };
    const deadlineMs = deadlines[kind];
    const isRepeatable = (isRepeated || isRead) && !(upload instanceof Upload && !upload.isRepeatable);
    const usual = !isRepeated ? 1 : kind === "transfer" ? TRANSFER_ATTEMPTS : Infinity;
    const attempts = isRepeatable ? (this.limits?.attempts ?? usual) : 1;
    // An import has no share of the deadline: an attempt may progress for all of it.
    const usualMs = kind === "transfer" ? deadlineMs : deadlineMs / Math.min(attempts, ATTEMPTS_PER_DEADLINE);
    const attemptMs = this.limits?.attemptMs ?? usualMs;
    return { deadlineMs, attempts, attemptMs };
  }

  /** Sends a request, and repeats it while that is safe, useful and within the deadline. */
  async #send(request: Request): Promise<Response> {
    const call = this.#calls.get(request)!;
    const { deadlineMs, attempts, attemptMs } = this.#limitsOf(call);
    const endsAt = performance.now() + deadlineMs;
    for (let attempt = 1; ; attempt += 1) {
      const limit = new Limit(Math.min(attemptMs, endsAt - performance.now()), request.signal);
      try {
        return await limit.within(this.#attempt(request, call, attempt, limit));
      } catch (error) {
        limit.clear();
        if (call.upload instanceof Upload && call.upload.failure !== undefined) {
          throw call.upload.failure;
        }
        request.signal.throwIfAborted();
        const { retryAfter } = error as { retryAfter?: number };
        const waitMax = call.kind === "transfer" ? TRANSFER_WAIT_MS_MAX : WAIT_MS_MAX;
        const backoff = (0.5 + Math.random() / 2) * Math.min(waitMax, 50 * 2 ** attempt);
        const wait = retryAfter ? Math.min(retryAfter * 1_000, RETRY_AFTER_MS_MAX) : backoff;
        // If the deadline has passed, the outcome of this attempt is unknown, whatever an earlier one was answered.
        if (!isPassing(error) || attempt >= attempts || performance.now() + wait >= endsAt) {
          throw error;
        }
        await pause(wait, request.signal);
      }
    }
  }

  async #attempt(request: Request, call: Call, attempt: number, limit: Limit): Promise<Response> {
    const { upload, isStream, setsPosition } = call;
    const fetch = this.settings.fetch ?? globalThis.fetch;
    // A redirect would make a read of a write.
    const changes: RequestInit = { signal: limit.signal, redirect: "manual", ...(upload && streamed(upload)) };
    const sent = limit.hold(new Request(request.clone(), changes));
    // A position expires: after a restore, no node may reach it.
    if (setsPosition && this.position.value !== undefined) {
      sent.headers.set(MIN_POSITION, String(this.position.value));
    }
    const response = await fetch(sent);
    this.position.observe(response);
    if (response.ok && isStream) {
      return limit.stream(response);
    }
    // As a whole, so that a connection that is lost during it counts as lost.
    const body = await response.arrayBuffer();
    limit.clear();
    const whole = new Response(body.byteLength > 0 ? body : null, response);
    if (!response.ok) {
      throw await errorOf(whole, attempt);
    }
    if (!isExpected(whole, body, call)) {
      throw new HttpError(whole);
    }
    return whole;
  }
}

/** Whether a successful response is one of the operation: something else may have answered in the service's place. */
function isExpected({ status, headers }: Response, body: ArrayBuffer, { answers }: Call): boolean {
  const types = answers[status] ?? {};
  const type = headers.get("Content-Type")?.split(";")[0]?.trim().toLowerCase() ?? "";
  const members = types[type];
  if (members === undefined) {
    return status in answers && Object.keys(types).length === 0;
  }
  if (type !== "application/json") {
    return true;
  }
  try {
    const document: unknown = JSON.parse(new TextDecoder().decode(body));
    return typeof document === "object" && document !== null && members.every((member) => member in document);
  } catch {
    return false;
  }
}

/** Returns an upload's request without its body, and with an id if it is an import: its attempts continue under it. */
function withoutBody({ url, method, headers, signal }: Request, { isRepeated }: Sending): Request {
  const address = new URL(url);
  if (isRepeated && !address.searchParams.has("id")) {
    address.searchParams.set("id", crypto.randomUUID());
  }
  return new Request(address, { method, headers, signal });
}

/** A body of unknown length. The types of browsers do not know `duplex` yet. */
function streamed(upload: Blob): RequestInit {
  return { body: upload.stream(), duplex: "half" } as RequestInit;
}
