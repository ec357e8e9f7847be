"""The bounded map, compared with a list that does the same more slowly."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fresh_python import run_fresh
from tests.support.simulated_time import SimulatedClock
from tieredstore.process.bounded_map import BoundedMap


@dataclass
class Model:
    """Expected contents of the map: (key, value, last use), the least recently used first."""

    limit: int
    retention: float
    entry_cost: int = 0
    free_entries: int = 0
    held: list[tuple[str, bytes, float]] = field(default_factory=list[tuple[str, bytes, float]])

    def expire(self, now: float) -> None:
        if self.retention >= 0:
            self.held = [entry for entry in self.held if now - entry[2] < self.retention]

    def get(self, key: str, now: float) -> bytes | None:
        self.expire(now)
        for entry in self.held:
            if entry[0] == key:
                self.held.remove(entry)
                self.held.append((key, entry[1], now))
                return entry[1]
        return None

    def put(self, key: str, value: bytes, now: float) -> None:
        self.expire(now)
        self.discard(key)
        if 0 <= self.limit < len(value):
            return
        self.held.append((key, value, now))
        while 0 <= self.limit < self.weight + self.entry_cost * max(0, len(self.held) - self.free_entries):
            del self.held[0]

    def discard(self, key: str) -> None:
        self.held = [entry for entry in self.held if entry[0] != key]

    @property
    def weight(self) -> int:
        return sum(len(value) for _, value, _ in self.held)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd"), st.binary(max_size=6)),
        st.tuples(st.just("get"), st.sampled_from("abcd"), st.just(b"")),
        st.tuples(st.just("discard"), st.sampled_from("abcd"), st.just(b"")),
        st.tuples(st.just("wait"), st.sampled_from("abcd"), st.binary(min_size=1, max_size=4)),
    ),
    max_size=40,
)


@given(
    limit=st.integers(-1, 12),
    retention_ms=st.sampled_from([-1, 0, 1000, 3000]),
    cost=st.sampled_from([(0, 0), (1, 2), (5, 0), (100, 1)]),
    steps=STEPS,
)
def test_it_holds_what_the_rules_say(
    limit: int, retention_ms: int, cost: tuple[int, int], steps: list[tuple[str, str, bytes]]
) -> None:
    clock = SimulatedClock()
    tested = BoundedMap[str, bytes](
        limit, weigh=len, entry_cost=cost[0], free_entries=cost[1], retention_ms=retention_ms, clock=clock
    )
    model = Model(limit, retention_ms / 1000, *cost)
    for step, key, value in steps:
        if step == "put":
            tested.put(key, value)
            model.put(key, value, clock.now)
        elif step == "get":
            assert tested.get(key) == model.get(key, clock.now)
        elif step == "discard":
            tested.discard(key)
            model.discard(key)
        else:
            clock.now += len(value)
        model.expire(clock.now)
        assert {name for name in "abcd" if name in tested} == {entry[0] for entry in model.held}
        assert (tested.stats.entries, tested.stats.weight) == (len(model.held), model.weight)


def test_without_weights_the_limit_counts_entries_and_the_least_recently_used_goes() -> None:
    tested = BoundedMap[str, str](2)
    for key in "ab":
        tested.put(key, key.upper())
    assert tested.get("a") == "A"
    tested.put("c", "C")
    assert [tested.get(key) for key in "abc"] == ["A", None, "C"]
    assert len(tested) == 2


def test_asking_whether_it_is_there_is_no_use() -> None:
    tested = BoundedMap[str, str](2)
    tested.put("a", "A")
    tested.put("b", "B")
    assert "a" in tested
    tested.put("c", "C")
    assert "a" not in tested


def test_an_entry_heavier_than_the_limit_pushes_only_its_own_forerunner_out() -> None:
    tested = BoundedMap[str, bytes](4, weigh=len)
    tested.put("a", b"12")
    tested.put("b", b"12")
    tested.put("a", b"12345")
    assert tested.get("a") is None
    assert tested.get("b") == b"12"
    assert tested.stats.evictions == 0


def test_each_use_puts_the_end_off() -> None:
    clock = SimulatedClock()
    tested = BoundedMap[str, str](9, retention_ms=1000, clock=clock)
    tested.put("a", "A")
    for _ in range(5):
        clock.now += 0.999
        assert tested.get("a") == "A"
    clock.now += 1
    assert tested.get("a") is None


@pytest.mark.slow
def test_expired_values_are_let_go_of_by_the_next_call() -> None:
    class Value:
        pass

    clock = SimulatedClock()
    tested = BoundedMap[str, Value](9, retention_ms=10, clock=clock)
    value = Value()
    tested.put("a", value)
    seen = weakref.ref(value)
    del value
    clock.now += 1
    assert tested.get("b") is None
    gc.collect()
    assert seen() is None


def test_it_counts_what_happened() -> None:
    clock = SimulatedClock()
    tested = BoundedMap[str, bytes](4, weigh=len, retention_ms=1000, clock=clock)
    tested.put("a", b"123")
    tested.put("b", b"12")  # evicts a
    tested.put("b", b"1")  # replaces
    assert [tested.get(key) for key in "aab"] == [None, None, b"1"]
    clock.now += 1  # b is too old
    stats = tested.stats
    assert (stats.entries, stats.weight) == (0, 0)
    assert (stats.evictions, stats.evicted_weight) == (2, 4)
    tested.put("c", b"1")
    tested.clear()
    assert (len(tested), tested.stats.weight, tested.stats.evictions) == (0, 0, 2)


def test_threads_never_break_its_sums() -> None:
    tested = BoundedMap[int, bytes](500, weigh=len)

    def work(seed: int) -> None:
        for step in range(2000):
            key = (seed * 7919 + step * 31) % 60
            tested.put(key, bytes(key))
            value = tested.get((key * 3) % 60)
            assert value is None or len(value) == (key * 3) % 60
            if step % 50 == 0:
                tested.discard(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tested.stats.weight == sum(len(tested.get(key) or b"") for key in range(60)) <= 500


def test_a_forked_child_starts_empty_and_is_not_locked_out() -> None:
    run_fresh("""
        import os
        from tieredstore.process.bounded_map import BoundedMap

        tested = BoundedMap(9)
        tested.put("a", "A")
        with tested._lock:  # as if another thread were in the middle of a call
            child = os.fork()
            if child == 0:
                is_empty = tested.get("a") is None
                tested.put("b", "B")
                os._exit(0 if is_empty and tested.get("b") == "B" and len(tested) == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert tested.get("a") == "A"
    """)
