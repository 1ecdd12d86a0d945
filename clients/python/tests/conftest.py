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


class Service:
    """A service over a directory, after each start on another port."""

    def __init__(self, place: Path) -> None:
        self.data = place / "data"
        self._log = place / "log"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        sha256 = hashlib.sha256(KEY.encode()).hexdigest()
        environment = {
            "CUCKOOD__SERVER__LISTEN": "127.0.0.1:0",
            "CUCKOOD__STORAGE__PATH": str(self.data),
            "CUCKOOD__STORAGE__DURABILITY": "flush",
            "CUCKOOD__LIMITS__MEMORY": "256MiB",
            "CUCKOOD__LOG__FORMAT": "json",
            "CUCKOOD__AUTH__KEYS": f'[{{name="admin", sha256="{sha256}", scopes=["admin"]}}]',
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen([PROGRAM, "serve"], env={**os.environ, **environment}, stderr=output)
        with self._log.open() as lines:
            self.url = "http://" + _address(lines.readline, self._process)
        _wait_until_ready(self.url)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it, and fail after a panic."""
        self._process.terminate()
        assert self._process.wait() == 0, self._log.read_text()
        assert "panicked" not in self._log.read_text()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service for one test."""
    service = Service(tmp_path)
    yield service
    service.stop()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the service that the tests share."""
    service = Service(tmp_path_factory.mktemp("service"))
    yield service.url
    service.stop()


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
    """A client with deadlines for a busy machine."""
    with Client(url, KEY, read_deadline=60, write_deadline=60) as client:
        yield client


@pytest.fixture
def faulty(url: str) -> Iterator[Callable[..., Proxy]]:
    """Makes proxies before the service."""
    proxies: list[Proxy] = []

    def make(*faults: Fault) -> Proxy:
        proxies.append(Proxy(url, *faults))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
