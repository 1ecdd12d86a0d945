"""Imports from files and iterables, in every format, over connections that hold and that don't."""

import asyncio
import itertools
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile

import httpx
import pytest
from conftest import KEY
from faults import CutAfter, NoAnswer, Proxy

from cuckood_client import AsyncClient, Client, ProblemError, Upload
from cuckood_client.models import CampaignSpec, CouponSpec, CsvDelimiter, ImportFormat, UserList

USERS = ["u1", 'ü "2"', "u\n3"]


@pytest.fixture
def campaign(client: Client, request: pytest.FixtureRequest) -> str:
    """A campaign of the test's own."""
    name = "i-" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:100]
    return client.put_campaign(name, CampaignSpec(capacity=10_000)).name


def counts(client: Client, campaign: str, users: list[str]) -> list[int]:
    return client.count_users(campaign, UserList(users=users)).counts


@pytest.mark.parametrize(
    ("format", "delimiter", "content"),
    [
        ("text", None, "u1\r\nu2\n"),
        ("ndjson", None, '"u1"\n{"item":"u2"}\n'),
        ("csv", None, 'name,id\n"Ann, A",u1\nBob,u2\n'),
        ("csv", "semicolon", "\ufeffname;id\r\nAnn;u1\r\nBob;u2\r\n"),
    ],
)
def test_a_file_has_a_format(
    client: Client, campaign: str, tmp_path: Path, format: ImportFormat, delimiter: CsvDelimiter | None, content: str
) -> None:
    path = tmp_path / "users"
    path.write_text(content, encoding="utf-8", newline="")
    column = "id" if format == "csv" else None
    done = client.import_users(campaign, Upload(path), format_=format, column=column, delimiter=delimiter)
    assert (done.state, done.added) == ("done", 2)
    with path.open("rb") as file:
        again = client.import_users(
            campaign, Upload(file), format_=format, column=column, delimiter=delimiter, mode="replace"
        )
    assert again.added == 2 and counts(client, campaign, ["u1", "u2"]) == [1, 1]


def test_strings_are_items(client: Client, campaign: str) -> None:
    for source in (USERS, iter(USERS), lambda: (user for user in USERS)):
        assert client.import_users(campaign, Upload(source), format_="ndjson").added == 3
    assert counts(client, campaign, USERS) == [3, 3, 3]


def test_codes(client: Client) -> None:
    client.put_coupon("i-codes", CouponSpec(capacity=100))
    done = client.import_codes("i-codes", Upload([b"K7", b"Q2\nB3TT\n"]), format_="text", id="i-codes")
    assert done.added == 2 and client.get_import("i-codes") == done


def test_asyncio(url: str, client: Client, campaign: str, tmp_path: Path) -> None:
    async def users() -> AsyncIterator[str]:
        for user in USERS:
            yield user

    async def run() -> None:
        path = tmp_path / "users"
        path.write_text("u4\n")
        async with AsyncClient(url, KEY) as later:
            for source in (USERS, users(), users):
                assert (await later.import_users(campaign, Upload(source), format_="ndjson")).added == 3
            assert (await later.import_users(campaign, Upload(path), format_="text")).added == 1

    asyncio.run(run())
    client.import_users(campaign, Upload(users), format_="ndjson")
    assert counts(client, campaign, [*USERS, "u4"]) == [4, 4, 4, 1]


def many() -> Iterator[str]:
    return (f"{number:0500}" for number in range(4_000))


def test_a_broken_import_goes_on(client: Client, campaign: str, faulty: Callable[..., Proxy]) -> None:
    proxy = faulty(CutAfter(300_000), CutAfter(900_000), CutAfter(1_500_000), NoAnswer())
    with Client(proxy.url, KEY) as weak:
        done = weak.import_users(campaign, Upload(many), format_="ndjson")
    assert (done.state, done.lines, done.added) == ("done", 4_000, 4_000)
    assert client.get_campaign(campaign).stats.items == 4_000


def test_a_broken_import_goes_on_in_asyncio(client: Client, campaign: str, faulty: Callable[..., Proxy]) -> None:
    async def run(url: str) -> None:
        async with AsyncClient(url, KEY) as weak:
            await weak.import_users(campaign, Upload(many), format_="ndjson")

    asyncio.run(run(faulty(CutAfter(300_000), CutAfter(900_000)).url))
    assert client.get_campaign(campaign).stats.items == 4_000


def test_what_is_read_once_is_sent_once(client: Client, campaign: str, faulty: Callable[..., Proxy]) -> None:
    proxy = faulty(CutAfter(300_000))
    with Client(proxy.url, KEY) as weak:
        with pytest.raises(httpx.TransportError):
            weak.import_users(campaign, Upload(many()), format_="ndjson", id=campaign)
        # Whoever has named it goes on with another source.
        weak.import_users(campaign, Upload(many), format_="ndjson", id=campaign)
    assert client.get_campaign(campaign).stats.items == 4_000


def test_source_is_repeatable_if_it_restarts() -> None:
    class Wrapper:
        def __init__(self) -> None:
            self._file = BytesIO(b"u1\n")

        def __iter__(self) -> Iterator[bytes]:
            return iter(self._file)

    async def users() -> AsyncIterator[str]:
        yield "u1"

    with NamedTemporaryFile() as file:
        once = [many(), BytesIO(), file, Wrapper(), users()]
        assert not any(Upload(source).is_repeatable for source in once)  # type: ignore[arg-type]
    assert all(Upload(source).is_repeatable for source in (Path(), USERS, many, users))


def test_blocked_source_ends_with_deadline(client: Client, campaign: str) -> None:
    release = threading.Event()
    ended: list[bool] = []

    def blocked() -> Iterator[str]:
        yield "u1"
        ended.append(release.wait(60))

    with pytest.raises(httpx.TimeoutException):
        client.within(0.25).import_users(campaign, Upload(blocked), format_="ndjson")
    assert not ended
    release.set()


def test_an_import_that_still_runs_is_waited_for(url: str, client: Client, campaign: str) -> None:
    is_refused, starts = threading.Event(), itertools.count(1)

    def broken() -> Iterator[str]:
        yield from itertools.islice(many(), 1_000)
        assert is_refused.wait(60)
        raise RuntimeError

    def again() -> Iterator[str]:
        if next(starts) == 2:
            is_refused.set()
        return many()

    def break_off() -> None:
        with Client(url, KEY) as weak, pytest.raises(RuntimeError):
            weak.import_users(campaign, Upload(broken), format_="ndjson", id=campaign)

    with ThreadPoolExecutor() as threads:
        other = threads.submit(break_off)
        while campaign not in [running.id for running in client.list_imports().imports]:
            pass
        assert client.import_users(campaign, Upload(again), format_="ndjson", id=campaign).added == 4_000
        other.result()


def test_an_import_is_never_whole_in_memory(client: Client, campaign: str) -> None:
    tracemalloc.start()
    client.import_users(campaign, Upload(many), format_="ndjson")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_refusal_comes_through(client: Client, campaign: str) -> None:
    with pytest.raises(ProblemError) as error:
        client.import_users("nowhere", Upload(many), format_="ndjson")
    assert error.value.code == "campaign-not-found"
    with pytest.raises(ProblemError) as error:
        client.import_users(campaign, Upload(many))
    assert error.value.code == "unsupported-media-type"
    with pytest.raises(TypeError):
        Upload("users.csv")
