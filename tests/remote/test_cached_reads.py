"""Reads of several chunks out of the disk cache: right, whatever is no longer there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.disk_cache_access import value_files
from tests.support.small_segments import memory_settings, new_metadata, write_segment
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.doubles import CountingStore

CHUNK = 1_000
LOG = b"".join(b"%09d\n" % number for number in range(1_550))
CHUNKS = 16


@contextmanager
def warm(folder: Path) -> Iterator[tuple[RemoteStorageManager, CountingStore, RemoteLogSegmentMetadata]]:
    """A segment of which all is in the cache."""
    cache = {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "-1", "fetch.chunk.cache.path": str(folder)}
    settings, store = memory_settings(CHUNK, cache=cache), CountingStore(MemoryObjectStore())
    metadata = new_metadata(len(LOG))
    (folder / "log").mkdir()
    with RemoteStorageManager(settings, store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(folder / "log", LOG))
        assert read(manager, metadata) == LOG
        store.reset()
        yield manager, store, metadata


def read(manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata) -> bytes:
    with manager.fetch_log_segment(metadata, 0) as stream:
        return stream.read()


@pytest.mark.parametrize("missing", [slice(0, 1), slice(5, 6), slice(15, 16), slice(2, 9, 3)])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_is_no_longer_there_is_fetched(tmp_path: Path, missing: slice, is_damaged: bool) -> None:
    with warm(tmp_path) as (manager, store, metadata):
        lost = value_files(tmp_path)[missing]
        for path in lost:
            if is_damaged:
                path.write_bytes(path.read_bytes()[:-1] + b"?")
            else:
                path.unlink()
        before = manager.fetch_stats.chunk_hits
        assert read(manager, metadata) == LOG
        assert manager.fetch_stats.chunk_hits - before == CHUNKS - len(lost)
        assert 1 <= store.requests["get_into"] <= len(lost)
