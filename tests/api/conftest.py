"""A bucket of the golden topic ``txn`` in a folder, and the broker's disk it was copied from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tieredstore as ts
from tests.support.paths import GOLDEN


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
