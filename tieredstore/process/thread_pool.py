"""Thread pools that are safe after forks and never keep a process from ending."""

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
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Task: TypeAlias = tuple[Future[Any], Callable[[], object]]

_LAST_WORDS_S: Final = 1.0
"""At its end, a process waits at most this many seconds for the running tasks of all pools together."""


class ThreadPool(Executor):
    """A pool of at most ``threads`` threads. The threads start when needed. A forked child starts its own threads, and
    gets none of the parent's work.

    In a forked child, Python's own pool still counts the parent's threads. So work submitted in the child waits
    forever. Python's pool also keeps a process alive until its last task ends, even if a store does not answer. With
    this pool, an ending process drops waiting tasks, and abandons running tasks after a second.

    In a forked child, the parent's futures are never done, so objects with such futures must reset too. If an interrupt
    (or the end of a generator) ends a ``with`` block, the block does not wait for running tasks.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._crew = _Crew(threads, name)
        # Let the threads end when the pool is garbage collected.
        weakref.finalize(self, self._crew.dismiss)

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """Submit work; raise RuntimeError after the shutdown."""
        future: Future[_Result] = Future()
        self._crew.take((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; drop waiting tasks if ``cancel_futures``."""
        self._crew.dismiss()
        if cancel_futures:
            self._crew.drop_waiting()
        if wait:
            self._crew.join(None)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not is_interrupted, cancel_futures=kind is not None)


class ThreadsOfProcess(Executor):
    """Wraps an executor for use in the current process only. A forked child gets an error, because it lacks the
    executor's threads.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._process = os.getpid()

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """Submit work. In a forked child raise AlreadyClosedError, because the work would wait forever."""
        if os.getpid() != self._process:
            raise AlreadyClosedError("these threads belong to the parent process; a forked child needs its own")
        return self._executor.submit(fn, *args, **kwargs)


class _Crew:
    """Threads and tasks of a pool. A crew has no reference to the pool, so that the pool can be garbage collected."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._is_dismissed = False
        self.begin_again()
        begin_again_after_fork(self)
        _CREWS.add(self)

    def begin_again(self) -> None:
        """Begin without threads and tasks, as in a forked child. A pool that was shut down stays shut down."""
        # The lock is reentrant, because garbage collection may drop a pool or its work while this thread holds the
        # lock.
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._load = _Load()
        self._waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()

    def take(self, task: _Task) -> None:
        with self._lock:
            if self._is_dismissed:
                raise RuntimeError("the threads were shut down")
            self._waiting.put(task)
            if self._load.add() <= len(self._threads) or len(self._threads) >= self._size:
                return
            name = f"{self._name}_{len(self._threads)}"
            # The thread is a daemon, because a thread that waits for a store must not keep the process from ending.
            thread = threading.Thread(target=_work, args=(self._waiting, self._load), name=name, daemon=True)
            self._threads.append(thread)
        thread.start()  # not under the lock, because ``start`` waits for the new thread

    def dismiss(self) -> None:
        """Accept no more tasks; each thread ends when no tasks wait."""
        with self._lock:
            if not self._is_dismissed:
                self._is_dismissed = True
                self._waiting.put(None)

    def drop_waiting(self) -> None:
        """Drop waiting tasks, and notify their waiters."""
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._waiting.get_nowait()
                if task is not None:
                    self._load.remove()
                    if task[0].cancel():
                        task[0].set_running_or_notify_cancel()
        self._waiting.put(None)

    def join(self, deadline: Deadline | None) -> None:
        """Wait for the dismissed threads."""
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline.remaining_s()))


_CREWS: Final[weakref.WeakSet[_Crew]] = weakref.WeakSet()


class _Load:
    """The number of waiting and running tasks. A new thread is needed only if this number exceeds the number of
    threads.

    The pool does not count idle threads, because such a count becomes wrong. For example, a new task is counted for an
    idle thread, but a busy thread becomes free and takes the task. The idle thread stays idle, but no longer counts as
    idle. The pool would then grow to its maximum.
    """

    def __init__(self) -> None:
        # The lock is reentrant, because garbage collection may drop a pool while this thread holds the lock.
        self._lock = threading.RLock()
        self._tasks = 0

    def add(self) -> int:
        """Count one more task; return the number of tasks."""
        with self._lock:
            self._tasks += 1
            return self._tasks

    def remove(self) -> None:
        """Count one task less."""
        with self._lock:
            self._tasks -= 1


def _work(waiting: queue.SimpleQueue[_Task | None], load: _Load) -> None:
    while (task := waiting.get()) is not None:
        _run(*task)
        del task  # an idle thread must not keep memory
        load.remove()
    waiting.put(None)  # put the end mark back for the next thread, which ends too


def _run(future: Future[_Result], work: Callable[[], _Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  a future carries any error
        future.set_exception(error)
        del future  # break the reference cycle of error, traceback and future
    else:
        future.set_result(result)


def _end_all() -> None:
    """End all pools at the end of the process, before the interpreter removes modules that running tasks still use."""
    deadline = Deadline.after(_LAST_WORDS_S)
    crews = list(_CREWS)
    for crew in crews:
        crew.dismiss()
        crew.drop_waiting()
    for crew in crews:
        crew.join(deadline)


atexit.register(_end_all)
