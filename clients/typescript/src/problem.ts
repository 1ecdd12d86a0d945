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
}

/** The problem that an answer tells, if it is one of the service's. */
export async function problemOf(response: Response): Promise<Problem | undefined> {
  if (response.headers.get("Content-Type") !== "application/problem+json") {
    return undefined;
  }
  const document = (await response.clone().json()) as Partial<Problem>;
  return document.type?.startsWith("urn:cuckood:problem:") ? (document as Problem) : undefined;
}

/** The seconds that an answer says to wait. */
export function retryAfterOf(response: Response): number | undefined {
  const seconds = response.headers.get("Retry-After");
  return seconds === null ? undefined : Number(seconds);
}
