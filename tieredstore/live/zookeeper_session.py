"""A ZooKeeper session whose calls have a time limit and raise this project's errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tieredstore.errors import BrokerDeniedError, BrokerUnavailableError, ConfigError, ResourceNotFoundError, excerpt
from tieredstore.installation import Extra

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult
    from kazoo.protocol.states import ZnodeStat

Result = TypeVar("Result")

_ANSWER_S: Final = 5.0


class ZooKeeperSession:
    """A session that connects at the first call, and reconnects by itself. Thread-safe.

    Calls raise BrokerUnavailableError if no answer comes in time. They raise BrokerDeniedError if access is denied, and
    ResourceNotFoundError for a missing node. If a node already exists, or has another version, calls raise kazoo's own
    error (see :attr:`errors`).
    """

    def __init__(self, hosts: str, session_s: float, *, answer_s: float = _ANSWER_S) -> None:
        with Extra("ZooKeeper", "uploader"):
            from kazoo import client, exceptions  # noqa: PLC0415  of the extra `uploader`
        self._kazoo = client
        self.errors = exceptions
        self._hosts = hosts
        self._session_s = session_s
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._is_closed = False
        self._client: KazooClient | None = None
        self._is_live = threading.Event()

    @property
    def id(self) -> int:
        """The id of the session, by which ZooKeeper marks the session's ephemeral nodes."""
        return self._connect().client_id[0]

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes."""
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        self._is_live.clear()
        if client is not None:
            with contextlib.suppress(Exception):
                client.stop()
                client.close()

    def children(self, path: str) -> list[str]:
        """Return the names of the nodes below ``path``."""
        return self._call(path, lambda client: client.get_children_async(path))

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        """Return a node's data and kazoo's metadata."""
        return self._call(path, lambda client: client.get_async(path))

    def get_all(self, paths: Sequence[str]) -> dict[str, tuple[bytes, ZnodeStat]]:
        """Return many nodes by parallel requests. The result omits missing nodes."""
        client = self._connect()
        answers = [(path, client.get_async(path)) for path in paths]
        nodes: dict[str, tuple[bytes, ZnodeStat]] = {}
        for path, answer in answers:
            with contextlib.suppress(ResourceNotFoundError):
                nodes[path] = self._outcome(path, answer)
        return nodes

    def provide(self, path: str) -> None:
        """Create a node and its parents if they are missing."""
        self._call(path, lambda client: client.ensure_path_async(path))

    def create(self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Create a node and return its full path."""
        return self._call(path, lambda client: client.create_async(path, data, ephemeral=ephemeral, sequence=sequence))

    def delete(self, path: str) -> None:
        """Remove a node if it exists."""
        with contextlib.suppress(ResourceNotFoundError):
            self._call(path, lambda client: client.delete_async(path))

    def set_if(self, condition: str, path: str, data: bytes, version: int = -1) -> bool:
        """Set a node's data if the node has ``version`` (-1: any) and the node ``condition`` exists, in one
        transaction.

        Return False if the node is missing or has another version. Raise ResourceNotFoundError if the node
        ``condition`` is missing.
        """
        transaction = self._connect().transaction()
        transaction.check(condition, -1)
        transaction.set_data(path, data, version)
        results = self._outcome(path, transaction.commit_async())
        if isinstance(results[0], self.errors.NoNodeError):
            raise ResourceNotFoundError(f"ZooKeeper at {self._hosts} has no {condition}")
        return not any(isinstance(result, Exception) for result in results)

    def _call(self, path: str, ask: Callable[[KazooClient], IAsyncResult[Result]]) -> Result:
        return self._outcome(path, ask(self._connect()))

    def _outcome(self, path: str, answer: IAsyncResult[Result]) -> Result:
        try:
            return answer.get(timeout=self._answer_s)
        except self.errors.NoNodeError as error:
            raise ResourceNotFoundError(f"ZooKeeper at {self._hosts} has no {path}") from error
        except (self.errors.NodeExistsError, self.errors.BadVersionError):
            raise
        except (self.errors.NoAuthError, self.errors.AuthFailedError) as error:
            raise BrokerDeniedError(f"ZooKeeper at {self._hosts} denies access to {path}") from error
        except Exception as error:
            raise BrokerUnavailableError(
                f"ZooKeeper at {self._hosts} gave no answer about {path}: {error!r:.200}"
            ) from error

    def _connect(self) -> KazooClient:
        with self._lock:
            if self._is_closed:
                raise BrokerUnavailableError(f"the session with ZooKeeper at {self._hosts} has ended")
            if self._client is None:
                self._client = self._start()
            client = self._client
        if not self._is_live.wait(self._answer_s):
            raise BrokerUnavailableError(f"ZooKeeper at {self._hosts} is not connected")
        return client

    def _start(self) -> KazooClient:
        try:
            client = self._kazoo.KazooClient(
                self._hosts,
                timeout=self._session_s,
                # Retry forever, at most a second apart.
                connection_retry={"max_tries": -1, "max_delay": 1.0},
            )
        except ValueError as error:
            raise ConfigError(f"{excerpt(self._hosts)!r} is not a list of ZooKeeper hosts: {error}") from error
        client.add_listener(self._hear_state)
        client.start_async()
        return client

    def _hear_state(self, state: object) -> None:
        if state == self._kazoo.KazooState.CONNECTED:
            self._is_live.set()
        else:
            self._is_live.clear()
