"""A database of the disk cache that cannot be used is set aside, and a new one takes its place.

Several processes may find that out at once, and others open the database just then. Who opens it holds the folder's
lock together with others, who sets it aside holds it alone and looks again which database lies there: so nobody sets
aside the good one that somebody else has made, nor joins a log (``-wal``) of one database to another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final, TypeAlias

from tieredstore.remote.disk_library import Timeout

DATABASE: Final = "cache.db"
"""The name that the library gives its database."""

Identity: TypeAlias = tuple[int, int]
"""Which file something is, whatever its name."""

_ASIDE: Final = "damaged-"
_KEPT_S: Final = 600.0
"""As long as a database lies aside, no new file is taken for it: file systems give its number to another one."""

_LOCK_S: Final = 1.0
_POLL_S: Final = 0.01
_PASSING: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}
)


def identity_of(path: Path) -> Identity | None:
    """Which file ``path`` is: another one under the same name has another identity. None if there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def opening(folder: Path) -> Generator[None]:
    """While the database is opened; without effect where the folder takes no lock, since nothing is set aside there."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(_locked(folder, fcntl.LOCK_SH))
        yield


def is_passing(error: Exception) -> bool:
    """Whether the trouble is of the moment, or of the machine, and not of what lies in the database."""
    return code_of(error) in _PASSING or isinstance(error, OSError)


def code_of(error: BaseException | None) -> int:
    """SQLite's code, also under the library's own error; 0 for other errors."""
    if isinstance(error, Timeout):  # says that a transaction could not begin, and hides why
        error = error.__context__
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF  # the bytes above tell details


def takes_databases(folder: Path) -> bool:
    """Whether a new database can be made there, so that it is not the folder that keeps one from being used."""
    path = folder / f"trial-{os.urandom(8).hex()}"
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_S, isolation_level=None)) as trial:
            trial.execute("CREATE TABLE Trial (value)")
    except (OSError, sqlite3.Error):
        return False
    else:
        return True
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def set_aside(folder: Path, unusable: Identity | None) -> bool:
    """Give the database's name free, unless another one has it by now; whether it was this one.

    OSError if that cannot be done.
    """
    with _locked(folder, fcntl.LOCK_EX):
        if unusable is None or identity_of(folder / DATABASE) != unusable:
            return False
        name = f"{_ASIDE}{os.urandom(8).hex()}"
        # The log first: without it the database is no worse, and a log without its database is nobody's.
        for ending in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                (folder / (DATABASE + ending)).rename(folder / (name + ending))
        return True


def remove_aside(folder: Path) -> None:
    """Remove what was set aside some time ago; a folder that had the database's name stays."""
    before = time.time() - _KEPT_S
    for path in folder.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_ctime < before:
                path.unlink()


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Generator[None]:
    """The folder's lock; TimeoutError if others keep it. It goes with the process that holds it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError("the disk cache is being opened by others") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
