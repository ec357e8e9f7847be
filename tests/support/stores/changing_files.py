"""Folder where files appear, disappear and turn into non-files, with checks of the results of a visit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tieredstore.backends.filesystem._files import look_at_files, names_of_files, read_files
from tieredstore.backends.values import ObjectInfo

_SIZES = (0, 1, 3, 4_095, 4_096, 65_535, 65_536, 65_537)
_ODD = "caf\u00e9 \n"
"""Name with a non-ASCII character. ``look_at_files`` reports such a file, but ``read_files`` does not read it."""

_NAMES = ("0", "1", "2", "3", _ODD, "x" * 255)
_TOO_LONG = "y" * 256
_READ = 65_536
"""Largest size of a file that ``read_files`` reads."""

_Answer = TypeVar("_Answer")


class ChangingFiles:
    """Files that change in random steps, the same for the same seed. A file's first byte states its size."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self._paths = [folder / name for name in _NAMES]

    def change(self) -> None:
        """Replace one name's file, or remove it, or put a folder, a pipe or a link in its place."""
        path, kind = self._chance.choice(self._paths), self._chance.randrange(8)
        is_folder = path.is_dir() and not path.is_symlink()
        if kind < 4 and not is_folder:
            number = self._chance.randrange(len(_SIZES))
            fresh = self._folder / "fresh"
            fresh.write_bytes(bytes([number]) * _SIZES[number])
            fresh.replace(path)
            return
        if is_folder:
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        if kind == 5:
            path.mkdir()
        elif kind == 6:
            os.mkfifo(path)
        elif kind == 7:
            path.symlink_to(self._chance.choice(self._paths).name)

    def visit(self) -> int:
        """Examine and read all names; check that each content is complete, and return their number."""
        contents = self._of_folder(lambda folder: read_files(folder, 0, [*_NAMES, _TOO_LONG], 1 << 20))
        looked = self._of_folder(lambda folder: look_at_files(folder, "at/", list(_NAMES)))
        assert looked is not None
        assert all(seen is None or seen.size in _SIZES for seen in looked)
        # A name that the system rejects must not count as a deleted file.
        assert self._of_folder(lambda folder: look_at_files(folder, "at/", [*_NAMES, _TOO_LONG])) is None
        names = self._of_folder(names_of_files)
        assert names is None or _ODD not in names
        whole = [content for content in contents if content is not None]
        assert all(content == content[:1] * _SIZES[content[0]] for content in whole if content)
        return len(whole)

    def check_settled(self) -> None:
        """Check that a visit reports the exact state, now that changes have stopped."""
        looked = self._of_folder(lambda folder: look_at_files(folder, "at/", list(_NAMES)))
        contents = self._of_folder(lambda folder: read_files(folder, 0, list(_NAMES), 1 << 20))
        assert looked is not None
        for path, seen, content in zip(self._paths, looked, contents, strict=True):
            if path.is_symlink() or not path.is_file():
                assert (seen, content) == (None, None)
            else:
                status = path.stat()
                modified_ms = status.st_mtime_ns // 1_000_000
                assert seen == ObjectInfo(f"at/{path.name}", status.st_size, None, modified_ms)
                is_read = status.st_size <= _READ and path.name != _ODD
                assert content == (path.read_bytes() if is_read else None)

    def _of_folder(self, ask: Callable[[int], _Answer]) -> _Answer:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return ask(descriptor)
        finally:
            os.close(descriptor)
