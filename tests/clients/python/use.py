"""A day's work with the generated Python client against a running service; its arguments are the URL and a key."""

import io
import sys
from datetime import datetime, timedelta, timezone
from http import HTTPStatus

from cuckood_client import AuthenticatedClient
from cuckood_client.api.campaigns import delete_campaign, get_campaign, list_campaigns, patch_campaign, put_campaign
from cuckood_client.api.codes import add_codes, check_codes
from cuckood_client.api.coupons import get_coupon, put_coupon
from cuckood_client.api.eligibility import eligibility
from cuckood_client.api.imports import get_import, import_codes
from cuckood_client.api.operations import backup, metrics
from cuckood_client.api.redemptions import cancel_redemption, confirm_redemption, list_redemptions, redeem
from cuckood_client.api.users import add_users, check_users, remove_users
from cuckood_client.models import (
    CampaignSpec,
    Codes,
    CodesToAdd,
    CouponSpec,
    EligibilityRequest,
    ImportState,
    ItemOutcome,
    Layout,
    Mode,
    Problem,
    ProblemCode,
    RedemptionRequest,
    RedemptionStatus,
    Users,
    UsersToAdd,
    UsersToRemove,
    WindowPatch,
)
from cuckood_client.types import UNSET, File

url, key = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)


def done(answer, status=HTTPStatus.OK):
    """What was answered, where no problem was expected."""
    assert answer.status_code == status, answer.content
    assert not isinstance(answer.parsed, Problem), answer.parsed
    return answer.parsed


def refused(answer, status, code):
    """The problem that was answered."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer
    problem = answer.parsed
    assert isinstance(problem, Problem), problem
    assert (problem.status, problem.code, problem.type_) == (status, code, f"urn:cuckood:problem:{code}"), problem
    assert problem.request_id == answer.headers["x-request-id"]
    return problem


def campaigns():
    now = datetime.now(timezone.utc)
    spec = CampaignSpec(capacity=1_000, ends_at=now + timedelta(days=1))
    spring = done(put_campaign.sync_detailed("spring", client=client, body=spec), HTTPStatus.CREATED)
    assert (spring.name, spring.mode, spring.capacity, spring.layout) == ("spring", Mode.COMPACT, 1_000, UNSET)
    assert abs(spring.ends_at - spec.ends_at) < timedelta(milliseconds=1) and spring.stats.items == 0
    layout = CampaignSpec(capacity=100, layout=Layout(fingerprint_bits=16, bucket_size=2))
    summer = done(put_campaign.sync_detailed("summer", client=client, body=layout), HTTPStatus.CREATED)
    assert summer.layout.bucket_size == 2 and summer.stats.segments[0].fingerprint_bits == 16
    other = put_campaign.sync_detailed("spring", client=client, body=CampaignSpec(capacity=2_000))
    problem = refused(other, HTTPStatus.CONFLICT, ProblemCode.ALREADY_EXISTS)
    assert "/capacity" in [error.pointer for error in problem.errors], problem

    add = UsersToAdd(users=["u1", "ü/2"])
    added = add_users.sync_detailed("spring", client=client, body=add, idempotency_key="day-1")
    assert done(added).outcomes == [ItemOutcome.ADDED] * 2
    again = add_users.sync_detailed("spring", client=client, body=add, idempotency_key="day-1")
    assert again.headers["idempotency-replayed"] == "true" and done(again) == done(added)
    present = done(check_users.sync_detailed("spring", client=client, body=Users(users=["u1", "u3", "ü/2"])))
    assert present.present == [True, False, True]

    question = EligibilityRequest(user="u1", campaigns=["summer", "spring", "nowhere"], limit=2)
    answer = done(eligibility.sync_detailed(client=client, body=question))
    assert (answer.eligible, answer.evaluated, answer.unknown) == (["spring"], 3, ["nowhere"])
    removed = done(remove_users.sync_detailed("spring", client=client, body=UsersToRemove(users=["u1", "u3"])))
    assert removed.outcomes == [ItemOutcome.REMOVED, ItemOutcome.ABSENT] and removed.removed == 1

    # In a merge-patch null clears, and what is absent stays.
    patched = done(patch_campaign.sync_detailed("spring", client=client, body=WindowPatch(ends_at=None)))
    assert patched.ends_at is UNSET and patched.stats.items == 1
    names = done(list_campaigns.sync_detailed(client=client, limit=1))
    assert [campaign.name for campaign in names.campaigns] == ["spring"]
    rest = done(list_campaigns.sync_detailed(client=client, cursor=names.next_cursor))
    assert [campaign.name for campaign in rest.campaigns] == ["summer"] and rest.next_cursor is UNSET

    done(delete_campaign.sync_detailed("summer", client=client), HTTPStatus.NO_CONTENT)
    gone = get_campaign.sync_detailed("summer", client=client)
    refused(gone, HTTPStatus.NOT_FOUND, ProblemCode.CAMPAIGN_NOT_FOUND)
    empty = add_users.sync_detailed("spring", client=client, body=UsersToAdd(users=["u1", ""]))
    problem = refused(empty, HTTPStatus.UNPROCESSABLE_ENTITY, ProblemCode.INVALID_REQUEST)
    assert [error.pointer for error in problem.errors] == ["/users/1"]


def coupons():
    spec = CouponSpec(capacity=1_000, ignore_case=True)
    welcome = done(put_coupon.sync_detailed("welcome", client=client, body=spec), HTTPStatus.CREATED)
    assert (welcome.mode, welcome.ignore_case, welcome.stats.available) == (Mode.STRICT, True, 0)
    done(add_codes.sync_detailed("welcome", client=client, body=CodesToAdd(codes=["K7Q2-9FXM"])))
    upload = File(payload=io.BytesIO(b"B3TT-01AC\nk7q2-9fxm\n\nC0DE-0003\n"))
    imported = done(import_codes.sync_detailed("welcome", client=client, body=upload, id="nightly"))
    assert (imported.state, imported.lines, imported.added) == (ImportState.DONE, 4, 2), imported
    assert done(get_import.sync_detailed("nightly", client=client)) == imported
    valid = done(check_codes.sync_detailed("welcome", client=client, body=Codes(codes=["c0de-0003", "NEVER"])))
    assert valid.valid == [True, False]

    def use(code, reference, **more):
        body = RedemptionRequest(code=code, reference=reference, **more)
        return redeem.sync_detailed("welcome", client=client, body=body)

    # One code, two customers, one winner; the winner may ask again.
    won = done(use("K7Q2-9FXM", "order-42"), HTTPStatus.CREATED)
    assert (won.status, won.reference, won.expires_at) == (RedemptionStatus.REDEEMED, "order-42", UNSET)
    refused(use("K7Q2-9FXM", "order-43"), HTTPStatus.CONFLICT, ProblemCode.CODE_REDEEMED)
    assert done(use("k7q2-9fxm", "order-42")) == won
    refused(use("NEVER", "order-44"), HTTPStatus.NOT_FOUND, ProblemCode.CODE_UNKNOWN)

    held = done(use("B3TT-01AC", "order-45", hold_seconds=900), HTTPStatus.CREATED)
    assert held.status == RedemptionStatus.HELD and held.expires_at > datetime.now(timezone.utc)
    refused(use("B3TT-01AC", "order-46"), HTTPStatus.CONFLICT, ProblemCode.CODE_HELD)
    confirmed = done(confirm_redemption.sync_detailed("welcome", held.id, client=client))
    assert (confirmed.id, confirmed.status) == (held.id, RedemptionStatus.REDEEMED)
    cancelled = done(cancel_redemption.sync_detailed("welcome", held.id, client=client))
    assert cancelled.status == RedemptionStatus.CANCELLED
    late = confirm_redemption.sync_detailed("welcome", held.id, client=client)
    refused(late, HTTPStatus.CONFLICT, ProblemCode.REDEMPTION_CANCELLED)
    done(use("B3TT-01AC", "order-46"), HTTPStatus.CREATED)
    found = done(list_redemptions.sync_detailed("welcome", client=client, reference="order-45"))
    assert [redemption.status for redemption in found.redemptions] == [RedemptionStatus.CANCELLED]
    stats = done(get_coupon.sync_detailed("welcome", client=client)).stats
    assert (stats.available, stats.held, stats.redeemed) == (1, 0, 2), stats


def operations():
    assert "cuckood_" in done(metrics.sync_detailed(client=client))
    assert done(backup.sync_detailed(client=client)).payload.read(1)
    stranger = AuthenticatedClient(base_url=url, token="another", raise_on_unexpected_status=True)
    answer = get_coupon.sync_detailed("welcome", client=stranger)
    refused(answer, HTTPStatus.UNAUTHORIZED, ProblemCode.UNAUTHENTICATED)


campaigns()
coupons()
operations()
