"""Connections that are lost, and a service that is busy: a request is repeated, and has one effect."""

import asyncio
from collections.abc import Callable, Iterator

import httpx
import pytest
import stamina
from conftest import KEY
from faults import Fault, NoAnswer, Proxy, Unavailable

from cuckood_client import AsyncClient, Client, ProblemError
from cuckood_client.models import CampaignSpec, CodesToAdd, CouponSpec, RedemptionRequest, UserList, UsersToAdd
from cuckood_client.problem import is_worth_repeating


@pytest.fixture(autouse=True)
def no_waits() -> Iterator[None]:
    """Tries follow each other at once."""
    with stamina.set_testing(True, attempts=10, cap=True):
        yield


@pytest.mark.parametrize("fault", [NoAnswer(), Unavailable(retry_after=60)])
def test_a_write_is_repeated_under_one_key(client: Client, faulty: Callable[..., Proxy], fault: Fault) -> None:
    name = f"f-{type(fault).__name__.lower()}"
    client.put_campaign(name, CampaignSpec(capacity=100))
    proxy = faulty(fault, fault)
    with Client(proxy.url, KEY) as weak:
        assert weak.add_users(name, UsersToAdd(users=["u1"])).outcomes == ["added"]
        weak.add_users(name, UsersToAdd(users=["u2"]))
    # A copy more for each try that counts.
    assert client.count_users(name, UserList(users=["u1", "u2"])).counts == [1, 1]
    first, second, third, fourth = proxy.idempotency_keys()
    assert first == second == third != fourth


def test_a_write_is_repeated_by_asyncio(client: Client, faulty: Callable[..., Proxy]) -> None:
    async def repeat(url: str) -> None:
        async with AsyncClient(url, KEY) as weak:
            assert (await weak.add_users("f-async", UsersToAdd(users=["u1"]))).outcomes == ["added"]

    client.put_campaign("f-async", CampaignSpec(capacity=100))
    asyncio.run(repeat(faulty(NoAnswer(), Unavailable(retry_after=60)).url))
    assert client.count_users("f-async", UserList(users=["u1"])).counts == [1]


def test_a_redemption_is_repeated_by_its_reference(client: Client, faulty: Callable[..., Proxy]) -> None:
    client.put_coupon("f-coupon", CouponSpec(capacity=100))
    client.add_codes("f-coupon", CodesToAdd(codes=["K7Q2"]))
    proxy = faulty(NoAnswer(), NoAnswer())
    with Client(proxy.url, KEY) as weak:
        redemption = weak.redeem("f-coupon", RedemptionRequest(code="K7Q2", reference="order-1"))
    assert redemption.status == "redeemed" and proxy.idempotency_keys() == []


def test_who_gives_up_tells_why(faulty: Callable[..., Proxy]) -> None:
    proxy = faulty(*[Unavailable(retry_after=7)] * 3)
    with Client(proxy.url, KEY, attempts=3) as weak, pytest.raises(ProblemError) as error:
        weak.info()
    assert (error.value.code, error.value.attempts) == ("overloaded", 3)
    assert is_worth_repeating(error.value) == 7
    proxy = faulty(*[NoAnswer()] * 3)
    with Client(proxy.url, KEY, attempts=3) as weak, pytest.raises(httpx.RemoteProtocolError):
        weak.info()
