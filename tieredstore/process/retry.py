"""Retries: attempts, backoff with full jitter, and one deadline for the whole operation."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tieredstore.errors import ConfigError, StoreError, TieredStoreError
from tieredstore.metrics.counting import RETRIES, kind_of
from tieredstore.process.deadline import Deadline

_logger: Final = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an operation. ``number`` counts from 1.

    If ``number`` is 2 or more, an earlier attempt may have succeeded although its answer was lost.
    """

    number: int
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries after ``retryable`` errors.

    After the n-th attempt, ``call`` waits a random time between 0 and ``min(max_delay_s, base_delay_s * 2**(n-1))``.
    Clients that were throttled together then do not retry together ("full jitter"). ``timeout_s`` limits an operation
    with all attempts and waits, ``attempt_timeout_s`` one attempt. Clock, sleep and random are fields for tests.
    """

    attempts: int = 5
    base_delay_s: float = 0.1
    max_delay_s: float = 10.0
    timeout_s: float = 120.0
    attempt_timeout_s: float | None = None
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.timeout_s <= 0 or not 0 <= self.base_delay_s <= self.max_delay_s:
            raise ConfigError(f"invalid {self}: at least one attempt and a timeout above 0 s are needed")

    def call(self, what: str, operation: Callable[[Attempt], Result], *, deadline: Deadline | None = None) -> Result:
        """Return the first result of ``operation``; raise the last retryable error when attempts or time are used up.

        Raise other errors at once, because a retry would fail too. ``what`` names the operation in the log and in the
        final error. ``deadline`` is the deadline of an enclosing operation.
        """
        end = self.deadline().sooner(deadline)
        number = 0
        while True:
            number += 1
            try:
                return operation(Attempt(number, self._deadline_of_attempt(end)))
            except TieredStoreError as error:
                if not error.retryable:
                    raise
                delay = self.delay_s(number)
                if number >= self.attempts or delay >= end.remaining_s():
                    raise type(error)(f"{what} failed ({number} of {self.attempts} tries): {error}") from error
                if isinstance(error, StoreError):  # the metric counts only stores' retries
                    RETRIES.add(1, kind_of(error))
                _logger.info("%s: try %d failed, next in %.2f s: %s", what, number, delay, error)
                self.sleep(delay)

    def deadline(self) -> Deadline:
        """Return the deadline for an operation that begins now."""
        return Deadline.after(self.timeout_s, self.monotonic)

    def _deadline_of_attempt(self, end: Deadline) -> Deadline:
        if self.attempt_timeout_s is None:
            return end
        return Deadline.after(self.attempt_timeout_s, self.monotonic).sooner(end)

    def delay_s(self, number: int) -> float:
        """Return a random delay after failed attempt ``number`` (from 1)."""
        # Cap the exponent: 2**1024 does not fit a float.
        ceiling = min(self.max_delay_s, self.base_delay_s * 2.0 ** min(number - 1, 64))
        return ceiling * self.random()
