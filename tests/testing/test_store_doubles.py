from __future__ import annotations

import time
from collections.abc import Callable, Generator

import pytest

from tests.support.stores.doubles import (
    CountingStore,
    DelegatingObjectStore,
    FaultyStore,
    LatencyStore,
    Moment,
    Operation,
)
from tests.support.stores.operation_sweep import numbers_to_sweep
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.contract.bodies import open_body
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AccessDeniedError, ObjectNotFoundError, StoreUnavailableError
from tieredstore.testing.object_store_tests import ObjectStoreTests


class TestQuietDoubles(ObjectStoreTests):
    """A double without disturbances is a store like any other."""

    picklable = False

    @pytest.fixture(params=[DelegatingObjectStore, CountingStore, LatencyStore, FaultyStore])
    def store(self, request: pytest.FixtureRequest) -> ObjectStore:
        double: type[DelegatingObjectStore] = request.param
        return double(MemoryObjectStore())


@pytest.fixture
def inner() -> MemoryObjectStore:
    store = MemoryObjectStore()
    for number in range(4):
        store.put(f"object/{number}", b"0123456789")
    return store


def call_each(store: ObjectStore, etag: str) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: store.put("new", [b"abcd", b"efgh"]),
        "get": lambda: store.get("object/0", 2, 5),
        "get_into": lambda: store.get_into("object/0", 2, bytearray(4)),
        "list": lambda: list(store.list("object/")),
        "delete": lambda: store.delete(["object/1", "object/2"]),
        "head": lambda: store.head("object/0"),
        "replace": lambda: store.replace("object/0", b"replaced", etag),
    }


def etag_of(store: ObjectStore, key: str) -> str:
    return store.head(key).etag or ""


def test_the_counting_store_counts_each_operation_once(inner: MemoryObjectStore) -> None:
    store = CountingStore(inner)
    calls = call_each(store, etag_of(inner, "object/0"))
    for call in calls.values():
        call()
    assert store.requests == dict.fromkeys(calls, 1)
    assert [operation.name for operation in store.operations] == list(calls)
    assert [operation.number for operation in store.operations] == list(range(len(calls)))
    assert store.keys_of("delete") == ["object/1", "object/2"]
    assert store.keys_of("list") == ["object/"]
    assert store.bytes_up == len(b"abcdefgh") + len(b"replaced")
    assert store.bytes_down == 3 + 4


def test_empty_ranges_are_no_requests_to_count(inner: MemoryObjectStore) -> None:
    store = CountingStore(inner)
    store.get("object/0", 3, 3)
    store.get_into("object/0", 3, bytearray())
    assert store.operations == []


def test_failed_calls_count_as_requests_without_bytes(inner: MemoryObjectStore) -> None:
    store = CountingStore(inner)
    for call in (lambda: store.get("absent"), lambda: store.get_into("absent", 0, bytearray(9))):
        with pytest.raises(ObjectNotFoundError):
            call()
    assert store.requests == {"get": 1, "get_into": 1}
    assert store.bytes_down == 0


def test_reset_forgets_what_was_counted(inner: MemoryObjectStore) -> None:
    store = CountingStore(inner)
    store.put("new", b"data")
    store.get("new")
    store.reset()
    assert (store.operations, dict(store.requests), store.bytes_up, store.bytes_down) == ([], {}, 0, 0)
    store.head("new")
    assert store.operations == [Operation(0, "head", ("new",))]


def test_the_latency_store_waits_for_requests_and_bytes(inner: MemoryObjectStore) -> None:
    waited: list[float] = []
    store = LatencyStore(inner, request_s=0.5, bytes_per_s=10.0, sleep=waited.append)
    expected = {
        "put": [0.5, 0.4, 0.4],
        "get": [0.5, 0.3],
        "get_into": [0.5, 0.4],
        "list": [0.5],
        "delete": [0.5],
        "head": [0.5],
        "replace": [0.5, 0.8],
    }
    for name, call in call_each(store, etag_of(inner, "object/0")).items():
        waited.clear()
        call()
        assert waited == pytest.approx(expected[name]), name
    waited.clear()
    store.get("object/0", 1, 1)
    store.get_into("object/0", 1, bytearray())
    assert waited == []


def test_the_latency_store_sleeps_for_real_unless_told_otherwise(inner: MemoryObjectStore) -> None:
    store = LatencyStore(inner, request_s=0.02)
    began = time.monotonic()
    store.head("object/0")
    assert time.monotonic() - began >= 0.02


def content(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


_NAMES = ("put", "get", "get_into", "list", "delete", "head", "replace")


@pytest.mark.parametrize("name", _NAMES)
def test_a_fault_before_an_operation_lets_nothing_happen(inner: MemoryObjectStore, name: str) -> None:
    store = FaultyStore(inner, fail_at=0)
    before = content(inner)
    with pytest.raises(StoreUnavailableError):
        call_each(store, etag_of(inner, "object/0"))[name]()
    assert content(inner) == before
    assert [operation.name for operation in store.failed] == [name]


@pytest.mark.parametrize("name", _NAMES)
def test_a_fault_after_an_operation_loses_only_the_answer(name: str) -> None:
    outcomes: list[dict[str, bytes]] = []
    for fail_at in (None, 0):
        inner = MemoryObjectStore()
        for number in range(4):
            inner.put(f"object/{number}", b"0123456789")
        store = FaultyStore(inner, fail_at, moment="after")
        call = call_each(store, etag_of(inner, "object/0"))[name]
        if fail_at is None:
            call()
        else:
            with pytest.raises(StoreUnavailableError):
                call()
        outcomes.append(content(inner))
    assert outcomes[0] == outcomes[1]


def test_a_fault_after_keeps_the_store_s_own_error(inner: MemoryObjectStore) -> None:
    store = FaultyStore(inner, fail_at=0, moment="after")
    with pytest.raises(ObjectNotFoundError):
        store.get("absent")


def test_a_fault_during_a_put_breaks_off_the_body(inner: MemoryObjectStore) -> None:
    taken: list[bytes] = []

    class Noting(DelegatingObjectStore):
        def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
            with open_body(body) as parts:
                taken.extend(bytes(part) for part in parts)

    with pytest.raises(StoreUnavailableError):
        FaultyStore(Noting(inner), fail_at=0, moment="during").put("new", [b"abcd", b"efgh"])
    assert taken == [b"ab"]
    with pytest.raises(StoreUnavailableError):
        FaultyStore(inner, fail_at=0, moment="during").put("new", b"abcdefgh")
    with pytest.raises(ObjectNotFoundError):
        inner.get("new")


def test_a_fault_during_other_operations_does_half_of_them(inner: MemoryObjectStore) -> None:
    store = FaultyStore(inner, lambda _: True, moment="during")
    buffer = bytearray(b"........")
    with pytest.raises(StoreUnavailableError):
        store.get_into("object/0", 0, buffer)
    assert buffer == b"0123...."
    with pytest.raises(StoreUnavailableError):
        store.delete(["object/1", "object/2", "object/3"])
    assert sorted(content(inner)) == ["object/0", "object/3"]
    listing = store.list()
    assert next(listing).key == "object/0"
    with pytest.raises(StoreUnavailableError):
        next(listing)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_fault_closes_the_generator_that_was_the_body(inner: MemoryObjectStore, moment: Moment) -> None:
    closed: list[bool] = []

    def body() -> Generator[bytes]:
        try:
            yield b"some"
            yield b"more"
        finally:
            closed.append(True)

    kept = body()
    assert next(kept) == b"some"
    with pytest.raises(StoreUnavailableError):
        FaultyStore(inner, fail_at=0, moment=moment).put("new", kept)
    assert closed == [True]


def test_a_sweep_fails_each_operation_once_and_a_predicate_whenever_it_says(inner: MemoryObjectStore) -> None:
    for number in range(3):
        store = FaultyStore(inner, fail_at=number)
        outcomes: list[bool] = []
        for _ in range(4):
            try:
                store.head("object/0")
                outcomes.append(True)
            except StoreUnavailableError:
                outcomes.append(False)
        assert outcomes == [asked != number for asked in range(4)]
    store = FaultyStore(inner, lambda operation: operation.keys == ("object/1",), error=lambda: AccessDeniedError("no"))
    store.get("object/0")
    for _ in range(2):
        with pytest.raises(AccessDeniedError, match="no"):
            store.get("object/1")
    assert [operation.number for operation in store.failed] == [1, 2]


def test_a_part_of_a_sweep_has_the_first_of_each_kind_each_fourth_one_and_the_last() -> None:
    kinds = [*"ab" * 5, "c", "a"]
    assert numbers_to_sweep(kinds, whole=False) == [0, 1, 8, 9, 10, 11]
    assert numbers_to_sweep(kinds, whole=True) == list(range(12))
    with pytest.raises(AssertionError, match="no operation to sweep over"):
        numbers_to_sweep([])
