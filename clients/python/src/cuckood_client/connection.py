"""Sends requests: within a deadline, with repetitions, after the position last seen, and with problems as exceptions."""

import asyncio
import copy
import itertools
import math
import os
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar

import anyio
import httpx
from typing_extensions import Self

from .problem import ProblemError, error_of, seconds_to_wait, whole_number
from .upload import Upload

T = TypeVar("T")

Kind = Literal["read", "write", "transfer"]
"""A transfer is an upload, a download or a wait: its length has no bound."""

READ_DEADLINE = 0.25
WRITE_DEADLINE = 5.0
MIN_POSITION = "X-Cuckood-Min-Position"
IDLE_SECONDS = 60.0
"""How long a transfer may make no progress."""
CONNECT_SECONDS = 5.0
IDLE_CONNECTIONS = 100
TRANSFER_ATTEMPTS = 10
ATTEMPTS_PER_DEADLINE = 3
"""How often a request is sent if each attempt hangs. A load balancer may choose another node."""
WAIT_SECONDS_MAX = 1.0
TRANSFER_WAIT_SECONDS_MAX = 5.0
"""All attempts of an import together outlast a restart of the service."""
POSITION_SECONDS = 30.0
"""How long a position is passed on. A node that is behind for longer than `cluster.lag_max` (10 s) is not ready."""


class _Position:
    """The highest position of the log in any response.

    Another cluster, or a restored one, may have lower positions than were seen before. Its nodes never reach the old
    one, so a position expires unless responses confirm it.
    """

    def __init__(self) -> None:
        self._highest = 0
        self._seen_at = -math.inf

    def __call__(self) -> int | None:
        """Return the position that reads must reflect."""
        return self._highest if time.monotonic() - self._seen_at < POSITION_SECONDS else None

    def observe(self, response: httpx.Response) -> None:
        """Remember the position of a response."""
        position = whole_number(response.headers.get("X-Cuckood-Position")) or 0
        if position > 0 and position >= (self() or 0):
            self._highest, self._seen_at = position, time.monotonic()


class AsyncConnection:
    """A connection to a service for asyncio. `async with` closes it."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        read_deadline: float = READ_DEADLINE,
        write_deadline: float = WRITE_DEADLINE,
        verify: ssl.SSLContext | bool = True,
        proxy: str | None = None,
    ) -> None:
        """Connect to the service at `url`.

        Args:
            key: An API key, if the service requires one.
            read_deadline: Seconds for a read in all. Reads are not repeated.
            write_deadline: Seconds for a write in all. While they last, a write is repeated under its idempotency key.
            verify: Which certificates to trust, as for httpx.
            proxy: The URL of a proxy, as for httpx.
        """
        key = (key or "").strip()
        if not key.isascii():
            raise ValueError("an API key has only ASCII characters")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # A limit of connections would let slow requests delay all others.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS)
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, verify=verify, proxy=proxy, limits=limits
        )
        self._position = _Position()
        self._attempts: float | None = None
        self._deadlines: dict[Kind, float] = {"read": read_deadline, "write": write_deadline, "transfer": math.inf}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close it."""
        await self._http.aclose()

    def within(self, deadline: float, *, attempts: float | None = None) -> Self:
        """Return this connection with another deadline, for single calls.

        Args:
            deadline: Seconds for a call in all; `math.inf` for no limit.
            attempts: How often a request may be sent: by default a read once, and a write any number of times. A write
                without an idempotency key is never repeated.

        Both share their connections, so closing one closes the other.
        """
        other = copy.copy(self)
        other._attempts = attempts
        other._deadlines = {"read": deadline, "write": deadline, "transfer": deadline}
        return other

    @property
    def position(self) -> int | None:
        """The position of the log that reads must reflect. Another process can send it as a minimum."""
        return self._position()

    def _persistent(self) -> Self:
        """Return this connection with reads that are repeated as long as writes."""
        return self.within(self._deadlines["write"], attempts=self._attempts or math.inf)

    async def _send(
        self,
        call: dict[str, Any],
        kind: Kind,
        *,
        is_keyed: bool = False,
        stream: bool = False,
        attempt_seconds: float = math.inf,
    ) -> httpx.Response:
        """Send a request, and repeat it while that is safe, useful and within the deadline.

        Args:
            attempt_seconds: Seconds for one attempt; for a read or a write, at most a share of the deadline.

        Raises:
            ProblemError: The service rejects it.
            httpx.HTTPError: No response arrives in time, or another server responds.
        """
        scope = anyio.CancelScope()
        responses: list[httpx.Response] = []

        async def send() -> None:
            with scope:
                responses.append(await self._repeat(call, kind, is_keyed, stream, attempt_seconds))

        # httpcore frees the connection of a request that a scope of anyio cancels, but not of a cancelled task.
        task = asyncio.create_task(send())
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(task, return_exceptions=True)
                for response in responses:
                    await response.aclose()
            raise
        await task
        return responses[0]

    async def _repeat(
        self, call: dict[str, Any], kind: Kind, is_keyed: bool, stream: bool, attempt_seconds: float
    ) -> httpx.Response:
        is_read = kind == "read" or call["method"] == "get"
        upload = call.get("content")
        is_repeatable = (is_keyed or is_read) and not (isinstance(upload, Upload) and not upload.is_repeatable)
        default = 1 if is_read and not is_keyed else TRANSFER_ATTEMPTS if kind == "transfer" else math.inf
        attempts = (self._attempts or default) if is_repeatable else 1
        deadline = self._deadlines[kind]
        share = deadline / min(attempts, ATTEMPTS_PER_DEADLINE)
        patience = min(IDLE_SECONDS, share)
        timeout = httpx.Timeout(patience, connect=min(patience, CONNECT_SECONDS))
        request = self._http.build_request(**call, timeout=timeout)
        if kind != "transfer":
            attempt_seconds = min(attempt_seconds, share)
        sets_position = is_read and MIN_POSITION not in request.headers
        wait_max = TRANSFER_WAIT_SECONDS_MAX if kind == "transfer" else WAIT_SECONDS_MAX
        ends_at = time.monotonic() + deadline
        last: Exception | None = None
        with anyio.move_on_after(deadline):
            for attempt in itertools.count(1):
                if sets_position:
                    # A position expires: after a restore, no node may reach it.
                    position = self._position()
                    request.headers.pop(MIN_POSITION, None)
                    request.headers.update({} if position is None else {MIN_POSITION: str(position)})
                try:
                    with anyio.move_on_after(attempt_seconds):
                        return await self._attempt(request, attempt, stream=stream)
                    raise httpx.ReadTimeout(f"no response within {attempt_seconds:g} s", request=request)
                except (ProblemError, httpx.HTTPError) as error:
                    backoff = random.uniform(0.5, 1) * min(wait_max, 0.05 * 2 ** min(attempt, 10))
                    wait, last = seconds_to_wait(error, backoff), error
                    if wait is None or attempt >= attempts or time.monotonic() + wait >= ends_at:
                        raise
                await anyio.sleep(wait)
        # The deadline ends during an attempt, whose outcome is unknown whatever an earlier one was answered.
        raise httpx.TimeoutException(f"no response within {deadline:g} s", request=request) from last

    async def _attempt(self, request: httpx.Request, attempt: int, *, stream: bool) -> httpx.Response:
        response = await self._http.send(request, stream=stream)
        self._position.observe(response)
        if not response.is_success:
            await response.aread()
            raise error_of(response, attempts=attempt)
        return response

    @asynccontextmanager
    async def _stream(self, call: dict[str, Any], *, is_keyed: bool) -> AsyncIterator[httpx.Response]:
        """Send a request whose response is read incrementally."""
        response = await self._send(call, "transfer", is_keyed=is_keyed, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


class Connection:
    """A connection to a service. `with` closes it.

    It runs an asynchronous connection in a thread: blocking sockets have no deadline for a complete request.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        read_deadline: float = READ_DEADLINE,
        write_deadline: float = WRITE_DEADLINE,
        verify: ssl.SSLContext | bool = True,
        proxy: str | None = None,
    ) -> None:
        """Connect to the service at `url`. A process that forks connects in each child.

        Args:
            key: An API key, if the service requires one.
            read_deadline: Seconds for a read in all. Reads are not repeated.
            write_deadline: Seconds for a write in all. While they last, a write is repeated under its idempotency key.
            verify: Which certificates to trust, as for httpx.
            proxy: The URL of a proxy, as for httpx.
        """
        deadlines = {"read_deadline": read_deadline, "write_deadline": write_deadline}
        self._connection = AsyncConnection(url, key, **deadlines, verify=verify, proxy=proxy)
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it. In a forked process, this has no effect."""
        if os.getpid() == self._pid:
            self._run(self._connection.close())

    def within(self, deadline: float, *, attempts: float | None = None) -> Self:
        """Return this connection with another deadline, for single calls.

        Args:
            deadline: Seconds for a call in all; `math.inf` for no limit.
            attempts: How often a request may be sent: by default a read once, and a write any number of times. A write
                without an idempotency key is never repeated.

        Both share their connections, so closing one closes the other.
        """
        return self._with(self._connection.within(deadline, attempts=attempts))

    @property
    def position(self) -> int | None:
        """The position of the log that reads must reflect. Another process can send it as a minimum."""
        return self._connection.position

    def _persistent(self) -> Self:
        return self._with(self._connection._persistent())

    def _with(self, connection: AsyncConnection) -> Self:
        other = copy.copy(self)
        other._connection = connection
        return other

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid:
            coroutine.close()
            raise RuntimeError("a client does not survive a fork: create one in each process")
        future = asyncio.run_coroutine_threadsafe(coroutine, _loop(self._pid))
        try:
            return future.result()
        finally:
            # An interrupt also cancels the request.
            future.cancel()

    def _send(
        self, call: dict[str, Any], kind: Kind, *, is_keyed: bool = False, attempt_seconds: float = math.inf
    ) -> httpx.Response:
        return self._run(self._connection._send(call, kind, is_keyed=is_keyed, attempt_seconds=attempt_seconds))

    @contextmanager
    def _stream(self, call: dict[str, Any], *, is_keyed: bool) -> Iterator[httpx.Response]:
        """Send a request whose response is read incrementally."""
        response = self._run(self._connection._send(call, "transfer", is_keyed=is_keyed, stream=True))
        try:
            yield httpx.Response(
                response.status_code,
                headers=response.headers,
                stream=_Synchronous(self._run, response),
                request=response.request,
            )
        finally:
            self._run(response.aclose())


class _Synchronous(httpx.SyncByteStream):
    """The body of an asynchronous response."""

    def __init__(
        self, run: Callable[[Coroutine[Any, Any, bytes | None]], bytes | None], response: httpx.Response
    ) -> None:
        self._run = run
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        blocks = self._response.aiter_raw()

        async def following() -> bytes | None:
            return await anext(blocks, None)

        while (block := self._run(following())) is not None:
            yield block


_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _loop(pid: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of a process, which runs in a thread.

    The first of several threads creates it. A lock could be held during a fork, and forever in the child.
    """
    if pid not in _loops:
        loop = asyncio.new_event_loop()
        if _loops.setdefault(pid, loop) is loop:
            threading.Thread(target=loop.run_forever, name=f"cuckood-client-{pid}", daemon=True).start()
        else:
            loop.close()
    return _loops[pid]
