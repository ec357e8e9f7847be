"""Values by the digest of their key in one folder on disk: what it cannot give or take is a miss, never an error."""

from __future__ import annotations

import contextlib
import io
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from tieredstore.backends.base import Buffer
from tieredstore.errors import ConfigError, CorruptData
from tieredstore.process.forks import Gate, begin_again_after_fork, inherit, pause_during_fork
from tieredstore.remote.chunk_cache import CacheStats, Counters
from tieredstore.remote.disk_files import private_folder
from tieredstore.remote.disk_library import Timeout
from tieredstore.remote.disk_renewal import (
    DATABASE,
    Identity,
    code_of,
    identity_of,
    is_passing,
    set_aside,
    takes_databases,
)
from tieredstore.remote.disk_rows import Row, Rows
from tieredstore.remote.disk_seal import seal, unseal, unseal_into

_logger: Final = logging.getLogger(__name__)

_TROUBLE: Final = (OSError, sqlite3.Error, Timeout)
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, 0})
"""Without a code: text that is none, which Python finds and not SQLite."""

_NOT_OURS: Final = (*_TROUBLE, CorruptData, ValueError, TypeError, KeyError)
"""What opening may raise: the library reads settings out of the database and trusts them."""

_OPEN_EVERY: Final = 5.0
"""Seconds until a database that could not be opened is tried again."""

_PAUSE: Final = 2.0
"""Seconds that a fork, or ``close``, waits for uses under way; the longest wait of theirs is for the table's lock."""

Result = TypeVar("Result")


class DiskEntries:
    """The values of one folder. Safe from several threads, and beside other processes that use the same folder.

    The folder is made when this is; ConfigError if it cannot be. The database is opened on first use, again in a forked
    child or where this is unpickled, and again when it was damaged or removed: it is made anew then, and empty.
    """

    def __init__(self, path: Path, size_bytes: int, retention_ms: int) -> None:
        self._settings = (path, size_bytes, retention_ms)
        self._folder = private_folder(path)
        self._database = self._folder / DATABASE  # looked at with each use
        self._is_closed = False
        self._rows: Rows | None = None
        self.begin_again()
        begin_again_after_fork(self)
        pause_during_fork(self)

    def pause(self) -> None:
        """Before a fork: close the connections.

        SQLite keeps its locks by process and file: a child that has a connection of its parent open, even untouched,
        would take locks for its own that it does not have.
        """
        if self._gate.shut(_PAUSE) and self._rows is not None:
            self._rows.close()

    def go_on(self) -> None:
        """After a fork, in the parent: connections are made again when they are needed."""
        self._gate.open()

    def begin_again(self) -> None:
        """Fresh locks and counters, and nothing open: for a forked child.

        Where the parent could not be paused, the child has no cache.
        """
        if self._rows is not None and self._rows.is_connected:
            inherit(self._rows)  # to close its connections, or to let them be collected, would take its locks away
            self._is_closed = True
        self._gate = Gate()
        self._rows = None
        self._open_at = 0.0
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self.counters = Counters()

    def __reduce__(self) -> tuple[type[DiskEntries], tuple[Path, int, int]]:
        return DiskEntries, self._settings

    def read_into(self, key: bytes, buffer: memoryview) -> bool:
        """Fill ``buffer`` with the value, of exactly its length; False if there is none. A damaged one is dropped."""
        return bool(self._read(key, lambda file: unseal_into(file, key, buffer)))

    def read(self, key: bytes, max_size: int) -> bytes | None:
        """The value, of at most ``max_size`` bytes; None if there is none. A damaged one is dropped."""
        return self._read(key, lambda file: unseal(file, key, max_size))

    def keep(self, key: bytes, data: Buffer) -> None:
        """Keep a value in place of an older one, if that can be done."""
        self._attempt(lambda rows: rows.keep(key.hex(), seal(key, data)))

    def holds(self, key: bytes) -> bool:
        """Whether the value is listed."""
        return self._attempt(lambda rows: rows.lookup(key.hex())) is not None

    def close(self) -> None:
        """Close the database; every read is a miss from then on."""
        with self._lock:
            rows, self._rows, self._is_closed = self._rows, None, True
        self._gate.shut(_PAUSE)
        self._gate.open()
        if rows is not None:
            with contextlib.suppress(*_TROUBLE):
                rows.write_touches()
            rows.shut()

    @property
    def stats(self) -> CacheStats:
        """A snapshot; ``entries`` and ``bytes`` are 0 while the database cannot be read."""
        entries, size = self._attempt(lambda rows: rows.held()) or (0, 0)
        return replace(self.counters.stats, entries=entries, bytes=size)

    def _read(self, key: bytes, unsealed: Callable[[io.FileIO], Result]) -> Result | None:
        return self._attempt(lambda rows: self._read_row(rows, rows.lookup(key.hex()), unsealed))

    def _read_row(self, rows: Rows, row: Row | None, unsealed: Callable[[io.FileIO], Result]) -> Result | None:
        if row is None:
            return None
        try:
            with rows.files.fetch(row.mode, row.filename, None, read=True) as file:
                payload = unsealed(file)
        except FileNotFoundError:  # evicted since it was looked up, or removed by hand
            rows.drop(row)
            return None
        except CorruptData as error:
            self.counters.add(damaged=1)
            self._say_once("damage", f"a damaged entry was dropped, and will be fetched again: {error}")
            rows.drop(row)
            return None
        rows.touch(row)
        return payload

    def _attempt(self, use: Callable[[Rows], Result]) -> Result | None:
        """What ``use`` gives; None if the database is not there or refuses."""
        with self._gate:
            rows = self._opened()
            if rows is None:
                return None
            try:
                return use(rows)
            except _TROUBLE as error:
                self._suffer(rows, error)
                return None

    def _opened(self) -> Rows | None:
        rows = self._rows
        if rows is not None and rows.identity == identity_of(self._database):
            return rows
        with self._lock:
            if self._rows is rows and not self._is_closed and time.monotonic() >= self._open_at:
                self._reopen(rows)
            return self._rows

    def _reopen(self, gone: Rows | None) -> None:
        if gone is not None:  # somebody removed or replaced the database: what it listed is lost
            self._rows = None
            gone.shut()
        try:
            private_folder(self._settings[0])
            self._rows = self._opened_rows()
        except (*_NOT_OURS, ConfigError) as error:
            self._open_at = time.monotonic() + _OPEN_EVERY
            self.counters.add(failures=1)
            self._say_once("open", f"it cannot be opened, and everything is fetched from the store: {error!r}")

    def _opened_rows(self) -> Rows:
        identity = identity_of(self._database)
        try:
            rows = self._new_rows()
        except _NOT_OURS as error:
            # Whatever it is that a database has: where another one would do, another one is made.
            if is_passing(error) or not takes_databases(self._folder):
                raise
            self._set_aside(identity)
            rows = self._new_rows()
        with contextlib.suppress(*_TROUBLE):
            rows.tidy()
        return rows

    def _new_rows(self) -> Rows:
        _, size_bytes, retention_ms = self._settings
        rows = Rows(self._folder, size_bytes, retention_ms, self.counters)
        try:
            rows.probe()
        except BaseException as error:
            if isinstance(error, sqlite3.Error) and is_passing(error):  # others write, or no room: hits are hits
                return rows
            rows.shut()
            raise
        return rows

    def _suffer(self, rows: Rows, error: Exception) -> None:
        self.counters.add(failures=1)
        self._say_once(type(error).__name__, f"a call failed, which only costs a fetch: {error!r}")
        rows.roll_back()
        if is_passing(error) or isinstance(error, sqlite3.ProgrammingError):  # the latter if it was closed meanwhile
            return
        if code_of(error) in _DAMAGED:
            with contextlib.suppress(OSError):
                self._set_aside(rows.identity)
        self._reopen_later(rows)

    def _reopen_later(self, rows: Rows) -> None:
        with self._lock:
            if self._rows is rows:
                self._rows = None
        rows.shut()

    def _set_aside(self, unusable: Identity | None) -> None:
        """Set a database aside, unless another process has made a new one; the next use makes one too."""
        if set_aside(self._folder, unusable):
            self._say_once("database", "its database cannot be used and is made anew")

    def _say_once(self, kind: str, words: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            _logger.warning("the disk cache in %s: %s (not said again)", self._folder, words)
