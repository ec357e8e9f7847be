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


def test_stores_of_one_name_share_their_objects() -> None:
    one, same, other = MemoryObjectStore("shared"), MemoryObjectStore("shared"), MemoryObjectStore("other")
    one.put("object", b"data")
    assert same.get("object") == b"data"
    assert list(other.list()) == []
    assert one.identity == same.identity == "memory://shared"
    assert one.identity != other.identity


def test_the_objects_of_a_name_go_with_the_last_store() -> None:
    MemoryObjectStore("passing").put("object", b"data")
    assert list(MemoryObjectStore("passing").list()) == []


def test_stores_without_a_name_share_nothing() -> None:
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


def test_a_name_stands_in_the_identity_as_in_a_url() -> None:
    assert MemoryObjectStore("a/b").identity == "memory://a%2Fb"
