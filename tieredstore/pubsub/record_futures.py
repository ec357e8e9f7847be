"""Futures of records, of which there are many: one costs little as long as nobody looks at it.

A future of Python's own begins with a lock, a condition and two lists, which take longer to make than the record takes
to be copied. Here they come when somebody looks, by whatever way of waiting, since all of them begin with the
condition; those of a Message at which nobody has looked are done together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple


class RecordPlace(NamedTuple):
    """Where a record stands: read partition, offset of its batch in the queue, Message, record of the Message."""

    partition: int
    offset: int
    message: int
    record: int


class RecordFuture(Future[RecordPlace]):
    """Under way from its beginning: a record that was sent cannot be taken back."""

    # What is not another's than the class's is not kept a second time in each of them.
    _state = "RUNNING"
    _result = None
    _exception = None

    def __init__(self, lock: threading.Lock) -> None:
        """``lock`` is that of all futures of a Message."""
        # Not the base class's, which makes what is to be left out.
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        # What is not there yet is asked for here, and but for these three nothing of a future is not there.
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        with self._lock:
            if "_condition" not in self.__dict__:
                self._waiters = []
                self._done_callbacks: list[Any] = []
                self._condition = threading.Condition()
        return self.__dict__[name]

    def end_unseen(self, place: RecordPlace | None, error: BaseException | None) -> bool:
        """Done, if nobody has looked; the lock is held, without which nobody can begin to."""
        if "_condition" in self.__dict__:
            return False
        if error is None:
            self._result = place
        else:
            self._exception = error
        self._state = "FINISHED"
        return True


def give_places(futures: Sequence[RecordFuture], lock: threading.Lock, places: Iterable[RecordPlace]) -> None:
    """The records of a Message stand at these places."""
    with lock:
        seen = [(each, place) for each, place in zip(futures, places, strict=True) if not each.end_unseen(place, None)]
    for future, place in seen:
        future.set_result(place)


def give_error(futures: Sequence[RecordFuture], lock: threading.Lock, error: BaseException) -> None:
    """The records of a Message have failed."""
    with lock:
        seen = [each for each in futures if not each.end_unseen(None, error)]
    for future in seen:
        future.set_exception(error)
