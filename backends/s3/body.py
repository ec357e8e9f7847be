"""Bodies of S3's answers, read straight into memory of the caller's, and parts of uploads as the SDK takes them."""

from __future__ import annotations

import http.client
import io
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from tieredstore.backends.http.deadlines import PIECE_BYTES, check_deadline, note_sent
from tieredstore.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from botocore.response import StreamingBody


@dataclass(frozen=True, slots=True)
class S3Answer:
    """An answer of which only the headers were read."""

    size: int
    body: StreamingBody
    what: str

    def read(self) -> bytes:
        """The body; StoreUnavailableError if it ends before, or at the deadline."""
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
            raise StoreUnavailableError(f"{self.what}: the answer ended after {before} of {self.size} bytes")
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


class PartBody(io.RawIOBase):
    """A part as the file that the SDK wants, without a copy; it may be sent again from its start.

    Small pieces go to the socket one by one, so each has the whole network time-out, and the deadline is looked at
    between them.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        super().__init__()
        self._data = data
        self._what = what
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = -1, /) -> Any:
        """The next bytes, as a view: more than asked for, where that is little."""
        # Asked for more, the pieces before have gone out.
        note_sent(self._position)
        check_deadline(self._what)
        # http.client asks for 16 KiB at a time, sends whatever it gets, and each of these rounds costs processor time.
        stop = len(self._data) if size is None or size < 0 else self._position + max(size, PIECE_BYTES)
        piece = self._data[self._position : stop]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """See :class:`io.RawIOBase`."""
        base = (0, self._position, len(self._data))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """See :class:`io.RawIOBase`."""
        return self._position

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True


def sendable(data: memoryview, what: str) -> Any:
    """What the SDK sends ``data`` as. It asks before it sends a file ("100-continue"), which small bodies don't pay."""
    return bytes(data) if len(data) <= PIECE_BYTES else PartBody(data, what)
