"""A client that is made on first use, and made again after fork or unpickling."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Client = TypeVar("Client")


class PerProcess(Generic[Client]):
    """Holds one ``Client`` for each process. Thread-safe; pickled, it takes only its two functions along.

    A forked child never touches its parent's client: connections that two processes write to mix their requests.
    The child does not close it either, since that could end the parent's TLS sessions.
    """

    def __init__(self, make: Callable[[], Client], close: Callable[[Client], None]) -> None:
        self._make = make
        self._close = close
        self._reset()

    def _reset(self) -> None:
        self._made: tuple[int, Client] | None = None
        # A lock for each process: one that another thread holds during a fork stays locked in the child for ever.
        self._locks: dict[int, threading.Lock] = {}

    def get(self) -> Client:
        """This process's client, made now if there is none."""
        made = self._made
        if made is not None and made[0] == os.getpid():
            return made[1]
        with self._lock():
            return self._made_here()

    def close(self) -> None:
        """Close this process's client, if there is one; the next ``get`` makes another."""
        with self._lock():
            made, self._made = self._made, None
        if made is not None and made[0] == os.getpid():
            self._close(made[1])

    def _made_here(self) -> Client:
        if self._made is None or self._made[0] != os.getpid():
            self._made = (os.getpid(), self._make())
        return self._made[1]

    def _lock(self) -> threading.Lock:
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def __getstate__(self) -> tuple[Callable[[], Client], Callable[[Client], None]]:
        return self._make, self._close

    def __setstate__(self, state: tuple[Callable[[], Client], Callable[[Client], None]]) -> None:
        self._make, self._close = state
        self._reset()
