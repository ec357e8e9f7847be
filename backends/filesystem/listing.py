"""The files below a root in the order of their keys, found lazily."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from typing import Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.filesystem._files import look_at_files, names_of_files
from tieredstore.backends.filesystem.errors import OsErrors
from tieredstore.backends.filesystem.folders import Folder, is_component
from tieredstore.errors import ObjectNotFound

_logger: Final = logging.getLogger(__name__)

_PLAIN: Final = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}").fullmatch

_PAGE: Final = 1000
"""How many files are looked at each time a folder is opened."""


class Listing:
    """One listing of the objects whose key starts with ``prefix`` and is greater than ``start_after``.

    No descriptor stays open between two objects. Files and folders that vanish meanwhile are passed over.
    """

    __slots__ = ("_prefix", "_root", "_start_after")

    def __init__(self, root: str, prefix: str, start_after: str | None) -> None:
        self._root, self._prefix, self._start_after = root, prefix, start_after or ""

    def __iter__(self) -> Iterator[ObjectInfo]:
        """Descends at once to the deepest folder that holds all of ``prefix``."""
        parent = self._prefix.rpartition("/")[0]
        parts = parent.split("/") if parent else []
        try:
            legal = all(is_component(part.encode("utf-8")) for part in parts)
        except UnicodeEncodeError:
            legal = False
        return self._below(parent + "/" if parent else "") if legal else iter(())

    def _below(self, path: str) -> Iterator[ObjectInfo]:
        """``path`` is empty or ends with a slash, as a folder's does in :meth:`_entries`."""
        entries = iter(self._entries(path))
        # Runs of files are looked at by pages; a folder ends a run.
        while page := list(islice(entries, _PAGE)):
            files = [name for name in page if name[-1] != "/"]
            infos = self._infos(path, files)
            if len(files) == len(page):
                yield from filter(None, infos)
                continue
            looked = iter(infos)
            for name in page:
                if name[-1] == "/":
                    yield from self._below(path + name)
                elif (info := next(looked)) is not None:
                    yield info

    def _entries(self, path: str) -> list[str]:
        """The sorted names of what may match; a folder's has its slash, which puts it where its keys belong.

        ``a-b`` < ``a/c`` < ``a0``: the names alone would be in another order. Text compares by code points, and so
        in the order of its UTF-8 bytes.
        """
        try:
            with OsErrors(self._root, path), self._folder(path) as folder:
                names = names_of_files(folder.descriptor)
                if names is None:
                    with os.scandir(folder.descriptor) as scan:
                        names = [
                            name
                            for entry in scan
                            if (name := entry.name if _is_plain(entry) else _name_of(entry, path)) is not None
                        ]
        except ObjectNotFound:
            return []
        if not (path.startswith(self._prefix) and self._start_after <= path):
            names = [name for name in names if self._may_match(path + name)]
        names.sort()
        return names

    def _may_match(self, key: str) -> bool:
        if key.endswith("/"):
            below = key.startswith(self._prefix) or self._prefix.startswith(key)
            return below and key >= self._start_after[: len(key)]
        return key.startswith(self._prefix) and key > self._start_after

    def _infos(self, path: str, names: list[str]) -> list[ObjectInfo | None]:
        """What of these is there still, in the same order; None for what is not."""
        if not names:
            return []
        try:
            with OsErrors(self._root, path), self._folder(path) as folder:
                looked = look_at_files(folder.descriptor, path, names)
                return [_info(folder, path, name) for name in names] if looked is None else looked
        except ObjectNotFound:
            return [None] * len(names)

    def _folder(self, path: str) -> Folder:
        return Folder(self._root, tuple(path.encode("utf-8").split(b"/")[:-1]))


def _info(folder: Folder, path: str, name: str) -> ObjectInfo | None:
    """What is there now; OSError as it comes."""
    try:
        status = os.stat(name.encode("utf-8"), dir_fd=folder.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):  # it was a file when the folder was read
        return None
    return ObjectInfo(path + name, status.st_size, None, status.st_mtime_ns // 1_000_000)


def _is_plain(entry: os.DirEntry[str]) -> bool:
    """Whether it is surely an object's file, as nearly all entries are."""
    return _PLAIN(entry.name) is not None and entry.is_file(follow_symlinks=False)


def _name_of(entry: os.DirEntry[str], path: str) -> str | None:
    """The entry's name as a part of keys, a folder's with a slash; None for what is no object and holds none."""
    name = entry.name
    if not name.isascii():  # the system's own encoding may be another one than that of keys
        try:
            name = os.fsencode(name).decode("utf-8")
        except UnicodeDecodeError:
            return None
    if not is_component(name.encode("utf-8")):
        return None
    if entry.is_file(follow_symlinks=False):
        return name
    if entry.is_symlink():
        _logger.warning("%s%s is a symbolic link: it is not followed, so what it leads to is not listed", path, name)
        return None
    return name + "/" if entry.is_dir(follow_symlinks=False) else None
