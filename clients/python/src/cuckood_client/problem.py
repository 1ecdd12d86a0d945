"""Refusals as exceptions, and which of them are worth another try."""

import httpx

from .generated.models.fault import Fault
from .generated.models.problem import Problem
from .generated.models.problem_code import ProblemCode

UNAVAILABLE = (502, 503, 504)


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


def is_worth_repeating(error: Exception) -> bool | float:
    """Whether the same request may succeed if it is sent again, or after how many seconds."""
    match error:
        case ProblemError():
            # Most often it is the same upload that runs: the service has not yet seen that its connection is lost.
            is_passing = error.status in UNAVAILABLE or error.code == "import-running"
            return is_passing and (error.retry_after or True)
        case httpx.HTTPStatusError():
            return error.response.status_code in UNAVAILABLE
    return isinstance(error, httpx.NetworkError | httpx.TimeoutException | httpx.RemoteProtocolError)
