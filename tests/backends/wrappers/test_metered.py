"""The counting store: it counts each call, and changes nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.support.records.small_segments import memory_settings
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import ScriptedStore
from tieredstore import metrics
from tieredstore.backends.base import Body, ObjectInfo, ObjectStore
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.registry import BY_SETTING
from tieredstore.backends.wrappers import stack
from tieredstore.backends.wrappers.stack import MeteredStore, wrap
from tieredstore.config import Settings, settings_from
from tieredstore.errors import AccessDeniedError
from tieredstore.metrics import counting
from tieredstore.testing.object_store_tests import ObjectStoreTests

STORE_SECONDS = 2.0


class TestMeteredStore(ObjectStoreTests):
    listed_objects = 250  # few, because the wrapped store has its own tests

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return MeteredStore(FilesystemObjectStore(tmp_path), "conformance")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    stepped_clock = SimulatedClock()
    monkeypatch.setattr(counting, "perf_counter", stepped_clock)
    monkeypatch.setattr(stack, "perf_counter", stepped_clock)
    return stepped_clock


class SlowStore(MemoryObjectStore):
    """A store that takes two seconds for a put and for each listed object, and records bodies and keys."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self.clock = clock
        self.bodies: list[Body] = []
        self.keys: list[Iterable[str]] = []

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self.bodies.append(body)
        super().put(key, body, if_absent=if_absent)
        self.clock.now += STORE_SECONDS

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after):
            self.clock.now += STORE_SECONDS
            yield info

    def delete(self, keys: Iterable[str]) -> None:
        self.keys.append(keys)
        super().delete(keys)


def seconds(store: str, operation: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(
        "tieredstore_store_request_seconds_sum", {"store": store, "operation": operation}
    )


def moved(name: str, store: str, how: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, {"store": store, "how": how}) or 0.0


def test_the_time_of_a_put_is_without_the_time_that_its_body_takes_to_come(clock: SimulatedClock) -> None:
    def body() -> Iterator[bytes]:
        for _ in range(3):
            clock.now += 100.0
            yield b"1234"
        clock.now += 100.0

    MeteredStore(SlowStore(clock), "slow-body").put("a", body())
    assert clock.now == 402.0
    assert seconds("slow-body", "put") == STORE_SECONDS
    assert moved("tieredstore_store_bytes_total", "slow-body", "up") == 12


def test_so_it_is_where_the_body_fails(clock: SimulatedClock) -> None:
    def body() -> Iterator[bytes]:
        yield b"1234"
        clock.now += 100.0
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        MeteredStore(SlowStore(clock), "failing-body").put("a", body())
    assert seconds("failing-body", "put") == 0.0
    assert moved("tieredstore_store_bytes_total", "failing-body", "up") == 0


def test_the_time_of_a_listing_is_without_what_its_taker_does_between(clock: SimulatedClock) -> None:
    store = MeteredStore(SlowStore(clock), "slow-taker")
    for key in "abc":
        store.inner.put(key, b"")
    for _ in store.list():
        clock.now += 100.0
    assert seconds("slow-taker", "list") == 3 * STORE_SECONDS


def test_a_listing_given_up_is_timed_until_then_and_no_error(clock: SimulatedClock) -> None:
    store = MeteredStore(SlowStore(clock), "given-up")
    for key in "abc":
        store.inner.put(key, b"")
    taken = cast("Generator[ObjectInfo, None, None]", store.list())
    next(taken)
    clock.now += 100.0
    taken.close()
    assert seconds("given-up", "list") == STORE_SECONDS
    labels = {"store": "given-up", "operation": "list", "kind": "other"}
    assert metrics.REGISTRY.get_sample_value("tieredstore_store_errors_total", labels) is None


@pytest.mark.parametrize("body", [b"12345", bytearray(b"12345"), memoryview(b"12345")], ids=["bytes", "array", "view"])
def test_a_buffer_reaches_the_store_as_it_is(clock: SimulatedClock, body: bytes | bytearray | memoryview) -> None:
    slow = SlowStore(clock)
    before = moved("tieredstore_store_bytes_total", "buffers", "up")
    MeteredStore(slow, "buffers").put("a", body)
    assert slow.bodies[0] is body
    assert moved("tieredstore_store_bytes_total", "buffers", "up") - before == 5


def test_keys_to_delete_flow_through_and_are_counted(clock: SimulatedClock) -> None:
    store = MeteredStore(slow := SlowStore(clock), "flowing-keys")
    endless = iter(str(number) for number in range(1000))
    store.delete(endless)
    assert not isinstance(slow.keys[0], tuple | list)
    assert moved("tieredstore_store_objects_total", "flowing-keys", "deleted") == 1000


def test_a_delete_that_fails_counts_nothing_as_deleted() -> None:
    denying = ScriptedStore(MemoryObjectStore()).on("delete", do=AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        MeteredStore(denying, "denying").delete(["a", "b"])
    assert moved("tieredstore_store_objects_total", "denying", "deleted") == 0


class OwnStore(MemoryObjectStore):
    """A user's class."""


def labelled(store: ObjectStore, settings: Settings) -> str:
    """Return the label under which the wrapped store is counted."""
    metered_store = wrap(store, settings)
    assert isinstance(metered_store, MeteredStore)
    return str(metered_store.__reduce__()[1][1])


@pytest.mark.parametrize("name", sorted(BY_SETTING))
def test_the_label_is_the_store_s_name_in_the_settings(name: str) -> None:
    settings = memory_settings().model_copy(update={"storage_backend": name})
    assert labelled(MemoryObjectStore(), settings) == name


def test_the_label_of_a_user_s_store_is_its_class() -> None:
    settings = settings_from({"storage.backend.class": "my.module:OwnStore", "chunk.size": "1"})
    assert labelled(OwnStore(), settings) == "OwnStore"


def test_an_unpickled_store_counts_under_the_same_label(tmp_path: Path) -> None:
    store = MeteredStore(FilesystemObjectStore(tmp_path), "pickled")
    pickle.loads(pickle.dumps(store)).put("a", b"123")
    assert store.get("a") == b"123"
    assert moved("tieredstore_store_bytes_total", "pickled", "up") == 3
    assert moved("tieredstore_store_bytes_total", "pickled", "down") == 3
