"""The store that a manager passes on: every call ends when the manager is closed.

Kept apart from ``manager``, which has Kafka's verbs: this one has a store's.
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
"""Parallel calls; one more waits, as it would for a connection."""

_UNDO_S: Final = 2.0
"""Seconds that a KeyboardInterrupt waits for a rollback."""

_MOST_LISTED: Final = 1024
"""Objects taken in one visit to a listing's thread, once many are being read."""

_Result = TypeVar("_Result")
_Listed = TypeVar("_Listed")
_Sent = TypeVar("_Sent")


class _Here(threading.local):
    is_so = False


class ManagerCalls:
    """Calls on the manager's threads, so that closing the manager can release a waiting caller.

    No thread can be taken out of a call that a store does not answer; so the caller waits outside of it.
    """

    def __init__(self, life: Lifetime, *, pool: ThreadPool | None = None, undo_s: float = _UNDO_S) -> None:
        self.life = life
        self._undo_s = undo_s
        self._pool = pool or ThreadPool(_MOST_CALLS, "tieredstore-call")
        self._bound = life.bound(self._pool)
        self._here = _Here()

    @contextlib.contextmanager
    def on_this_thread(self) -> Generator[None]:
        """Make this thread's calls directly during the block: for threads that others watch, and may abandon.

        A separate thread costs each call two hand-overs, more than a small call takes on a disk.
        """
        before, self._here.is_so = self._here.is_so, True
        try:
            yield
        finally:
            self._here.is_so = before

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Return the result of ``call``; raise AlreadyClosedError at once when the manager is closed, while the call
        runs on.
        """
        if self._here.is_so:
            return self.life.during(call)
        return outcome(self._bound.submit(call))

    def run_writing(self, what: str, write: Callable[[Callable[[], None]], _Result]) -> _Result:
        """Run a call of several steps that leaves nothing half done; ``what`` names its objects.

        ``write`` gets a function to call between its steps: it raises once the caller has gone, because the manager was
        closed or the caller interrupted, and then ``write`` rolls back. An interrupt waits for that. After Interrupted
        it waits until the process ends: Interruption, which raised it, ends the process after a moment and names the
        leftovers. A KeyboardInterrupt has no such end: it waits ``undo_s`` and then names the leftovers here.
        """
        if self._here.is_so:
            return self.life.during(lambda: write(self.life.check))
        is_interrupted = threading.Event()
        # The interrupt may come before submit has returned its future: this one exists before.
        ended: Future[None] = Future()

        def check() -> None:
            self.life.check()
            if is_interrupted.is_set():
                raise AlreadyClosedError("the caller was interrupted")

        def work() -> _Result:
            if not ended.set_running_or_notify_cancel():
                raise AlreadyClosedError("the caller was interrupted before this began")
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
            # Cancelling prevents a call that has not begun.
            if not ended.cancel() and not is_done(ended, wait_s):
                _logger.warning(
                    "%s: the copy was interrupted, and what it wrote is not taken back yet; what may stay of it "
                    "delete_log_segment_data removes, and a lifecycle rule of the bucket the parts of an upload",
                    what,
                )
            raise

    def shutdown(self, wait: bool) -> None:
        """End the threads when their calls end; ``wait`` for that, or abandon them."""
        self._pool.shutdown(wait, cancel_futures=True)


class ManagedStore(DelegatingStore):
    """Passes every call on until the manager is closed, then raises AlreadyClosedError. The store itself stays open.

    Pickled, it is the store itself. In a forked child a listing continues after its last object.
    """

    def __init__(self, inner: ObjectStore, calls: ManagerCalls) -> None:
        super().__init__(inner)
        self._calls = calls

    def __reduce__(self) -> tuple[Callable[[ObjectStore], ObjectStore], tuple[ObjectStore]]:
        return _same, (self.inner,)

    def __repr__(self) -> str:
        return f"ManagedStore({self.inner!r})"

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write an object; closing the manager stops a body of several pieces, and with it the write."""
        self._send(body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """Call the inner store."""
        self._calls.run(lambda: self.inner.put_once(key, body, mark))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Prepare as ``put`` writes."""
        return self._send(body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def publish(self, prepared: Prepared) -> None:
        """Call the inner store."""
        self._calls.run(lambda: self.inner.publish(prepared))

    def _send(self, body: Body, send: Callable[[Body], _Sent]) -> _Sent:
        if isinstance(body, bytes | bytearray | memoryview):
            return self._calls.run(lambda: send(body))
        try:
            return self._calls.run(lambda: send(self._while_open(body)))
        finally:
            _end(body)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Call the inner store."""
        return self._calls.run(lambda: self.inner.get(key, start, stop))

    def get_small(self, key: str, most: int) -> bytes | None:
        """Call the inner store."""
        return self._calls.run(lambda: self.inner.get_small(key, most))

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Call the inner store, in one visit to the manager's thread."""
        return self._calls.run(lambda: self.inner.get_small_batch(keys, most))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read through separate memory: after the call no thread writes into the buffer."""
        target = memoryview(buffer).cast("B")
        own = bytearray(len(target))
        self._calls.run(lambda: self.inner.get_into(key, start, own))
        target[:] = own

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List the inner store; take no more of a page ahead than was read before."""
        last, process = start_after, os.getpid()
        batches, check = _batches(self._calls, self.inner.list(prefix, start_after)), self._calls.life.check
        while batch := next(batches, None):
            for info in batch:
                check()
                yield info
            last = batch[-1].key
            if os.getpid() != process:  # the parent's thread never answers here
                process = os.getpid()
                batches = _batches(self._calls, self.inner.list(prefix, last))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete in the inner store; keys not yet sent when the manager is closed stay."""
        self._calls.run(lambda: self.inner.delete(self._while_open(keys)))

    def head(self, key: str) -> ObjectInfo:
        """Call the inner store."""
        return self._calls.run(lambda: self.inner.head(key))

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Call the inner store."""
        return self._calls.run(lambda: self.inner.replace(key, body, etag))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Call the inner store."""
        writes = super().abandoned_writes(prefix)
        return None if writes is None else self._list_objects(writes)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Call the inner store."""
        return self._calls.run(lambda: self.inner.discard(write))

    def now_ms(self) -> int | None:
        """Call the inner store."""
        return self._calls.run(super().now_ms)

    def kept_after_delete(self) -> Sequence[str]:
        """Call the inner store."""
        return self._calls.run(super().kept_after_delete)

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """Call the inner store."""
        return self._calls.run(partial(super().rules_on, prefix))

    def caller(self) -> str:
        """Call the inner store."""
        return self._calls.run(super().caller)

    def close(self) -> None:
        """Do nothing: the manager's owner closes the manager, and the manager its own store."""

    def _while_open(self, items: Iterable[_Listed]) -> Generator[_Listed]:
        for item in items:
            self._calls.life.check()
            yield item

    def _list_objects(self, objects: Iterator[_Listed]) -> Generator[_Listed]:
        """Take objects on a thread of the manager."""
        with contextlib.closing(_batches(self._calls, objects)) as batches:
            for batch in batches:
                yield from self._while_open(batch)


def _batches(calls: ManagerCalls, objects: Iterator[_Listed]) -> Generator[list[_Listed]]:
    """Take objects on a thread of the manager: one, then twice as many each time; no batch is empty."""
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
    """Return the next objects, and the error that ended them."""
    batch: list[_Listed] = []
    try:
        batch.extend(islice(objects, count))
    except Exception as error:  # noqa: BLE001  raised after the objects before it
        return batch, error
    return batch, None


def _end(items: Iterable[object]) -> None:
    if isinstance(items, Generator):
        with contextlib.suppress(ValueError):  # an abandoned thread is still in it
            items.close()


def _same(store: ObjectStore) -> ObjectStore:
    return store
