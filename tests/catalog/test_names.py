"""Names of topics and partitions with few requests; and errors for missing ones."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.catalog.test_listing_of_topics import PagedStore
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.absence import absence, prefix_hint, ranges
from tieredstore.catalog.names import base_offsets, partition_numbers, topic_ids, topic_names
from tieredstore.errors import AccessDeniedError
from tieredstore.format.keys import Suffix, object_key
from tieredstore.model import Uuid

PREFIX = "tiered/"
IDS = [Uuid(bytes([number]) * 16) for number in range(1, 9)]


def add(store: MemoryObjectStore, topic: str, partition: int, offsets: Iterable[int], topic_id: Uuid = IDS[0]) -> None:
    for offset in offsets:
        path = f"{topic}-{topic_id}/{partition}/{offset:020d}-{Uuid(random.Random(offset).randbytes(16))}"
        for suffix in Suffix:
            store.put(object_key(PREFIX, path, suffix), b"")


@pytest.fixture(scope="module")
def large() -> PagedStore:
    """Make a topic of 1,500 segments in each of two partitions, and small topics, some of which begin with its name."""
    store = PagedStore()
    add(store, "orders", 0, range(1500))
    add(store, "orders", 10, range(1500))
    add(store, "orders", 2, range(3), IDS[1])
    for topic in ("a", "orders-2", "orders.old", "payments", "zz"):
        add(store, topic, 0, range(2))
    store.put(f"{PREFIX}orders-{IDS[0]}/0/notes.txt", b"")
    store.put("another/place", b"")
    return store


def test_a_large_topic_is_passed_over(large: PagedStore) -> None:
    large.pages = 0
    assert topic_names(large, PREFIX) == ["a", "orders", "orders-2", "orders.old", "payments", "zz"]
    # The topic has 9,000 keys: the listing reads the page of its first thousand, and the page after the topic.
    assert large.pages <= 3
    large.pages = 0
    assert partition_numbers(large, PREFIX, "orders") == {IDS[0]: [0, 10], IDS[1]: [2]}
    assert large.pages <= 5


def test_base_offsets_are_those_of_one_partition(large: PagedStore) -> None:
    assert base_offsets(large, PREFIX, "orders", 2, most=10) == [0, 1, 2]
    assert base_offsets(large, PREFIX, "orders", 10, most=7) == list(range(7))
    assert base_offsets(large, PREFIX, "orders", 1, most=7) == []


def test_a_topic_that_was_created_again_has_two_ids(large: PagedStore) -> None:
    assert topic_ids(large, PREFIX, "orders") == IDS[:2]
    assert topic_ids(large, PREFIX, "nothing") == []


def test_time_ends_the_look(large: PagedStore) -> None:
    assert topic_names(large, PREFIX, until=time.monotonic() - 1) == []
    assert partition_numbers(large, PREFIX, "orders", until=time.monotonic() - 1) == {}


@given(
    st.dictionaries(
        st.tuples(st.text("ab-.0/", min_size=1, max_size=4).filter(lambda name: "/" not in name), st.integers(0, 2)),
        st.sets(st.integers(0, 11), min_size=1),
        max_size=6,
    )
)
def test_names_are_those_that_were_stored(stored: dict[tuple[str, int], set[int]]) -> None:
    store = MemoryObjectStore()
    for (topic, life), partitions in stored.items():
        for partition in partitions:
            add(store, topic, partition, [5], IDS[life])
    assert topic_names(store, PREFIX) == sorted({topic for topic, _ in stored})
    for topic in {topic for topic, _ in stored} | {"nobody"}:
        own = {IDS[life]: sorted(numbers) for (name, life), numbers in stored.items() if name == topic}
        assert partition_numbers(store, PREFIX, topic) == own


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ({"ordesr": []}, "there is no topic 'ordesr' in the bucket; did you mean 'orders'"),
        ({"ORDERS": [3]}, "there is no topic 'ORDERS' in the bucket; did you mean 'orders'?"),
        ({"xyzzy": []}, "there is no topic 'xyzzy' in the bucket; check the name and key.prefix"),
        ({"xyzzy": [], "payment": []}, "there are no topics 'xyzzy', 'payment' in the bucket; did you mean 'pay"),
        ({"payments": [7]}, "topic 'payments' has no partition 7 in the bucket, only 0"),
        ({"orders": [1, 3, 4, 5]}, "topic 'orders' has no partitions 1, 3 to 5 in the bucket, only 0, 2, 10"),
        ({"payments": []}, "topic 'payments' has objects in the bucket, but no segment that can be used"),
        ({"payments": [0]}, "topic 'payments' has no partition 0 in the bucket, nor any other that can be used"),
        ({"\x1b[2J'\"": []}, "there is no topic '\\x1b[2J\\'\"' in the bucket; check the name and key.prefix"),
        ({"payments": [7], "nobody": []}, "there is no topic 'nobody' in the bucket; check the name and key.prefix; "),
    ],
)
def test_what_is_not_there_is_said_and_what_was_meant(
    large: PagedStore, missing: dict[str, list[int]], sentence: str
) -> None:
    assert str(absence(large, PREFIX, missing)).startswith(sentence)


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        ("tierd/", "none under 'tierd/'; there are some under 'tiered/'"),
        ("tiered/a/", "none under 'tiered/a/'; there are some under 'tiered/'"),
        ("", "none without a prefix; there are some under 'tiered/'"),
        ("another/", "none under 'another/'; there are some under 'tiered/'"),
    ],
)
def test_a_wrong_prefix_is_answered_by_one_that_has_segments(large: PagedStore, prefix: str, hint: str) -> None:
    large.pages = 0
    assert prefix_hint(large, prefix) == hint
    assert large.pages <= 2
    assert str(absence(large, prefix, {"orders": []})).endswith(f"check the name and key.prefix; segments: {hint}")


def test_a_large_bucket_is_asked_for_the_beginnings_of_the_prefix_alone() -> None:
    store = PagedStore()
    for number in range(2500):
        store.put(f"foreign/{number}", b"")
    assert prefix_hint(store, "tierd/") == ""
    add(store, "orders", 0, range(2))
    assert prefix_hint(store, "tierd/") == "none under 'tierd/'; there are some under 'tiered/'"
    store.pages = 0
    assert prefix_hint(store, "foreign/a/long/prefix/") == ""
    assert store.pages <= 9


def test_a_store_that_refuses_other_prefixes_gives_no_hint() -> None:
    refusing = ScriptedStore(MemoryObjectStore()).on("list", do=AccessDeniedError("no list"))
    assert prefix_hint(refusing, "tierd/") == ""


def test_an_id_that_is_not_there_is_said_as_that(large: PagedStore) -> None:
    said = str(absence(large, PREFIX, {"orders": []}, topic_id=IDS[5]))
    assert said == f"topic 'orders' has no id {IDS[5]} in the bucket; there it has {IDS[0]}, {IDS[1]}"
    said = str(absence(large, PREFIX, {"orders": [0]}, topic_id=IDS[1]))
    assert said == "topic 'orders' has no partition 0 in the bucket, only 2"


def test_what_the_broker_has_counts_as_well(large: PagedStore) -> None:
    said = str(absence(large, PREFIX, {"payments": [9]}, live={"payments": [0, 1, 2]}))
    assert said == "topic 'payments' has no partition 9 in the bucket or on the broker, only 0 to 2"


@given(st.sets(st.integers(0, 30), max_size=24))
def test_ranges_name_every_number_once_as_far_as_they_name_any(numbers: set[int]) -> None:
    shown, _, others = ranges(numbers).partition(" and ")
    parts, named = list(filter(None, shown.split(", "))), list[int]()
    for part in parts:
        first, _, last = part.partition(" to ")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(numbers)[: len(named)]
    assert len(named) == len(numbers) if not others else len(parts) == 10


def test_of_many_ranges_some_are_named_and_the_others_counted() -> None:
    assert ranges(range(0, 22, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and one range more"
    assert ranges(range(0, 24, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 2 ranges more"
