"""Fixtures: topics to fill and read."""

from __future__ import annotations

from tests.support.records.fixtures import store, topic

__all__ = ["store", "topic"]
