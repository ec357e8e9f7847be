"""Fixtures of the catalog's tests."""

from __future__ import annotations

from tests.support.records.fixtures import store, topic

__all__ = ["store", "topic"]
