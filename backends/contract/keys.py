"""The check that a key is valid, which every store makes first."""

from __future__ import annotations

from typing import Final

from tieredstore.errors import InvalidKeyError

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
