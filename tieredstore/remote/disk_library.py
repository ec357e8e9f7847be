"""The part of ``diskcache`` that is used here, with its types, since it ships none.

The library is not maintained any more, and by itself it unpickles whatever lies in its folder (CVE-2025-69872). Used
are its table, its transactions and its bookkeeping of sizes; bytes and keys go through a ``Disk`` of ours alone.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TypeAlias

Execute: TypeAlias = Callable[..., sqlite3.Cursor]
"""``execute`` of this thread's connection."""

Cleanup: TypeAlias = Callable[[object], None]
"""Takes the name of a file that is removed once the transaction is committed."""

if TYPE_CHECKING:
    MODE_BINARY: Final = 2

    class Timeout(Exception):
        """The database was locked for too long, or refused to begin a transaction for another reason."""

    class Disk:
        """Turns values into rows and files, and back."""

        def __init__(self, directory: str, min_file_size: int = 0, pickle_protocol: int = 0) -> None: ...

    class Cache:
        """A table of values in a folder, shared by threads and processes."""

        _local: threading.local

        def __init__(self, directory: str, timeout: float, disk: type[Disk], **settings: object) -> None: ...
        @property
        def disk(self) -> Disk:
            """The disk that it was made with."""
            ...

        @property
        def _con(self) -> sqlite3.Connection: ...
        @property
        def _sql(self) -> Execute: ...
        def _transact(
            self, retry: bool = False, filename: str | None = None
        ) -> AbstractContextManager[tuple[Execute, Cleanup]]: ...
        def _cull(self, now: float, sql: Execute, cleanup: Cleanup, limit: int | None = None) -> None: ...
        def set(self, key: str, value: object) -> bool:
            """Store the value, then list it in a transaction."""
            ...

        def close(self) -> None:
            """Close this thread's connection."""
            ...

else:
    from diskcache import Cache, Disk, Timeout
    from diskcache.core import MODE_BINARY

__all__ = ["MODE_BINARY", "Cache", "Cleanup", "Disk", "Execute", "Timeout"]
