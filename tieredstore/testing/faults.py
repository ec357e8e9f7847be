"""A store that fails on command: before an operation, in the middle of it, or after it took effect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Literal, Self, TypeAlias

from tieredstore.backends.base import AbandonedWrite, Body, Buffer, ObjectInfo, ObjectStore, Prepared
from tieredstore.backends.contract.bodies import open_body
from tieredstore.errors import StoreUnavailable
from tieredstore.testing.delegating import DelegatingObjectStore, Operation, OperationName

Moment: TypeAlias = Literal["before", "during", "after"]
"""``before``: the operation has no effect. ``during``: the body of a ``put`` or ``prepare`` breaks off after its first
bytes, half of a ``get_into`` has been filled, half the keys of a ``delete`` are gone, a listing ends after one object;
the others fail as before. ``after``: the operation took effect, and its answer was lost."""


def _unavailable() -> Exception:
    return StoreUnavailable("the store double was told to fail here; try again")


class FaultyStore(DelegatingObjectStore):
    """Fails at chosen operations and keeps a log of all. Safe from several threads.

    ``fail_at`` is the number of one operation, from 0, or a predicate that is asked at each operation. A test sweeps
    all failures of a piece of work: run it once without any, count ``operations``, then run it with each number::

        for number in range(len(quiet.operations)):
            store = FaultyStore(MemoryObjectStore(), fail_at=number, moment="after")

    A listing is an operation when its first object is asked for; an empty range is one as well.
    """

    def __init__(
        self,
        inner: ObjectStore,
        fail_at: int | Callable[[Operation], bool] | None = None,
        *,
        error: Callable[[], BaseException] = _unavailable,
        moment: Moment = "before",
    ) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.error = error
        self.moment: Moment = moment
        self.operations: list[Operation] = []
        self.failed: list[Operation] = []
        self._lock = threading.Lock()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """``during``: the body gives half of its first buffer, then raises the error."""
        with open_body(body) as parts, self._operation("put", key) as fault:
            super().put(key, _broken(parts, fault.error) if fault.strikes("during") else parts, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Fails whole or not at all."""
        with self._operation("get", key) as fault:
            fault.strike("during")
            return super().get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """Fails whole or not at all; the operation is a ``get``."""
        with self._operation("get", key) as fault:
            fault.strike("during")
            return super().get_small(key, most)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """``during``: the first half of the buffer is filled."""
        with self._operation("get_into", key) as fault:
            if fault.strikes("during"):
                view = memoryview(buffer).cast("B")
                super().get_into(key, start, view[: len(view) // 2])
                fault.strike("during")
            super().get_into(key, start, buffer)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """``during``: after the first object; ``after``: after the last."""
        with self._operation("list", prefix) as fault:
            for info in super().list(prefix, start_after):
                yield info
                fault.strike("during")

    def delete(self, keys: Iterable[str]) -> None:
        """``during``: the first half of the keys, rounded up, is deleted."""
        named = tuple(keys)
        with self._operation("delete", *named) as fault:
            if fault.strikes("during"):
                super().delete(named[: (len(named) + 1) // 2])
                fault.strike("during")
            super().delete(named)

    def head(self, key: str) -> ObjectInfo:
        """Fails whole or not at all."""
        with self._operation("head", key) as fault:
            fault.strike("during")
            return super().head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """``during``: as before."""
        with self._operation("replace", key) as fault:
            fault.strike("during")
            return super().replace(key, body, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """``during``: as ``put``."""
        with open_body(body) as parts, self._operation("prepare", key) as fault:
            taken = _broken(parts, fault.error) if fault.strikes("during") else parts
            return super().prepare(key, taken, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """``during``: as before."""
        with self._operation("publish", prepared.key) as fault:
            fault.strike("during")
            super().publish(prepared)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """``during``: after the first; ``after``: after the last."""
        with self._operation("abandoned_writes", prefix) as fault:
            for write in super().abandoned_writes(prefix):
                yield write
                fault.strike("during")

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """``during``: as before."""
        with self._operation("discard", write.key) as fault:
            fault.strike("during")
            return super().discard(write)

    def now_ms(self) -> int | None:
        """``during``: as before."""
        with self._operation("now_ms") as fault:
            fault.strike("during")
            return super().now_ms()

    def _operation(self, name: OperationName, *keys: str) -> _Fault:
        with self._lock:
            operation = Operation(len(self.operations), name, keys)
            self.operations.append(operation)
            due = self.fail_at(operation) if callable(self.fail_at) else operation.number == self.fail_at
            if due:
                self.failed.append(operation)
        return _Fault(self.moment if due else None, self.error)


class _Fault:
    """What is to happen to one operation; a context manager around it."""

    __slots__ = ("_moment", "error")

    def __init__(self, moment: Moment | None, error: Callable[[], BaseException]) -> None:
        self._moment, self.error = moment, error

    def strikes(self, moment: Moment) -> bool:
        return self._moment == moment

    def strike(self, moment: Moment) -> None:
        if self._moment == moment:
            raise self.error()

    def __enter__(self) -> Self:
        self.strike("before")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # What the store itself raised is told: only an operation that succeeded has an answer to lose.
        if kind is None:
            self.strike("after")


def _broken(parts: Iterator[memoryview], error: Callable[[], BaseException]) -> Generator[memoryview]:
    for part in parts:
        yield part[: len(part) // 2]
        break
    raise error()
