from __future__ import annotations

import pytest

from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.testing.object_store_tests import ObjectStoreTests


class TestMemoryObjectStore(ObjectStoreTests):
    picklable = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore()


def test_stores_share_nothing() -> None:
    one, other = MemoryObjectStore(), MemoryObjectStore()
    one.put("object", b"data")
    assert list(other.list()) == []
    assert one.identity != other.identity


def test_an_etag_never_comes_again() -> None:
    store = MemoryObjectStore()
    seen: set[str | None] = set()
    for _ in range(3):
        store.put("object", b"the same")
        seen.add(store.head("object").etag)
        store.delete(["object"])
    assert len(seen) == 3
