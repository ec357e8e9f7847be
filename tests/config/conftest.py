"""Fixture: each test sees messages that a process logs only once."""

from __future__ import annotations

import importlib
import logging

import pytest

from tieredstore.process.log_once import LogOnce


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = importlib.import_module("tieredstore.config.loading")
    monkeypatch.setattr(loading, "_log", LogOnce(logging.getLogger(loading.__name__)))
