"""The body of an S3 answer, read straight into memory of the caller's."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from tieredstore.errors import RangeNotSatisfiable, StoreError, StoreUnavailable
from tieredstore.model import ByteRange
from tieredstore.process.deadline import Deadline

if TYPE_CHECKING:
    from botocore.response import StreamingBody

PIECE: Final = 1 << 18
"""Bytes that are read at once where the caller gave no buffer."""

_LENGTH: Final = re.compile(r"\d{1,19}")
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


def check_range(key: str, asked: ByteRange | int, headers: Mapping[str, str]) -> int:
    """How many bytes the body must have, if the answer is what was asked: a range, or everything from a position.

    RangeNotSatisfiable for an object that ends before the range does: S3 answers with the bytes that it has.
    """
    start = asked if isinstance(asked, int) else asked.start
    stop = None if isinstance(asked, int) else asked.stop
    first, end = _answered_range(headers)
    if first != start:
        raise StoreError(f"{key!r}: bytes from {start} were asked for, but the store sent bytes from {first}")
    # Without a stop a byte must be left, but for the whole of an empty object.
    if end < (min(start, 1) + start if stop is None else stop):
        asked_for = f"{start}:{'' if stop is None else stop}"
        raise RangeNotSatisfiable(f"bytes {asked_for} of {key!r} were asked for, but the object has {end} bytes")
    if stop is not None and end > stop:
        raise StoreError(f"{key!r}: bytes {start}:{stop} were asked for, but the store sent bytes {first}:{end}")
    return end - start


def _answered_range(headers: Mapping[str, str]) -> tuple[int, int]:
    """Start and stop of what the answer holds; without a Content-Range it is the whole object."""
    told = headers.get("content-range")
    length = headers.get("content-length", "")
    if _LENGTH.fullmatch(length) is None:
        raise StoreError("the store did not say how long its answer is")
    if told is None:
        return 0, int(length)
    found = _CONTENT_RANGE.fullmatch(told)
    if found is None or int(found[2]) + 1 - int(found[1]) != int(length):
        raise StoreError(f"the store sent {length} bytes with a Content-Range of {told[:80]!r}")
    return int(found[1]), int(found[2]) + 1


def fill(body: StreamingBody, buffer: memoryview, deadline: Deadline, what: str) -> None:
    """Fill all of ``buffer``; StoreUnavailable if the body ends before, or at the deadline."""
    wire = _wire(body)
    filled = 0
    while filled < len(buffer):
        filled += _some(body, wire, buffer[filled:], f"{what}: the answer ended after {filled} of {len(buffer)} bytes")
        deadline.check(what)


def read(body: StreamingBody, size: int, deadline: Deadline, what: str) -> bytes:
    """The body's ``size`` bytes; StoreUnavailable as ``fill``."""
    wire = _wire(body)
    # It grows as bytes come: a length that a server only claims sizes no buffer. The piece between stays in the
    # processor's cache, and the result is handed out without another copy.
    kept = BytesIO()
    piece = memoryview(bytearray(min(size, PIECE)))
    while left := size - kept.tell():
        count = _some(body, wire, piece[:left], f"{what}: the answer ended after {kept.tell()} of {size} bytes")
        kept.write(piece[:count])
        deadline.check(what)
    return kept.getvalue()


def finish(body: StreamingBody) -> None:
    """Give the connection back for another request, once all of the body was read."""
    # Past the end the SDK verifies the checksum, if it was told to.
    if _wire(body) is None and body.read():
        raise StoreError("the store sent more bytes than it said")
    release = getattr(getattr(body, "_raw_stream", None), "release_conn", None)
    if release is not None:
        release()


def _wire(body: StreamingBody) -> http.client.HTTPResponse | None:
    """The answer below botocore's and urllib3's layers, which copy each byte twice more; None if it is not plain.

    Not plain is a body that botocore checks against a checksum, or one of unknown length.
    """
    if type(body).__name__ != "StreamingBody":
        return None
    found: object = getattr(getattr(body, "_raw_stream", None), "_fp", None)
    if isinstance(found, http.client.HTTPResponse) and not found.chunked and found.length is not None:
        return found
    return None


def _some(body: Any, wire: http.client.HTTPResponse | None, buffer: memoryview, ended: str) -> int:
    """How many bytes one read put into ``buffer``; StoreUnavailable, saying ``ended``, if there are none."""
    count: int = body.readinto(buffer) if wire is None else _read_once(wire, buffer)
    if count == 0:
        raise StoreUnavailable(ended)
    return count


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
