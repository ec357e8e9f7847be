"""What a key's file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tieredstore.errors import KeyRingError

MAX_BYTES: Final = 1 << 20
"""So much is read at most: a key has a few kilobytes, and a wrong path may lead to a file of any size."""


def key_file_content(path: Path) -> bytes:
    """The first ``MAX_BYTES`` of a key's file; KeyRingError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise KeyRingError(f"key file {path} cannot be read: {error.strerror}") from error
