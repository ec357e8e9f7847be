"""Futures of records. There is one per record, so a future must be cheap until it is used.

Python's future begins with a lock, a condition and two lists. Making them takes longer than copying the record. Here
they are made at the first use: every way of waiting begins with the condition. A Message's outcome is stored once for
all of its records, and notifies only used futures. A dropped future is therefore freed at once, without the garbage
collector.
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


UNREPORTED: Final = RecordPlace(-1, -1, -1, -1)
"""The place of a record that was stored at an unreported place."""


class MessageOutcome:
    """Outcome of one Message's records: the place of each, or one error. Thread-safe."""

    __slots__ = ("_error", "_is_known", "_lock", "_place", "_watched")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[RecordFuture] = []
        self._is_known = False
        self._place: tuple[int, int, int] | None = None
        self._error: BaseException | None = None

    def succeed(self, place: tuple[int, int, int] | None) -> None:
        """Record that the Message is stored: partition, offset and Message, or None for an unreported place."""
        self._know(place, None)

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
        """Prepare a future at its first use; complete it now, or when the Message's outcome is known."""
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
        return UNREPORTED if self._place is None else RecordPlace(*self._place, number)


class RecordFuture(Future[RecordPlace]):
    """A future of one record. It is running from the start: a sent record cannot be cancelled."""

    # Hold the initial values in class attributes, to save memory per future.
    _state = "RUNNING"
    _result = None
    _exception = None

    def __init__(self, outcome: MessageOutcome, number: int) -> None:
        """Make the future of record ``number`` in the Message of ``outcome``."""
        # Skip the base class's __init__, which makes the lock and lists.
        self._outcome = outcome
        self.number = number

    def __getattr__(self, name: str) -> Any:
        # Make one of the three attributes that can be missing: Python calls this function for them.
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
        # Set the condition last: a thread that sees it then sees all other attributes too.
        self._condition = threading.Condition()
