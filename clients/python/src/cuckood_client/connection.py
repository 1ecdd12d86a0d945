"""How requests are sent: with the key, again where that may help, and with problems raised."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import httpx
import stamina

from .problem import error_of, is_worth_repeating
from .upload import Upload

TIMEOUT = httpx.Timeout(60, connect=5)


class _Settings:
    """What both kinds of connection are told."""

    def __init__(self, url: str, key: str | None, attempts: int) -> None:
        self._url = url.rstrip("/")
        self._authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._attempts = attempts

    def _addressed(self, call: dict[str, Any]) -> dict[str, Any]:
        headers = {**call.get("headers", {}), **self._authorization}
        return {**call, "url": self._url + call["url"], "headers": headers}

    def _attempts_at(self, call: dict[str, Any]) -> int:
        upload = call.get("content")
        return self._attempts if not isinstance(upload, Upload) or upload.is_repeatable else 1


class _Asynchronous:
    """An upload that httpx can't take for a synchronous one."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._upload)


class Connection(_Settings):
    """A connection to a service, to be closed after use: `with` does it."""

    def __init__(
        self, url: str, key: str | None = None, *, attempts: int = 10, http: httpx.Client | None = None
    ) -> None:
        """Connect to the service at `url` with an API key, if it asks for one.

        Args:
            attempts: How often a request is sent until it is given up.
            http: What sends it: for certificates, proxies and time-outs.
        """
        super().__init__(url, key, attempts)
        self._http = http or httpx.Client(timeout=TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._http.close()

    def send(self, call: dict[str, Any], *, stream: bool = False) -> httpx.Response:
        """Send a request until it is answered.

        Waits longer and longer between tries, by a random share of it, or as long as the service says.

        Raises:
            ProblemError: The service refuses it.
            httpx.HTTPError: There is no answer, or somebody else's.
        """
        call, attempts = self._addressed(call), self._attempts_at(call)
        request = self._http.build_request(**call)
        for attempt in stamina.retry_context(is_worth_repeating, attempts, timeout=None):
            with attempt:
                response = self._http.send(request, stream=stream)
                if not response.is_success:
                    response.read()
                    raise error_of(response, attempts=attempt.num)
        return response

    @contextmanager
    def stream(self, call: dict[str, Any]) -> Iterator[httpx.Response]:
        """Send a request whose answer is read piece by piece."""
        response = self.send(call, stream=True)
        try:
            yield response
        finally:
            response.close()


class AsyncConnection(_Settings):
    """A connection to a service for asyncio, to be closed after use: `async with` does it."""

    def __init__(
        self, url: str, key: str | None = None, *, attempts: int = 10, http: httpx.AsyncClient | None = None
    ) -> None:
        """Connect to the service at `url` with an API key, if it asks for one.

        Args:
            attempts: How often a request is sent until it is given up.
            http: What sends it: for certificates, proxies and time-outs.
        """
        super().__init__(url, key, attempts)
        self._http = http or httpx.AsyncClient(timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close it."""
        await self._http.aclose()

    async def send(self, call: dict[str, Any], *, stream: bool = False) -> httpx.Response:
        """Send a request until it is answered.

        Waits longer and longer between tries, by a random share of it, or as long as the service says.

        Raises:
            ProblemError: The service refuses it.
            httpx.HTTPError: There is no answer, or somebody else's.
        """
        call, attempts = self._addressed(call), self._attempts_at(call)
        if isinstance(upload := call.get("content"), Upload):
            call["content"] = _Asynchronous(upload)
        request = self._http.build_request(**call)
        async for attempt in stamina.retry_context(is_worth_repeating, attempts, timeout=None):
            with attempt:
                response = await self._http.send(request, stream=stream)
                if not response.is_success:
                    await response.aread()
                    raise error_of(response, attempts=attempt.num)
        return response

    @asynccontextmanager
    async def stream(self, call: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """Send a request whose answer is read piece by piece."""
        response = await self.send(call, stream=True)
        try:
            yield response
        finally:
            await response.aclose()
