"""What forks must not tear: locks that other threads hold, clients of the parent, files that two processes share.

A forked child has a copy of everything but the threads. Three tools, from the smallest on:

- :class:`ForkSafeLock` for state that is whole after every step of it: only the lock has to be a fresh one;
- :func:`begin_again_after_fork` for state that another thread may have left half changed, or that counts;
- :func:`leave_to_parent` for things whose end reaches outside of the process (connections, threads, files).

:class:`~tieredstore.process.per_process.PerProcess` is made of these, for clients. (:mod:`tieredstore.metrics` lies
below this room, and begins again by itself.)
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from types import TracebackType
from typing import Final, Protocol


class Forked(Protocol):
    """State that a fork copies in whatever condition another thread left it."""

    def begin_again(self) -> None:
        """In the child, before anything else runs there: fresh locks, and nothing that is half done."""


class Paused(Protocol):
    """State that must be at rest while the process forks."""

    def pause(self) -> None:
        """In the parent, before the fork: come to rest."""

    def go_on(self) -> None:
        """In the parent, after the fork."""


_FORKED: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()
_PAUSED: Final[weakref.WeakSet[Paused]] = weakref.WeakSet()
_OWNED: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_inherited: Final[set[int]] = set()
"""What this process has of its parent's and leaves alone, by ``id``: it lives for ever, so no id comes twice."""


def begin_again_after_fork(state: Forked) -> None:
    """Have ``state.begin_again()`` called in every forked child, for as long as ``state`` lives."""
    _FORKED.add(state)


def pause_during_fork(state: Paused) -> None:
    """Have ``state`` paused around every fork, for as long as it lives."""
    _PAUSED.add(state)


def leave_to_parent(thing: object) -> None:
    """Have every forked child leave ``thing`` alone: its destructor never runs there, :func:`is_inherited` is true."""
    _OWNED.add(thing)


def is_inherited(thing: object) -> bool:
    """Whether ``thing`` is the parent's, and this process a forked child, which must neither use nor close it."""
    return id(thing) in _inherited


def inherit(thing: object) -> None:
    """In a forked child, of one thing of the parent's: never destroy it, not even when the interpreter ends.

    A list of such things would be taken down with its module, and the things with it: connections would be ended under
    the parent, and librdkafka waits for threads that are not here. A reference that nobody holds is never given up.
    """
    if id(thing) not in _inherited:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
        _inherited.add(id(thing))


def _before() -> None:
    for state in list(_PAUSED):
        state.pause()


def _in_parent() -> None:
    for state in list(_PAUSED):
        state.go_on()


def _in_child() -> None:
    for thing in list(_OWNED):
        inherit(thing)
    failures: list[Exception] = []
    for state in list(_FORKED):
        try:
            state.begin_again()
        except Exception as error:  # noqa: BLE001  one that fails must not leave the others locked
            failures.append(error)
    if failures:
        # Python prints it and goes on: nobody called this who could catch it.
        raise ExceptionGroup("state of the parent process could not begin again in this one", failures)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class ForkSafeLock:
    """A lock that is open in a forked child, whoever held it in the parent. Not reentrant.

    What it guards is copied as it is: for state that every step leaves whole, as the change of one number or one entry.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """A fresh lock: the thread that would open this one is not in the child, unless it is the one that forked."""
        if self._holder != threading.get_ident():
            self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def acquire(self, timeout_s: float) -> bool:
        """Whether it could be had in so many seconds; then it is given back by :meth:`release`."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        self._holder = threading.get_ident()
        return True

    def release(self) -> None:
        """Open it again."""
        self._holder = 0
        self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Gate:
    """``with gate:`` is a use; a gate that is shut lets nobody in until it is opened. Safe from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._is_shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            if self._is_shut:
                self._changed.notify_all()

    def shut(self, timeout_s: float) -> bool:
        """Let nobody in, and wait until nobody is inside; False if somebody still is after the time-out."""
        with self._changed:
            self._is_shut = True
            return self._changed.wait_for(lambda: not self._inside, timeout_s)

    def open(self) -> None:
        """Let uses in again."""
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()
