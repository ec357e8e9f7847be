"""Fixtures: buckets and topics to fill and read."""

from __future__ import annotations

from tests.support.records.fixtures import bucket, topic

__all__ = ["bucket", "topic"]
