"""Common setup of pipeline tests: a topic in a bucket, and a store for the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import topics
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import make_s3
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    yield from topics(tmp_path)


@pytest.fixture
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], ObjectStore]]:
    """Return a factory of empty stores of one kind: ``memory``, ``folder`` or ``s3``."""
    opened: list[ObjectStore] = []

    def make(kind: str) -> ObjectStore:
        match kind:
            case "memory":
                store: ObjectStore = MemoryObjectStore()
            case "folder":
                folder = tmp_path / f"output-{len(opened)}"
                folder.mkdir()
                store = FilesystemObjectStore(folder)
            case _:
                server: S3Server = request.getfixturevalue("minio")
                store = make_s3(server.endpoint_url, server.make_bucket())
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, new_store: Callable[[str], ObjectStore]) -> ObjectStore:
    return new_store(request.param)


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.server])])
def any_store(request: pytest.FixtureRequest, new_store: Callable[[str], ObjectStore]) -> ObjectStore:
    return new_store(request.param)
