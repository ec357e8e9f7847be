"""Body of an HTTP answer, read from the connection into the caller's memory, with a checked length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import urllib3.exceptions

from tieredstore.backends.http.deadlines import PIECE_BYTES, check_deadline
from tieredstore.backends.http.session import connection_failure
from tieredstore.errors import StoreUnavailableError


class RawBody(Protocol):
    """The part of urllib3's response that is used here."""

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """Return at most ``amt`` bytes, by at most one read of the socket; empty at the end."""
        ...

    def release_conn(self) -> None:
        """Release the connection for another request."""
        ...


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer whose headers have been read, but not its body. ``check`` gets the whole body and raises an error if
    the body is damaged."""

    size: int
    raw: RawBody
    what: str
    check: Callable[[bytes | memoryview], None]

    def read(self) -> bytes:
        """Return the body."""
        data = read_bytes(self.raw, self.size, self.what)
        self.check(data)
        return data

    def fill(self, buffer: memoryview) -> None:
        """Read the body into ``buffer``, which must have the body's size."""
        read_into(self.raw, buffer, self.what)
        self.check(buffer)


def read_into(raw: RawBody, buffer: memoryview, what: str) -> None:
    """Fill all of ``buffer``; raise StoreUnavailableError if the body ends early, or at the deadline."""
    filled = 0

    def keep(piece: bytes) -> None:
        nonlocal filled
        buffer[filled : filled + len(piece)] = piece
        filled += len(piece)

    _read(raw, len(buffer), keep, what)


def read_bytes(raw: RawBody, size: int, what: str) -> bytes:
    """Return the ``size`` bytes of the body; raise StoreUnavailableError if it ends early, or at the deadline."""
    # The buffer grows as bytes arrive, so that a false length from the server cannot make this process allocate too
    # much.
    kept = BytesIO()
    _read(raw, size, kept.write, what)
    return kept.getvalue()


def _read(raw: RawBody, size: int, keep: Callable[[bytes], object], what: str) -> None:
    # Read the socket once per round, then check the deadline, because a server may send single bytes. Reads are small,
    # so that the memory they fill stays in the processor's cache.
    left = size
    try:
        while left:
            piece = raw.read1(min(left, PIECE_BYTES), decode_content=False)
            if not piece:
                raise StoreUnavailableError(f"{what}: the answer ended after {size - left} of {size} bytes")
            keep(piece)
            left -= len(piece)
            check_deadline(what)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise connection_failure(error) from None
    raw.release_conn()
