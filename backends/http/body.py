"""Body of an HTTP answer, read from the connection into the caller's memory, with a checked length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        """Return the body; raise StoreUnavailableError if it ends early, or at the deadline."""
        # The buffer grows as bytes arrive, so that a false length from the server cannot make this process allocate too
        # much.
        kept = BytesIO()
        for piece in self._pieces():
            kept.write(piece)
        data = kept.getvalue()
        self.check(data)
        return data

    def fill(self, buffer: memoryview) -> None:
        """Read the body into ``buffer``, which must have the body's size. Raise the errors of ``read``."""
        filled = 0
        for piece in self._pieces():
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        self.check(buffer)

    def _pieces(self) -> Iterator[bytes]:
        # Read the socket once per round, then check the deadline, because a server may send single bytes. Reads are
        # small, so that the memory they fill stays in the processor's cache.
        left = self.size
        try:
            while left:
                piece = self.raw.read1(min(left, PIECE_BYTES), decode_content=False)
                if not piece:
                    ended = f"the answer ended after {self.size - left} of {self.size} bytes"
                    raise StoreUnavailableError(f"{self.what}: {ended}")
                yield piece
                left -= len(piece)
                check_deadline(self.what)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise connection_failure(error) from None
        self.raw.release_conn()
