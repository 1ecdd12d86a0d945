"""The clients: all operations, and iterators over events and redemptions."""

import asyncio
import datetime
import json
import math
import time
from collections.abc import AsyncIterator, Iterator

import httpx

from .generated import client as generated
from .generated.api.operations import list_events
from .generated.models import EventLine, ListRedemptionsStatus, Redemption
from .problem import parsed

WAIT_SECONDS = 20
FOLLOW_SECONDS = 60.0
"""The time limit of a request that waits for events."""
PAUSE_SECONDS = 1.0
"""The pause after an empty page that arrived without a wait."""
PAGE = 1_000


class Client(generated.Client):
    """All operations of the service."""

    @property
    def events(self) -> "Events":
        """The events of the service."""
        return Events(self)

    @property
    def redemptions(self) -> "Redemptions":
        """The redemptions of coupons."""
        return Redemptions(self)


class AsyncClient(generated.AsyncClient):
    """All operations of the service, for asyncio."""

    @property
    def events(self) -> "AsyncEvents":
        """The events of the service."""
        return AsyncEvents(self)

    @property
    def redemptions(self) -> "AsyncRedemptions":
        """The redemptions of coupons."""
        return AsyncRedemptions(self)


class Events:
    """The events of the service."""

    def __init__(self, client: Client) -> None:
        self._client = client.within(math.inf, attempts=math.inf)

    def follow(self, after: int | None = None) -> Iterator[EventLine]:
        """Iterate over all events in order, and wait for new ones without end.

        A restart or a lost connection only delays it. Store `seq` of the last event processed to continue there.

        Args:
            after: The number of the last event known. By default the oldest event stored comes first.

        Raises:
            ProblemError: `events-gone`, if the event after this one is no longer stored; or a permanent error.
        """
        while True:
            call = list_events.request(after=after, limit=PAGE, wait=WAIT_SECONDS)
            started = time.monotonic()
            response = self._client._send(call, "transfer", is_keyed=True, attempt_seconds=FOLLOW_SECONDS)
            events = parsed(response, _events)
            for event in events:
                yield event
                after = event.seq
            if not events and time.monotonic() - started < PAUSE_SECONDS:
                time.sleep(PAUSE_SECONDS)


class AsyncEvents:
    """The events of the service."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client.within(math.inf, attempts=math.inf)

    async def follow(self, after: int | None = None) -> AsyncIterator[EventLine]:
        """Iterate over all events in order, and wait for new ones without end.

        A restart or a lost connection only delays it. Store `seq` of the last event processed to continue there.

        Args:
            after: The number of the last event known. By default the oldest event stored comes first.

        Raises:
            ProblemError: `events-gone`, if the event after this one is no longer stored; or a permanent error.
        """
        while True:
            call = list_events.request(after=after, limit=PAGE, wait=WAIT_SECONDS)
            started = time.monotonic()
            response = await self._client._send(call, "transfer", is_keyed=True, attempt_seconds=FOLLOW_SECONDS)
            events = parsed(response, _events)
            for event in events:
                yield event
                after = event.seq
            if not events and time.monotonic() - started < PAUSE_SECONDS:
                await asyncio.sleep(PAUSE_SECONDS)


def _events(response: httpx.Response) -> list[EventLine]:
    # Strings may contain other line separators.
    return [EventLine.from_dict(json.loads(line)) for line in response.content.split(b"\n") if line]


class Redemptions:
    """The redemptions of coupons."""

    def __init__(self, client: Client) -> None:
        self._client = client._persistent()

    def export(
        self,
        coupon: str,
        *,
        reference: str | None = None,
        status: ListRedemptionsStatus | None = None,
        changed_after: datetime.datetime | None = None,
    ) -> Iterator[Redemption]:
        """Iterate over the redemptions of a coupon, in the order of their last change.

        A redemption that changes during the export appears again at the end, in its new state. Each page has the
        deadline of a write, and is requested again while that lasts.
        """
        cursor: str | None = None
        while True:
            page = self._client.list_redemptions(
                coupon, reference=reference, status=status, changed_after=changed_after, limit=PAGE, cursor=cursor
            )
            yield from page.redemptions
            if (cursor := page.next_cursor) is None:
                return


class AsyncRedemptions:
    """The redemptions of coupons."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client._persistent()

    async def export(
        self,
        coupon: str,
        *,
        reference: str | None = None,
        status: ListRedemptionsStatus | None = None,
        changed_after: datetime.datetime | None = None,
    ) -> AsyncIterator[Redemption]:
        """Iterate over the redemptions of a coupon, in the order of their last change.

        A redemption that changes during the export appears again at the end, in its new state. Each page has the
        deadline of a write, and is requested again while that lasts.
        """
        cursor: str | None = None
        while True:
            page = await self._client.list_redemptions(
                coupon, reference=reference, status=status, changed_after=changed_after, limit=PAGE, cursor=cursor
            )
            for redemption in page.redemptions:
                yield redemption
            if (cursor := page.next_cursor) is None:
                return
