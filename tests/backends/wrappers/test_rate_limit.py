"""The rate limit, with tokens counted on the test's own clock."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_time import SimulatedClock
from tieredstore.backends.base import Body
from tieredstore.backends.wrappers.stack import TokenBucket, limit_rate


def bucket(clock: SimulatedClock, rate: int) -> TokenBucket:
    return TokenBucket(rate, monotonic=clock, sleep=clock.sleep)


@given(st.integers(1, 1000), st.lists(st.integers(0, 5000), max_size=30))
def test_what_passes_is_one_burst_and_the_rate(rate: int, takes: list[int]) -> None:
    clock = SimulatedClock()
    tokens = bucket(clock, rate)
    for count in takes:
        tokens.take(count)
    total = sum(takes)
    assert clock.now == pytest.approx(max(0.0, (total - rate) / rate), abs=1e-6)


def test_a_bucket_at_rest_fills_to_one_second_and_no_more() -> None:
    clock = SimulatedClock()
    tokens = bucket(clock, 100)
    tokens.take(100)
    clock.now += 60
    tokens.take(100)
    assert clock.slept == []
    tokens.take(50)
    assert clock.slept == [0.5]


def test_all_transfers_share_the_rate() -> None:
    clock = SimulatedClock()
    tokens = bucket(clock, 1000)
    bodies: list[Body] = [b"x" * 3000, [b"y" * 700] * 4, bytearray(200)]
    passed = sum(len(bytes(piece)) for body in bodies for piece in limit_rate(body, tokens))
    assert passed == 6000
    assert clock.now == pytest.approx(5.0)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 7))
def test_a_limited_body_is_the_body(pieces: list[bytes], rate: int) -> None:
    tokens = bucket(SimulatedClock(), rate)
    passed_on = [bytes(piece) for piece in limit_rate(pieces, tokens)]
    assert b"".join(passed_on) == b"".join(pieces)
    assert all(len(piece) <= rate for piece in passed_on)


def test_threads_wait_for_each_other_s_bytes() -> None:
    clock = SimulatedClock()
    waits: list[float] = []
    tokens = TokenBucket(10, monotonic=clock, sleep=waits.append)
    threads = [threading.Thread(target=tokens.take, args=(10,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == [1, 2, 3, 4]
