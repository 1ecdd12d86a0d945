"""A proxy whose first connections fail, each in its own way; the later ones work."""

import re
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class CutAfter:
    """The connection is lost when so many bytes have been sent."""

    bytes: int


@dataclass(frozen=True)
class NoAnswer:
    """The connection is lost after the service has done its work and sent `after` bytes of the response."""

    after: int = 0


@dataclass(frozen=True)
class Hang:
    """The service never responds."""


@dataclass(frozen=True)
class Drip:
    """The response arrives byte by byte."""


@dataclass(frozen=True)
class Respond:
    """Another server responds."""

    body: bytes = b""
    status: int = 200
    headers: tuple[str, ...] = ("Content-Type: application/json",)


def unavailable(retry_after: int) -> Respond:
    """Return the response of a service that is overloaded."""
    problem = b"""{"type":"urn:cuckood:problem:overloaded","code":"overloaded","title":"Too much at once","status":503,
        "detail":"made up","request_id":"0"}"""
    return Respond(problem, 503, ("Content-Type: application/problem+json", f"Retry-After: {retry_after}"))


Fault = CutAfter | NoAnswer | Hang | Drip | Respond


class Proxy:
    """Listens on a port of its own."""

    def __init__(self, url: str, *faults: Fault) -> None:
        self.service = url
        """What it forwards to."""
        self._faults = list(faults)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        self.sent = b""
        """All that clients have sent."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections."""
        self._listener.close()

    def idempotency_keys(self) -> list[bytes]:
        """The keys of the requests that came, in order."""
        return re.findall(rb"(?i)\r\nidempotency-key: (.*?)\r\n", self.sent)

    def min_positions(self) -> list[int]:
        """The minimum positions of the requests, in order."""
        return [int(position) for position in re.findall(rb"(?i)\r\nx-cuckood-min-position: (\d+)\r\n", self.sent)]

    def requests(self) -> int:
        """The number of requests received."""
        return self.sent.count(b" HTTP/1.1\r\n")

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            fault = self._faults.pop(0) if self._faults else None
            threading.Thread(target=self._serve, args=(client, fault), daemon=True).start()

    def _serve(self, client: socket.socket, fault: Fault | None) -> None:
        host, port = urlsplit(self.service).netloc.split(":")
        with suppress(OSError), client, socket.create_connection((host, int(port))) as server:
            match fault:
                case Respond(body=body, status=status, headers=headers):
                    self.sent += client.recv(65536)
                    head = (f"HTTP/1.1 {status} ", *headers, f"Content-Length: {len(body)}", "Connection: close")
                    client.sendall("\r\n".join((*head, "", "")).encode() + body)
                    return
                case CutAfter(bytes=limit):
                    self._forward(client, server, limit)
                    return
                case Hang():
                    while block := client.recv(65536):
                        self.sent += block
                    return
            forward = threading.Thread(target=self._forward, args=(client, server), daemon=True)
            forward.start()
            while block := server.recv(1 if isinstance(fault, Drip) else 65536):
                if isinstance(fault, NoAnswer):
                    client.sendall(block[: fault.after])
                    break
                client.sendall(block)
                if isinstance(fault, Drip):
                    time.sleep(0.02)
            # The other thread sleeps in `recv`, which closing alone does not end.
            for end in (client, server):
                end.shutdown(socket.SHUT_RDWR)
            forward.join()

    def _forward(self, client: socket.socket, service: socket.socket, limit: float = float("inf")) -> None:
        try:
            while limit > 0 and (block := client.recv(int(min(limit, 65536)))):
                limit -= len(block)
                self.sent += block
                service.sendall(block)
        except OSError:
            return
