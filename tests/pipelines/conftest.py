"""What most tests of pipelines begin with: a topic in a bucket, and a store for the output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import topics
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    yield from topics(tmp_path)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryObjectStore()
    (tmp_path / "output").mkdir()
    return FilesystemObjectStore(tmp_path / "output")
