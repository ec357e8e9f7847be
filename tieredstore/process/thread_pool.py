"""Threads that outlive a call, are a forked child's own, and keep no process from ending."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Task: TypeAlias = tuple[Future[Any], Callable[[], Any]]

_LAST_WORDS_S: Final = 1.0
"""How long a process that ends waits for tasks under way, in all pools together."""


class ThreadPool(Executor):
    """At most ``threads`` threads, which start when there is work; a forked child has its own, and none of the work.

    Python's pool counts the parent's threads in a child as its own, so that what is given to it there waits for ever,
    and no process ends before its last task does, however long a store keeps silent. Here a process that ends drops
    what waits, and leaves what runs behind after a second. Futures of the parent are never done in a child: whoever
    keeps some begins again too. Left by an interrupt (or by a generator's end) ``with`` does not wait for what runs.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._crew = _Crew(threads, name)
        # Of a pool that is forgotten the threads end too.
        weakref.finalize(self, self._crew.dismiss)

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """RuntimeError once it is shut down."""
        future: Future[_Result] = Future()
        self._crew.take((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; what waits is dropped if ``cancel_futures``."""
        self._crew.dismiss()
        if cancel_futures:
            self._crew.drop_waiting()
        if wait:
            self._crew.join(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not is_interrupted, cancel_futures=kind is not None)


class ThreadsOfProcess(Executor):
    """Another one's threads, for the process that they are in: a forked child does not have them, and is told so."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._process = os.getpid()

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """AlreadyClosedError in a forked child, where it would wait for ever."""
        if os.getpid() != self._process:
            raise AlreadyClosedError("these threads were given by the parent process, and a forked child needs its own")
        return self._executor.submit(fn, *args, **kwargs)


class _Crew:
    """The threads of a pool and what waits for them; it does not know the pool, which may be forgotten."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._is_dismissed = False
        self._begin()
        begin_again_after_fork(self)
        _CREWS.add(self)

    def _begin(self) -> None:
        # Reentrant: the garbage collector may forget another pool, or this one's work, anywhere.
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._load = _Load()
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()

    def begin_again(self) -> None:
        """In a forked child: no thread yet; still dismissed if it was."""
        self._begin()

    def take(self, task: _Task) -> None:
        with self._lock:
            if self._is_dismissed:
                raise RuntimeError("the threads were shut down")
            self._waiting.put(task)
            if self._load.taken() <= len(self._threads) or len(self._threads) >= self._size:
                return
            name = f"{self._name}_{len(self._threads)}"
            # A daemon: one that a store keeps waiting must not keep the process from ending.
            thread = threading.Thread(target=_work, args=(self._waiting, self._load), name=name, daemon=True)
            self._threads.append(thread)
        thread.start()  # without the lock, since it waits for the thread to have begun

    def dismiss(self) -> None:
        """Take no more; each thread ends when nothing waits."""
        with self._lock:
            if not self._is_dismissed:
                self._is_dismissed = True
                self._waiting.put(None)

    def drop_waiting(self) -> None:
        """Of what waits nothing is begun any more, and whoever waits for it is told."""
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._waiting.get_nowait()
                if task is not None:
                    self._load.done()
                    if task[0].cancel():
                        task[0].set_running_or_notify_cancel()
        self._waiting.put(None)

    def join(self, deadline: Deadline | None) -> None:
        """Wait for the threads, which were dismissed."""
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline.remaining_s()))


_CREWS: Final[weakref.WeakSet[_Crew]] = weakref.WeakSet()


class _Load:
    """How many tasks wait or run: a thread more is needed for those alone that all threads together cannot take.

    Idle threads that are counted instead grow to the most there may be: a task that a busy thread comes to first has
    taken an idle one out of the count, which nobody then wakes.
    """

    def __init__(self) -> None:
        # Reentrant, as the crew's.
        self._lock = threading.RLock()
        self._tasks = 0

    def taken(self) -> int:
        """One more; how many there are now."""
        with self._lock:
            self._tasks += 1
            return self._tasks

    def done(self) -> None:
        """One less."""
        with self._lock:
            self._tasks -= 1


def _work(waiting: queue.SimpleQueue[_Task | None], load: _Load) -> None:
    while (task := waiting.get()) is not None:
        _run(*task)
        del task  # an idle thread keeps nobody's memory
        load.done()
    waiting.put(None)  # for the next thread


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  a future carries any error
        future.set_exception(error)
        del future  # which the error's traceback would keep, and it the error
    else:
        future.set_result(result)


def _end_all() -> None:
    """When the process ends: what runs may touch what Python is about to take down."""
    deadline = Deadline.after(_LAST_WORDS_S)
    crews = list(_CREWS)
    for crew in crews:
        crew.dismiss()
        crew.drop_waiting()
    for crew in crews:
        crew.join(deadline)


atexit.register(_end_all)
