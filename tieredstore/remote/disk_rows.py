"""The table of the disk cache: which values there are, how old their last use is, and which have to go."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import CorruptData
from tieredstore.remote.chunk_cache import Counters
from tieredstore.remote.disk_files import RawDisk
from tieredstore.remote.disk_library import Cache, Cleanup, Execute, Timeout
from tieredstore.remote.disk_renewal import DATABASE, identity_of, opening, remove_aside
from tieredstore.remote.disk_seal import Sealed

_LOCK_TIMEOUT: Final = 1.0
"""Seconds to wait for other processes' transactions, which take a millisecond: a cache that waits longer is no help."""

_PRAGMAS: Final = (
    "PRAGMA cache_size = 256",  # pages for each thread, 1 MiB; the default of the library is 32 MiB
    "PRAGMA synchronous = NORMAL",
)
_MAX_TOUCHED: Final = 64
_TOUCH_EVERY: Final = 1.0
_MAX_EXPIRED: Final = 64
"""How many rows that are too old one ``put`` removes, beside those that it needs the room of."""

_OLDEST: Final = """
    SELECT rowid, COALESCE(CAST(size AS INTEGER), 0), CAST(access_time AS REAL), filename
    FROM Cache ORDER BY access_time, rowid LIMIT 64
"""
_LOOKUP: Final = "SELECT rowid, mode, filename, CAST(access_time AS REAL) FROM Cache WHERE key = ? AND raw = 1"
_PROBE: Final = """
    INSERT INTO Cache (key, raw, store_time, expire_time, access_time, access_count, tag, size, mode, filename, value)
    VALUES ('probe', 1, ?, NULL, ?, 0, NULL, 1, 2, NULL, NULL)
"""
_TOUCH: Final = "UPDATE Cache SET access_time = ? WHERE rowid = ? AND access_time < ?"
_RECOUNT: Final = {
    "count": "UPDATE Settings SET value = (SELECT COUNT(*) FROM Cache) WHERE key = 'count'",
    "size": "UPDATE Settings SET value = (SELECT CAST(TOTAL(size) AS INTEGER) FROM Cache) WHERE key = 'size'",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One value of the table; what the columns hold is not checked."""

    rowid: int
    mode: object
    filename: object


class Rows(Cache):
    """The values of one folder, for the threads of one process, and beside those of other processes.

    ``size_bytes`` bounds the sum of the values' sizes, ``retention_ms`` the time since their last use; -1 is without
    limit. Looking up never waits for a writer: uses are noted in memory and written a few at a time.
    Raises ``sqlite3.Error``, the library's ``Timeout`` and OSError.
    """

    def __init__(self, folder: Path, size_bytes: int, retention_ms: int, counters: Counters) -> None:
        self._path = folder / DATABASE
        self._limit = size_bytes
        self._retention = retention_ms / 1000 if retention_ms >= 0 else None
        self._counters = counters
        self._lock = threading.Lock()
        self._is_shut = False
        self._connections: dict[threading.Thread, sqlite3.Connection] = {}
        self._touched: dict[int, float] = {}
        self._touches_written = time.time()
        self.files: RawDisk
        try:
            super().__init__(
                str(folder), timeout=_LOCK_TIMEOUT, disk=RawDisk, eviction_policy="least-recently-used", statistics=0
            )
        except BaseException:
            self.shut()
            raise
        disk = self.disk
        if not isinstance(disk, RawDisk):
            raise TypeError(f"the cache's disk is a {type(disk).__name__}")
        self.files = disk
        self.identity = identity_of(self._path)

    def lookup(self, key: str) -> Row | None:
        """The value's row; None if there is none or it is too old. Not a use yet."""
        for rowid, mode, filename, used in self._sql(_LOOKUP, (key,)).fetchall():
            if not self._is_too_old(max(used or 0.0, self._touched.get(rowid, 0.0)), time.time()):
                return Row(rowid, mode, filename)
        return None

    def touch(self, row: Row) -> None:
        """Note that the value was used now."""
        now = time.time()
        with self._lock:
            self._touched[row.rowid] = now
            is_due = len(self._touched) >= _MAX_TOUCHED or not 0 <= now - self._touches_written < _TOUCH_EVERY
            if is_due:
                self._touches_written = now
        if is_due:
            self.write_touches()

    def write_touches(self) -> None:
        """Write the noted uses, unless another writer is at work right now; then they stay noted."""
        self._sql("PRAGMA busy_timeout = 0")
        try:
            with contextlib.suppress(Timeout), self._transact() as (sql, _):
                self._apply_touches(sql)
        finally:
            self._sql(f"PRAGMA busy_timeout = {_LOCK_TIMEOUT * 1000:.0f}")

    def keep(self, key: str, value: Sealed) -> None:
        """Store a value in place of an older one, and make room; nothing of it stays if that fails."""
        if 0 <= self._limit < len(value.payload):
            return
        try:
            self.set(key, value)
        except BaseException:
            self.files.remove(value.filename)
            raise

    def drop(self, row: Row) -> None:
        """Remove a value, unless another one has taken its row."""
        with self._transact() as (sql, cleanup):
            sql("DELETE FROM Cache WHERE rowid = ? AND filename IS ?", (row.rowid, row.filename))
            cleanup(row.filename)

    def held(self) -> tuple[int, int]:
        """How many values there are, and the sum of their sizes."""
        totals = self._totals()
        return totals.get("count") or 0, totals.get("size") or 0

    def _totals(self) -> dict[str, int | None]:
        return dict(self._sql("SELECT key, CAST(value AS INTEGER) FROM Settings WHERE key IN ('count', 'size')"))

    def tidy(self) -> None:
        """Remove what a killed process left, and count anew; at most once an hour, whichever process does it."""

        def listed() -> set[str]:
            with self._transact() as (sql, _):
                for statement in _RECOUNT.values():
                    sql(statement)
                return {name for (name,) in sql("SELECT filename FROM Cache WHERE filename IS NOT NULL")}

        self.files.sweep(listed)
        remove_aside(self._path.parent)

    def probe(self) -> None:
        """What is done later, without a trace: a database may be opened and yet not be of any use.

        Raises what later calls would raise, and CorruptData for a table that is not the cache's.
        """
        self.lookup("")
        self._sql(_OLDEST).fetchall()
        if {type(value) for value in self._totals().values()} != {int} or len(self._totals()) != 2:
            raise CorruptData("the disk cache's database does not tell what it holds")
        self._sql("BEGIN IMMEDIATE")
        try:
            before = self.held()
            self._sql(_PROBE, (time.time(), time.time()))
            is_counted = self.held() == (before[0] + 1, before[1] + 1)
            is_listed = bool(self._sql(_LOOKUP, ("probe",)).fetchall())
        finally:
            self._sql("ROLLBACK")
        if not (is_counted and is_listed):
            raise CorruptData("the disk cache's database does not list what is put into it")

    def roll_back(self) -> None:
        """After an error: leave the transaction that this thread may still be in, which would lock out all others."""
        with contextlib.suppress(sqlite3.Error):
            connection: sqlite3.Connection | None = getattr(self._local, "con", None)
            if connection is not None and connection.in_transaction:
                connection.rollback()

    @property
    def is_connected(self) -> bool:
        """Whether any thread has a connection open."""
        return bool(self._connections)

    def shut(self) -> None:
        """Close all connections for good."""
        self._is_shut = True
        self.close()

    def close(self) -> None:
        """Close the connections of all threads; the next use makes new ones. The library calls it once it is set up."""
        with self._lock:
            connections, self._connections = self._connections, {}
            self._local = threading.local()
        for connection in connections.values():
            connection.close()

    @property
    def _con(self) -> sqlite3.Connection:
        """This thread's connection, as the library asks for it."""
        connection: sqlite3.Connection | None = getattr(self._local, "con", None)
        if connection is None:
            connection = self._local.con = self._connect()
        return connection

    def _connect(self) -> sqlite3.Connection:
        # other threads close it: all of them at the end, and those of ended threads here
        with opening(self._path.parent):
            opened = self._connection()
        with self._lock:
            ended = [self._connections.pop(thread) for thread in list(self._connections) if not thread.is_alive()]
            self._connections[threading.current_thread()] = opened
        for connection in ended:
            connection.close()
        if self._is_shut:  # meanwhile, so that nobody else would close it
            opened.close()
        return opened

    def _connection(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            for pragma in _PRAGMAS:
                opened.execute(pragma)
            opened.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()  # opens the log of writes too
        except BaseException:
            opened.close()
            raise
        return opened

    def _is_too_old(self, used: float, now: float) -> bool:
        return self._retention is not None and now - used >= self._retention

    def _apply_touches(self, sql: Execute) -> None:
        with self._lock:
            touched, self._touched = self._touched, {}
        for rowid, used in touched.items():
            sql(_TOUCH, (used, rowid, used))

    def _cull(self, now: float, sql: Execute, cleanup: Cleanup, limit: int | None = None) -> None:  # noqa: ARG002 - the library's own count of rows
        """Within the transaction of a ``set``: the library's hook, which by itself looks at numbers of rows only."""
        self._apply_touches(sql)
        excess = self.held()[1] - self._limit if self._limit >= 0 else 0
        evicted = evicted_bytes = 0
        for rowid, size, used, filename in _oldest(sql):
            if excess <= 0 and (evicted >= _MAX_EXPIRED or not self._is_too_old(used or 0.0, now)):
                break
            sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
            cleanup(filename)
            excess -= size
            evicted, evicted_bytes = evicted + 1, evicted_bytes + size
        self._counters.add(evictions=evicted, evicted_bytes=evicted_bytes)


def _oldest(sql: Execute) -> Iterator[tuple[int, int, float | None, object]]:
    """The rows from the least recently used on; whoever asks for the next one has deleted the last."""
    while batch := sql(_OLDEST).fetchall():
        yield from batch
