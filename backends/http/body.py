"""Body of an HTTP answer, read from the connection into the caller's memory, with a checked length."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import urllib3.exceptions

from tieredstore.backends.http.sockets import PIECE_BYTES, check_deadline, connection_failure
from tieredstore.errors import StoreError, StoreUnavailableError


class RawBody(Protocol):
    """The part of urllib3's response, and of an SDK's body above it, that is used here."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read some bytes into ``buffer``; return their number, 0 at the end."""
        ...

    def read(self, amt: int | None = None, /) -> bytes:
        """Read at most ``amt`` bytes, or to the end."""
        ...


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer whose headers have been read, but not its body. ``check`` gets the whole body and raises an error if
    the body is damaged."""

    size: int
    raw: RawBody
    what: str
    check: Callable[[bytes | memoryview], None] = lambda _: None

    def read(self) -> bytes:
        """Return the body; raise StoreUnavailableError if it ends early, or at the deadline."""
        # The result grows as bytes arrive, so that a false length from the server cannot make this process allocate too
        # much. Bytes pass through a small buffer, which stays in the processor's cache.
        kept = BytesIO()
        piece = memoryview(bytearray(min(self.size, PIECE_BYTES)))
        with _translate_errors(self.what):
            wire = _wire(self.raw)
            while left := self.size - kept.tell():
                kept.write(piece[: self._some(wire, piece[:left], kept.tell())])
            data = kept.getvalue()
            self._finish(wire, data)
        return data

    def fill(self, buffer: memoryview) -> None:
        """Read the body into ``buffer``, which must have the body's size. Raise the errors of ``read``."""
        with _translate_errors(self.what):
            wire, filled = _wire(self.raw), 0
            while filled < len(buffer):
                filled += self._some(wire, buffer[filled:], filled)
            self._finish(wire, buffer)

    def _some(self, wire: http.client.HTTPResponse | None, buffer: memoryview, before: int) -> int:
        """Read the socket once into ``buffer``; return the number of bytes."""
        count = self.raw.readinto(buffer[:PIECE_BYTES]) if wire is None else _read_once(wire, buffer)
        if count == 0:
            raise StoreUnavailableError(f"{self.what}: the answer ended after {before} of {self.size} bytes")
        check_deadline(self.what)
        return count

    def _finish(self, wire: http.client.HTTPResponse | None, data: bytes | memoryview) -> None:
        """Check the body. Then release the connection for another request."""
        # Read past the end, so that surplus bytes are found, and so that an SDK verifies its checksum, if configured.
        # Without ``wire``, read only one byte, because a body of unknown length may never end. With ``wire``, set no
        # limit: urllib3 has not counted the bytes that were read below it, and would report a truncated body.
        if self.raw.read(1 if wire is None else None):
            raise StoreError(f"{self.what}: the store sent more bytes than it announced")
        self.check(data)
        release: Callable[[], None] | None = getattr(self.raw, "release_conn", None)
        if release is not None:
            release()


@contextmanager
def _translate_errors(what: str) -> Generator[None]:
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        failure = connection_failure(error)
        raise type(failure)(f"{what}: {failure}") from None


def _wire(raw: RawBody) -> http.client.HTTPResponse | None:
    """Return the socket-level answer below urllib3's response. Reading this answer saves two copies per byte. Return
    None if an SDK checks the body's bytes, or if the body's length is unknown.
    """
    response: object = getattr(raw, "_fp", None)
    if isinstance(response, http.client.HTTPResponse) and not response.chunked and response.length is not None:
        return response
    return None


def _read_once(wire: http.client.HTTPResponse, rest: memoryview) -> int:
    """Read the socket once; HTTPResponse.readinto would read again until the buffer is full.

    The caller must check the deadline after each read, because a server may send single bytes: a loop inside the
    library would then exceed the deadline.
    """
    if not wire.length:
        return 0
    count = wire.fp.readinto1(rest[: wire.length])
    wire.length -= count
    if wire.length == 0:
        wire.close()
    return count
