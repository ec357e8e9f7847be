"""Several topics listed together: exactly their segments, with the minimum of requests."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.doubles import CountingStore
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.format.keys import Suffix, object_key
from tieredstore.model import Uuid

PREFIX = "tiered/"


class PagedStore(MemoryObjectStore):
    """A store that counts pages of a thousand keys, which are the requests of a listing."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        for number, info in enumerate(super().list(prefix, start_after)):
            self.pages += number % 1000 == 0
            yield info


def fill(store: MemoryObjectStore, topics: Iterable[str], segments: int = 1) -> None:
    source = random.Random(1)
    for topic in topics:
        topic_id = Uuid(source.randbytes(16))
        for number in range(segments):
            path = f"{topic}-{topic_id}/0/{number:020d}-{Uuid(source.randbytes(16))}"
            for suffix in Suffix:
                store.put(object_key(PREFIX, path, suffix), b"")


def listed(store: MemoryObjectStore | CountingStore, topics: Iterable[str], **page: int) -> list[str]:
    return [objects.main_path for objects in list_segments(store, PREFIX, Scope(topics=frozenset(topics)), **page)]


def one_by_one(store: MemoryObjectStore, topics: Iterable[str]) -> list[str]:
    return sorted(objects.main_path for topic in set(topics) for objects in list_segments(store, PREFIX, Scope(topic)))


names = st.sets(st.text("ab-.", min_size=1, max_size=4), max_size=12)


@given(names, names, st.integers(1, 4))
def test_they_are_what_each_topics_listing_has(stored: set[str], wanted: set[str], segments: int) -> None:
    store = MemoryObjectStore()
    fill(store, stored, segments)
    assert listed(store, wanted) == one_by_one(store, wanted)


@pytest.mark.parametrize("page", [1, 2, 5])
@given(stored=names, wanted=names)
def test_the_listing_that_begins_anew_misses_nothing(page: int, stored: set[str], wanted: set[str]) -> None:
    store = MemoryObjectStore()
    fill(store, stored, 3)
    assert listed(store, wanted, page=page) == one_by_one(store, wanted)


def test_no_topics_ask_for_nothing() -> None:
    store = CountingStore(MemoryObjectStore())
    assert listed(store, ()) == []
    assert not store.requests


def test_many_topics_cost_the_pages_that_they_have() -> None:
    store = PagedStore()
    topics = [f"topic-{number:04d}" for number in range(500)]
    fill(store, topics, 2)
    assert len(listed(store, topics)) == 1000
    assert store.pages == 3  # 3000 objects


def test_a_few_topics_of_a_large_store_do_not_cost_its_pages() -> None:
    store = PagedStore()
    fill(store, [f"other-{number:05d}" for number in range(10_000)])
    fill(store, ["a", "other-05000", "z"])
    assert len(listed(store, ["a", "other-05000", "z"])) == 4  # two incarnations of other-05000
    assert store.pages <= 6


class AzuresPages(PagedStore):
    """A store whose listings cannot start at a key, and so request the pages before it as well."""

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix) if start_after is None or info.key > start_after)


@pytest.mark.slow
def test_nor_where_a_listing_starts_at_no_key() -> None:
    store = AzuresPages()
    fill(store, [f"other-{number:05d}" for number in range(10_000)])
    fill(store, ["z"])
    topics = [f"other-{number:05d}" for number in range(0, 10_000, 500)]
    assert len(listed(store, [*topics, "z"])) == len(topics) + 1
    assert store.pages <= 4 * len(topics)
    store.pages = 0
    assert len(listed(store, ["other-09000", "z"])) == 2
    assert store.pages <= 4
