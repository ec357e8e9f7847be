"""A file being written, or waiting to be published: invisible before it is complete and durable.

Kept apart from the store, its only user: it knows files and locks, and no keys.
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
"""The disk gets this much at a time during a write, so that the sync at its end has little to do."""

_SYNC_FILE_RANGE_WRITE: Final = 2
_sync_file_range: Final[Any] = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux has it, Python does not."""


class Draft:
    """An unfinished file, in its final folder. A context manager: an unpublished file is removed at its end.

    Its descriptor holds a lock for the life of the writer: so :func:`abandoned_drafts` distinguishes a live draft from
    that of a killed writer. The methods raise OSError; callers translate it.
    """

    __slots__ = ("_descriptor", "_name", "_open", "_path", "_size", "_started", "folder")

    def __init__(self, root: str, path: KeyPath, *, create_folders: bool) -> None:
        """Make the file; raise FileNotFoundError if a folder is absent, or is removed concurrently."""
        self._path = path
        self._size = self._started = 0
        self._name: bytes | None = DRAFT_MARK + secrets.token_hex(12).encode("ascii")
        with ExitStack() as opened:
            self.folder: Folder = opened.enter_context(Folder(root, path.folders, create=create_folders))
            # Under the folder's lock the file cannot be found before it is locked itself.
            with self.folder.locked():
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
        """Return the file system's time of the last write, or of creation, in ms since the epoch."""
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def sync(self) -> None:
        """Make the written bytes durable."""
        os.fsync(self._descriptor)

    def keep(self) -> str:
        """Keep the file in place, durably; return its name, by which any process may publish it."""
        draft = self._name or b""
        self.folder.sync()
        self._name = None
        return os.fsdecode(draft)

    def publish(self, *, if_absent: bool = False) -> None:
        """Give the file its name; the caller holds the folder's lock, and syncs the folder after releasing it.

        Once only. With ``if_absent``, raise FileExistsError if the name is taken. If syncing the folder fails, the
        object already exists: as with any store whose answer was lost.
        """
        draft = self._name or b""
        if not (if_absent and _link(self.folder, draft, self._path.name)):
            os.rename(draft, self._path.name, src_dir_fd=self.folder.descriptor, dst_dir_fd=self.folder.descriptor)
        self._name = None

    def _discard(self) -> None:
        """Remove the file, and the folders made for it if they are empty."""
        if self._name is None:
            return
        # A failure here must not hide the original one; a leftover draft is never visible.
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self.folder.descriptor)
            self.folder.prune()


def start_writing(descriptor: int, start: int, size: int) -> None:
    """Let the system begin to write these bytes to its disk, if it can. Guarantees nothing: the sync does."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


def publish_kept(folder: Folder, draft: bytes, name: bytes, size: int) -> bool:
    """Give a kept draft its name, if that is free; the caller locks and syncs, as in ``Draft.publish``.

    Return False if the draft is absent, or has another size. Raise FileExistsError if another file has the name.
    OSError passes through.
    """
    status = _status(folder, draft)
    if status is None or status.st_size != size:
        return False
    standing = _status(folder, name)
    if standing is None:
        if not _link(folder, draft, name):
            os.rename(draft, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    elif (standing.st_dev, standing.st_ino) != (status.st_dev, status.st_ino):
        raise FileExistsError
    else:
        # A publisher was killed between link and unlink.
        os.unlink(draft, dir_fd=folder.descriptor)
    return True


def _status(folder: Folder, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _link(folder: Folder, draft: bytes, name: bytes) -> bool:
    """Publish by a hard link, which is safe even against writers without locks; return False if links are not
    supported.
    """
    try:
        os.link(draft, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    except OSError as error:
        if error.errno not in (EPERM, EOPNOTSUPP, ENOSYS, EMLINK):
            raise
        return False
    os.unlink(draft, dir_fd=folder.descriptor)
    return True


def abandoned_drafts(folder: Folder) -> dict[bytes, os.stat_result]:
    """Return the drafts in ``folder`` whose writers are dead, by their names. OSError passes through."""
    with os.scandir(folder.descriptor) as entries:
        names = [name for entry in entries if (name := os.fsencode(entry.name)).startswith(DRAFT_MARK)]
    if not names:
        return {}
    # A draft is created and locked under the folder's lock, so none is seen between the two.
    with folder.locked():
        return {name: status for name in names if (status := _if_abandoned(folder, name)) is not None}


def remove_abandoned(folder: Folder, name: bytes) -> bool:
    """Remove one draft if its writer is dead; return False if it lives, or the draft is absent. OSError passes
    through.
    """
    with folder.locked():
        if _if_abandoned(folder, name) is None:
            return False
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder.descriptor)
            return True
    return False


def _if_abandoned(folder: Folder, name: bytes) -> os.stat_result | None:
    """Return the draft's status, if it is unlocked; the caller holds the folder's lock."""
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
    """Link the hidden file to its key, durably; return False if it is absent, or the key is taken."""
    path, draft = KeyPath.of(prepared.key), draft_path(prepared).rpartition("/")[2]
    with (
        OsErrors(root, prepared.key, writing=True),
        suppress(FileNotFoundError, FileExistsError),
        Folder(root, path.folders) as folder,
    ):
        with folder.locked():
            is_there = publish_kept(folder, os.fsencode(draft), path.name, prepared.size)
        if is_there:
            folder.sync()
        return is_there
    return False


def draft_path(prepared: Prepared) -> str:
    """Return the hidden file's path. Raise InvalidKeyError for any other: the value may come from anywhere."""
    folder, slash, _ = prepared.key.rpartition("/")
    name = os.fsencode(prepared.place)
    if not name.startswith(DRAFT_MARK) or is_component(name) or b"/" in name or b"\0" in name:
        raise InvalidKeyError(f"{prepared.place!r} is not the name of an object that was prepared in a folder")
    return f"{folder}{slash}{prepared.place}"
