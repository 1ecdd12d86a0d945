"""CF.INFO as the strictest clients read it: the port and an API key, or nothing, are the arguments.

go-redis rejects a field that it does not know, and then all replies of the pipeline; hedis decodes every value as an integer.
"""

import socket
import sys

FIELDS = [
    "Size",
    "Number of buckets",
    "Number of filters",
    "Number of items inserted",
    "Number of items deleted",
    "Bucket size",
    "Expansion rate",
    "Max iterations",
]


class Connection:
    """A connection that returns replies as pairs of their type and value."""

    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=60).makefile("rwb")

    def send(self, *commands):
        for command in commands:
            words = [word.encode() for word in command.split()]
            self.stream.write(b"*%d\r\n" % len(words))
            for word in words:
                self.stream.write(b"$%d\r\n%s\r\n" % (len(word), word))
        self.stream.flush()

    def read(self):
        line = self.stream.readline()
        kind, rest = line[:1], line[1:].removesuffix(b"\r\n").decode()
        if kind in b"+-:":
            return kind, int(rest) if kind == b":" else rest
        if kind == b"#":
            return kind, rest == "t"
        if kind == b"$":
            return kind, self.stream.read(int(rest) + 2)[:-2].decode()
        if kind in b"*%":
            length = int(rest) * (2 if kind == b"%" else 1)
            return kind, [self.read() for _ in range(length)]
        raise AssertionError(f"unexpected reply {line}")

    def call(self, *commands):
        self.send(*commands)
        return [self.read() for _ in commands]


def info(reply, protocol):
    """The values of CF.INFO. Anything else than the known fields with integers is an error."""
    kind, items = reply
    assert kind == (b"%" if protocol == 3 else b"*"), reply
    names, values = items[::2], items[1::2]
    assert all(kind in (b"+", b"$") for kind, _ in names), names
    assert [name for _, name in names] == FIELDS, names
    assert all(kind == b":" for kind, _ in values), values
    return dict(zip(FIELDS, (value for _, value in values)))


def check(port, key, protocol):
    connection = Connection(port)
    (kind, text), = connection.call(f"HELLO {protocol}" + (f" AUTH default {key}" if key else ""))
    assert kind != b"-", text
    for name in (f"strict-{protocol}", f"coupon:strict-{protocol}"):
        connection.call(f"UNLINK {name}")
        assert connection.call(f"CF.RESERVE {name} 1000") == [(b"+", "OK")]
        assert info(connection.call(f"CF.INFO {name}")[0], protocol)["Number of items inserted"] == 0
        # In a pipeline: a reply that can't be read makes the ones after it unreadable.
        replies = connection.call(f"CF.ADD {name} u1", f"CF.INFO {name}", f"CF.ADD {name} u2", f"CF.INFO {name}", "PING")
        assert [info(replies[at], protocol)["Number of items inserted"] for at in (1, 3)] == [1, 2]
        assert replies[4] == (b"+", "PONG")
        replies = connection.call("MULTI", f"CF.INFO {name}", "EXEC")
        assert info(replies[2][1][0], protocol)["Number of items inserted"] == 2
        assert connection.call(f"UNLINK {name} {name}") == [(b":", 1)]


for protocol in (2, 3):
    check(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None, protocol)
print("strict replies ok")
