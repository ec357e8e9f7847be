"""The user's cache folder, which keeps slow builds and downloads for all clones. A name contains a hash of the
recipe."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

OWN: Final = Path(__file__).resolve().parent.parent / ".venv" / "cache"
"""The clone's own cache folder, used if the user's cannot be written."""


def cache_folder() -> Path:
    """Return ``tieredstore/development`` in ``$XDG_CACHE_HOME`` (default: ``~/.cache``). If this folder cannot be
    written, return the clone's own folder.
    """
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "tieredstore" / "development"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return OWN
    return folder if os.access(folder, os.W_OK) else OWN


def recipe_key(*ingredients: str | bytes) -> str:
    """Return a short name for a build from these ingredients on this platform. If an ingredient changes, so does the
    name."""
    digest = hashlib.sha256(f"{sys.platform} {platform.machine()}".encode())
    for ingredient in ingredients:
        data = ingredient.encode() if isinstance(ingredient, str) else ingredient
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder ``name``. If it is missing or damaged, make it anew; if ``make`` fails, no folder
    remains."""
    folder = cache_folder() / name
    with locked(folder.with_name(f"{name}.sha256")) as stated:
        if stated.read() != _digest(folder):
            _remove(folder)
            with tempfile.TemporaryDirectory(
                prefix=f"{name}.", dir=folder.parent, ignore_cleanup_errors=True
            ) as scratch:
                half = Path(scratch, "made")
                half.mkdir()
                make(half)
                stated.truncate(0)
                stated.write(_digest(half))
                half.rename(folder)
    return folder


@contextmanager
def locked(path: Path) -> Generator[BinaryIO]:
    """Open a file for reading and appending, with an exclusive lock against other threads and processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _digest(folder: Path) -> bytes:
    """Return the SHA-256 of the names and contents of all files below ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        if path.is_symlink():
            digest.update(f"{path.readlink()}\0".encode())
        elif path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest().encode()


def place(source: Path, target: Path) -> None:
    """Place ``source``, a file or a folder, at ``target``: by hard links if the file system has them, else by copying.

    A clone therefore keeps its files when the cache is emptied.
    """
    _remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    else:
        _link_or_copy(source, target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
