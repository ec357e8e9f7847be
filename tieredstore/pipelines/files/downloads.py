"""Objects of a store as files that can be read anywhere."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

from tieredstore.errors import CorruptData

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

_PIECE: Final = 8 << 20


@contextmanager
def downloaded(store: ObjectStore, key: str, sha256: str | None = None) -> Generator[BinaryIO]:
    """A whole object as a file that can be read anywhere; CorruptData if its bytes are not those of ``sha256``."""
    size, digest = store.head(key).size, hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        for start in range(0, size, _PIECE):
            piece = store.get(key, start, min(start + _PIECE, size))
            digest.update(piece)
            file.write(piece)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise CorruptData(f"{key} has other bytes than those that are committed: restore it")
        file.seek(0)
        yield file
