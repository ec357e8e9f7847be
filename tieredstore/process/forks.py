"""Fork safety: handles locks that other threads hold, clients of the parent, and files that both processes share.

A forked child has a copy of the parent's memory, but not of its threads. This module has four tools, smallest first:

- :class:`ForkSafeLock` for state that is consistent after every step and needs only a fresh lock;
- :func:`begin_again_after_fork` for state that another thread may have left half changed, or for counters;
- :func:`leave_to_parent` for objects whose end has effects outside of the process (connections, threads, files);
- :class:`PerProcess` for clients that each process creates for itself on first use, also after unpickling.

:mod:`tieredstore.metrics` must not import this package, so that module has its own code to reset itself after a fork.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar


class Forked(Protocol):
    """State that a fork may copy while another thread has half changed it."""

    def begin_again(self) -> None:
        """Reset the state in the child, before other code runs: make fresh locks, and drop unfinished work."""


class Paused(Protocol):
    """State that no thread may change during a fork."""

    def pause(self) -> None:
        """Finish or stop running work. The parent calls this method before the fork."""

    def go_on(self) -> None:
        """Resume, in the parent after the fork."""


_FORKED: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()
_PAUSED: Final[weakref.WeakSet[Paused]] = weakref.WeakSet()
_OWNED: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_inherited: Final[set[int]] = set()
"""The ``id`` of each object inherited from the parent. These objects are never freed, so their ids stay unique."""


def begin_again_after_fork(state: Forked) -> None:
    """Call ``state.begin_again()`` in every forked child, as long as ``state`` lives."""
    _FORKED.add(state)


def pause_during_fork(state: Paused) -> None:
    """Pause ``state`` during every fork, as long as ``state`` lives."""
    _PAUSED.add(state)


def leave_to_parent(thing: object) -> None:
    """Mark ``thing`` in every forked child as an object of the parent. The child never destroys it; see
    :func:`is_inherited`."""
    _OWNED.add(thing)


def is_inherited(thing: object) -> bool:
    """Return True if ``thing`` belongs to the parent, so that this forked child must not use or close it."""
    return id(thing) in _inherited


def inherit(thing: object) -> None:
    """In a forked child, keep an object of the parent from being destroyed, even at the interpreter's end.

    Destroying the object would close the parent's connections, and librdkafka would wait for threads that do not exist
    in the child. A list would not keep the object after the interpreter's end, so this function leaks a reference to
    it.
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
        except Exception as error:  # noqa: BLE001  one failure must not leave other state locked
            failures.append(error)
    if failures:
        # Raise an error only to inform the user: no caller can catch it, because Python prints it and continues.
        raise ExceptionGroup("state of the parent process could not be reset in this forked process", failures)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class ForkSafeLock:
    """A lock that is free in a forked child, even if a thread of the parent held it. Not reentrant.

    A fork may copy the guarded state while another thread changes it. So the state must be consistent after every step,
    as a single number is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Make a fresh lock, unless the forking thread holds the lock. A lock that another thread held would never be
        released in the child.
        """
        if self._holder != threading.get_ident():
            self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def acquire(self, timeout_s: float) -> bool:
        """Try to acquire the lock within ``timeout_s``; if True, call :meth:`release` later."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        self._holder = threading.get_ident()
        return True

    def release(self) -> None:
        """Release the lock."""
        self._holder = 0
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.release()


class Gate:
    """Counts the current users of an object (``with gate:``). A shut gate blocks new users until it opens again.
    Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._is_shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._is_shut:
                self._changed.notify_all()

    def shut(self, timeout_s: float) -> bool:
        """Block new users of the object, and wait until current users are done; return False after the timeout."""
        with self._changed:
            self._is_shut = True
            return self._changed.wait_for(lambda: not self._inside, timeout_s)

    def open(self) -> None:
        """Admit uses again."""
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()


Client = TypeVar("Client")


class PerProcess(Generic[Client]):
    """Holds one ``Client`` per process. Thread-safe. A pickled holder includes only its two functions, not the client.

    A forked child never touches its parent's client, because two processes on one connection would mix their requests.
    The child neither closes nor destroys the client, because that could end the parent's TLS sessions.
    """

    def __init__(self, make: Callable[[], Client], close: Callable[[Client], None] | None = None) -> None:
        """Set the functions that make and close a client. Without ``close``, a client ends when its last reference is
        gone."""
        self._make, self._close = make, close
        # Hold the client in a tuple, because it may be any object, even None.
        self._client: tuple[Client] | None = None
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset in a forked child: forget the client, and make a fresh lock."""
        if self._client is not None:
            inherit(self._client[0])
        self._client = None
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """True if this process has its client."""
        return self._client is not None

    def get(self) -> Client:
        """Return this process's client; create it if the process has none."""
        client = self._client
        if client is not None:
            return client[0]
        with self._lock:
            if self._client is None:
                self._client = (self._make(),)
            return self._client[0]

    def close(self) -> None:
        """Close this process's client, if it has one. The next ``get`` creates a new client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._close is not None:
            self._close(client[0])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._make, self._close)
