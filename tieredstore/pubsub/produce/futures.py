"""Futures of records. Each record has a future, so an unused future must be cheap.

Python's future begins with a lock, a condition and two lists. Creating these takes longer than copying the record, so
this future creates them only at its first use. Python's methods that wait begin by reading the attribute with the
condition. Until the first use this attribute is missing, so a read of it calls ``__getattr__``.

A Message's outcome is stored once for all of its records, and refers only to the futures in use. A future that the
caller drops unused is therefore freed at once, without the garbage collector.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Final, NamedTuple


class RecordPlace(NamedTuple):
    """Place of a record: the read partition, and the offset of the record's batch in the queue. ``message`` is the
    Message's number in the batch, and ``record`` the record's number in the Message."""

    partition: int
    offset: int
    message: int
    record: int


UNREPORTED: Final = RecordPlace(-1, -1, -1, -1)
"""The place of a record that a broker has stored without reporting the place."""


class MessageOutcome:
    """Outcome of one Message's records: the place of each record, or one error for all. Thread-safe."""

    __slots__ = ("_error", "_is_known", "_lock", "_place", "_watched")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[RecordFuture] = []
        self._is_known = False
        self._place: tuple[int, int, int] | None = None
        self._error: BaseException | None = None

    def succeed(self, place: tuple[int, int, int] | None) -> None:
        """Record that the Message is stored at ``place``: partition, offset and Message. If ``place`` is None, the
        place is unreported."""
        self._know(place, None)

    def fail(self, error: BaseException) -> None:
        """Record the failure of all the Message's records. The Message may be stored nevertheless."""
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
        """Create a future's attributes at its first use. Complete the future now, or once the Message's outcome is
        known."""
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
    """A future of one record. It is running from the start, because a sent record cannot be cancelled."""

    # Initial values are class attributes, which saves memory in each future.
    _state = "RUNNING"
    _result = None
    _exception = None

    def __init__(self, outcome: MessageOutcome, number: int) -> None:
        """Make the future of record ``number`` in the Message of ``outcome``."""
        # Do not call the base class's __init__, because it creates the lock and the lists, which most futures never
        # need.
        self._outcome = outcome
        self.number = number

    def __getattr__(self, name: str) -> object:
        # Python calls this method only for a missing attribute. These three attributes are missing until the future's
        # first use.
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        self._outcome.watch(self)
        return self.__dict__[name]

    @property
    def has_shape(self) -> bool:
        """True once the future was used."""
        return "_condition" in self.__dict__

    def take_shape(self, place: RecordPlace | None, error: BaseException | None) -> None:
        """Create the attributes of a Python future; complete the future if there is a place or an error."""
        self._waiters = []
        self._done_callbacks: list[Any] = []
        if place is not None or error is not None:
            self._result, self._exception, self._state = place, error, "FINISHED"
        # Set the condition last, so that a thread that finds the condition finds all other attributes too.
        self._condition = threading.Condition()
