"""A client that each process creates for itself on first use, also after a fork or unpickling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tieredstore.process.forks import begin_again_after_fork, inherit

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
