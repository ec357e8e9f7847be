"""Reading ahead is bounded, keeps the order, and stops at the first error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.catalog_stores import manager_of, partition_of, run_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import load_catalog
from tieredstore.process.parallel import in_parallel
from tieredstore.testing.doubles import CountingStore


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_results_come_in_the_order_of_the_items(pool: ThreadPoolExecutor) -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 5 == 0 else 0)
        return number * 2

    assert list(in_parallel(pool, slow_first, range(30), at_once=7)) == [2 * i for i in range(30)]
    assert list(in_parallel(pool, slow_first, [], at_once=1)) == []


def test_no_more_items_are_taken_than_there_is_room_for(pool: ThreadPoolExecutor) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = in_parallel(pool, lambda number: number, items(), at_once=8)
    for number in range(50):
        assert next(results) == number
        assert len(taken) <= number + 1 + 8


def test_an_error_takes_its_place_and_what_has_not_begun_is_dropped() -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise ValueError("two")
        time.sleep(0.01)
        return number

    with ThreadPoolExecutor(1) as single:
        results = in_parallel(single, job, range(1000), at_once=100)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ValueError, match="two"):
            next(results)
    assert len(begun) < 90


class Crowded(CountingStore):
    """Notes how many reads are under way at once."""

    def __init__(self, inner: MemoryObjectStore) -> None:
        super().__init__(inner)
        self.now = self.most = 0
        self.guard = threading.Lock()

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        with self.guard:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.001)
        with self.guard:
            self.now -= 1
        return super().get(key, start, stop)


def test_manifests_are_read_by_no_more_readers_than_asked_for() -> None:
    store = Crowded(MemoryObjectStore())
    for segment in run_of(100, partition_of()):
        segment.put(store)
    with manager_of(store) as manager:
        load_catalog(manager, readers=5)
    assert 1 < store.most <= 5
