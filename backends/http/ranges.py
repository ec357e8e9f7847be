"""Byte ranges of HTTP requests and answers, and the body length that an answer must have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tieredstore.errors import RangeNotSatisfiableError, StoreError

# Accept an end of -1: Azurite answers a range request for an empty object with bytes 0 to -1.
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19}|-1)/(\d{1,19})")
_LENGTH: Final = re.compile(r"\d{1,19}")


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """Return the Range header for ``start:stop``. Return no header for a whole object, because no range is valid if the
    object is empty.
    """
    if start == 0 and stop is None:
        return {}
    return {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}


def answered_size(what: str, start: int, stop: int | None, headers: Mapping[str, str]) -> int:
    """Return the body's size; raise StoreError if the answer is not for ``start:stop``.

    Raise RangeNotSatisfiableError if the object ends before the range does: servers then send the bytes that exist.
    """
    first, end, total = _answered_range(what, headers)
    if first != start:
        raise StoreError(f"{what}: bytes from {start} were requested, but the store sent bytes from {first}")
    if end < _least_end(start, stop):
        asked = f"{start}:{'' if stop is None else stop}"
        raise RangeNotSatisfiableError(f"{what}: bytes {asked} were requested, but the object has {end} bytes")
    if stop is None and end != total:
        raise StoreError(
            f"{what}: bytes from {start} on were requested, but the store sent {first}:{end} of {total} bytes"
        )
    if stop is not None and end > stop:
        raise StoreError(f"{what}: bytes {start}:{stop} were requested, but the store sent bytes {first}:{end}")
    return end - start


def _least_end(start: int, stop: int | None) -> int:
    """Return the smallest size an object must have for this range.

    Without ``stop``, the object must have a byte at ``start``. If ``start`` is 0, the object may be empty.
    """
    if stop is not None:
        return stop
    return start + 1 if start else 0


def is_whole(headers: Mapping[str, str]) -> bool:
    """Return True if the answer has all of the object, so that the object's checksum applies to the body."""
    match = _CONTENT_RANGE.fullmatch(_header(headers, "Content-Range") or "")
    return match is None or (int(match[1]) == 0 and int(match[2]) + 1 == int(match[3]))


def _answered_range(what: str, headers: Mapping[str, str]) -> tuple[int, int, int]:
    """Return start and stop of the answer's bytes, and the object's size. An answer without Content-Range has the whole
    object.
    """
    content_range = _header(headers, "Content-Range")
    length = _header(headers, "Content-Length") or ""
    if _LENGTH.fullmatch(length) is None:
        raise StoreError(f"{what}: the store's answer has no length")
    if content_range is None:
        return 0, int(length), int(length)
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None or int(match[2]) + 1 - int(match[1]) != int(length):
        raise StoreError(f"{what}: the store sent {length} bytes with a Content-Range of {content_range[:80]!r}")
    return int(match[1]), int(match[2]) + 1, int(match[3])


def check_lengths(headers: Mapping[str, str]) -> None:
    """Raise ValueError for an invalid length or range in an answer."""
    for name, form in (("Content-Length", _LENGTH), ("Content-Range", _CONTENT_RANGE)):
        value = _header(headers, name)
        if value is not None and form.fullmatch(value) is None:
            raise ValueError(f"{name} is {value!r:.80}")


def _header(headers: Mapping[str, str], name: str) -> str | None:
    # Look up both spellings, because botocore returns a plain dictionary with lower-case names, other clients a
    # case-insensitive mapping.
    return headers.get(name, headers.get(name.lower()))
