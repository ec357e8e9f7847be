"""Cache on disk, in a folder that survives a restart. Each entry is a chunk, or all indexes of a segment.

``<path>/tieredstore-v1`` holds a table (SQLite, by ``diskcache``) and one file per entry. The file of an entry is
complete before the table lists it. Each version of this format has its own folder. Several processes may share the
folder, which must be on a local disk.

The table lists the entries, and decides which to evict. The code uses only public names of ``diskcache.Cache``. An
empty table replaces an unusable table. Other processes notice that the old table has disappeared.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from diskcache import Cache, Timeout

from tieredstore.backends.base import Buffer
from tieredstore.errors import AlreadyClosedError, ConfigError, CorruptDataError
from tieredstore.process.forks import Gate, begin_again_after_fork, pause_during_fork
from tieredstore.process.futures import outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.diskcache.values import HEADER_SIZE, RawDisk, Written, is_own, name_of, read_value, write_value
from tieredstore.remote.fetch.chunk_cache import CacheStats, ChunkCache, ChunkKey
from tieredstore.remote.statistics import Counters
from tieredstore.versions import DISK_CACHE

_logger: Final = logging.getLogger(__name__)

_PASSING: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}
)
_SETTINGS: Final = {
    "eviction_policy": "least-recently-used",
    "cull_limit": 1,
    "sqlite_mmap_size": 0,  # with a memory map, a truncated database would kill the process
}
_ENDINGS: Final = ("-wal", "-shm", "-journal", "")
_ROOM: Final = "room"  # not the key of any value
_MAX_NOTED: Final = 1024
_WRITE_EVERY_S: Final = 1.0
_SWEEP_EVERY_S: Final = 3600.0
_UNLISTED_AGE_S: Final = 600.0  # a file gets its row right after it is written; an older file without a row is removed
_PAUSE_S: Final = 2.0  # time for running calls to end; they wait for nothing except the table's lock

Result = TypeVar("Result")


class DiskChunkCache(ChunkCache):
    """Cache of chunks in a private folder within ``path``. It evicts the least recently used chunks first.

    ``size_bytes`` limits the total size of chunks and other entries; -1 is no limit. The cache does not keep an entry
    above the limit. ``retention_ms`` counts from the last use; -1 keeps entries forever.

    ``lock_timeout_s`` limits how long a put waits for transactions of other processes. Each transaction takes about a
    millisecond. A read never waits for transactions.

    The cache removes only its own files. Plaintext and ``encrypted`` chunks may share a folder, because their keys
    differ. Raise ConfigError if the folder cannot be made. After that, no method raises, because an entry that the
    cache cannot take is dropped.

    One thread has the only connection to the database, and closes the connection before a fork. SQLite's locks belong
    to a process and a file. A child with an inherited connection would assume locks that it does not have. If the
    parent could not close the connection in time, the child has no cache.

    A forked child must reset the connection, the thread and the recorded uses together, so they are all in one class.
    """

    is_worth_threads = True

    def __init__(
        self,
        path: Path,
        size_bytes: int,
        *,
        retention_ms: int = -1,
        encrypted: bool = False,
        lock_timeout_s: float = 1.0,
    ) -> None:
        self.encrypted = encrypted
        self._folder = _make_private_folder(path)
        self._limit = size_bytes if size_bytes >= 0 else 1 << 62
        self._retention = retention_ms / 1000 if retention_ms >= 0 else None
        self._lock_timeout_s = lock_timeout_s
        self._table: _Table | None = None
        self._is_closed = False
        self.begin_again()
        begin_again_after_fork(self)
        pause_during_fork(self)

    def begin_again(self) -> None:
        """Reset the cache in a forked child: no connection, no thread, new locks and counters.

        If the parent's connection was open at the fork, close the child's cache permanently.
        """
        self._is_closed = self._is_closed or self._table is not None
        self._identity: tuple[int, int] | None = None
        self._gate = Gate()
        self._lock = threading.Lock()
        self._thread: ThreadPool | None = None
        self._noted: dict[str, None] = {}
        self._written_at = 0.0
        self._reported: set[str] = set()
        self._counters: Counters[CacheStats] = Counters(CacheStats)

    def pause(self) -> None:
        """Before a fork, write the recorded uses, close the connection, and end the table's thread."""
        if self._gate.shut(_PAUSE_S) and self._thread is not None:
            if self._noted:
                self._thread.submit(self._attempt, self._write_uses)
            self._thread.submit(self._leave)
            self._thread.shutdown()
            self._thread = None

    def go_on(self) -> None:
        """Let calls run again after :meth:`pause`, in the parent of a fork."""
        self._gate.open()

    def close(self) -> None:
        """See the base class."""
        self.pause()
        self._is_closed = True
        self.go_on()

    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """See the base class. Opens one file, and reads the bytes once to check them."""
        is_hit = self.read(key, buffer)
        self._counters.add(hits=int(is_hit), misses=int(not is_hit))
        return is_hit

    def read(self, key: ChunkKey, buffer: memoryview) -> bool:
        """Fill ``buffer`` as ``get_into`` does, without counting a hit or a miss, for an entry that is not a chunk.

        A read uses only the entry's file, so it never waits for the table's lock. The file's modification time records
        the last use.
        """
        if not len(buffer):
            return False
        digest = self._digest(key)
        name = digest.hex()
        try:
            with self._open_value(name) as file:
                is_read = read_value(file, digest, buffer)
                if self._retention is not None:
                    with contextlib.suppress(OSError):  # the file may be read-only
                        os.utime(file.fileno())
        except FileNotFoundError:
            return False
        except CorruptDataError as error:
            self._counters.add(damaged=1)
            self._report("damage", f"a damaged entry was dropped, and will be fetched again: {error}")
            self._run(lambda table: table.delete(name))
            with contextlib.suppress(OSError):  # the disk may be read-only by now
                (self._folder / name_of(name)).unlink()
            return False
        except OSError as error:
            self._suffer(error)
            return False
        self._note_use(name)
        return is_read

    def put(self, key: ChunkKey, data: Buffer) -> None:
        """See the base class. Writes ``data`` to a file without a copy, and without a sync to disk."""
        if not 0 < memoryview(data).nbytes <= self._limit or self._is_closed:
            return
        digest = self._digest(key)
        name = digest.hex()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            written = write_value(self._folder, digest, data)
            if not self._run(lambda table: self._list(table, name, written)):
                for path in (written.path, self._folder / name_of(name)):
                    path.unlink(missing_ok=True)
        except OSError as error:
            self._suffer(error)

    def __contains__(self, key: ChunkKey) -> bool:
        try:
            self._open_value(self._digest(key).hex()).close()
        except OSError:
            return False
        return True

    @property
    def stats(self) -> CacheStats:
        """See the base class. Hits and misses count chunks alone. All other numbers include indexes."""
        entries, size = self._run(lambda table: (len(table), table.volume())) or (0, 0)
        return replace(self._counters.snapshot(), entries=entries, bytes=size)

    def _digest(self, key: ChunkKey) -> bytes:
        """Return the name of an entry, a digest that differs for different chunks."""
        kind = "stored chunk" if self.encrypted else "chunk"
        hashed = hashlib.blake2b(digest_size=32, person=b"disk cache key")
        for part in (kind, key.store, key.object_key, str(key.chunk), key.layout.hex()):
            raw = part.encode("utf-8", "surrogatepass")
            hashed.update(len(raw).to_bytes(8, "big"))
            hashed.update(raw)
        return hashed.digest()

    def _open_value(self, name: str) -> io.FileIO:
        """Open a value's file. Raise FileNotFoundError if it is absent or expired."""
        if self._is_closed:
            raise FileNotFoundError(name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        # FileIO refuses the descriptor of a folder. If the descriptor comes from an opener, FileIO then closes it.
        file = io.FileIO(f"{self._folder}/{name_of(name)}", opener=lambda path, _: os.open(path, flags))
        if self._retention is not None and time.time() - os.fstat(file.fileno()).st_mtime >= self._retention:
            file.close()
            raise FileNotFoundError(name)
        return file

    def _note_use(self, key: str) -> None:
        """Record a use of the value. Do not wait, because another thread updates the table later."""
        with self._lock:
            self._noted.pop(key, None)
            self._noted[key] = None
            now = time.monotonic()
            if len(self._noted) < _MAX_NOTED and now - self._written_at < _WRITE_EVERY_S:
                return
            self._written_at = now
        self._submit(self._write_uses)

    def _report(self, kind: str, words: str) -> None:
        """Log a warning, once per kind of failure."""
        if kind not in self._reported:
            self._reported.add(kind)
            _logger.warning("the disk cache in %s: %s (this warning is not repeated)", self._folder, words)

    def _run(self, use: Callable[[_Table], Result]) -> Result | None:
        try:
            future = self._submit(use)
            return None if future is None else outcome(future)
        except AlreadyClosedError:  # the process is ending
            return None

    def _submit(self, use: Callable[[_Table], Result]) -> Future[Result | None] | None:
        with self._gate, self._lock:
            if self._is_closed:
                return None
            if self._thread is None:
                self._thread = ThreadPool(1, "disk-cache")
            return self._thread.submit(self._attempt, use)

    # The methods below run on the table's thread.

    def _attempt(self, use: Callable[[_Table], Result]) -> Result | None:
        try:
            return use(self._open())
        except Exception as error:  # noqa: BLE001 - the library does not check its files, so any error may come
            self._suffer(error)
            if not isinstance(error, Timeout):  # close a transaction that a failed commit left open
                self._leave()
            if not _is_passing(error, self._folder):
                with contextlib.suppress(OSError):
                    self._remove()
            return None

    def _suffer(self, error: Exception) -> None:
        self._counters.add(failures=1)
        self._report(type(error).__name__, f"a call failed, which only costs a fetch: {error!r}")

    def _open(self) -> _Table:
        if self._table is not None and self._find() != self._identity:  # another process removed or replaced the file
            self._leave()
        if self._table is None:
            self._identity = self._find()
            try:
                self._table = self._connect()
            except Exception as error:
                if _is_passing(error, self._folder):
                    raise
                self._remove()
                self._table = self._connect()
            self._identity = self._find()
            self._sweep(self._table)
        return self._table

    def _connect(self) -> _Table:
        limit = self._limit + 0.5  # the library evicts at the limit, but this cache only above it
        return _Table(str(self._folder), self._lock_timeout_s, RawDisk, size_limit=limit, **_SETTINGS)

    def _find(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            status = (self._folder / "cache.db").lstat()
            return status.st_dev, status.st_ino
        return None

    def _leave(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            with contextlib.suppress(sqlite3.Error):
                table.close()

    def _remove(self) -> None:
        """Remove the database and the values, unless another process has made a new database."""
        if self._identity == self._find():
            # Remove SQLite's logs before the database. A new database must not find the log of the old one.
            for ending in _ENDINGS:
                (self._folder / f"cache.db{ending}").unlink(missing_ok=True)
            for path in filter(is_own, self._folder.glob("??/*.val")):
                path.unlink(missing_ok=True)
            self._report("database", "its database is unusable and is re-created")

    def _write_uses(self, table: _Table) -> None:
        with self._lock:
            noted, self._noted = self._noted, {}
        with table.transact():
            for key in noted:
                table.get(key)
                if self._retention is not None:
                    table.touch(key, self._retention)

    def _list(self, table: _Table, key: str, written: Written) -> bool:
        if self._noted:
            self._write_uses(table)
        with table.transact():
            table.delete(key)  # ``set`` would remove the older value's file, which has the same name
            table.disk.removed.clear()
            if self._retention is not None:
                table.expire()
            table.set(key, written, self._retention)
            while table.volume() > self._limit and len(table) > 1:
                table.set(_ROOM, None)  # evicts one value; the library's ``cull`` would evict ten, possibly all
                table.delete(_ROOM)
        self._counters.add(evictions=len(table.disk.removed), evicted_bytes=sum(table.disk.removed))
        return True

    def _sweep(self, table: _Table) -> None:
        """Once an hour, remove files without a row and rows without a file, and correct the sums. Killed processes and
        damaged files cause these differences.
        """
        marker, now = self._folder / "swept", time.time()
        if marker.exists() and 0 <= now - marker.stat().st_mtime < _SWEEP_EVERY_S:
            return
        marker.touch(mode=0o600)
        files = {f"{path.parent.name}{path.stem}": path for path in self._folder.glob("??/*.val")}
        listed, size = 0, 0
        for key in table:
            path = files.pop(key, None)
            if path is None:
                table.delete(key)
                continue
            with contextlib.suppress(FileNotFoundError):
                listed, size = listed + 1, size + path.lstat().st_size - HEADER_SIZE
        for path in (*files.values(), *self._folder.glob("*.new")):
            with contextlib.suppress(FileNotFoundError):
                if is_own(path) and now - path.lstat().st_mtime > _UNLISTED_AGE_S:
                    path.unlink()
        for name, found in (("count", listed), ("size", size)):
            if abs(found - table.reset(name)) > found / 8:  # concurrent puts and evictions explain a smaller difference
                table.reset(name, found)


class _Table(Cache):
    """The library's cache, with a size limit for the payloads alone. The library itself would also count the database,
    which takes at least 32 KiB.
    """

    def volume(self) -> int:
        """Return the total size of the payloads."""
        return int(self.reset("size"))


def _is_passing(error: BaseException, folder: Path) -> bool:
    """Return True if the error is transient or comes from the machine. Return False if the table's content caused
    it."""
    if (
        isinstance(error, Timeout) and error.__context__ is not None
    ):  # ``__context__`` of a Timeout is the reason why the transaction could not begin
        error = error.__context__
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN:
        # The process may have too few free descriptors, so look at the database's files without opening them.
        files = [folder / f"cache.db{ending}" for ending in _ENDINGS]
        return all(
            (file.is_file() and os.access(file, os.R_OK | os.W_OK)) or not os.path.lexists(file) for file in files
        )
    return isinstance(error, OSError) or code in _PASSING


def _make_private_folder(path: Path) -> Path:
    """Make the cache's own folder within ``path``, accessible only to its owner.

    Make ``path`` too if it is absent. Do not change an existing ``path``, because it may hold other files. Raise
    ConfigError if the folder cannot be made.
    """
    folder = path / f"tieredstore-v{DISK_CACHE.version}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(f"fetch.chunk.cache.path: {folder} is a link or another user's; name another folder")
        if stat.S_IMODE(status.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"fetch.chunk.cache.path: {folder} cannot be made or used ({error.strerror}); name another folder"
        ) from error
    return folder
