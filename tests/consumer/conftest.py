"""The bucket that the consumers of these tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumer.buckets import Fetches
from tests.support.records.topic_buckets import Bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """Yield an empty bucket."""
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Fetches:
    """Return the hook for fetches."""
    return Fetches(monkeypatch)
