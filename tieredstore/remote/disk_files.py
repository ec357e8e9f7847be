"""The files of the disk cache: its private folder, and raw bytes in one file for each value."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError, CorruptData
from tieredstore.remote.disk_library import MODE_BINARY, Disk
from tieredstore.remote.disk_seal import Sealed

FOLDER: Final = "tieredstore-v1"
"""The folder within ``fetch.chunk.cache.path`` that is the cache's own."""

_NAME: Final = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30}\.val")
_MAX_BUFFERS_LENGTH: Final = 1 << 30  # one call writes at most 2 GiB
_UNWRITTEN_AGE: Final = 600.0
"""A file is listed at once after it was written; so many seconds later without being listed, it never will be."""

_SWEEP_EVERY: Final = 3600.0


def private_folder(path: Path) -> Path:
    """The cache's own folder within ``path``, made if need be, and open to nobody but its owner.

    ``path`` is made too, but left as it is if it exists: it may hold files of others. ConfigError if there is no way to
    have such a folder.
    """
    folder = path / FOLDER
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


class RawDisk(Disk):
    """Keys that are text and values that are bytes, one file for each value; nothing else goes in or comes out.

    In particular nothing is pickled or unpickled, and no file is touched whose name is not of the cache's own making.
    """

    def __init__(self, directory: str, **_: object) -> None:
        # what else the database's settings hold would be the library's own defaults
        super().__init__(directory)
        self._root, self._folder = Path(directory), directory

    def put(self, key: object) -> tuple[str, bool]:
        """The key as the table has it; TypeError unless it is text."""
        if not isinstance(key, str):
            raise TypeError(f"a key of the disk cache is a str, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        """The key of a row; CorruptData unless it is text that ``put`` made."""
        if not raw or not isinstance(key, str):
            raise CorruptData("the disk cache lists a key that is not text; nothing is unpickled")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, str, None]:  # noqa: ARG002 - the library passes them
        """Write a sealed value to a new file: its size without header, mode, name, and no value for the row.

        TypeError for anything else. What was written of it is removed if it cannot be written to the end.
        """
        if not isinstance(value, Sealed):
            raise TypeError(f"the disk cache stores sealed bytes only, not {type(value).__name__}")
        name = os.urandom(16).hex()
        filename = f"{name[:2]}/{name[2:]}.val"
        try:
            _write(self._root / filename, value)
        except BaseException:
            self.remove(filename)
            raise
        value.filename = filename
        return len(value.payload), MODE_BINARY, filename, None

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> io.FileIO:  # noqa: ARG002 - the library passes them
        """A value's file, opened; CorruptData for a row that ``store`` did not make, OSError if the file is gone."""
        if mode != MODE_BINARY or not _is_own(filename):
            raise CorruptData("the disk cache lists a value that it did not write; nothing is unpickled")
        return io.FileIO(os.open(f"{self._folder}/{filename}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def remove(self, file_path: object) -> None:
        """Remove a value's file if it can be; a name that is not of the cache's own making is left alone."""
        if _is_own(file_path):
            with contextlib.suppress(OSError):
                (self._root / str(file_path)).unlink()

    def sweep(self, listed: Callable[[], set[str]]) -> None:
        """Remove the files that a killed process wrote and did not list; every hour, whoever comes first.

        ``listed`` tells the names of all files that the table has.
        """
        marker = self._root / "swept"
        if marker.exists() and 0 <= time.time() - marker.stat().st_mtime < _SWEEP_EVERY:
            return
        marker.touch(mode=0o600)
        known, written_before = listed(), time.time() - _UNWRITTEN_AGE
        for path in self._root.glob("??/*.val"):
            filename = f"{path.parent.name}/{path.name}"
            if filename not in known and _is_own(filename) and path.lstat().st_mtime < written_before:
                self.remove(filename)


def _is_own(filename: object) -> bool:
    return isinstance(filename, str) and _NAME.fullmatch(filename) is not None


def _write(path: Path, value: Sealed) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, flags, 0o600)
    try:
        _write_all(fd, value)
    finally:
        os.close(fd)


def _write_all(fd: int, value: Sealed) -> None:
    rest = [memoryview(value.header), value.payload[:_MAX_BUFFERS_LENGTH], value.payload[_MAX_BUFFERS_LENGTH:]]
    while rest := [view for view in rest if view]:
        written = os.writev(fd, rest[:2])
        for place, view in enumerate(rest):
            rest[place], written = view[written:], max(0, written - len(view))
