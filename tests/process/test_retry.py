"""Retries on a simulated clock: number, delays and duration."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_time import SimulatedClock
from tieredstore.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    ConfigError,
    StoreThrottledError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.metrics import REGISTRY
from tieredstore.process.deadline import Deadline, seconds
from tieredstore.process.retry import Attempt, RetryPolicy


def retries(kind: str) -> float:
    return REGISTRY.get_sample_value("tieredstore_store_retries_total", {"kind": kind}) or 0.0


def failing(clock: SimulatedClock, times: int, takes_s: float = 0.0) -> tuple[Callable[[Attempt], int], list[int]]:
    """Return an operation that fails ``times`` times, and the numbers of its attempts."""
    numbers: list[int] = []

    def operation(attempt: Attempt) -> int:
        numbers.append(attempt.number)
        clock.now += takes_s
        if len(numbers) <= times:
            raise StoreUnavailableError("not now")
        return 42

    return operation, numbers


def policy(clock: SimulatedClock, random: float = 1.0, **others: float) -> RetryPolicy:
    return RetryPolicy(
        attempts=int(others.get("attempts", 5)),
        base_delay_s=others.get("base_delay_s", 1.0),
        max_delay_s=others.get("max_delay_s", 10.0),
        timeout_s=others.get("timeout_s", 1000.0),
        monotonic=clock,
        sleep=clock.sleep,
        random=lambda: random,
    )


@given(st.integers(0, 4))
def test_the_first_success_is_the_result(failures: int) -> None:
    clock = SimulatedClock()
    operation, numbers = failing(clock, failures)
    assert policy(clock).call("it", operation) == 42
    assert numbers == list(range(1, failures + 2))


def test_the_last_failure_names_the_operation_and_the_tries() -> None:
    clock = SimulatedClock()
    operation, numbers = failing(clock, 9)
    with pytest.raises(StoreUnavailableError, match=r"reading it failed \(5 of 5 tries\): not now"):
        policy(clock).call("reading it", operation)
    assert len(numbers) == 5


def test_waits_double_up_to_the_ceiling() -> None:
    clock = SimulatedClock()
    with pytest.raises(StoreUnavailableError):
        policy(clock, attempts=7).call("it", failing(clock, 9)[0])
    assert clock.slept == [1, 2, 4, 8, 10, 10]


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_a_wait_lies_between_nothing_and_the_ceiling(random: float, number: int) -> None:
    assert 0 <= policy(SimulatedClock(), random).delay_s(number) <= 10


def test_another_error_is_not_tried_again() -> None:
    clock = SimulatedClock()
    tries: list[int] = []

    def denied(attempt: Attempt) -> None:
        tries.append(attempt.number)
        raise AccessDeniedError("no")

    with pytest.raises(AccessDeniedError, match="no"):
        policy(clock).call("it", denied)
    assert tries == [1]
    assert clock.slept == []


def test_any_error_that_is_retryable_is_tried_again_and_only_a_store_s_counts_as_a_store_s() -> None:
    clock = SimulatedClock()
    errors: list[TieredStoreError] = [BrokerUnavailableError("no leader"), StoreThrottledError("slower")]

    def operation(attempt: Attempt) -> int:
        if attempt.number <= len(errors):
            raise errors[attempt.number - 1]
        return attempt.number

    before = {kind: retries(kind) for kind in ("other", "throttled")}
    assert policy(clock).call("it", operation) == 3
    assert retries("other") == before["other"]
    assert retries("throttled") == before["throttled"] + 1
    assert clock.slept == [1, 2]


def test_no_try_begins_after_the_deadline() -> None:
    clock = SimulatedClock()
    operation, numbers = failing(clock, 99, takes_s=30)
    with pytest.raises(StoreUnavailableError, match="3 of 100"):
        policy(clock, attempts=100, timeout_s=70).call("it", operation)
    assert len(numbers) == 3
    assert clock.now <= 70 + 30


def test_the_sooner_of_two_deadlines_counts() -> None:
    clock = SimulatedClock()
    seen: list[float] = []
    outer = Deadline.after(5, clock)
    policy(clock, timeout_s=50).call("it", lambda attempt: seen.append(attempt.deadline.remaining_s()), deadline=outer)
    policy(clock, timeout_s=3).call("it", lambda attempt: seen.append(attempt.deadline.remaining_s()), deadline=outer)
    assert seen == [5, 3]


def test_a_deadline_that_has_passed_says_what_it_was_for() -> None:
    clock = SimulatedClock()
    deadline = Deadline.after(1, clock)
    deadline.check("reading")
    clock.now += 1
    with pytest.raises(StoreUnavailableError, match="reading did not end within its deadline"):
        deadline.check("reading")


@pytest.mark.parametrize("wrong", [{"attempts": 0.0}, {"timeout_s": 0.0}, {"base_delay_s": -1.0}, {"max_delay_s": 0.5}])
def test_a_policy_that_cannot_be_kept_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        policy(SimulatedClock(), **wrong)


def test_a_policy_is_picklable() -> None:
    patient = RetryPolicy(attempts=7, timeout_s=3)
    assert pickle.loads(pickle.dumps(patient)) == patient


def test_each_try_has_a_deadline_of_its_own_and_none_outlives_the_call() -> None:
    clock = SimulatedClock()
    limited = replace(policy(clock, timeout_s=12.0, attempts=3), attempt_timeout_s=4.0)
    ends: list[float] = []

    def operation(attempt: Attempt) -> int:
        ends.append(attempt.deadline.at_s)
        clock.now += 3.5
        raise StoreUnavailableError("not now")

    with pytest.raises(StoreUnavailableError):
        limited.call("it", operation)
    # Attempts take 3.5 s, with waits of 1 s and 2 s between them, so the third begins at 10. Its own limit, 14, is
    # after the call's deadline, 12.
    assert ends == [4.0, 8.5, 12.0]


@pytest.mark.parametrize(("milliseconds", "expected"), [(None, None), (1, 0.001), (1500, 1.5)])
def test_time_outs_of_the_settings_are_milliseconds(milliseconds: int | None, expected: float | None) -> None:
    assert seconds(milliseconds) == expected
