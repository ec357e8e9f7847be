"""Checks that every store makes: of keys, of a ``get``'s byte range, and of the failures of a ``delete``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tieredstore.errors import InvalidKeyError, RangeNotSatisfiableError, TieredStoreError
from tieredstore.model import ByteRange

MAX_KEY_BYTES: Final = 1024
"""The longest key that S3, GCS and Azure Blob Storage all support, in bytes of UTF-8."""


def checked_key(key: str) -> bytes:
    """Return the UTF-8 bytes of ``key``; raise InvalidKeyError if it is empty, too long, or has a lone surrogate."""
    try:
        raw = key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"the key {key!r} is not valid Unicode text: {error.reason}") from error
    if not raw:
        raise InvalidKeyError("an object's key cannot be empty")
    if len(raw) > MAX_KEY_BYTES:
        raise InvalidKeyError(
            f"the key {key[:80]!r}… has {len(raw)} bytes of UTF-8; at most {MAX_KEY_BYTES} are allowed"
        )
    return raw


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


def raise_failures(failures: Sequence[TieredStoreError]) -> None:
    """Raise one of ``failures``, with the number of failures in its message. Return if there are no failures.

    Raise a retryable error only if all are retryable: otherwise a retry cannot delete everything.
    """
    if not failures:
        return
    chosen = next((failure for failure in failures if not failure.retryable), failures[0])
    count = "1 object" if len(failures) == 1 else f"{len(failures)} objects"
    raise type(chosen)(f"{count} could not be deleted: {chosen}") from chosen
