"""Futures of records, cheap until they are used, since there is one per record.

A future of Python begins with a lock, a condition and two lists, which take longer to make than the record takes to
copy. Here they are made at the first use: every way of waiting begins with the condition. The outcome of a Message is
stored once for all of its records, and only used futures are notified. So a dropped future is freed at once, and a
stream of them does not burden the garbage collector.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Final, NamedTuple


class RecordPlace(NamedTuple):
    """Place of a record: read partition, offset of its batch in the queue, Message, record in the Message."""

    partition: int
    offset: int
    message: int
    record: int


UNTOLD: Final = RecordPlace(-1, -1, -1, -1)
"""The place of a record that is not reported."""


class MessageOutcome:
    """Outcome of one Message's records: the place of each, or one error. Thread-safe."""

    __slots__ = ("_error", "_is_known", "_lock", "_place", "_watched")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[RecordFuture] = []
        self._is_known = False
        self._place: tuple[int, int, int] | None = None
        self._error: BaseException | None = None

    def stands_at(self, partition: int, offset: int, message: int) -> None:
        """Record that the Message is stored at this place."""
        self._know((partition, offset, message), None)

    def stands_somewhere(self) -> None:
        """Record that the Message is stored at an unreported place."""
        self._know(None, None)

    def fail(self, error: BaseException) -> None:
        """Record a failure; the Message may be stored anyway."""
        self._know(None, error)

    def _know(self, place: tuple[int, int, int] | None, error: BaseException | None) -> None:
        with self._lock:
            self._place, self._error, self._is_known = place, error, True
            watched, self._watched = self._watched, []
        for future in watched:
            if error is None:
                future.set_result(self._place_of(future.number))
            else:
                future.set_exception(error)

    def watch(self, future: RecordFuture) -> None:
        """Complete a future at its first use, or later with the Message."""
        with self._lock:
            if future.has_shape:
                return
            if not self._is_known:
                self._watched.append(future)
                future.take_shape(None, None)
            elif self._error is None:
                future.take_shape(self._place_of(future.number), None)
            else:
                future.take_shape(None, self._error)

    def _place_of(self, number: int) -> RecordPlace:
        return UNTOLD if self._place is None else RecordPlace(*self._place, number)


class RecordFuture(Future[RecordPlace]):
    """A future of one record. It is running from the start: a sent record cannot be cancelled."""

    # Class attributes hold the initial values, to save memory per future.
    _state = "RUNNING"
    _result = None
    _exception = None

    def __init__(self, outcome: MessageOutcome, number: int) -> None:
        """A future of record ``number`` of the Message of ``outcome``."""
        # Skip the base class's __init__, which makes the lock and lists.
        self._outcome = outcome
        self.number = number

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes, which can only be these three.
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        self._outcome.watch(self)
        return self.__dict__[name]

    @property
    def has_shape(self) -> bool:
        """True once the future was used."""
        return "_condition" in self.__dict__

    def take_shape(self, place: RecordPlace | None, error: BaseException | None) -> None:
        """Make the attributes of a Python future, completed if there is a place or an error."""
        self._waiters = []
        self._done_callbacks: list[Any] = []
        if place is not None or error is not None:
            self._result, self._exception, self._state = place, error, "FINISHED"
        # Set last: a thread that sees it sees all the rest.
        self._condition = threading.Condition()
