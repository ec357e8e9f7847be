"""Fixtures for a broker's disk, which is half empty, and for an empty store."""

import pytest

from tests.support.uploader.uploader_disk import disk, store
from tieredstore.uploader import pins

__all__ = ["disk", "half_empty", "store"]


@pytest.fixture(autouse=True)
def half_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every disk seem half empty, because an uploader drops segments if the machine's own disk is nearly full."""
    monkeypatch.setattr(pins, "free_percent", lambda _: 50.0)
