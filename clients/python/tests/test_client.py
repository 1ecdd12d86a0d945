"""A day's work with every part of the API."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest

from cuckood_client import UNSET, Client, ProblemError
from cuckood_client.models import (
    CampaignSpec,
    Cancellation,
    CodeList,
    CodesToAdd,
    CouponSpec,
    CustomerList,
    EligibilityRequest,
    EventLine,
    FilterPatch,
    Layout,
    ProblemCode,
    Redemption,
    RedemptionRequest,
    UserList,
    UsersToAdd,
    UsersToRemove,
)


def refused(error: pytest.ExceptionInfo[ProblemError], status: int, code: ProblemCode) -> ProblemError:
    """The refusal, which is this one."""
    problem = error.value.problem
    assert (problem.status, problem.code, problem.type_) == (status, code, f"urn:cuckood:problem:{code}")
    return error.value


def test_campaigns(client: Client) -> None:
    now = datetime.now(timezone.utc)
    spec = CampaignSpec(capacity=1_000, ends_at=now + timedelta(days=1))
    spring = client.put_campaign("c-spring", spec)
    assert (spring.name, spring.mode, spring.capacity, spring.layout) == ("c-spring", "compact", 1_000, None)
    assert spring.stats.items == 0
    layout = Layout(fingerprint_bits=16, bucket_size=2)
    summer = client.put_campaign("c-summer", CampaignSpec(capacity=100, layout=layout))
    assert summer.layout and summer.layout.bucket_size == 2
    with pytest.raises(ProblemError) as error:
        client.put_campaign("c-spring", CampaignSpec(capacity=2_000))
    assert "/capacity" in [fault.pointer for fault in refused(error, 409, "already-exists").faults]

    added = client.add_users("c-spring", UsersToAdd(users=["u1", "ü/2"]), idempotency_key="day-1")
    assert added.outcomes == ["added", "added"]
    assert client.add_users("c-spring", UsersToAdd(users=["u1", "ü/2"]), idempotency_key="day-1") == added
    assert client.check_users("c-spring", UserList(users=["u1", "u3", "ü/2"])).present == [True, False, True]
    assert client.count_users("c-spring", UserList(users=["u1", "u3"])).counts == [1, 0]
    question = EligibilityRequest(user="u1", campaigns=["c-summer", "c-spring", "nowhere"], limit=2)
    answer = client.check_eligibility(question)
    assert (answer.eligible, answer.evaluated, answer.unknown) == (["c-spring"], 3, ["nowhere"])
    removed = client.remove_users("c-spring", UsersToRemove(users=["u1", "u3"]))
    assert (removed.outcomes, removed.removed) == (["removed", "absent"], 1)

    # In a merge-patch null clears, and what is absent stays.
    assert FilterPatch().ends_at is UNSET
    assert client.patch_campaign("c-spring", FilterPatch(capacity=2_000)).ends_at == spring.ends_at
    patched = client.patch_campaign("c-spring", FilterPatch(ends_at=None))
    assert patched.ends_at is None and patched.stats.items == 1
    names = client.list_campaigns(limit=1, prefix="c-")
    assert [campaign.name for campaign in names.campaigns] == ["c-spring"]
    rest = client.list_campaigns(cursor=names.next_cursor, prefix="c-")
    assert [campaign.name for campaign in rest.campaigns] == ["c-summer"] and rest.next_cursor is None

    client.delete_campaign("c-summer")
    with pytest.raises(ProblemError) as error:
        client.get_campaign("c-summer")
    refused(error, 404, "campaign-not-found")
    with pytest.raises(ProblemError) as error:
        client.add_users("c-spring", UsersToAdd(users=["u1", ""]))
    assert [fault.pointer for fault in refused(error, 422, "invalid-request").faults] == ["/users/1"]


def test_coupons(client: Client) -> None:
    welcome = client.put_coupon("c-welcome", CouponSpec(capacity=1_000, ignore_case=True))
    assert (welcome.mode, welcome.normalize, welcome.stats.available) == ("strict", "ascii", 0)
    client.add_codes("c-welcome", CodesToAdd(codes=["K7Q2-9FXM", "B3TT-01AC"]))
    assert client.check_codes("c-welcome", CodeList(codes=["k7q2-9fxm", "NEVER"])).valid == [True, False]

    # One code, two customers, one winner; the winner may ask again.
    def redeem(code: str, order: str) -> object:
        return client.redeem("c-welcome", RedemptionRequest(code=code, reference=order))

    won = redeem("K7Q2-9FXM", "order-42")
    assert redeem("k7q2-9fxm", "order-42") == won
    with pytest.raises(ProblemError) as error:
        redeem("K7Q2-9FXM", "order-43")
    refused(error, 409, "code-redeemed")
    with pytest.raises(ProblemError) as error:
        redeem("NEVER", "order-44")
    refused(error, 404, "code-unknown")

    request = RedemptionRequest(code="B3TT-01AC", reference="order-45", hold_seconds=900)
    held = client.redeem("c-welcome", request)
    assert held.status == "held" and held.expires_at and held.expires_at > datetime.now(timezone.utc)
    with pytest.raises(ProblemError) as error:
        redeem("B3TT-01AC", "order-46")
    assert refused(error, 409, "code-held").expires_at == held.expires_at
    assert client.confirm_redemption("c-welcome", held.id).status == "redeemed"
    assert client.cancel_redemption("c-welcome", held.id).status == "cancelled"
    with pytest.raises(ProblemError) as error:
        client.confirm_redemption("c-welcome", held.id)
    refused(error, 409, "redemption-cancelled")
    found = client.list_redemptions("c-welcome", reference="order-45").redemptions
    assert [redemption.status for redemption in found] == ["cancelled"]
    assert [redemption.reference for redemption in client.redemptions.export("c-welcome")] == ["order-42", "order-45"]
    assert list(client.redemptions.export("c-welcome", status="held")) == []


def test_coupon_limits_uses_and_customers(client: Client) -> None:
    spec = CouponSpec(capacity=100, uses=2, per_customer=1, normalize="code")
    made = client.put_coupon("c-uses", spec)
    assert (made.uses, made.per_customer, made.normalize) == (2, 1, "code")
    assert made.stats.uses and (made.stats.uses.held, made.stats.uses.redeemed) == (0, 0)
    client.add_codes("c-uses", CodesToAdd(codes=["SPRING-10"]))

    def redeem(order: str, customer: str | None, hold_seconds: int = 0) -> Redemption:
        request = RedemptionRequest(code="spring10", reference=order, customer=customer, hold_seconds=hold_seconds)
        return client.redeem("c-uses", request)

    with pytest.raises(ProblemError) as error:
        redeem("order-1", None)
    assert [fault.pointer for fault in refused(error, 422, "invalid-request").faults] == ["/customer"]
    used = redeem("order-1", "c-7")
    with pytest.raises(ProblemError) as error:
        redeem("order-2", "c-7")
    refused(error, 409, "customer-limit")
    hold = redeem("order-2", "c-8", hold_seconds=900)
    with pytest.raises(ProblemError) as error:
        redeem("order-3", "c-9")
    assert refused(error, 409, "code-held").expires_at == hold.expires_at
    (found,) = client.look_up_codes("c-uses", CodeList(codes=["spring10"])).codes
    assert found.status == "held" and found.uses and (found.uses.taken, found.uses.held) == (2, 1)
    assert found.redemptions and [redemption.id for redemption in found.redemptions] == [hold.id, used.id]

    # A use that is not released stays taken.
    cancelled = client.cancel_redemption("c-uses", used.id, Cancellation(release=False))
    assert (cancelled.status, cancelled.released) == ("cancelled", False)
    assert client.cancel_redemption("c-uses", hold.id).released is None
    looked_up = client.look_up_customers("c-uses", CustomerList(customers=["c-7", "c-8"])).customers
    assert [(customer.taken, customer.redemptions) for customer in looked_up] == [(1, []), (0, [])]
    ended = {event.reference: event.released for event in islice(cancellations(client), 2)}
    assert ended == {"order-1": False, "order-2": None}


def cancellations(client: Client) -> Iterator[EventLine]:
    """The cancellations of a coupon, as they are followed."""
    for event in client.events.follow():
        if event.coupon == "c-uses" and event.event == "redemption.cancelled":
            yield event


def test_events_end_at_line_feeds_only(client: Client) -> None:
    client.put_coupon("c-lines", CouponSpec(capacity=100, stock=10))
    references = [f"order{separator}1" for separator in "\u2028\u2029\x85"]
    for reference in references:
        client.redeem("c-lines", RedemptionRequest(code=reference, reference=reference))
    events = (event.reference for event in client.events.follow() if event.coupon == "c-lines" and event.reference)
    assert list(islice(events, 3)) == references


def test_operations(client: Client, url: str) -> None:
    assert "cuckood_" in client.metrics()
    assert client.plan(capacity=1_000_000).memory_bytes > 0
    with client.backup() as answer:
        assert next(answer.iter_bytes())
    client.put_campaign("c-told", CampaignSpec(capacity=10))
    with client.list_events(limit=1) as answer:
        events = [json.loads(line) for line in answer.read().split(b"\n") if line]
    assert len(events) == 1 and next(client.events.follow()).seq == events[0]["seq"] >= 1
    with Client(url, "another") as stranger, pytest.raises(ProblemError) as error:
        stranger.info()
    refused(error, 401, "unauthenticated")
