"""What an import reads, a block at a time: it is never whole in memory."""

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from io import TextIOBase
from os import PathLike
from typing import BinaryIO

from anyio import to_thread

Pieces = Iterable[str] | Iterable[bytes] | AsyncIterable[str] | AsyncIterable[bytes]
BLOCK_BYTES = 64 * 1024


class Upload:
    """The body of an import, from a file or an iterable.

    Strings are items, to be sent with `format_="ndjson"`; bytes are sent as they are, whatever their format. What can be
    read again is sent again when a connection breaks: a path, a list, a function that gives a new iterable. An open file
    and an iterator are read once.
    """

    def __init__(self, source: PathLike[str] | BinaryIO | Pieces | Callable[[], Pieces]) -> None:
        if isinstance(source, str | bytes | TextIOBase):
            raise TypeError("give a pathlib.Path, a file opened as binary, or an iterable of items")
        self._source = source

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be read more than once."""
        source = self._source
        if isinstance(source, PathLike) or callable(source):
            return True
        if hasattr(source, "read"):
            return False
        if isinstance(source, AsyncIterable):
            return aiter(source) is not aiter(source)
        return iter(source) is not iter(source)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Its blocks, from the start. A source that is not asynchronous is read in another thread."""
        pieces = self._pieces()
        if not isinstance(pieces, AsyncIterable):
            iterator = _joined(pieces)
            while block := await to_thread.run_sync(next, iterator, b"", abandon_on_cancel=True):
                yield block
            return
        blocks = _Blocks()
        async for piece in pieces:
            if full := blocks.add(piece):
                yield full
        for block in blocks.rest():
            yield block

    def _pieces(self) -> Pieces:
        source = self._source() if callable(self._source) else self._source
        if isinstance(source, PathLike):
            return _read_path(source)
        read: Callable[[int], bytes] | None = getattr(source, "read", None)
        return iter(lambda: read(BLOCK_BYTES), b"") if read else source


def _read_path(path: PathLike[str]) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _joined(pieces: Iterable[str] | Iterable[bytes]) -> Iterator[bytes]:
    blocks = _Blocks()
    for piece in pieces:
        if full := blocks.add(piece):
            yield full
    yield from blocks.rest()


class _Blocks:
    """Joins pieces, so that a short one is no packet of its own."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, piece: str | bytes) -> bytes:
        """Take a piece, and give what is to be sent now, if that is anything."""
        self._bytes += piece if isinstance(piece, bytes) else json.dumps(piece).encode() + b"\n"
        return self._take() if len(self._bytes) >= BLOCK_BYTES else b""

    def rest(self) -> Iterator[bytes]:
        """What remains at the end."""
        if self._bytes:
            yield self._take()

    def _take(self) -> bytes:
        block, self._bytes = bytes(self._bytes), bytearray()
        return block
