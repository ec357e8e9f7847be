"""A bucket of the golden topic ``txn`` in a folder, and the broker's disk it was copied from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tieredstore as ts
from tests.support.cli.page_commands import forked_commands_of_pages
from tests.support.examples import SOAK
from tests.support.paths import GOLDEN


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    """Yield a Python whose processes are forks, because the imports take most of a program's time.

    In `make soak`, yield the real Python.
    """
    if SOAK:
        yield Path(sys.executable)
        return
    with forked_commands_of_pages(os.environ) as folder:
        yield folder / "python"


@pytest.fixture
def run(python: Path) -> Callable[..., str]:
    """Return a function that runs a program in a folder, with arguments, and returns its output."""

    def run(program: str, folder: Path, *arguments: str) -> str:
        command = [str(python), "-W", "error", "-c", program, *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Make a log directory with the five closed segments of ``txn-0``."""
    folder = tmp_path / "disk"
    shutil.copytree(GOLDEN / "07-txn" / "original", folder)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def bucket(root: Path, disk: Path) -> Iterator[ts.Bucket]:
    """Yield a bucket with the segments of the fixture ``disk``."""
    with ts.open(root) as opened:
        opened.upload(disk)
        yield opened
