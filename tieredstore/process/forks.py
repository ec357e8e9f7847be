"""What forks must not tear: locks that other threads hold, and files that two processes cannot share."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Protocol


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


_FORKED: weakref.WeakSet[Forked] = weakref.WeakSet()
_PAUSED: weakref.WeakSet[Paused] = weakref.WeakSet()


def begin_again_after_fork(state: Forked) -> None:
    """Have ``state.begin_again()`` called in every forked child, for as long as ``state`` lives."""
    _FORKED.add(state)


def pause_during_fork(state: Paused) -> None:
    """Have ``state`` paused around every fork, for as long as it lives."""
    _PAUSED.add(state)


def _before() -> None:
    for state in list(_PAUSED):
        state.pause()


def _in_parent() -> None:
    for state in list(_PAUSED):
        state.go_on()


def _in_child() -> None:
    for state in list(_FORKED):
        state.begin_again()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


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
