"""Futures of records, of which there are many: one costs little as long as nobody looks at it.

A future of Python's own begins with a lock, a condition and two lists, which take longer to make than the record takes
to be copied. Here they come when somebody looks, by whatever way of waiting, since all of them begin with the
condition. What becomes of a Message is known once for all of its records, and only futures at which somebody has looked
are told: one that the caller drops is gone at once, and a stream of them gives the garbage collector nothing to do.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Final, NamedTuple


class RecordPlace(NamedTuple):
    """Where a record stands: read partition, offset of its batch in the queue, Message, record of the Message."""

    partition: int
    offset: int
    message: int
    record: int


UNTOLD: Final = RecordPlace(-1, -1, -1, -1)
"""The place of a record of which nobody tells where it stands."""


class MessageOutcome:
    """What becomes of the records of one Message: a place of each, or one error. Thread-safe."""

    __slots__ = ("_error", "_is_known", "_lock", "_place", "_watched")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[RecordFuture] = []
        self._is_known = False
        self._place: tuple[int, int, int] | None = None
        self._error: BaseException | None = None

    def stands_at(self, partition: int, offset: int, message: int) -> None:
        """It is stored there."""
        self._know((partition, offset, message), None)

    def stands_somewhere(self) -> None:
        """It is stored, and nobody tells where."""
        self._know(None, None)

    def fail(self, error: BaseException) -> None:
        """It is not stored, as far as is known."""
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
        """Somebody looks at a future: it is done from the beginning, or told later."""
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
    """Under way from its beginning: a record that was sent cannot be taken back."""

    # What is not another's than the class's is not kept a second time in each of them.
    _state = "RUNNING"
    _result = None
    _exception = None

    def __init__(self, outcome: MessageOutcome, number: int) -> None:
        """Of record ``number`` of the Message that ``outcome`` is about."""
        # Not the base class's, which makes what is to be left out.
        self._outcome = outcome
        self.number = number

    def __getattr__(self, name: str) -> Any:
        # What is not there yet is asked for here, and but for these three nothing of a future is not there.
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        self._outcome.watch(self)
        return self.__dict__[name]

    @property
    def has_shape(self) -> bool:
        """Whether somebody has looked."""
        return "_condition" in self.__dict__

    def take_shape(self, place: RecordPlace | None, error: BaseException | None) -> None:
        """Become as one of Python's own, which is done if there is a place or an error."""
        self._waiters = []
        self._done_callbacks: list[Any] = []
        if place is not None or error is not None:
            self._result, self._exception, self._state = place, error, "FINISHED"
        # The last: whoever finds it finds all the rest.
        self._condition = threading.Condition()
