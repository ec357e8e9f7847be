"""Checks of a ``get``'s byte range against the object's size."""

from __future__ import annotations

from tieredstore.errors import RangeNotSatisfiableError
from tieredstore.model import ByteRange


class TooLargeError(Exception):
    """Raised inside ``get_small`` for an object above the limit, before its body is read."""


def check_small(size: int, most: int | None) -> None:
    """Raise TooLargeError if ``size`` exceeds ``most``; None is no limit."""
    if most is not None and size > most:
        raise TooLargeError


def check_whole(key: str, size: int, wanted: int) -> None:
    """Raise RangeNotSatisfiableError if ``size``, the size of the object, differs from ``wanted``."""
    if size != wanted:
        raise RangeNotSatisfiableError(f"all {wanted} bytes of {key!r} were requested, but the object has {size} bytes")


def is_empty_request(start: int, stop: int | None) -> bool:
    """Return True if ``start:stop`` is empty, so that no request is needed.

    Raise InvalidRangeError for a negative start, or a stop before the start.
    """
    return len(ByteRange(start, start if stop is None else stop)) == 0 and stop is not None


def resolved_range(key: str, size: int, start: int, stop: int | None) -> ByteRange:
    """Return ``start:stop`` of an object of ``size`` bytes; raise RangeNotSatisfiableError if the range exceeds the
    object.

    Without ``stop``, the range goes to the end of the object, and ``start`` must be less than ``size``. For an empty
    object, ``start`` may be 0.
    """
    if stop is None and (start < size or start == size == 0):
        return ByteRange(start, size)
    if stop is None or stop > size:
        asked = f"{start}:{'' if stop is None else stop}"
        raise RangeNotSatisfiableError(f"bytes {asked} of {key!r} were requested, but the object has {size} bytes")
    return ByteRange(start, stop)
