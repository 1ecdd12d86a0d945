"""Errors as exceptions, and which of them pass if the request is repeated."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

import httpx

from .generated.models.fault import Fault
from .generated.models.problem import Problem
from .generated.models.problem_code import ProblemCode

T = TypeVar("T")

PASSING = (408, 429, 502, 503, 504)
RETRY_AFTER_SECONDS_MAX = 60
MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""Raised for a document of another server."""


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

    @property
    def expires_at(self) -> datetime | None:
        """With `code-held`: when a hold of the code expires, usually the first one."""
        return self.problem.expires_at


def error_of(response: httpx.Response, *, attempts: int) -> Exception:
    """Return the exception for an error response. Its body has been read."""
    if response.headers.get("Content-Type", "").startswith("application/problem+json"):
        with suppress(*MALFORMED):
            document = response.json()
            if document["type"].startswith("urn:cuckood:problem:"):
                problem, retry_after = Problem.from_dict(document), _retry_after(response)
                return ProblemError(problem, retry_after=retry_after, attempts=attempts)
    return httpx.HTTPStatusError(f"status {response.status_code}", request=response.request, response=response)


def parsed(response: httpx.Response, parse: Callable[[httpx.Response], T]) -> T:
    """Parse a response, which another server may have sent."""
    try:
        return parse(response)
    except MALFORMED as error:
        raise httpx.DecodingError(f"not a response of cuckood: {error!r}", request=response.request) from error


def whole_number(text: str | None) -> int | None:
    """Return the number in a header, or `None` if it is none."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else None


def _retry_after(response: httpx.Response) -> int | None:
    return whole_number(response.headers.get("Retry-After"))


def seconds_to_wait(error: Exception, backoff: float) -> float | None:
    """Return the seconds before the same request may succeed, or `None` for a permanent error."""
    retry_after: float | None = None
    match error:
        case ProblemError():
            # Most often it is the same upload that runs: the service has not yet seen that its connection is lost.
            is_passing = error.status in PASSING or error.code == "import-running"
            retry_after = error.retry_after
        case httpx.HTTPStatusError():
            is_passing = error.response.status_code in PASSING
            retry_after = _retry_after(error.response)
        case _:
            is_lost = isinstance(error, httpx.NetworkError | httpx.TimeoutException | httpx.RemoteProtocolError)
            is_passing = is_lost and not _is_untrusted(error)
    if not is_passing:
        return None
    return min(retry_after or backoff, RETRY_AFTER_SECONDS_MAX)


def _is_untrusted(error: BaseException | None) -> bool:
    """Return whether the cause is the certificate of the service."""
    return error is not None and (isinstance(error, ssl.SSLCertVerificationError) or _is_untrusted(error.__cause__))
