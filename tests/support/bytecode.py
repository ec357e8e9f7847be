"""Bytecode of all modules, made before the workers of a run start.

In a new checkout, each worker would otherwise compile every module itself, because all workers import the modules at
the same time. The tests, whose assertions pytest rewrites, took each worker ten seconds of processor time.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.support.paths import REPOSITORY

_ROOTS: Final = ("scripts", "tests", "tieredstore", "tieredstore/backends")  # a link, which rglob does not follow
_rewriting: Final[Any] = importlib.import_module("_pytest.assertion.rewrite")  # it has no public functions


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make all bytecode if a process starts workers, which the session does later, for all tests."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        return
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not sys.dont_write_bytecode:
        hook: Any = config.pluginmanager.rewrite_hook
        state = config.stash[_rewriting.assertstate_key]
        paths = [path for root in _ROOTS for path in (REPOSITORY / root).rglob("*.py")]
        is_rewritten = [hook._should_rewrite(_name_of(path), str(path), state) for path in paths]
        with multiprocessing.Pool() as pool:
            pool.starmap(make_bytecode, zip(paths, is_rewritten, strict=True), chunksize=16)


def make_bytecode(path: Path, is_rewritten: bool) -> None:
    """Make a module's bytecode, unless there is some and it is current."""
    if not is_rewritten:
        compileall.compile_file(path, quiet=2)
        return
    kept: Path = _rewriting.get_cache_dir(path) / (path.stem + _rewriting.PYC_TAIL)
    if _rewriting._read_pyc(path, kept) is None and _rewriting.try_makedirs(kept.parent):
        with contextlib.suppress(SyntaxError):  # the worker that imports the module reports it
            source_hash, code = _rewriting._rewrite_test(path, None)
            _rewriting._write_pyc(SimpleNamespace(trace=lambda _: None), code, source_hash, kept)


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
