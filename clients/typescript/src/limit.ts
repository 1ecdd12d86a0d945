/** The end of a request: at its time limit, or with its caller's signal. */

/** The longest time of a timer; longer ones would be over at once. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/**
 * Ends an attempt. What it needs is referenced from its timer and from the attempt until `clear`: signals of
 * `AbortSignal.timeout` and `AbortSignal.any`, and the request of a `fetch`, are collected while a body arrives, and
 * nothing would end it.
 */
export class Limit {
  readonly #controller = new AbortController();
  /** Resolves at the limit. */
  readonly over: Promise<void>;
  readonly #caller: AbortSignal;
  readonly #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #abort = () => this.#controller.abort(this.#caller.reason);
  #request: Request | undefined;

  constructor(ms: number, caller: AbortSignal) {
    this.#caller = caller;
    this.over = new Promise((resolve) => {
      this.signal.addEventListener("abort", () => resolve(), { once: true });
    });
    if (caller.aborted) {
      this.#abort();
    }
    caller.addEventListener("abort", this.#abort);
    if (ms <= TIMER_MS_MAX) {
      const timeout = () => this.#controller.abort(new DOMException("the time limit has passed", "TimeoutError"));
      this.#timer = setTimeout(timeout, Math.ceil(ms));
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Keeps a request that its signal is to end. */
  hold(request: Request): Request {
    this.#request = request;
    return request;
  }

  /** The result of work that ends by the limit. */
  async within<T>(work: Promise<T>): Promise<T> {
    const late = this.over.then(() => {
      throw this.signal.reason;
    });
    return Promise.race([work, late]);
  }

  /** The same response, whose body ends by the limit. */
  stream(response: Response): Response {
    const reader = response.body?.getReader();
    const body = new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const piece = await this.within(reader?.read() ?? Promise.resolve({ done: true as const, value: undefined }));
          if (piece.done) {
            this.clear();
            controller.close();
          } else {
            controller.enqueue(piece.value);
          }
        },
        cancel: async (reason) => {
          this.clear();
          await reader?.cancel(reason);
        },
      },
      { highWaterMark: 0 },
    );
    return new Response(body, response);
  }

  /** The attempt is over. */
  clear(): void {
    clearTimeout(this.#timer);
    this.#caller.removeEventListener("abort", this.#abort);
    this.#request = undefined;
  }
}

/** Waits for this time, or until the signal is aborted; then throws its reason. */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  const limit = new Limit(ms, signal ?? new AbortController().signal);
  await limit.over;
  limit.clear();
  signal?.throwIfAborted();
}
