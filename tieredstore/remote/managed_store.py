"""The store as a manager gives it to others: every call ends when the manager is closed.

Apart from ``manager``, Kafka's verbs: this one has a store's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from tieredstore.backends.base import AbandonedWrite, Body, Buffer, DelegatingStore, ObjectInfo, ObjectStore, Prepared
from tieredstore.errors import AlreadyClosedError, TieredStoreError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.interruption import Interrupted
from tieredstore.process.lifetime import Lifetime
from tieredstore.process.thread_pool import ThreadPool

_logger: Final = logging.getLogger(__name__)

_MOST_CALLS: Final = 256
"""Calls at once; one more waits, as it would for a connection."""

_UNDO_S: Final = 2.0
"""Seconds that a KeyboardInterrupt waits until what was half written is undone."""

_MOST_LISTED: Final = 1024
"""Objects that one visit to a listing's thread brings, once it is seen that many are wanted."""

_Result = TypeVar("_Result")
_Listed = TypeVar("_Listed")
_Sent = TypeVar("_Sent")


class _Here(threading.local):
    is_so = False


class ManagerCalls:
    """Calls on threads of the manager's own: whoever waits for one can be told that the manager was closed.

    Nobody can take a thread out of a call that a store does not answer; the caller is not the one who sits in it.
    """

    def __init__(self, life: Lifetime, *, pool: ThreadPool | None = None, undo_s: float = _UNDO_S) -> None:
        self.life = life
        self._undo_s = undo_s
        self._pool = pool or ThreadPool(_MOST_CALLS, "tieredstore-call")
        self._bound = life.bound(self._pool)
        self._here = _Here()

    @contextlib.contextmanager
    def on_this_thread(self) -> Generator[None]:
        """In the block this thread makes its calls itself: for who is watched by others, and may be left behind.

        A thread of the manager's own costs each call two hand-overs, more than a small one takes on a disk.
        """
        before, self._here.is_so = self._here.is_so, True
        try:
            yield
        finally:
            self._here.is_so = before

    def run(self, call: Callable[[], _Result]) -> _Result:
        """What ``call`` returns or raises; AlreadyClosedError at once when the manager is closed, while the call goes
        on."""
        if self._here.is_so:
            return self.life.during(call)
        return outcome(self._bound.submit(call))

    def run_writing(self, what: str, write: Callable[[Callable[[], None]], _Result]) -> _Result:
        """The same for a call of several steps that leaves nothing half done; ``what`` it writes.

        ``write`` is given a function to call between its steps: it raises once nobody waits any more, since the manager
        was closed or the caller interrupted, and then ``write`` undoes what it did. An interrupt waits for that.
        After Interrupted it waits until the process ends: Interruption, which raised it, ends the process after a
        moment and names what is left. Nobody does that after a KeyboardInterrupt: it waits ``undo_s`` and then names
        here what is left.
        """
        if self._here.is_so:
            return self.life.during(lambda: write(self.life.check))
        is_interrupted = threading.Event()
        # The interrupt may come before submit has returned its future: this one is there before.
        ended: Future[None] = Future()

        def check() -> None:
            self.life.check()
            if is_interrupted.is_set():
                raise AlreadyClosedError("whoever asked for this was interrupted")

        def work() -> _Result:
            if not ended.set_running_or_notify_cancel():
                raise AlreadyClosedError("whoever asked for this was interrupted before it began")
            try:
                return write(check)
            finally:
                ended.set_result(None)

        try:
            return outcome(self._bound.submit(work))
        except Exception:
            raise
        except BaseException as interrupt:
            is_interrupted.set()
            wait_s = None if isinstance(interrupt, Interrupted) else self._undo_s
            # What has not begun never does, once this is cancelled.
            if not ended.cancel() and not is_done(ended, wait_s):
                _logger.warning(
                    "%s: the copy was interrupted, and what it wrote is not taken back yet; what may stay of it "
                    "delete_log_segment_data removes, and a lifecycle rule of the bucket the parts of an upload",
                    what,
                )
            raise

    def shutdown(self, wait: bool) -> None:
        """End the threads when their calls end; ``wait`` for that, or leave them behind."""
        self._pool.shutdown(wait, cancel_futures=True)


class ManagedStore(DelegatingStore):
    """Passes every call on, until the manager is closed; AlreadyClosedError from then on. The store itself stays open.

    Pickled it is the store itself. In a forked child a listing goes on behind the last object that it gave.
    """

    def __init__(self, inner: ObjectStore, calls: ManagerCalls) -> None:
        super().__init__(inner)
        self._calls = calls

    def __reduce__(self) -> tuple[Callable[[ObjectStore], ObjectStore], tuple[ObjectStore]]:
        return _same, (self.inner,)

    def __repr__(self) -> str:
        return f"ManagedStore({self.inner!r})"

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """A body that comes in pieces is given up when the manager is closed, and with it the write."""
        self._send(body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """As the store within."""
        self._calls.run(lambda: self.inner.put_once(key, body, mark))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """As ``put``."""
        return self._send(body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def publish(self, prepared: Prepared) -> None:
        """As the store within."""
        self._calls.run(lambda: self.inner.publish(prepared))

    def _send(self, body: Body, send: Callable[[Body], _Sent]) -> _Sent:
        if isinstance(body, bytes | bytearray | memoryview):
            return self._calls.run(lambda: send(body))
        try:
            return self._calls.run(lambda: send(self._while_open(body)))
        finally:
            _end(body)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """As the store within."""
        return self._calls.run(lambda: self.inner.get(key, start, stop))

    def get_small(self, key: str, most: int) -> bytes | None:
        """As the store within."""
        return self._calls.run(lambda: self.inner.get_small(key, most))

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """As the store within, in one visit to a thread of the manager's."""
        return self._calls.run(lambda: self.inner.get_small_batch(keys, most))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """By way of memory of its own: nobody writes into the buffer once this has ended."""
        target = memoryview(buffer).cast("B")
        own = bytearray(len(target))
        self._calls.run(lambda: self.inner.get_into(key, start, own))
        target[:] = own

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """As the store within; of a page of its no more is taken ahead than was asked for before."""
        last, process = start_after, os.getpid()
        batches, check = _batches(self._calls, self.inner.list(prefix, start_after)), self._calls.life.check
        while batch := next(batches, None):
            for info in batch:
                check()
                yield info
            last = batch[-1].key
            if os.getpid() != process:  # what the parent's thread is at does not come here
                process = os.getpid()
                batches = _batches(self._calls, self.inner.list(prefix, last))

    def delete(self, keys: Iterable[str]) -> None:
        """As the store within; keys that are not yet asked for when the manager is closed stay."""
        self._calls.run(lambda: self.inner.delete(self._while_open(keys)))

    def head(self, key: str) -> ObjectInfo:
        """As the store within."""
        return self._calls.run(lambda: self.inner.head(key))

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """As the store within."""
        return self._calls.run(lambda: self.inner.replace(key, body, etag))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """As the store within."""
        writes = super().abandoned_writes(prefix)
        return None if writes is None else self._list_objects(writes)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """As the store within."""
        return self._calls.run(lambda: self.inner.discard(write))

    def now_ms(self) -> int | None:
        """As the store within."""
        return self._calls.run(super().now_ms)

    def kept_after_delete(self) -> Sequence[str]:
        """As the store within."""
        return self._calls.run(super().kept_after_delete)

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """As the store within."""
        return self._calls.run(partial(super().rules_on, prefix))

    def caller(self) -> str:
        """As the store within."""
        return self._calls.run(super().caller)

    def close(self) -> None:
        """Nothing: the manager's owner closes the manager, and that the store if it is its own."""

    def _while_open(self, items: Iterable[_Listed]) -> Generator[_Listed]:
        for item in items:
            self._calls.life.check()
            yield item

    def _list_objects(self, objects: Iterator[_Listed]) -> Generator[_Listed]:
        """The same, taken on a thread of the manager's."""
        with contextlib.closing(_batches(self._calls, objects)) as batches:
            for batch in batches:
                yield from self._while_open(batch)


def _batches(calls: ManagerCalls, objects: Iterator[_Listed]) -> Generator[list[_Listed]]:
    """The same, taken on a thread of the manager's: one object, then twice as many each time; none is empty."""
    size = 1
    try:
        while True:
            batch, error = calls.run(lambda: _take(objects, size))  # noqa: B023  run before the next turn
            if batch:
                yield batch
            if error is not None:
                raise error
            if len(batch) < size:
                return
            size = min(2 * size, _MOST_LISTED)
    finally:
        _end(objects)


def _take(objects: Iterator[_Listed], count: int) -> tuple[list[_Listed], Exception | None]:
    """The next objects, and the error that ended them."""
    batch: list[_Listed] = []
    try:
        batch.extend(islice(objects, count))
    except Exception as error:  # noqa: BLE001  told behind the objects that came before it
        return batch, error
    return batch, None


def _end(items: Iterable[object]) -> None:
    if isinstance(items, Generator):
        with contextlib.suppress(ValueError):  # a thread that was left behind is at it
            items.close()


def _same(store: ObjectStore) -> ObjectStore:
    return store
