"""Bodies of S3's answers, read straight into the caller's memory, and parts of uploads as files for the SDK."""

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
    """An answer whose headers have been read, but not its body."""

    size: int
    body: StreamingBody
    what: str

    def read(self) -> bytes:
        """Return the body; raise StoreUnavailableError if it ends early, or at the deadline."""
        # The result grows as bytes arrive, so that a false length from the server cannot make this process allocate too
        # much. Bytes pass through a small buffer, which stays in the processor's cache.
        wire = _wire(self.body)
        kept = BytesIO()
        piece = memoryview(bytearray(min(self.size, PIECE_BYTES)))
        while left := self.size - kept.tell():
            kept.write(piece[: self._some(wire, piece[:left], kept.tell())])
        self._finish()
        return kept.getvalue()

    def fill(self, buffer: memoryview) -> None:
        """Fill all of ``buffer`` with the body; copy the bytes once more only if checksums are checked."""
        wire = _wire(self.body)
        filled = 0
        while filled < len(buffer):
            filled += self._some(wire, buffer[filled:], filled)
        self._finish()

    def _some(self, wire: http.client.HTTPResponse | None, buffer: memoryview, before: int) -> int:
        """Read the socket once into ``buffer``; return the number of bytes."""
        body: Any = self.body
        count: int = body.readinto(buffer) if wire is None else _read_once(wire, buffer)
        if count == 0:
            raise StoreUnavailableError(f"{self.what}: the answer ended after {before} of {self.size} bytes")
        check_deadline(self.what)
        return count

    def _finish(self) -> None:
        """Release the connection for another request, after all of the body was read."""
        # Read past the end, so that the SDK verifies the checksum, if configured, and surplus bytes are found.
        if _wire(self.body) is None and self.body.read():
            raise StoreError("the store sent more bytes than it announced")
        release = getattr(getattr(self.body, "_raw_stream", None), "release_conn", None)
        if release is not None:
            release()


def _wire(body: StreamingBody) -> http.client.HTTPResponse | None:
    """Return the socket-level answer below a plain body. Reading this answer saves two copies per byte, in botocore and
    urllib3. Return None if the body is not plain.

    A body is not plain if botocore checks its checksum, or if its length is unknown.
    """
    if type(body).__name__ != "StreamingBody":
        return None
    response: object = getattr(getattr(body, "_raw_stream", None), "_fp", None)
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


class PartBody(io.RawIOBase):
    """A part of an upload in the form of a file, as the SDK requires. The part's bytes are not copied. The SDK can send
    the part again from the start.

    The part is sent in small pieces. The network timeout begins again with each piece, and the deadline is checked
    between pieces.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        super().__init__()
        self._data = data
        self._what = what
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = -1, /) -> Any:
        """Return the next bytes as a view, possibly more than ``size``."""
        # The sender requests the next piece only after it has sent the previous pieces, so count these as sent.
        note_sent(self._position)
        check_deadline(self._what)
        # Return more than the 16 KiB that http.client requests, because http.client sends everything it gets, and
        # larger pieces save processor time.
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
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True


def sendable(data: memoryview, what: str) -> Any:
    """Return ``data`` in the form that the SDK should send. A small body is sent as bytes: before the SDK sends a file,
    it waits for a "100-continue".
    """
    return bytes(data) if len(data) <= PIECE_BYTES else PartBody(data, what)
