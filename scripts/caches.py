"""The user's cache folder: keeps slow builds and downloads, by their pin, for all clones."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/tieredstore/development``, or the same below ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "tieredstore" / "development"


def recipe_key(*ingredients: str | bytes) -> str:
    """Return a short name for a recipe on this platform; it differs if any ingredient differs."""
    digest = hashlib.sha256(f"{sys.platform} {platform.machine()}".encode())
    for ingredient in ingredients:
        data = ingredient.encode() if isinstance(ingredient, str) else ingredient
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder ``name``; if missing, fill it by ``make``, completely or not at all."""
    folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            half = Path(scratch, "made")
            half.mkdir()
            make(half)
            # Another clone may have created it by now: equally good.
            with suppress(OSError):
                half.rename(folder)
    return folder


def place(source: Path, target: Path) -> None:
    """Place ``source``, a file or a folder, at ``target``: by hard links if the file system has them, else copied.

    So emptying the cache removes nothing from a clone.
    """
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    else:
        _link_or_copy(source, target)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
