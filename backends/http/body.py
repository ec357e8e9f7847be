"""The body of an HTTP answer, read from the connection into the caller's memory, and exactly as long as it must be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Final, Protocol

import urllib3.exceptions

from tieredstore.backends.http.session import PIECE_BYTES, check_deadline, connection_failure
from tieredstore.errors import RangeNotSatisfiable, StoreError, StoreUnavailable

# Azurite answers requests for ranges of an empty object, which have no answer, with 0 to -1.
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19}|-1)/(\d{1,19})")
_LENGTH: Final = re.compile(r"\d{1,19}")


class RawBody(Protocol):
    """What is used of urllib3's response."""

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """At most ``amt`` bytes, by at most one read of the socket; none at the end."""
        ...

    def release_conn(self) -> None:
        """Give the connection back for another request."""
        ...


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """The request header for ``start:stop``; none for a whole object, since an empty one has no range."""
    if start == 0 and stop is None:
        return {}
    return {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}


def answered_size(what: str, start: int, stop: int | None, headers: Mapping[str, str]) -> int:
    """How many bytes the body has, if the answer is to a request for ``start:stop``.

    RangeNotSatisfiable for an object that ends before the range does: servers then send the bytes that there are.
    """
    first, end = _answered_range(what, headers)
    if first != start:
        raise StoreError(f"{what}: bytes from {start} were asked for, but the store sent bytes from {first}")
    if end < _least_end(start, stop):
        asked = f"{start}:{'' if stop is None else stop}"
        raise RangeNotSatisfiable(f"{what}: bytes {asked} were asked for, but the object has {end} bytes")
    if stop is not None and end > stop:
        raise StoreError(f"{what}: bytes {start}:{stop} were asked for, but the store sent bytes {first}:{end}")
    return end - start


def _least_end(start: int, stop: int | None) -> int:
    """Where the object must end at least: to the end, a byte must be left, but for the whole of an empty object."""
    if stop is not None:
        return stop
    return start + 1 if start else 0


def is_whole(headers: Mapping[str, str]) -> bool:
    """Whether the answer holds all of the object, so that the object's checksum is the body's."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return found is None or (int(found[1]) == 0 and int(found[2]) + 1 == int(found[3]))


def _answered_range(what: str, headers: Mapping[str, str]) -> tuple[int, int]:
    told = headers.get("Content-Range")
    length = headers.get("Content-Length", "")
    if _LENGTH.fullmatch(length) is None:
        raise StoreError(f"{what}: the store did not say how long its answer is")
    if told is None:
        return 0, int(length)
    found = _CONTENT_RANGE.fullmatch(told)
    if found is None or int(found[2]) + 1 - int(found[1]) != int(length):
        raise StoreError(f"{what}: the store sent {length} bytes with a Content-Range of {told[:80]!r}")
    return int(found[1]), int(found[2]) + 1


def read_into(raw: RawBody, buffer: memoryview, what: str) -> None:
    """Fill all of ``buffer``; StoreUnavailable if the body ends before, or at the deadline."""
    filled = 0

    def keep(piece: bytes) -> None:
        nonlocal filled
        buffer[filled : filled + len(piece)] = piece
        filled += len(piece)

    _read(raw, len(buffer), keep, what)


def read_bytes(raw: RawBody, size: int, what: str) -> bytes:
    """The body's ``size`` bytes; StoreUnavailable as ``read_into``."""
    # It grows as bytes come: a length that a server only claims sizes no buffer.
    kept = BytesIO()
    _read(raw, size, kept.write, what)
    return kept.getvalue()


def _read(raw: RawBody, size: int, keep: Callable[[bytes], object], what: str) -> None:
    # One read of the socket at a time: a server that sends a byte now and then must not keep us past the deadline.
    # The pieces are small, so that their memory is used again and stays in the processor's cache.
    left = size
    try:
        while left:
            piece = raw.read1(min(left, PIECE_BYTES), decode_content=False)
            if not piece:
                raise StoreUnavailable(f"{what}: the answer ended after {size - left} of {size} bytes")
            keep(piece)
            left -= len(piece)
            check_deadline(what)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise connection_failure(error) from None
    raw.release_conn()
