"""A service of its own for all tests, and proxies that make a connection to it fail."""

import hashlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Fault, Proxy

from cuckood_client import Client

KEY = "clients"
PROGRAM = Path(os.environ.get("CUCKOOD", Path(__file__).parents[3] / "target/debug/cuckood"))


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the service is."""
    sha256 = hashlib.sha256(KEY.encode()).hexdigest()
    environment = {
        "CUCKOOD__SERVER__LISTEN": "127.0.0.1:0",
        "CUCKOOD__STORAGE__PATH": str(tmp_path_factory.mktemp("data") / "data"),
        "CUCKOOD__STORAGE__DURABILITY": "flush",
        "CUCKOOD__LIMITS__MEMORY": "256MiB",
        "CUCKOOD__LOG__FORMAT": "json",
        "CUCKOOD__AUTH__KEYS": f'[{{name="admin", sha256="{sha256}", scopes=["admin"]}}]',
    }
    log = tmp_path_factory.mktemp("log") / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen([PROGRAM, "serve"], env={**os.environ, **environment}, stderr=output) as service,
    ):
        try:
            with log.open() as lines:
                url = "http://" + _address(lines.readline, service)
                _wait_until_ready(url)
                yield url
        finally:
            service.terminate()
            assert service.wait() == 0, log.read_text()
    assert "panicked" not in log.read_text()


def _address(readline: Callable[[], str], service: "subprocess.Popen[bytes]") -> str:
    while service.poll() is None:
        line = readline()
        if line.endswith("\n") and (address := json.loads(line).get("fields", {}).get("address")):
            return str(address)
    raise AssertionError("the service has ended")


def _wait_until_ready(url: str) -> None:
    """It listens before it has read everything."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz"):
                return
        except urllib.error.HTTPError:
            time.sleep(0.02)


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client that waits as its users' do."""
    with Client(url, KEY) as client:
        yield client


@pytest.fixture
def faulty(url: str) -> Iterator[Callable[..., Proxy]]:
    """Makes proxies before the service."""
    proxies: list[Proxy] = []

    def make(*faults: Fault) -> Proxy:
        proxies.append(Proxy(url, faults))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
