"""Fixture: each test sees messages that a process logs only once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    said: set[str] = set()
    monkeypatch.setattr("tieredstore.config.loading._SAID", said)
