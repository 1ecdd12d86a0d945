"""Refusals as exceptions, and which of them are worth another try."""

import ssl

import httpx

from .generated.models.fault import Fault
from .generated.models.problem import Problem
from .generated.models.problem_code import ProblemCode

PASSING = (408, 429, 502, 503, 504)


class ProblemError(Exception):
    """The service refused a request, or could not tell what became of it."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None, attempts: int = 1) -> None:
        super().__init__(f"{problem.code}: {problem.detail}")
        self.problem = problem
        """The whole document."""
        self.retry_after = retry_after
        """Seconds to wait, where the service says so."""
        self.attempts = attempts
        """How often the request has been sent."""

    @property
    def code(self) -> ProblemCode:
        """What went wrong."""
        return self.problem.code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status

    @property
    def faults(self) -> list[Fault]:
        """The parts of the request that are at fault."""
        return self.problem.errors or []


def error_of(response: httpx.Response, *, attempts: int) -> Exception:
    """What to raise for an answer of failure. Its body has been read."""
    is_problem = response.headers.get("content-type") == "application/problem+json"
    document = response.json() if is_problem else {}
    if not document.get("type", "").startswith("urn:cuckood:problem:"):
        return httpx.HTTPStatusError(f"status {response.status_code}", request=response.request, response=response)
    seconds = response.headers.get("retry-after", "")
    retry_after = float(seconds) if seconds.isdecimal() else None
    return ProblemError(Problem.from_dict(document), retry_after=retry_after, attempts=attempts)


def seconds_to_wait(error: Exception, backoff: float) -> float | None:
    """Return the seconds before the same request may succeed, or `None` for a permanent error."""
    match error:
        case ProblemError():
            # Most often it is the same upload that runs: the service has not yet seen that its connection is lost.
            is_passing = error.status in PASSING or error.code == "import-running"
        case httpx.HTTPStatusError():
            is_passing = error.response.status_code in PASSING
        case _:
            is_lost = isinstance(error, httpx.NetworkError | httpx.TimeoutException | httpx.RemoteProtocolError)
            is_passing = is_lost and not _is_untrusted(error)
    if not is_passing:
        return None
    return isinstance(error, ProblemError) and error.retry_after or backoff


def _is_untrusted(error: BaseException | None) -> bool:
    """Return whether the cause is the certificate of the service."""
    return error is not None and (isinstance(error, ssl.SSLCertVerificationError) or _is_untrusted(error.__cause__))
