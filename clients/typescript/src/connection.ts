/** Sends requests: within a deadline, with repetitions, after the position last seen, and with problems as exceptions. */

import { type Client as Generated, createClient } from "./generated/client/index.js";
import { type Sending, sendings } from "./generated/sendings.js";
import { errorOf, isPassing, ProblemError } from "./problem.js";
import { Upload } from "./upload.js";

const READ_DEADLINE_MS = 250;
const WRITE_DEADLINE_MS = 5_000;
const TRANSFER_ATTEMPTS = 10;
/** How often a request is sent if each attempt hangs. A load balancer may choose another node. */
const ATTEMPTS_PER_DEADLINE = 3;
const WAIT_MS_MAX = 1_000;
/** All attempts of an import together outlast a restart of the service. */
const TRANSFER_WAIT_MS_MAX = 5_000;
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
    this.client = createClient({
      baseUrl: settings.url.replace(/\/$/, ""),
      auth: settings.key,
      throwOnError: true,
      // The generated client makes a `Request` of whatever is called.
      fetch: (input) => this.#send(input as Request),
    });
    this.client.interceptors.request.use((request, { url, body, parseAs }) => {
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
    const ends = after(deadlineMs);
    for (let attempt = 1; ; attempt += 1) {
      try {
        const signal = AbortSignal.any([request.signal, ...ends, ...after(attemptMs)]);
        return await this.#attempt(request, call, attempt, signal);
      } catch (error) {
        if (call.upload instanceof Upload && call.upload.failure !== undefined) {
          throw call.upload.failure;
        }
        request.signal.throwIfAborted();
        if (ends.some(({ aborted }) => aborted)) {
          // During an attempt, whose outcome is unknown whatever an earlier one was answered.
          throw error;
        }
        const retryAfter = error instanceof ProblemError ? error.retryAfter : undefined;
        const waitMax = call.kind === "transfer" ? TRANSFER_WAIT_MS_MAX : WAIT_MS_MAX;
        const backoff = (0.5 + Math.random() / 2) * Math.min(waitMax, 50 * 2 ** attempt);
        const wait = retryAfter ? retryAfter * 1_000 : backoff;
        if (!isPassing(error) || attempt >= attempts || performance.now() + wait >= endsAt) {
          throw error;
        }
        await new Promise((resume) => setTimeout(resume, wait));
      }
    }
  }

  async #attempt(request: Request, call: Call, attempt: number, signal: AbortSignal): Promise<Response> {
    const { upload, isStream, setsPosition } = call;
    const fetch = this.settings.fetch ?? globalThis.fetch;
    const sent = new Request(request.clone(), { signal, ...(upload && streamed(upload)) });
    // A position expires: after a restore, no node may reach it.
    if (setsPosition && this.position.value !== undefined) {
      sent.headers.set(MIN_POSITION, String(this.position.value));
    }
    const response = await fetch(sent);
    this.position.observe(response);
    if (!response.ok) {
      throw await errorOf(response, attempt);
    }
    return isStream ? response : read(response);
  }
}

/** Returns a signal for a finite time. */
function after(ms: number): AbortSignal[] {
  return Number.isFinite(ms) ? [AbortSignal.timeout(Math.ceil(ms))] : [];
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

/** Reads the complete body, so that a connection that is lost during it counts as lost. */
async function read(response: Response): Promise<Response> {
  const body = await response.arrayBuffer();
  return new Response(body.byteLength > 0 ? body : null, response);
}
