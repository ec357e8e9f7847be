"""Fixtures: a bucket, a topic and a store for a test to fill. Each subpackage's conftest imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_buckets import Bucket, fill
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with closing(Bucket(tmp_path / "made")) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def filled_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with closing(Bucket(tmp_path_factory.mktemp("filled"))) as bucket:
        fill(bucket)
        yield bucket


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with closing(StoredTopic(tmp_path / "made")) as topic:
        yield topic


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryObjectStore())
