"""Stepwise work on one store: each step is one store call, and the work may be killed at any step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

from tests.support.stores.doubles import DelegatingObjectStore
from tieredstore.backends.base import (
    AbandonedWrite,
    Body,
    ObjectInfo,
    ObjectStore,
    Prepared,
    find_abandoned_writes,
)
from tieredstore.backends.contract.bodies import open_body
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreUnavailableError

HOUR_MS = 3_600_000
WAIT_S = 120.0


class WorldClock:
    """Clock of a simulated world, for its store's times and its machines' waits."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def seconds(self) -> float:
        return self.now_ms / 1000


class AgingStore(DelegatingObjectStore):
    """Store in memory with times by the world's clock; an interrupted write leaves an abandoned write.

    An object's time is the start of its write, as for S3's multipart uploads, because this is the oldest possible time.
    """

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(MemoryObjectStore())
        self.clock = clock
        self.times: dict[str, int] = {}
        self.abandoned: list[AbandonedWrite] = []

    def write(self, key: str, body: Body, began_ms: int, *, if_absent: bool) -> None:
        super().put(key, body, if_absent=if_absent)
        self.times[key] = began_ms

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self.write(key, body, self.clock.now_ms, if_absent=if_absent)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return map(self._timed, super().list(prefix, start_after))

    def head(self, key: str) -> ObjectInfo:
        return self._timed(super().head(key))

    def _timed(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key, info.size, info.etag, self.times[info.key])

    def leave(self, key: str, began_ms: int) -> None:
        self.abandoned.append(AbandonedWrite(key, None, began_ms, f"upload {len(self.times)} {len(self.abandoned)}"))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        return (write for write in list(self.abandoned) if write.key.startswith(prefix))

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        there = write in self.abandoned
        self.abandoned = [other for other in self.abandoned if other != write]
        return there

    def now_ms(self) -> int:
        return self.clock.now_ms


class KilledError(BaseException):
    """Simulated death of the process, without any cleanup."""


class Actor:
    """Work on a separate thread that stops before each store call until it is resumed.

    Exactly one of the world's threads runs at any time, so the drawn order determines everything.
    """

    def __init__(self, world: AgingStore, work: Callable[[ObjectStore], object], *, call_limit_ms: int) -> None:
        self._world = world
        self._call_limit_ms = call_limit_ms
        self._turn = threading.Semaphore(0)
        self._stood_still = threading.Semaphore(0)
        self._is_killed = self._dies_inside = False
        self.is_over = False
        self.result: object = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """Run the pending store call, and then the work up to its next call or its end."""
        if not self.is_over:
            self._turn.release()
            self._wait()

    def kill(self, *, inside: bool) -> None:
        """Kill the actor before its next call, or ``inside`` that call. A write that is killed inside leaves an
        abandoned write.
        """
        if not self.is_over:
            self._is_killed, self._dies_inside = True, inside
            self._turn.release()
            self._wait()
            assert self.is_over

    def finish(self) -> None:
        while not self.is_over:
            self.step()
        self._thread.join(WAIT_S)

    def _wait(self) -> None:
        assert self._stood_still.acquire(timeout=WAIT_S)

    def _run(self, work: Callable[[ObjectStore], object]) -> None:
        try:
            self.result = work(_SteppedStore(self._world, self))
        except BaseException as error:  # noqa: BLE001  any error may end the work
            self.error = error
        self.is_over = True
        self._stood_still.release()

    @contextmanager
    def call(self) -> Generator[int]:
        """Run one call and yield its start time. A call that waits too long fails, as if at its deadline."""
        self._die_unless(False)
        began_ms = self._world.clock.now_ms
        self._stood_still.release()
        assert self._turn.acquire(timeout=WAIT_S)
        self._die_unless(self._dies_inside)
        if self._world.clock.now_ms - began_ms > self._call_limit_ms:
            raise StoreUnavailableError("the call did not end within its deadline")
        yield began_ms
        self._die_unless(False)

    def _die_unless(self, goes_on: bool) -> None:
        if self._is_killed and not goes_on:
            raise KilledError

    @property
    def breaks_off(self) -> bool:
        return self._dies_inside


class _SteppedStore(DelegatingObjectStore):
    inner: AgingStore

    def __init__(self, world: AgingStore, actor: Actor) -> None:
        super().__init__(world)
        self._actor = actor

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        with open_body(body) as parts:
            content = b"".join(map(bytes, parts))
        with self._actor.call() as began_ms:
            if self._actor.breaks_off:
                self.inner.leave(key, began_ms)
            else:
                self.inner.write(key, content, began_ms, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._actor.call():
            return super().get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        with self._actor.call():
            return super().get_small(key, most)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        with self._actor.call():
            page = list(super().list(prefix, start_after))
        return iter(page)

    def delete(self, keys: Iterable[str]) -> None:
        """Count one call per key, because a bulk delete may be interrupted in the middle."""
        for key in keys:
            with self._actor.call():
                super().delete([key])

    def head(self, key: str) -> ObjectInfo:
        with self._actor.call():
            return super().head(key)

    def replace(self, key: str, body: Body, etag: str) -> str:
        with self._actor.call():
            return super().replace(key, body, etag)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        with self._actor.call():
            page = list(find_abandoned_writes(self.inner, prefix))
        return iter(page)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        with self._actor.call():
            return super().discard(write)

    def now_ms(self) -> int | None:
        with self._actor.call():
            return super().now_ms()
