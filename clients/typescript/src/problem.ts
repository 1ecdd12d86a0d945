/** Refusals as errors. */

import type { Fault, Problem, ProblemCode } from "./generated/index.js";

/** The service refused a request, or could not tell what became of it. */
export class ProblemError extends Error {
  override readonly name = "ProblemError";

  constructor(
    /** The whole document. */
    readonly problem: Problem,
    /** Seconds to wait, where the service says so. */
    readonly retryAfter: number | undefined,
    /** How often the request has been sent. */
    readonly attempts: number,
  ) {
    super(`${problem.code}: ${problem.detail}`);
  }

  /** What went wrong. */
  get code(): ProblemCode {
    return this.problem.code;
  }

  /** The HTTP status. */
  get status(): number {
    return this.problem.status;
  }

  /** The parts of the request that are at fault. */
  get faults(): Fault[] {
    return this.problem.errors ?? [];
  }

  /** With `code-held`: when a hold of the code expires, usually the first one. */
  get expiresAt(): string | undefined {
    return this.problem.expires_at;
  }
}

/** Another server, such as a proxy, responded, or the response is not one of the operation. */
export class HttpError extends Error {
  override readonly name = "HttpError";
  /** Seconds to wait, where it says so. */
  readonly retryAfter: number | undefined;

  constructor(
    /** The response, whose body can still be read. */
    readonly response: Response,
  ) {
    super(response.ok ? `status ${response.status} with an unexpected body` : `status ${response.status}`);
    this.retryAfter = retryAfterOf(response);
  }
}

/** The seconds in `Retry-After`; `undefined` for a date. */
function retryAfterOf({ headers }: Response): number | undefined {
  const seconds = headers.get("Retry-After") ?? "";
  return /^\d+$/.test(seconds) ? Number(seconds) : undefined;
}

/** Returns the exception for an error response. */
export async function errorOf(response: Response, attempts: number): Promise<ProblemError | HttpError> {
  if (response.headers.get("Content-Type")?.startsWith("application/problem+json")) {
    const document = await response.clone().json().catch(() => undefined);
    if (isProblem(document)) {
      return new ProblemError(document, retryAfterOf(response), attempts);
    }
  }
  return new HttpError(response);
}

function isProblem(document: unknown): document is Problem {
  const { type, code, status } = (document ?? {}) as Record<string, unknown>;
  return `${type}`.startsWith("urn:cuckood:problem:") && typeof code === "string" && typeof status === "number";
}

const PASSING = [408, 429, 502, 503, 504];

/** Whether the same request may succeed if it is sent again. */
export function isPassing(error: unknown): boolean {
  if (error instanceof ProblemError) {
    // Most often it is the same upload that runs: the service has not yet seen that its connection is lost.
    return PASSING.includes(error.status) || error.code === "import-running";
  }
  if (error instanceof HttpError) {
    return PASSING.includes(error.response.status);
  }
  if (error instanceof TypeError) {
    // The type of all failures of `fetch`, including untrusted certificates.
    const { code } = (error.cause ?? {}) as { code?: string };
    return !/CERT|SIGNATURE/.test(code ?? "");
  }
  return error instanceof DOMException && error.name === "TimeoutError";
}
