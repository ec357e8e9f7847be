"""Fixtures for a broker's disk, which is half empty, for a second disk, and for an empty store."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.uploader.uploader_disk import disk, store
from tieredstore.uploader import pins

__all__ = ["disk", "half_empty", "other_disk", "store"]


@pytest.fixture(autouse=True)
def half_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every disk seem half empty, because an uploader drops segments if the machine's own disk is nearly full."""
    monkeypatch.setattr(pins, "free_percent", lambda _: 50.0)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on another file system than ``tmp_path``."""
    memory = Path("/dev/shm")
    assert memory.stat().st_dev != tmp_path.stat().st_dev, "the tests need a file system beside that of their folders"
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
