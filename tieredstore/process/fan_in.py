"""Several streams made side by side and read as one: in their order, or as what is in them comes."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NoReturn, Self, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.interruption import Interrupted, woken_by_interruption
from tieredstore.process.thread_pool import ThreadPool

_Item = TypeVar("_Item")

_LOOK_S: Final = 1.0
"""How often one who waits looks up by himself: for a thread that ended without a word, as at the process's end."""


@dataclass(eq=False, slots=True)
class _Stream(Generic[_Item]):
    """A stream that was begun: what it has made and nobody has taken, with the weights, and how it ended."""

    items: deque[tuple[_Item, int]] = field(default_factory=deque[tuple[_Item, int]])
    is_ended: bool = False
    failure: BaseException | None = None


class FanIn(Iterator[_Item], Generic[_Item]):
    """What the streams give, ``at_once`` of them made by threads of this object's own. For one reader at a time.

    A stream is taken from ``streams``, on one of the threads, when the one before it has been begun. ``ordered``:
    stream after stream; else as it comes. What is made and not yet taken weighs ``max_weight`` together at most (by
    ``weigh``), and beyond that one item, for which the reader waits. When a stream fails, what comes before its error
    is still given where there is an order, then the error is raised; no stream is begun any more. Close it: streams
    under way end with their next item, and are not waited for. Threads start when the first item is asked for.
    """

    def __init__(
        self,
        streams: Iterable[Callable[[], Iterator[_Item]]],
        *,
        at_once: int,
        ordered: bool,
        weigh: Callable[[_Item], int],
        max_weight: int,
    ) -> None:
        self._streams = iter(streams)
        self._taking = threading.Lock()
        self._at_once = at_once
        self._ordered = ordered
        self._weigh = weigh
        self._max_weight = max_weight
        self._changed = threading.Condition()
        self._open: list[_Stream[_Item]] = []
        """Those that were begun and have not given all, in the order in which they were begun."""
        self._are_all_begun = False
        self._weight = 0
        self._is_closed = False
        self._is_interrupted = False
        self._pool: ThreadPool | None = None
        self._process = os.getpid()
        self._at_end = ExitStack()
        _OPEN.add(self)

    def __next__(self) -> _Item:
        if os.getpid() != self._process:
            raise AlreadyClosedError(
                "this was begun by the parent process, whose threads a fork leaves behind; begin anew"
            )
        self._start()
        with self._changed:
            while True:
                if self._is_interrupted:
                    raise Interrupted
                # A reader that another thread closed must not go on with what was left.
                if self._is_closed:
                    break
                if (item := self._take()) is not None:
                    return item[0]
                if self._are_all_begun and not self._open:
                    break
                self._changed.wait(_LOOK_S)
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the streams under way at their next item; nothing is given any more."""
        if os.getpid() != self._process:
            return  # locks and threads are the parent's
        with self._changed:
            self._is_closed = True
            self._open.clear()
            self._changed.notify_all()
        self._at_end.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Close it for a reader that was forgotten: takes no lock, as a garbage collection may come anywhere.

        Threads that wait see it when they look up, and their end forgets what was made.
        """
        self._is_closed = True
        self._at_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._pool is None and not self._is_closed:
            self._pool = ThreadPool(self._at_once, "tieredstore-fan-in")
            self._at_end.enter_context(woken_by_interruption(self._interrupt))
            for _ in range(self._at_once):
                self._pool.submit(self._work)

    def _interrupt(self) -> None:
        # Called on a thread that must not wait, and the lock may be anybody's: who waits looks up by himself.
        self._is_interrupted = True

    def _take(self) -> tuple[_Item, int] | None:
        """The next item, under the lock; None if it is not there yet. Leaves streams behind that have given all."""
        for stream in list(self._open):
            if stream.items:
                item = stream.items.popleft()
                self._weight -= item[1]
                self._changed.notify_all()
                return item
            if stream.is_ended and stream.failure is None:
                self._open.remove(stream)
                self._changed.notify_all()
            elif self._ordered:
                break
        self._raise_failure(self._open[:1] if self._ordered else self._open)
        return None

    def _raise_failure(self, streams: Iterable[_Stream[_Item]]) -> None:
        failure = next((stream.failure for stream in streams if stream.failure is not None), None)
        if failure is not None:
            self._is_closed = True
            self._changed.notify_all()
            raise failure

    def _work(self) -> None:
        """One thread: a stream after the other."""
        while (begun := self._next_stream()) is not None:
            make, stream = begun
            failure: BaseException | None = None
            try:
                items = make()
                with ExitStack() as closed_behind:
                    if isinstance(items, Generator):
                        closed_behind.callback(items.close)
                    for item in items:
                        if not self._put(stream, item):
                            break
            except BaseException as error:  # noqa: BLE001  the reader's to see, whatever it is
                failure = error
            with self._changed:
                stream.is_ended, stream.failure = True, failure
                self._changed.notify_all()

    def _next_stream(self) -> tuple[Callable[[], Iterator[_Item]], _Stream[_Item]] | None:
        """The next one, begun; one that cannot be had fails in its turn. None where there is none."""
        with self._taking:
            with self._changed:
                if self._is_closed or self._are_all_begun or any(stream.failure is not None for stream in self._open):
                    return None
            # Without the lock that the reader waits with: what makes the streams may ask a store.
            make: Callable[[], Iterator[_Item]] | None
            try:
                make = next(self._streams, None)
            except BaseException as error:  # noqa: BLE001  as in _work
                make = partial(_raise, error)
            with self._changed:
                if make is None:
                    self._are_all_begun = True
                    self._changed.notify_all()
                    return None
                stream = _Stream[_Item]()
                self._open.append(stream)
                return make, stream

    def _put(self, stream: _Stream[_Item], item: _Item) -> bool:
        """Add an item as soon as there is room for it; False once nobody wants it any more."""
        weight = self._weigh(item)
        with self._changed:
            while not self._is_closed:
                if self._has_room(stream, weight):
                    stream.items.append((item, weight))
                    self._weight += weight
                    self._changed.notify_all()
                    return True
                self._changed.wait(_LOOK_S)
            return False

    def _has_room(self, stream: _Stream[_Item], weight: int) -> bool:
        if self._weight + weight <= self._max_weight:
            return True
        # What the reader waits for comes in whatever it weighs, so that streams further on can never block it.
        if self._ordered:
            return stream is self._open[0] and not stream.items
        return not any(other.items for other in self._open)


_OPEN: Final[weakref.WeakSet[FanIn[Any]]] = weakref.WeakSet()


def _close_all() -> None:
    """When the process ends: a thread that waits for room would still be there when Python is taken down."""
    for open_one in list(_OPEN):
        open_one.close()


# After the pools' own, which is therefore called later.
atexit.register(_close_all)


def _raise(error: BaseException) -> NoReturn:
    raise error
