"""The body of an S3 answer, read straight into memory of the caller's."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from tieredstore.backends.http.deadlines import PIECE_BYTES, check_deadline
from tieredstore.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from botocore.response import StreamingBody


@dataclass(frozen=True, slots=True)
class S3Answer:
    """An answer of which only the headers were read."""

    size: int
    body: StreamingBody
    what: str

    def read(self) -> bytes:
        """The body; StoreUnavailable if it ends before, or at the deadline."""
        # It grows as bytes come: a length that a server only claims sizes no buffer. The piece between stays in the
        # processor's cache, and the result is handed out without another copy.
        wire = _wire(self.body)
        kept = BytesIO()
        piece = memoryview(bytearray(min(self.size, PIECE_BYTES)))
        while left := self.size - kept.tell():
            kept.write(piece[: self._some(wire, piece[:left], kept.tell())])
        self._finish()
        return kept.getvalue()

    def fill(self, buffer: memoryview) -> None:
        """The body, into all of ``buffer``; no other copy is made unless checksums are checked."""
        wire = _wire(self.body)
        filled = 0
        while filled < len(buffer):
            filled += self._some(wire, buffer[filled:], filled)
        self._finish()

    def _some(self, wire: http.client.HTTPResponse | None, buffer: memoryview, before: int) -> int:
        """How many bytes one read put into ``buffer``."""
        body: Any = self.body
        count: int = body.readinto(buffer) if wire is None else _read_once(wire, buffer)
        if count == 0:
            raise StoreUnavailable(f"{self.what}: the answer ended after {before} of {self.size} bytes")
        check_deadline(self.what)
        return count

    def _finish(self) -> None:
        """Give the connection back for another request, once all of the body was read."""
        # Past the end the SDK verifies the checksum, if it was told to.
        if _wire(self.body) is None and self.body.read():
            raise StoreError("the store sent more bytes than it said")
        release = getattr(getattr(self.body, "_raw_stream", None), "release_conn", None)
        if release is not None:
            release()


def _wire(body: StreamingBody) -> http.client.HTTPResponse | None:
    """The answer below botocore's and urllib3's layers, which copy each byte twice more; None if it is not plain.

    Not plain is a body that botocore checks against a checksum, or one of unknown length.
    """
    if type(body).__name__ != "StreamingBody":
        return None
    response: object = getattr(getattr(body, "_raw_stream", None), "_fp", None)
    if isinstance(response, http.client.HTTPResponse) and not response.chunked and response.length is not None:
        return response
    return None


def _read_once(wire: http.client.HTTPResponse, rest: memoryview) -> int:
    """What one read of the socket gives, as HTTPResponse.readinto does it for as many as it takes.

    One read, because a server that sends a byte now and then would keep a loop below us past every deadline.
    """
    if not wire.length:
        return 0
    count = wire.fp.readinto1(rest[: wire.length])
    wire.length -= count
    if wire.length == 0:
        wire.close()
    return count
