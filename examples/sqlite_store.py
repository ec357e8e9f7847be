"""Custom object store: objects as rows of a SQLite file.

storage.backend.class=sqlite_store:SqliteObjectStore
storage.sqlite.file=/var/lib/segments.sqlite

The whole contract is in ``ObjectStore``'s docstrings; ``ObjectStoreTests`` checks it (tests/backends/test_own.py).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from tieredstore import Settings
from tieredstore.backends import (
    Body,
    Buffer,
    ObjectInfo,
    ObjectStore,
    byte_view,
    checked_key,
    is_empty_request,
    open_body,
    raise_failures,
    resolved_range,
)
from tieredstore.errors import (
    ConfigError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
)

PAGE: Final = 100
TABLE: Final = "CREATE TABLE IF NOT EXISTS objects (key BLOB PRIMARY KEY, body BLOB, etag INTEGER, modified_ms INTEGER)"


class SqliteObjectStore(ObjectStore):
    """Objects in one file. Each call opens a new connection, so threads and processes share nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._transaction() as rows:
            rows.execute(TABLE)
            # Etags are never reused, even for a key deleted in between.
            rows.execute("CREATE TABLE IF NOT EXISTS etags (etag INTEGER PRIMARY KEY AUTOINCREMENT)")

    @classmethod
    def from_settings(cls, settings: Settings) -> SqliteObjectStore:
        """Open the file that ``storage.sqlite.file`` names. ``storage_options`` has all settings of a custom store."""
        options = dict(settings.storage_options)
        if "sqlite.file" not in options:
            raise ConfigError("storage.sqlite.file is missing: the SQLite store needs a file")
        return cls(options["sqlite.file"].get_secret_value())

    @property
    def identity(self) -> str:
        """Path of the file."""
        return f"sqlite:{self._path}"

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """Yield a connection with a write lock; commit if the block succeeds. Errors are converted to ours."""
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as rows:
                rows.execute("BEGIN IMMEDIATE")
                with rows:
                    yield rows
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(f"{self.identity}: {error}") from error
        except sqlite3.Error as error:
            raise StoreError(f"{self.identity}: {error}") from error

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Collect the body, then write it."""
        collected = bytearray()
        with open_body(body) as buffers:
            raw = checked_key(key)
            for buffer in buffers:
                collected += buffer
        with self._transaction() as rows:
            if if_absent and _found(rows, raw):
                raise PreconditionFailedError(f"the object {key!r} exists already")
            _write(rows, raw, collected)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Run one query for the size, one for the bytes."""
        raw = checked_key(key)
        if is_empty_request(start, stop):
            return b""
        with self._transaction() as rows:
            byte_range = resolved_range(key, self._info(rows, key).size, start, stop)
            query = "SELECT substr(body, ?, ?) FROM objects WHERE key = ?"
            data: bytes | None = rows.execute(query, (byte_range.start + 1, len(byte_range), raw)).fetchone()[0]
        return data or b""  # NULL for an empty object

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read the bytes and copy them into the buffer."""
        with byte_view(buffer) as view:
            view[:] = self.get(key, start, start + len(view))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Run one query per page; keys are stored as bytes, so SQLite sorts them as the contract requires."""
        first, after = prefix.encode(), (start_after or "").encode()
        query = (
            "SELECT key, length(body), etag, modified_ms FROM objects "
            "WHERE key > ? AND substr(key, 1, ?) = ? ORDER BY key LIMIT ?"
        )
        while True:
            with self._transaction() as rows:
                page = rows.execute(query, (after, len(first), first, PAGE)).fetchall()
            for key, *rest in page:
                yield _object_info(key.decode(), *rest)
            if len(page) < PAGE:
                return
            after = page[-1][0]

    def delete(self, keys: Iterable[str]) -> None:
        """Run one query per key; a key that fails does not prevent the others."""
        named = list(keys)  # `keys` may be a listing of this store, which would wait for our lock
        failures: list[TieredStoreError] = []
        with self._transaction() as rows:
            for key in named:
                try:
                    rows.execute("DELETE FROM objects WHERE key = ?", (checked_key(key),))
                except InvalidKeyError as error:
                    failures.append(error)
        raise_failures(failures)

    def head(self, key: str) -> ObjectInfo:
        """Run one query."""
        checked_key(key)
        with self._transaction() as rows:
            return self._info(rows, key)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Collect the body; compare and write under one lock."""
        with open_body(body) as buffers:
            raw, collected = checked_key(key), b"".join(map(bytes, buffers))
        with self._transaction() as rows:
            if not _found(rows, raw) or self._info(rows, key).etag != etag:
                raise PreconditionFailedError(f"the object {key!r} is gone, or no longer has the etag {etag}")
            return _write(rows, raw, collected)

    def _info(self, rows: sqlite3.Connection, key: str) -> ObjectInfo:
        query = "SELECT length(body), etag, modified_ms FROM objects WHERE key = ?"
        row = rows.execute(query, (key.encode(),)).fetchone()
        if row is None:
            raise ObjectNotFoundError(f"there is no object {key!r}")
        return _object_info(key, *row)


def _found(rows: sqlite3.Connection, raw_key: bytes) -> bool:
    return rows.execute("SELECT 1 FROM objects WHERE key = ?", (raw_key,)).fetchone() is not None


def _write(rows: sqlite3.Connection, raw_key: bytes, body: Buffer) -> str:
    etag = rows.execute("INSERT INTO etags DEFAULT VALUES").lastrowid
    # bytes: an empty view would become NULL.
    values = (raw_key, bytes(body), etag, time.time_ns() // 1_000_000)
    rows.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", values)
    return str(etag)


def _object_info(key: str, size: int, etag: int, modified_ms: int) -> ObjectInfo:
    return ObjectInfo(key, size, str(etag), modified_ms)
