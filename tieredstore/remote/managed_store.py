"""A manager's store, whose calls end when the manager is closed.

This module is separate from ``manager``. It has the methods of a store, and ``manager`` those of Kafka's interface.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Final, TypeVar

from tieredstore.backends.base import AbandonedWrite, Body, Buffer, DelegatingStore, ObjectInfo, ObjectStore, Prepared
from tieredstore.errors import AlreadyClosedError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.interruption import Interrupted
from tieredstore.process.lifetime import Lifetime
from tieredstore.process.thread_pool import ThreadPool

_logger: Final = logging.getLogger(__name__)

_MOST_CALLS: Final = 256
"""Maximum number of parallel calls. Further calls wait until one ends."""

_UNDO_S: Final = 2.0
"""Seconds that a KeyboardInterrupt waits for a rollback."""

_MOST_LISTED: Final = 1024
"""Maximum number of objects that a thread of the manager takes at once from a listing."""

_Result = TypeVar("_Result")
_Listed = TypeVar("_Listed")
_Sent = TypeVar("_Sent")


class _Here(threading.local):
    is_so = False


class ManagerCalls:
    """Calls on the manager's threads, so that closing the manager releases a waiting caller.

    A thread cannot leave a call that the store does not answer. So a thread of the manager makes the call, and the
    caller's thread only waits for the result.
    """

    def __init__(self, life: Lifetime, *, pool: ThreadPool | None = None, undo_s: float = _UNDO_S) -> None:
        self.life = life
        self._undo_s = undo_s
        self._pool = pool or ThreadPool(_MOST_CALLS, "tieredstore-call")
        self._bound = life.bind(self._pool)
        self._here = _Here()

    @contextlib.contextmanager
    def on_this_thread(self) -> Generator[None]:
        """Within the block, make calls directly on this thread. Another thread must watch this thread, and may abandon
        it.

        A direct call saves two hand-overs between threads, which cost more time than a small call to a local disk.
        """
        before, self._here.is_so = self._here.is_so, True
        try:
            yield
        finally:
            self._here.is_so = before

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Return the result of ``call``. Raise AlreadyClosedError when the manager is closed, while ``call``
        continues.
        """
        if self._here.is_so:
            return self.life.during(call)
        return outcome(self._bound.submit(call))

    def run_writing(self, what: str, write: Callable[[Callable[[], None]], _Result]) -> _Result:
        """Run a call of several steps that can roll back. ``what`` names its objects in messages.

        ``write`` gets a function to call between its steps. That function raises an error if the manager was closed or
        the caller was interrupted. ``write`` must then roll back.

        An interrupted caller waits for the rollback. After KeyboardInterrupt it waits ``undo_s``, and then logs that
        objects may stay. After ``Interrupted`` it waits without a limit: ``Interruption`` soon ends the process
        anyway, and then logs the objects.
        """
        if self._here.is_so:
            return self.life.during(lambda: write(self.life.check))
        is_interrupted = threading.Event()
        # An interrupt may come before ``submit`` returns a future. So create ``ended`` first: after an interrupt, this
        # function cancels the call by ``ended``, or waits for the call's end.
        ended: Future[None] = Future()

        def check() -> None:
            self.life.check()
            if is_interrupted.is_set():
                raise AlreadyClosedError("the caller was interrupted")

        def work() -> _Result:
            if not ended.set_running_or_notify_cancel():
                raise AlreadyClosedError("the caller was interrupted before the call began")
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
            # If the call has begun, wait for its rollback. If not, ``cancel`` prevents it from ever beginning.
            if not ended.cancel() and not is_done(ended, wait_s):
                _logger.warning(
                    "%s: the copy was interrupted before its rollback ended; delete_log_segment_data removes objects "
                    "that remain, and a lifecycle rule of the bucket removes parts of an upload",
                    what,
                )
            raise

    def shutdown(self, wait: bool) -> None:
        """End the threads after their calls. Wait for the calls if ``wait``, otherwise abandon them."""
        self._pool.shutdown(wait, cancel_futures=True)


class ManagedStore(DelegatingStore):
    """Store that passes every call on until the manager is closed, then raises AlreadyClosedError. It does not close
    the inner store.

    A pickled ManagedStore loads as its inner store.

    A listing that began before a fork continues in the child after the last object that it yielded.
    """

    def __init__(self, inner: ObjectStore, calls: ManagerCalls) -> None:
        super().__init__(inner)
        self._calls = calls

    def __reduce__(self) -> tuple[Callable[[ObjectStore], ObjectStore], tuple[ObjectStore]]:
        return _same, (self.inner,)

    def __repr__(self) -> str:
        return f"ManagedStore({self.inner!r})"

    def call(self, verb: str, key: str, request: Callable[[], _Result]) -> _Result:  # noqa: ARG002
        """Make the request on a thread of the manager."""
        return self._calls.run(request)

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write an object. Closing the manager stops the write if the body has several pieces."""
        self._send(body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """Call the inner store."""
        self._calls.run(lambda: self.inner.put_once(key, body, mark))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Call the inner store. Closing the manager stops the call if the body has several pieces."""
        return self._send(body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def _send(self, body: Body, send: Callable[[Body], _Sent]) -> _Sent:
        if isinstance(body, bytes | bytearray | memoryview):
            return self._calls.run(lambda: send(body))
        try:
            return self._calls.run(lambda: send(self._while_open(body)))
        finally:
            _end(body)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read into separate memory, so that no thread writes into ``buffer`` after this call."""
        target = memoryview(buffer).cast("B")
        own = bytearray(len(target))
        self._calls.run(lambda: self.inner.get_into(key, start, own))
        target[:] = own

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List the inner store, in growing batches, because a caller may need only the first objects."""
        last, process = start_after, os.getpid()
        batches, check = _batches(self._calls, self.inner.list(prefix, start_after)), self._calls.life.check
        while batch := next(batches, None):
            for info in batch:
                check()
                yield info
            last = batch[-1].key
            # The parent's thread does not exist in a forked child, so the child lists again after the last object.
            if os.getpid() != process:
                process = os.getpid()
                batches = _batches(self._calls, self.inner.list(prefix, last))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects in the wrapped store. If the manager is closed, keys that were not yet sent stay."""
        self._calls.run(lambda: self.inner.delete(self._while_open(keys)))

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Call the inner store. Closing the manager stops the call if the body has several pieces."""
        return self._send(body, lambda taken: self.inner.replace(key, taken, etag))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Call the inner store."""
        writes = super().abandoned_writes(prefix)
        return None if writes is None else self._list_objects(writes)

    def close(self) -> None:
        """Do nothing, because closing the manager closes its store."""

    def _while_open(self, items: Iterable[_Listed]) -> Generator[_Listed]:
        for item in items:
            self._calls.life.check()
            yield item

    def _list_objects(self, objects: Iterator[_Listed]) -> Generator[_Listed]:
        """Yield ``objects``, which a thread of the manager requests from the store."""
        with contextlib.closing(_batches(self._calls, objects)) as batches:
            for batch in batches:
                yield from self._while_open(batch)


def _batches(calls: ManagerCalls, objects: Iterator[_Listed]) -> Generator[list[_Listed]]:
    """Take objects on a thread of the manager, in batches of 1, 2, 4 objects and so on. No batch is empty."""
    size = 1
    try:
        while True:
            batch, error = calls.run(lambda: _take(objects, size))  # noqa: B023  called before `size` changes
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
    """Return at most ``count`` objects and None. If the listing fails, return the objects listed so far and the
    error."""
    batch: list[_Listed] = []
    try:
        batch.extend(islice(objects, count))
    except Exception as error:  # noqa: BLE001  the caller raises it after the objects before it
        return batch, error
    return batch, None


def _end(items: Iterable[object]) -> None:
    if isinstance(items, Generator):
        with contextlib.suppress(ValueError):  # an abandoned thread may still be running the generator
            items.close()


def _same(store: ObjectStore) -> ObjectStore:
    return store
