"""A catalog is loaded by several readers, and by no more than asked for."""

from __future__ import annotations

import threading
import time

from tests.support.catalog_stores import manager_of, partition_of, run_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import load_catalog
from tieredstore.testing.doubles import CountingStore


class Crowded(CountingStore):
    """Notes how many reads are under way at once."""

    def __init__(self, inner: MemoryObjectStore) -> None:
        super().__init__(inner)
        self.now = self.most = 0
        self.guard = threading.Lock()

    def get_small(self, key: str, most: int) -> bytes | None:
        with self.guard:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.001)
        with self.guard:
            self.now -= 1
        return super().get_small(key, most)


def test_manifests_are_read_by_no_more_readers_than_asked_for() -> None:
    store = Crowded(MemoryObjectStore())
    for segment in run_of(100, partition_of()):
        segment.put(store)
    with manager_of(store) as manager:
        load_catalog(manager, readers=5)
    assert 1 < store.most <= 5
