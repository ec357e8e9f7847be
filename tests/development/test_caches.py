"""Caches shared by all clones: each is complete or absent, and a clone keeps its files when a cache is emptied.

A clone compiles a module only if no clone has compiled it from the same bytes with the same tools.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any, Final

import pytest

from scripts import caches
from scripts.caches import cache_folder, cached, locked, place, recipe_key
from tests.support.paths import REPOSITORY

# Libraries without types.
create_dependency_tree: Any = importlib.import_module("Cython.Build.Dependencies").create_dependency_tree
setup: Any = importlib.import_module("setup")

FOLDER: Final = "tieredstore/pubsub/format"
BUILD: Final = f"""
import setup
module = setup.extension({FOLDER!r}, "_packets")
command = ["-q", "build_ext", "--inplace"]
commands = {{"build_ext": setup.BuildExtensions}}
setup.setup(name="x", packages=[], cmdclass=commands, ext_modules=[module], script_args=command)
"""
COMPILER: Final = """\
#!/bin/sh
case $1 in --version) echo "$VERSION" && exit ;; esac
echo >>"$LOG"
while [ "$1" != -o ]; do shift; done
echo compiled >"$2"
"""
"""A compiler that does not compile, because only its runs count: `make` builds the real modules through this cache."""


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(folder: Path) -> None:
    (folder / "program").write_text("built")


def test_what_is_cached_is_made_once(tmp_path: Path) -> None:
    assert (cached("thing", make) / "program").read_text() == "built"
    assert (cached("thing", lambda folder: pytest.fail("made twice")) / "program").exists()


def test_what_fails_leaves_nothing() -> None:
    def fail(folder: Path) -> None:
        make(folder)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cached("thing", fail)
    (lock,) = cache_folder().iterdir()
    assert lock.read_bytes() == b""


def test_of_two_at_once_one_makes_and_the_other_waits() -> None:
    begun, made = threading.Event(), Semaphore(1)

    def make_once(folder: Path) -> None:
        assert made.acquire(blocking=False)
        begun.set()
        make(folder)

    with ThreadPoolExecutor() as pool:
        with locked(cache_folder() / "thing.sha256"):
            both = [pool.submit(cached, "thing", make_once) for _ in range(2)]
            assert not begun.wait(0.1)
        assert [(one.result(60) / "program").read_text() for one in both] == ["built", "built"]


def truncate(folder: Path) -> None:
    (folder / "program").write_text("buil")


def replace(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("built")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a shorter file": truncate,
    "no file": lambda folder: (folder / "program").unlink(),
    "one file more": lambda folder: (folder / "other").touch(),
    "another name": lambda folder: (folder / "program").rename(folder / "programme"),
    "no folder": shutil.rmtree,
    "a file as the folder": replace,
    "an empty digest": lambda folder: folder.with_name("thing.sha256").write_bytes(b""),
    "a digest of other bytes": lambda folder: folder.with_name("thing.sha256").write_bytes(b"\xff\x00" * 32),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_made_again(damage: Callable[[Path], object]) -> None:
    damage(cached("thing", make))
    folder = cached("thing", make)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("program", "built")]
    assert cached("thing", lambda _: pytest.fail("made twice")) == folder


def test_where_the_users_folder_cannot_be_written_the_clone_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "OWN", tmp_path / "own")
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert (cached("thing", make) / "program").is_relative_to(tmp_path / "own")
    (tmp_path / "cache").unlink()
    assert cached("thing", make).is_relative_to(tmp_path / "cache")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a read-only file system
    assert cached("thing", make).is_relative_to(tmp_path / "own")


def test_a_clone_keeps_what_it_has_when_the_cache_is_emptied(tmp_path: Path) -> None:
    place(cached("thing", make), tmp_path / "clone" / "thing")
    place(cached("thing", make), tmp_path / "clone" / "thing")
    shutil.rmtree(cache_folder())
    assert (tmp_path / "clone" / "thing" / "program").read_text() == "built"


def test_a_recipe_has_another_key_if_any_ingredient_differs() -> None:
    keys = {recipe_key("a", "b"), recipe_key("ab"), recipe_key("a", b"c"), recipe_key("a")}
    assert len(keys) == 4
    assert recipe_key("a", b"b") in keys


class Clone:
    """Tree with one small module, and a compiler that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "clone"
        self._log = folder / "log"
        self.cache = folder / "cache" / "tieredstore" / "development"
        shutil.copytree(REPOSITORY / "scripts", self._root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(REPOSITORY / FOLDER, self._root / FOLDER, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        shutil.copy(REPOSITORY / "setup.py", self._root)
        (self._root / FOLDER / "_packets.pyx").write_text('cdef extern from "_parse.h":\n    pass\n')
        self.compiler = folder / "compiler"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)
        self._variables = {**os.environ, "LOG": str(self._log), "XDG_CACHE_HOME": str(folder / "cache")}

    def build(self, **variables: str) -> tuple[int, bytes]:
        """Compile; return the number of the compiler's runs, and the module."""
        self._log.write_text("")
        for old in self._root.glob(f"{FOLDER}/*.so"):
            old.unlink()
        changed = {**self._variables, "CC": str(self.compiler), "VERSION": "1", **variables}
        subprocess.run([sys.executable, "-c", BUILD], cwd=self._root, env=changed, check=True, timeout=600)
        (module,) = self._root.glob(f"{FOLDER}/*.so")
        return len(self._log.read_text().splitlines()), module.read_bytes()

    def append(self, name: str, text: str) -> None:
        path = self._root / FOLDER / name
        path.write_text(path.read_text() + text)


@pytest.mark.slow
def test_a_module_is_compiled_once_for_the_same_bytes_and_tools(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    runs, module = clone.build()
    assert runs > 0
    clone.append("_packets.pyx", "")
    assert clone.build() == (0, module)
    # Clones reuse a cached module, but never a damaged one.
    (kept,) = clone.cache.glob("*/*.so")
    kept.write_bytes(module[:-1])
    assert clone.build() == (runs, module)
    assert clone.build() == (0, module)
    for variables in ({"VERSION": "2"}, {"CFLAGS": "-O1"}):
        assert clone.build(**variables)[0] == runs
    clone.append("_parse.h", "/* changed */\n")
    assert clone.build()[0] == runs
    clone.append("_packets.pyx", "\nWORD = 1\n")
    assert clone.build()[0] == runs


def modules() -> list[Any]:
    return [setup.extension(folder, name) for folder, names in setup.KERNELS.items() for name in names]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_all_that_is_included_decides_over_the_result(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    tree = create_dependency_tree()
    used = {Path(path).resolve() for path in tree.all_dependencies(module.sources[0])}
    own = {path for path in used if path.is_relative_to(REPOSITORY / "tieredstore")}
    assert own <= {Path(path).resolve() for path in (*module.sources, *module.depends)}
