"""Services that are gone, hang, are slow or busy, and lost connections: deadlines hold, and a write has one effect."""

import asyncio
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from socket import create_server

import httpx
import pytest
from conftest import KEY, Service
from faults import Drip, Fault, Hang, NoAnswer, Proxy, Respond, unavailable

from cuckood_client import AsyncClient, Client, ProblemError, connection
from cuckood_client.models import (
    CampaignSpec,
    CodesToAdd,
    CodesToGenerate,
    CouponSpec,
    RedemptionRequest,
    UserList,
    UsersToAdd,
    UsersToRemove,
)
from cuckood_client.problem import seconds_to_wait

ONE = UsersToAdd(users=["u1"])
SOON = 5
"""A bound for deadlines of 250 ms on a busy machine, in seconds."""


def read(url: str) -> None:
    with Client(url, KEY) as client:
        client.check_users("spring", UserList(users=["u1"]))


def write(url: str) -> None:
    with Client(url, KEY) as client:
        client.within(0.25).add_users("spring", ONE)


def read_in_asyncio(url: str) -> None:
    async def run() -> None:
        async with AsyncClient(url, KEY) as client:
            await client.check_users("spring", UserList(users=["u1"]))

    asyncio.run(run())


@pytest.fixture(params=[read, write, read_in_asyncio])
def call(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """A call that fails unless it ends within its deadline."""

    def timed(url: str) -> None:
        started = time.monotonic()
        try:
            request.param(url)
        finally:
            assert time.monotonic() - started < SOON

    yield timed


def test_refused_port_fails_by_deadline(call: Callable[[str], None]) -> None:
    with create_server(("127.0.0.1", 0)) as listener:
        url = "http://{}:{}".format(*listener.getsockname())
    # The deadline may pass during the last attempt.
    with pytest.raises((httpx.ConnectError, httpx.TimeoutException)):
        call(url)
    with Client(url, KEY) as client, pytest.raises(httpx.ConnectError):
        client.within(60, attempts=2).add_users("spring", ONE)


@pytest.mark.parametrize("fault", [Hang(), Drip()])
def test_slow_service_fails_by_deadline(
    call: Callable[[str], None], fault: Fault, faulty: Callable[..., Proxy]
) -> None:
    with pytest.raises(httpx.TimeoutException):
        call(faulty(*[fault] * 20).url)


@pytest.mark.parametrize("fault", [Hang(), Drip()])
def test_write_is_repeated_if_attempt_hangs(client: Client, faulty: Callable[..., Proxy], fault: Fault) -> None:
    name = f"f-{type(fault).__name__.lower()}"
    client.put_campaign(name, CampaignSpec(capacity=100))
    proxy = faulty(fault)
    with Client(proxy.url, KEY, write_deadline=3) as weak:
        assert weak.add_users(name, ONE).outcomes == ["added"]
    first, second, *more = proxy.idempotency_keys()
    assert {first, second, *more} == {first}


@pytest.mark.parametrize("fault", [NoAnswer(), unavailable(retry_after=0)])
def test_write_is_repeated_under_one_key(client: Client, faulty: Callable[..., Proxy], fault: Fault) -> None:
    name = f"f-{type(fault).__name__.lower()}"
    client.put_campaign(name, CampaignSpec(capacity=100))
    proxy = faulty(fault, fault)
    with Client(proxy.url, KEY, write_deadline=60) as weak:
        assert weak.add_users(name, ONE).outcomes == ["added"]
        weak.add_users(name, UsersToAdd(users=["u2"]))
    # Each attempt with another key would add a copy.
    assert client.count_users(name, UserList(users=["u1", "u2"])).counts == [1, 1]
    first, second, third, fourth = proxy.idempotency_keys()
    assert first == second == third != fourth


def test_write_is_repeated_in_asyncio(client: Client, faulty: Callable[..., Proxy]) -> None:
    async def repeat(url: str) -> None:
        async with AsyncClient(url, KEY, write_deadline=60) as weak:
            assert (await weak.add_users("f-async", ONE)).outcomes == ["added"]

    client.put_campaign("f-async", CampaignSpec(capacity=100))
    asyncio.run(repeat(faulty(NoAnswer(), unavailable(retry_after=0)).url))
    assert client.count_users("f-async", UserList(users=["u1"])).counts == [1]


def test_redemption_is_repeated_by_its_reference(client: Client, faulty: Callable[..., Proxy]) -> None:
    client.put_coupon("f-coupon", CouponSpec(capacity=100))
    client.add_codes("f-coupon", CodesToAdd(codes=["K7Q2"]))
    proxy = faulty(NoAnswer(), NoAnswer())
    with Client(proxy.url, KEY, write_deadline=60) as weak:
        redemption = weak.redeem("f-coupon", RedemptionRequest(code="K7Q2", reference="order-1"))
    assert redemption.status == "redeemed" and proxy.idempotency_keys() == []


def test_read_is_repeated_only_on_request(faulty: Callable[..., Proxy]) -> None:
    proxy = faulty(*[unavailable(retry_after=0)] * 3)
    with Client(proxy.url, KEY, read_deadline=60) as weak:
        with pytest.raises(ProblemError) as error:
            weak.info()
        assert (error.value.code, error.value.attempts, proxy.requests()) == ("overloaded", 1, 1)
        assert weak.within(60, attempts=3).info()
    assert proxy.requests() == 4


def test_last_error_is_raised_without_further_attempts(faulty: Callable[..., Proxy]) -> None:
    busy = faulty(unavailable(retry_after=7))
    with Client(busy.url, KEY) as weak, pytest.raises(ProblemError) as error:
        weak.add_users("spring", ONE)
    # `Retry-After` exceeds the deadline.
    assert (error.value.code, error.value.retry_after, error.value.attempts) == ("overloaded", 7, 1)
    lost = faulty(*[NoAnswer()] * 3)
    with Client(lost.url, KEY) as weak, pytest.raises(httpx.RemoteProtocolError):
        weak.within(60, attempts=3).add_users("spring", ONE)
    assert lost.requests() == 3


def test_permanent_error_is_never_repeated(faulty: Callable[..., Proxy]) -> None:
    proxy = faulty()
    with Client(proxy.url, KEY) as weak, pytest.raises(ProblemError) as error:
        weak.within(60).add_users("nowhere", ONE)
    assert (error.value.code, proxy.requests()) == ("campaign-not-found", 1)
    distrust = httpx.ConnectError("distrust")
    distrust.__cause__ = ssl.SSLCertVerificationError()
    assert seconds_to_wait(distrust, 1) is None


def test_error_of_other_server_is_repeated_after_its_time(faulty: Callable[..., Proxy]) -> None:
    wait, broken = "Retry-After: 7", "Content-Type: application/problem+json"
    for headers in ((wait, "Content-Type: text/html"), (wait, broken)):
        with (
            Client(faulty(Respond(b"<html>", 503, headers)).url, KEY) as weak,
            pytest.raises(httpx.HTTPStatusError) as error,
        ):
            weak.within(60, attempts=1).add_users("spring", ONE)
        assert seconds_to_wait(error.value, 1) == 7
    proxy = faulty(
        *[Respond(body, 503, (broken,)) for body in (b"", b"[]", b'{"type":7}', b'{"type":"urn:cuckood:problem:x"}')]
    )
    with Client(proxy.url, KEY) as weak:
        assert weak.within(60, attempts=5).info()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b"null", b'{"version":', b"\xff"])
def test_response_of_other_server_is_decoding_error(faulty: Callable[..., Proxy], body: bytes) -> None:
    response = Respond(body, headers=("Content-Type: application/json", "X-Cuckood-Position: abc"))
    with Client(faulty(response).url, KEY) as weak, pytest.raises(httpx.DecodingError):
        weak.within(60).info()
    with Client(faulty(Respond(body or b"[]")).url, KEY) as weak, pytest.raises(httpx.DecodingError):
        next(weak.events.follow())


def test_wait_for_events_pauses_after_immediate_empty_page(
    faulty: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Paused(Exception):
        pass

    def pause(_: float) -> None:
        raise Paused

    monkeypatch.setattr("cuckood_client.client.PAUSE_SECONDS", 60)
    monkeypatch.setattr(time, "sleep", pause)
    with Client(faulty(Respond(), Respond(b"[]")).url, KEY) as weak, pytest.raises(Paused):
        next(weak.events.follow())


def test_hanging_requests_delay_no_others(faulty: Callable[..., Proxy]) -> None:
    async def run(proxy: Proxy) -> None:
        async with AsyncClient(proxy.url, KEY) as busy:
            hanging = [asyncio.create_task(busy.within(60).info()) for _ in range(100)]
            while proxy.requests() < 100:
                await asyncio.sleep(0.01)
            assert await busy.within(5).info()
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)

    asyncio.run(run(faulty(*[Hang()] * 100)))


def test_cancelled_task_closes_its_connection(url: str) -> None:
    async def run() -> None:
        async with AsyncClient(url, KEY) as client:
            for number in range(200):
                task = asyncio.create_task(client.within(60).info())
                await asyncio.sleep(0.0005 * (number % 5))
                task.cancel()
                await asyncio.wait({task})
            pool = client._http._transport._pool  # type: ignore[attr-defined]
            assert all(connection.is_idle() or connection.is_closed() for connection in pool.connections)

    asyncio.run(run())


def test_standard_error_stays_empty(faulty: Callable[..., Proxy]) -> None:
    program = """if True:
        import sys
        from cuckood_client import Client, ProblemError
        from cuckood_client.models import UsersToAdd
        try:
            Client(sys.argv[1], "clients", write_deadline=60).add_users("nowhere", UsersToAdd(users=["u1"]))
        except ProblemError as error:
            print(error.code, error.attempts)
    """
    proxy = faulty(NoAnswer(), unavailable(retry_after=0))
    done = subprocess.run([sys.executable, "-c", program, proxy.url], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("campaign-not-found 3\n", "")


def test_read_sends_highest_position(client: Client, faulty: Callable[..., Proxy]) -> None:
    client.put_campaign("f-position", CampaignSpec(capacity=100))
    proxy = faulty()
    with Client(proxy.url, KEY, read_deadline=60) as reader:
        reader.within(60).add_users("f-position", ONE)
        written = reader.position
        reader.within(60).check_users("f-position", UserList(users=["u1"]))
        reader.check_users("f-position", UserList(users=["u1"]), x_cuckood_min_position=1)
    assert written and proxy.min_positions() == [written, 1]


def test_position_of_other_data_expires(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(service.url)
    with Client(proxy.url, KEY, read_deadline=60, write_deadline=60) as reader:
        reader.put_campaign("f-other", CampaignSpec(capacity=100))
        # Restored data has lower positions.
        service.kill()
        shutil.rmtree(service.data)
        service.start()
        proxy.service = service.url
        with pytest.raises(ProblemError) as error:
            reader.within(60, attempts=2).info()
        assert error.value.code == "too-far-behind"
        monkeypatch.setattr(connection, "POSITION_SECONDS", 0)
        assert reader.info()


def test_events_survive_kills_and_lost_connections(service: Service) -> None:
    proxy = Proxy(service.url, NoAnswer(after=300), NoAnswer())
    with ThreadPoolExecutor() as threads, Client(proxy.url, KEY, write_deadline=60) as client:
        following = threads.submit(lambda: list(islice(client.events.follow(), 7)))
        client.put_campaign("e", CampaignSpec(capacity=100))
        for _ in range(3):
            client.add_users("e", ONE)
            service.kill()
            # Another service may get its port.
            proxy.service = "http://127.0.0.1:1"
            # A write that starts now succeeds once the service is back.
            writing = threads.submit(client.remove_users, "e", UsersToRemove(users=["u1"]))
            service.start()
            proxy.service = service.url
            assert writing.result().removed == 1
        events = following.result()
    assert [event.event for event in events] == ["campaign.created", *["users.added", "users.removed"] * 3]
    assert [event.campaign for event in events] == ["e"] * 7 and events[0].coupon is None


def test_wait_for_events_that_drips_is_repeated(
    client: Client, faulty: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuckood_client.client.FOLLOW_SECONDS", 0.25)
    client.put_campaign("e-drip", CampaignSpec(capacity=100))
    proxy = faulty(Drip())
    with Client(proxy.url, KEY) as weak:
        assert next(weak.events.follow()).seq == 1
    assert proxy.requests() > 1


def test_events_survive_lost_connections_in_asyncio(client: Client, faulty: Callable[..., Proxy]) -> None:
    async def follow(url: str, after: int) -> list[str | None]:
        async with AsyncClient(url, KEY) as weak:
            events = weak.events.follow(after)
            return [(await anext(events)).campaign for _ in range(2)]

    for number in range(3):
        client.put_campaign(f"e-{number}", CampaignSpec(capacity=100))
    first = next(event for event in client.events.follow() if event.campaign == "e-0")
    weak = faulty(NoAnswer(after=300), NoAnswer())
    assert asyncio.run(follow(weak.url, first.seq)) == ["e-1", "e-2"]


def test_export_survives_lost_connections(
    client: Client, faulty: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuckood_client.client.PAGE", 2)
    client.put_coupon("f-export", CouponSpec(capacity=100, stock=10))
    orders = [f"order-{number}" for number in range(5)]
    for order in orders:
        client.redeem("f-export", RedemptionRequest(code=order, reference=order))

    async def export(url: str) -> list[str]:
        async with AsyncClient(url, KEY, write_deadline=60) as weak:
            return [redemption.reference async for redemption in weak.redemptions.export("f-export")]

    assert asyncio.run(export(faulty(NoAnswer(), NoAnswer(after=300)).url)) == orders
    with Client(faulty(NoAnswer(), NoAnswer(after=300)).url, KEY, write_deadline=60) as weak:
        assert [redemption.reference for redemption in weak.redemptions.export("f-export")] == orders


def test_generated_codes_are_same_under_one_key(client: Client) -> None:
    client.put_coupon("f-codes", CouponSpec(capacity=100))
    codes = CodesToGenerate(count=5, pattern="##########")

    def generate(key: str | None = None) -> bytes:
        with client.generate_codes("f-codes", codes, idempotency_key=key) as response:
            return response.read()

    assert generate("summer") == generate("summer") != generate()


def test_first_threads_share_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    both, create = threading.Barrier(2), asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: both.wait() < 2 and create())
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(connection._loop, [-1, -1])
    assert first is second
    first.call_soon_threadsafe(first.stop)


def test_client_fails_after_fork(client: Client) -> None:
    client._pid += 1
    with pytest.raises(RuntimeError, match="fork"):
        client.info()
    # In the child, closing has no effect on the parent.
    client.close()
    client._pid -= 1
    assert client.info()


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_name_is_never_another_path(client: Client, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        client.delete_campaign(name)


def test_address_and_key_may_be_padded(url: str) -> None:
    with Client(f"{url}//", f"{KEY}\n", read_deadline=60) as client:
        assert client.info()
    with pytest.raises(ValueError, match="ASCII"):
        Client(url, "ключ")
