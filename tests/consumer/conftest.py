"""The bucket that consumers of these tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumer.buckets import Fetches
from tests.support.records.topic_buckets import Bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """One that is empty."""
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Fetches:
    """What becomes of fetches."""
    return Fetches(monkeypatch)
