"""Drafts: files being written or waiting to be published, invisible until complete and durable.

This module handles files and locks. The store, its only user, handles keys.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
from contextlib import ExitStack, suppress
from errno import EMLINK, ENOSYS, EOPNOTSUPP, EPERM
from types import TracebackType
from typing import Any, Final, Self

from tieredstore.backends.filesystem.errors import OsErrors
from tieredstore.backends.filesystem.folders import DRAFT_MARK, Folder, KeyPath, is_component
from tieredstore.backends.values import Prepared
from tieredstore.errors import InvalidKeyError

_WRITTEN_AT_ONCE: Final = 8 << 20
"""Number of written bytes after which the system begins to copy them to disk. The final sync then has little left to
do.
"""

_SYNC_FILE_RANGE_WRITE: Final = 2
_sync_file_range: Final[Any] = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux's ``sync_file_range``, which Python does not offer; None on other systems."""


class Draft:
    """An unfinished file in its final folder. At the end of a ``with`` block, a file that was not published is removed.

    A live writer holds a lock on the file's descriptor. :func:`abandoned_drafts` assumes that a draft without that lock
    belongs to a killed writer. The methods raise OSError, which callers translate.
    """

    __slots__ = ("_descriptor", "_name", "_open", "_path", "_size", "_started", "folder")

    def __init__(self, root: str, path: KeyPath, *, create_folders: bool) -> None:
        """Make the file; raise FileNotFoundError if a folder is absent, or removed concurrently."""
        self._path = path
        self._size = self._started = 0
        self._name: bytes | None = DRAFT_MARK + secrets.token_hex(12).encode("ascii")
        with ExitStack() as opened:
            self.folder: Folder = opened.enter_context(Folder(root, path.folders, create=create_folders))
            # ``abandoned_drafts`` takes the folder's lock too, so it cannot see the file before the file itself is
            # locked.
            with self.folder.lock():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._name, flags, 0o666, dir_fd=self.folder.descriptor)
                opened.callback(os.close, self._descriptor)
                opened.callback(self._discard)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def write(self, view: memoryview) -> None:
        """Append all of ``view``."""
        self._size += len(view)
        while len(view):
            view = view[os.write(self._descriptor, view) :]
        if self._size - self._started >= _WRITTEN_AT_ONCE:
            start_writing(self._descriptor, self._started, self._size - self._started)
            self._started = self._size

    def modified_ms(self) -> int:
        """Return the modification time that the file system gave the file, in ms since the epoch."""
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def sync(self) -> None:
        """Make the written bytes durable."""
        os.fsync(self._descriptor)

    def keep(self) -> str:
        """Sync the folder and leave the file in it, so that any process can call ``publish_prepared``. Return its
        name."""
        draft = self._name or b""
        self.folder.sync()
        self._name = None
        return os.fsdecode(draft)

    def publish(self, *, if_absent: bool = False) -> None:
        """Give the file its final name, once.

        The caller must hold the folder's lock, and sync the folder after releasing the lock. With ``if_absent``, raise
        FileExistsError if the name is taken.

        If that sync fails, the write fails although the object exists, as after a lost answer of a cloud store.
        """
        (_link if if_absent else _rename)(self.folder, self._name or b"", self._path.name)
        self._name = None

    def _discard(self) -> None:
        """Remove the file, and the folders made for it if they are empty."""
        if self._name is None:
            return
        # Ignore a failure to remove the draft, because it must not hide the original error. A draft that stays behind
        # is never visible.
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self.folder.descriptor)
            self.folder.prune()


def start_writing(descriptor: int, start: int, size: int) -> None:
    """Let the system begin to write these bytes to disk, if it can. Only ``sync`` makes them durable."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


def _status(folder: Folder, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _link(folder: Folder, draft: bytes, name: bytes) -> None:
    """Publish by a hard link, which never overwrites. If the file system does not support links, rename the draft."""
    try:
        os.link(draft, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    except OSError as error:
        if error.errno not in (EPERM, EOPNOTSUPP, ENOSYS, EMLINK):
            raise
        _rename(folder, draft, name)
    else:
        os.unlink(draft, dir_fd=folder.descriptor)


def _rename(folder: Folder, draft: bytes, name: bytes) -> None:
    os.rename(draft, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)


def abandoned_drafts(folder: Folder) -> dict[bytes, os.stat_result]:
    """Return, by name, the status of each draft (unfinished file) in ``folder`` whose writer is dead. An OSError passes
    through."""
    with os.scandir(folder.descriptor) as entries:
        names = [name for entry in entries if (name := os.fsencode(entry.name)).startswith(DRAFT_MARK)]
    if not names:
        return {}
    # Writers create and lock a draft (unfinished file) while they hold the folder's lock. So each draft seen here has
    # been locked.
    with folder.lock():
        return {name: status for name in names if (status := _if_abandoned(folder, name)) is not None}


def remove_abandoned(folder: Folder, name: bytes) -> bool:
    """Remove a draft (unfinished file); return False if its writer is alive or the draft is absent. An OSError
    passes through.
    """
    with folder.lock():
        if _if_abandoned(folder, name) is None:
            return False
        os.unlink(name, dir_fd=folder.descriptor)
    return True


def _if_abandoned(folder: Folder, name: bytes) -> os.stat_result | None:
    """Return the draft's status if no writer has locked the draft. The caller must hold the folder's lock."""
    try:
        descriptor, _ = folder.open_file(name)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor)
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)


def publish_prepared(root: str, prepared: Prepared) -> bool:
    """Link the draft to its key, durably. Return False if the draft is absent or has another size, or if the key is
    taken."""
    path, draft = KeyPath.of(prepared.key), os.fsencode(draft_path(prepared).rpartition("/")[2])
    with (
        OsErrors(root, prepared.key, writing=True),
        suppress(FileNotFoundError, FileExistsError),
        Folder(root, path.folders) as folder,
    ):
        with folder.lock():
            status, standing = _status(folder, draft), _status(folder, path.name)
            is_same = status is not None and standing is not None and os.path.samestat(status, standing)
            is_there = status is not None and status.st_size == prepared.size and (standing is None or is_same)
            if is_there and is_same:  # an earlier publisher was killed between link and unlink
                os.unlink(draft, dir_fd=folder.descriptor)
            elif is_there:
                _link(folder, draft, path.name)
        # Sync even if the key is taken, because its writer may have been killed before its own sync.
        folder.sync()
        return is_there
    return False


def draft_path(prepared: Prepared) -> str:
    """Return the draft's path. Raise InvalidKeyError if ``place`` is not a draft's name, because ``place`` may come
    from an untrusted text.
    """
    folder, slash, _ = prepared.key.rpartition("/")
    name = os.fsencode(prepared.place)
    if not name.startswith(DRAFT_MARK) or is_component(name) or b"/" in name or b"\0" in name:
        raise InvalidKeyError(f"{prepared.place!r} is not the name of an object that was prepared in a folder")
    return f"{folder}{slash}{prepared.place}"
