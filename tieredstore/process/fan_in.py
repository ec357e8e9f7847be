"""Reads parallel streams as one stream, in order."""

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
from typing import Any, Final, Generic, NoReturn, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.closing import Closing
from tieredstore.process.interruption import Interrupted, wake_on_interruption
from tieredstore.process.thread_pool import ThreadPool

_Item = TypeVar("_Item")

_LOOK_S: Final = 1.0
"""A waiting thread checks its condition again after this many seconds. The check is needed because the thread that
should wake it may have ended, for example at the end of the process.
"""


@dataclass(eq=False, slots=True)
class _Stream(Generic[_Item]):
    """A started stream, with its unread items and their weights, and its error if it failed."""

    items: deque[tuple[_Item, int]] = field(default_factory=deque[tuple[_Item, int]])
    is_ended: bool = False
    failure: BaseException | None = None


class FanIn(Closing, Iterator[_Item]):
    """Iterator over the items of many streams; ``at_once`` streams run in parallel. Only one thread may read at a time.

    When a thread of this object has finished a stream, the thread takes the next stream from ``streams``. The items
    come stream by stream. The unread items together weigh at most ``max_weight`` (by ``weigh``), plus one item that the
    reader waits for.

    After a stream has failed, no further stream starts. The reader gets the items before the failure, then the error.
    Threads start with the first read. Close the iterator to end its streams after their next item.
    """

    def __init__(
        self,
        streams: Iterable[Callable[[], Iterator[_Item]]],
        *,
        at_once: int,
        weigh: Callable[[_Item], int],
        max_weight: int,
    ) -> None:
        self._streams = iter(streams)
        self._taking = threading.Lock()
        self._at_once = at_once
        self._weigh = weigh
        self._max_weight = max_weight
        self._changed = threading.Condition()
        self._open = deque[_Stream[_Item]]()
        """Started streams with unread items, in the order of their start."""
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
                "this iterator was started by the parent process, and a fork does not copy its threads: start a new one"
            )
        self._start()
        with self._changed:
            while True:
                if self._is_interrupted:
                    raise Interrupted
                # Another thread has closed this iterator, so return no more items.
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
        """End running streams after their next item, without waiting; return no more items."""
        if os.getpid() != self._process:
            return  # locks and threads belong to the parent
        with self._changed:
            self._is_closed = True
            self._open.clear()
            self._changed.notify_all()
        self._at_end.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Close without locks, because the reader was garbage-collected: this may happen while this thread holds a
        lock."""
        self._is_closed = True
        self._at_end.close()

    def _start(self) -> None:
        if self._pool is None and not self._is_closed:
            self._pool = ThreadPool(self._at_once, "tieredstore-fan-in")
            self._at_end.enter_context(wake_on_interruption(self._interrupt))
            for _ in range(self._at_once):
                self._pool.submit(self._work)

    def _interrupt(self) -> None:
        # Set the flag without the lock, because the caller must not wait for a thread that holds the lock. Waiting
        # threads notice the flag at their next check.
        self._is_interrupted = True

    def _take(self) -> tuple[_Item, int] | None:
        """Return the next item, or None if it is not ready yet; drop finished streams. The caller holds the lock."""
        while self._open:
            stream = self._open[0]
            if not stream.items and not stream.is_ended:
                break
            self._changed.notify_all()
            if stream.items:
                item = stream.items.popleft()
                self._weight -= item[1]
                return item
            if stream.failure is not None:
                self._is_closed = True
                raise stream.failure
            self._open.popleft()
        return None

    def _work(self) -> None:
        """Read queued streams one after the other, on a thread of the pool."""
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
            except BaseException as error:  # noqa: BLE001  any error is passed to the reader
                failure = error
            with self._changed:
                stream.is_ended, stream.failure = True, failure
                self._changed.notify_all()

    def _next_stream(self) -> tuple[Callable[[], Iterator[_Item]], _Stream[_Item]] | None:
        """Open the next stream. Return the function that makes its items, and the stream; None if no stream is left.

        If ``_streams`` raises an error, the returned function raises this error. The reader gets it when it reaches
        that stream.
        """
        with self._taking:
            with self._changed:
                if self._is_closed or self._are_all_begun or any(stream.failure is not None for stream in self._open):
                    return None
            # Make the stream without holding the reader's lock, because making it may send requests to a store.
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
        """Wait until the unread items leave room for this item, and add it; return False after close."""
        weight = self._weigh(item)
        with self._changed:
            while not self._is_closed:
                # Always admit the item that the reader waits for, because items of later streams must not block it.
                is_awaited = stream is self._open[0] and not stream.items
                if is_awaited or self._weight + weight <= self._max_weight:
                    stream.items.append((item, weight))
                    self._weight += weight
                    self._changed.notify_all()
                    return True
                self._changed.wait(_LOOK_S)
            return False


_OPEN: Final[weakref.WeakSet[FanIn[Any]]] = weakref.WeakSet()


def _close_all() -> None:
    """Close all iterators at the end of the process, so that no thread waits to add an item."""
    for open_one in list(_OPEN):
        open_one.close()


# Register this exit handler after those of thread pools. Python runs exit handlers in reverse order, so this handler
# runs first.
atexit.register(_close_all)


def _raise(error: BaseException) -> NoReturn:
    raise error
