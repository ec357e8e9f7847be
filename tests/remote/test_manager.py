"""Ownership of a remote storage manager: it closes the stores it opened, and not those it was given."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.records.small_segments import memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote import manager as manager_module
from tieredstore.remote.manager import Pools


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore(MemoryObjectStore())


def test_a_store_that_was_given_is_left_alone_by_close(store: ScriptedStore, tmp_path: Path) -> None:
    metadata = new_metadata(100)
    with RemoteStorageManager(memory_settings(), store=store) as first:
        first.copy_log_segment_data(metadata, write_segment(tmp_path, b"x" * 100))
    assert store.closes == 0
    with RemoteStorageManager(memory_settings(), store=store) as second:
        assert second.fetch_log_segment(metadata, 0).read() == b"x" * 100
    assert store.closes == 0


def test_a_store_that_the_manager_opened_is_closed_once(store: ScriptedStore) -> None:
    with patch.object(manager_module, "open_places", lambda _: store):
        manager = RemoteStorageManager(memory_settings())
    assert manager.store.identity == store.identity
    manager.close()
    manager.close()
    assert store.closes == 1


def test_a_store_that_was_opened_is_closed_when_the_rest_cannot_be_made(store: ScriptedStore) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError("no such cache")

    with (
        patch.object(manager_module, "open_places", lambda _: store),
        patch.object(Pools, "of_threads", fail),
        pytest.raises(ConfigError),
    ):
        RemoteStorageManager(memory_settings())
    assert store.closes == 1


def test_pools_that_were_given_are_left_alone_by_close(store: ScriptedStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as transform, ThreadPoolExecutor(1) as fetch, ThreadPoolExecutor(1) as lookup:
        pools = Pools(transform, fetch, lookup)
        metadata = new_metadata(100)
        with RemoteStorageManager(memory_settings(), store=store, pools=pools) as manager:
            manager.copy_log_segment_data(metadata, write_segment(tmp_path, b"x" * 100))
        assert transform.submit(int, "7").result() == 7
        with RemoteStorageManager(memory_settings(), store=store, pools=pools) as manager:
            assert manager.fetch_log_segment(metadata, 0).read() == b"x" * 100


def test_a_manager_is_a_source_of_segments(store: ScriptedStore, tmp_path: Path) -> None:
    metadata = new_metadata(100)
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, b"x" * 100))
        assert manager.store.identity == store.identity
        assert manager.open(metadata).read() == b"x" * 100
        assert manager.fetch_manifest(metadata).chunk_index.original_file_size == 100
