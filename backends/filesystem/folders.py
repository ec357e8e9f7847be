"""Folders under a root, opened step by step by descriptor, so that no key or symbolic link leads out of the root."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tieredstore.backends.base import DRAFT_PREFIX
from tieredstore.backends.contract.checks import checked_key
from tieredstore.errors import InvalidKeyError, StoreError

DRAFT_MARK: Final = DRAFT_PREFIX.encode("ascii")
"""Start of a draft's file name. No component of a key may start with this text. Listings omit files whose names start
with it.
"""

_ODD_STARTS: Final = (b"", b".")
_SEPARATOR: Final = re.compile(rb"[/\\\0]").search
_MAX_COMPONENT_BYTES: Final = 255
_LOCKED_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_component(name: bytes) -> bool:
    """Return True if ``name`` is a valid component of a key.

    A backslash is refused although POSIX allows it, because other stores and systems treat it as a separator.
    """
    if name[:1] in _ODD_STARTS and (name in (b"", b".", b"..") or name.startswith(DRAFT_MARK)):
        return False
    return len(name) <= _MAX_COMPONENT_BYTES and _SEPARATOR(name) is None


@dataclass(frozen=True, slots=True)
class KeyPath:
    """The path of a key: the names of its folders from the root down, and of its file."""

    folders: tuple[bytes, ...]
    name: bytes

    @classmethod
    def of(cls, key: str) -> KeyPath:
        """Split a key; raise InvalidKeyError for an empty, too long (over 255 bytes) or otherwise invalid component."""
        parts = checked_key(key).split(b"/")
        for part in parts:
            if not is_component(part):
                shown = part.decode("utf-8")
                raise InvalidKeyError(
                    f"the key {key!r} cannot be a file's path: {shown!r} is not allowed as a component"
                )
        return cls(tuple(parts[:-1]), parts[-1])


class Folder:
    """An open folder, with its parents up to the root. A context manager that closes the descriptors.

    The methods raise OSError, which callers translate.
    """

    __slots__ = ("_descriptors", "_names")

    def __init__(self, root: str, names: tuple[bytes, ...], *, create: bool = False) -> None:
        self._names = names
        self._descriptors = [_open_root(root)]
        try:
            for name in names:
                self._descriptors.append(_open_child(self._descriptors[-1], name, create=create))
        except BaseException:
            self._close()
            raise

    @property
    def descriptor(self) -> int:
        """Return the folder's own descriptor, valid until the end of the block."""
        return self._descriptors[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    @contextmanager
    def lock(self) -> Generator[None]:
        """Hold the folder's lock, exclusively among all processes.

        The lock is on the open descriptor. So the lock ends with the process and leaves no file behind. Raise OSError
        (ETIMEDOUT) after some seconds, because a process that was stopped (SIGSTOP) may hold the lock.
        """
        self._lock()
        try:
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def _lock(self) -> None:
        # Poll, because the system's own wait for a lock has no deadline. Polling ends soon, because processes hold the
        # lock only for a few system calls. None of these calls waits for a disk.
        deadline_s, pause_s = time.monotonic() + _LOCKED_S, _FIRST_PAUSE_S
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    where = "/".join(map(os.fsdecode, self._names)) or "."
                    raise TimeoutError(
                        errno.ETIMEDOUT,
                        f"another process has held the lock of the folder {where} for {_LOCKED_S:.0f} s: end that "
                        "process if it is stopped",
                    ) from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return

    def has_file(self, name: bytes) -> bool:
        """Return True if a plain file has the name. Raise OSError (EISDIR, ELOOP) if a folder, a link or a special file
        has it.
        """
        try:
            mode = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        _require_plain_file(mode)
        return True

    def open_file(self, name: bytes) -> tuple[int, int]:
        """Open a plain file; return descriptor and size. Raise FileNotFoundError, or OSError as ``has_file`` does."""
        # Without O_NONBLOCK, opening a named pipe waits for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self.descriptor)
        try:
            status = os.fstat(descriptor)
            _require_plain_file(status.st_mode)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor, status.st_size

    def sync(self) -> None:
        """Sync this folder and its parents, which makes the entries in them durable.

        Parents that existed before are synced too, because their creator may not have synced them yet. The sync of an
        unchanged folder costs little.
        """
        for descriptor in reversed(self._descriptors):
            os.fsync(descriptor)

    def prune(self) -> None:
        """Remove this folder if it is empty, then its parents in the same way, but never the root."""
        for parent, name in zip(self._descriptors[-2::-1], reversed(self._names), strict=True):
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                # Ignore the error: the folder is not empty, in use or protected. A leftover empty folder does no harm.
                return


def _open_root(root: str) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        # Report a missing root as a separate error, because the whole store is unreachable, so an object that seems
        # absent may exist.
        raise StoreError(f"the store's root folder {root} is gone; create or mount it") from error


def _open_child(parent: int, name: bytes, *, create: bool) -> int:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError:
        # With O_NOFOLLOW the system raises the same error for a file and for a link. So find out whether ``name`` is a
        # file or a link.
        _require_plain_file(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        raise


def _require_plain_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ELOOP
        raise OSError(number, os.strerror(number))


_MOUNTS: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def is_on_nfs(path: str) -> bool:
    """Return True if the path is on NFS; False if the system has no list of mounts."""
    try:
        table = _MOUNTS.read_bytes()
    except OSError:
        return False
    return file_system_in(table, path).startswith("nfs")


def file_system_in(table: bytes, path: str) -> str:
    """Return the type of the file system that contains ``path``; empty if unknown.

    ``table`` has the form of ``/proc/self/mountinfo``. Of several mounts on one folder, the last is visible.
    """
    kind, longest = "", -1
    wanted = os.fsencode(path)
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        fields, about = before.split(), after.split()
        if len(fields) < 5 or not about:
            continue
        point = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields[4]).rstrip(b"/")
        if (wanted == point or wanted.startswith(point + b"/")) and len(point) >= longest:
            kind, longest = about[0].decode("ascii", "replace"), len(point)
    return kind
