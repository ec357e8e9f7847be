"""Store wrappers that log and count operations, and fail, wait or lie according to a test's script."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from itertools import count as count_from
from typing import Any, Literal, Self, TypeAlias, TypeVar

from tieredstore.backends.base import (
    AbandonedWrite,
    Body,
    BucketVersions,
    Buffer,
    DelegatingStore,
    ObjectInfo,
    ObjectStore,
    ObjectVersion,
    Prepared,
    find_abandoned_writes,
)
from tieredstore.backends.contract.bodies import open_body
from tieredstore.errors import PreconditionFailedError, StoreUnavailableError, TieredStoreError

OperationName: TypeAlias = Literal[
    "put",
    "get",
    "get_into",
    "list",
    "delete",
    "head",
    "replace",
    "prepare",
    "publish",
    "abandoned_writes",
    "discard",
    "now_ms",
    "list_versions",
    "remove_marker",
]

Moment: TypeAlias = Literal["before", "during", "after"]
"""Moment of an operation. ``before``: it has had no effect. ``during``: a ``put`` or ``prepare`` has taken half of its
body's first buffer, a ``get_into`` has filled half of its buffer, a ``delete`` has deleted half of its keys, and a
listing has yielded an object. Other operations have had no effect. ``after``: the operation took effect, and the caller
has no answer yet.
"""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a store, ``number`` counted from 0 since creation or reset.

    ``keys`` are those of a delete, the one key of another call, or the prefix of a listing. A ``get_small`` or a
    ``get_whole`` is a ``get``. A listing counts as soon as the caller requests its first object. A read of an empty
    range does not count.
    """

    number: int
    name: OperationName
    keys: tuple[str, ...]


Act: TypeAlias = Callable[[Operation], object]
_Due: TypeAlias = list[tuple[Moment, Act]]


class DelegatingObjectStore(DelegatingStore):
    """Store that passes every call to ``inner``; subclasses override the calls that they observe or disturb."""

    @property
    def small_batch(self) -> int:
        """Number of keys that a batch reads: 1, so that each read is a separate call."""
        return 1

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Read by ``get``."""
        ObjectStore.get_whole(self, key, buffer)

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Read each key by ``get_small``, one after the other."""
        return ObjectStore.get_small_batch(self, keys, most)


class ScriptedStore(DelegatingObjectStore):
    """Store that logs every operation, counts bytes, and applies the rules of its script. Safe for several threads::

        store = ScriptedStore(MemoryObjectStore())
        store.on("delete", "*/0/*", AccessDeniedError("locked"))              # fails, each time
        store.on("put", "*_SUCCESS", StoreUnavailableError("lost"), moment="after", times=1)
        store.on(("get", "head"), do=lambda operation: asked.set())      # runs, then goes on
        store.change("now_ms", change=lambda now_ms: now_ms + DAY_MS)    # another answer, or another body

    ``bytes_up`` counts the bytes taken from bodies, ``bytes_down`` those that the caller received, and ``closes`` the
    calls of ``close``, which are no operations.
    """

    def __init__(self, inner: ObjectStore, *, conditional_writes: bool | None = None) -> None:
        super().__init__(inner)
        self._conditional_writes = conditional_writes
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._changes: list[tuple[_Rule, Callable[[Any], Any]]] = []
        self.reset()

    def on(
        self,
        names: OperationName | Collection[OperationName] | None = None,
        key: str = "*",
        do: Act | BaseException | None = None,
        *,
        moment: Moment = "before",
        skip: int = 0,
        times: int | None = None,
    ) -> Self:
        """Add a rule: ``do`` this at each operation with one of these ``names`` (None: all) and a ``key`` of this
        pattern.

        ``do`` may be an exception to raise. The rule ignores the first ``skip`` matching operations. With ``times``, it
        affects only that many.
        """
        self._rules.append(_Rule(names, key, moment, _act_of(do), skip, times))
        return self

    def change(self, names: OperationName, key: str = "*", *, change: Callable[[Any], Any]) -> Self:
        """Change the whole body of writes, and the answer of other operations (for a listing, the iterator)."""
        self._changes.append((_Rule(names, key), change))
        return self

    def reset(self) -> None:
        """Clear the log and all counts; the rules stay."""
        with self._lock:
            self.operations: list[Operation] = []
            self.requests: Counter[OperationName] = Counter()
            self.bytes_up = 0
            self.bytes_down = 0
            self.closes = 0

    def keys_of(self, name: OperationName) -> list[str]:
        """Return the keys of all operations of one name, in call order."""
        with self._lock:
            return [key for operation in self.operations if operation.name == name for key in operation.keys]

    @property
    def conditional_writes(self) -> bool:
        """The value given to the constructor, or else that of ``inner``."""
        return super().conditional_writes if self._conditional_writes is None else self._conditional_writes

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Count one operation."""
        with open_body(body) as parts, self._operation("put", key) as call:
            super().put(key, self._taken(parts, call), if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Count one operation, or none for an empty range."""
        if start == stop:
            return super().get(key, start, stop)
        with self._operation("get", key) as call:
            data = call.changed(call.whole(lambda: super(ScriptedStore, self).get(key, start, stop)))
            self._add(down=len(data))
            return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """Count one operation, a ``get``."""
        with self._operation("get", key) as call:
            data = call.changed(call.whole(lambda: super(ScriptedStore, self).get_small(key, most)))
            self._add(down=len(data or b""))
            return data

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Count one operation, or none for an empty buffer."""
        view = memoryview(buffer).cast("B")
        if not len(view):
            super().get_into(key, start, buffer)
            return
        with self._operation("get_into", key) as call:
            if call.has("during"):
                super().get_into(key, start, view[: len(view) // 2])
                call.reach("during")
            super().get_into(key, start, buffer)
            self._add(down=len(view))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Count one operation for all pages; ``during`` is the moment after each object."""
        with self._operation("list", prefix) as call:
            for info in call.changed(super().list(prefix, start_after)):
                yield info
                call.reach("during")

    def delete(self, keys: Iterable[str]) -> None:
        """Count one operation for all keys; ``during``: the first half of the keys, rounded up, is deleted."""
        named = tuple(keys)
        with self._operation("delete", *named) as call:
            if call.has("during"):
                super().delete(named[: (len(named) + 1) // 2])
                call.reach("during")
            super().delete(named)

    def head(self, key: str) -> ObjectInfo:
        """Count one operation."""
        with self._operation("head", key) as call:
            return call.changed(call.whole(lambda: super(ScriptedStore, self).head(key)))

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Count one operation."""
        with open_body(body) as parts, self._operation("replace", key) as call:
            taken = self._taken(parts, call)
            return super().replace(key, taken, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Count one operation."""
        with open_body(body) as parts, self._operation("prepare", key) as call:
            return super().prepare(key, self._taken(parts, call), staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Count one operation."""
        with self._operation("publish", prepared.key) as call:
            call.whole(lambda: super(ScriptedStore, self).publish(prepared))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """Count one operation for all pages; ``during`` is the moment after each write."""
        with self._operation("abandoned_writes", prefix) as call:
            for write in call.changed(find_abandoned_writes(self.inner, prefix)):
                yield write
                call.reach("during")

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Count one operation."""
        with self._operation("discard", write.key) as call:
            return call.changed(call.whole(lambda: super(ScriptedStore, self).discard(write)))

    def now_ms(self) -> int | None:
        """Count one operation."""
        with self._operation("now_ms") as call:
            return call.changed(call.whole(super().now_ms))

    def close(self) -> None:
        """Count the call."""
        self.closes += 1
        super().close()

    def versions(self) -> BucketVersions | str:
        """Return versions whose operations this store counts."""
        inner = super().versions()
        return inner if isinstance(inner, str) else _ScriptedVersions(inner, self._operation)

    def _operation(self, name: OperationName, *keys: str) -> _Call:
        with self._lock:
            operation = Operation(len(self.operations), name, keys)
            self.operations.append(operation)
            self.requests[name] += 1
            return _Call(
                operation, self._due(operation), [change for rule, change in self._changes if rule.fits(operation)]
            )

    def _due(self, operation: Operation) -> _Due:
        """Return the actions due at the operation. The caller holds the lock."""
        return [(rule.moment, rule.act) for rule in self._rules if rule.is_due(operation)]

    def _add(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.bytes_up += up
            self.bytes_down += down

    def _taken(self, parts: Iterator[memoryview], call: _Call) -> Generator[Buffer]:
        if call.changes:
            parts = iter([memoryview(call.changed(b"".join(map(bytes, parts))))])
        if call.has("during"):
            first = next(parts, memoryview(b""))
            self._add(up=len(first))
            yield first[: len(first) // 2]
            call.reach("during")
            parts = chain([first[len(first) // 2 :]], parts)
        for part in parts:
            self._add(up=len(part))
            yield part


class _ScriptedVersions(BucketVersions):
    """Versions whose operations a scripted store logs."""

    def __init__(self, inner: BucketVersions, operation: Callable[..., _Call]) -> None:
        self._inner, self._operation = inner, operation

    def list(self, prefix: str) -> Iterator[ObjectVersion]:
        with self._operation("list_versions", prefix) as call:
            for version in call.changed(self._inner.list(prefix)):
                yield version
                call.reach("during")

    def remove_marker(self, marker: ObjectVersion) -> None:
        with self._operation("remove_marker", marker.key) as call:
            call.whole(lambda: self._inner.remove_marker(marker))

    def obstacle(self) -> str | None:
        return self._inner.obstacle()


CountingStore = ScriptedStore
"""The same store, under a name for tests that only count its operations."""


def gather(count: int) -> Act:
    """Return an act that blocks operations until ``count`` of them have come."""
    numbers, are_there = count_from(1), threading.Event()

    def wait(_: Operation) -> None:
        if next(numbers) == count:
            are_there.set()
        assert are_there.wait(120), f"fewer than {count} at once"

    return wait


def _unavailable() -> Exception:
    return StoreUnavailableError("the store double was told to fail here; try again")


class FaultyStore(ScriptedStore):
    """Store that fails at chosen operations and lists them in ``failed``.

    ``fail_at`` is the number of one operation, from 0, or a predicate called at each operation. With ``for_good``,
    every operation after the first failure fails too, without effect, as if the process were dead.
    """

    def __init__(
        self,
        inner: ObjectStore,
        fail_at: int | Callable[[Operation], bool] | None = None,
        *,
        error: Callable[[], BaseException] = _unavailable,
        moment: Moment = "before",
        for_good: bool = False,
    ) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.error = error
        self.moment: Moment = moment
        self.failed: list[Operation] = []
        self._for_good = for_good

    def _due(self, operation: Operation) -> _Due:
        due = super()._due(operation)
        if self._for_good and self.failed:
            return [*due, ("before", self._fail)]
        if self.fail_at(operation) if callable(self.fail_at) else operation.number == self.fail_at:
            self.failed.append(operation)
            due.append((self.moment, self._fail))
        return due

    def _fail(self, _: Operation) -> None:
        raise self.error()


class LateStore(ScriptedStore):
    """Store whose first write to a key of this pattern raises ``error``, and takes effect when ``land`` is called."""

    def __init__(self, inner: ObjectStore, key: str, error: BaseException | None = None) -> None:
        super().__init__(inner)
        self._pattern, self._error = key, error or _unavailable()
        self._late: Callable[[ObjectStore], object] | None = None

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self._delay(key, lambda store: store.put(key, body, if_absent=if_absent))
        super().put(key, body, if_absent=if_absent)

    def replace(self, key: str, body: Body, etag: str) -> str:
        self._delay(key, lambda store: store.replace(key, body, etag))
        return super().replace(key, body, etag)

    def _delay(self, key: str, write: Callable[[ObjectStore], object]) -> None:
        if self._late is None and fnmatchcase(key, self._pattern):
            self._late = write
            raise self._error

    @property
    def is_late(self) -> bool:
        """True if a write has been delayed."""
        return self._late is not None

    def land(self, store: ObjectStore | None = None) -> None:
        """Execute the late write in ``inner``, or in another store. It has no effect if its condition fails."""
        assert self._late is not None
        with suppress(PreconditionFailedError):
            self._late(store or self.inner)


class LatencyStore(ScriptedStore):
    """Store that answers after ``request_s`` seconds and moves at most ``bytes_per_s`` per call, by calling ``sleep``.

    A ``put`` waits for each buffer of its body, a download once for all its bytes, and an empty range not at all.
    Concurrent calls do not slow each other down. A test that must not wait passes a recording ``sleep``.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        request_s: float = 0.0,
        bytes_per_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._bytes_per_s, self._sleep = bytes_per_s, sleep
        if request_s:
            self.on(do=lambda _: sleep(request_s))

    def _add(self, *, up: int = 0, down: int = 0) -> None:
        super()._add(up=up, down=down)
        if up + down and self._bytes_per_s is not None:
            self._sleep((up + down) / self._bytes_per_s)


class _Rule:
    """Rule that selects the operations at which an action is due, and counts them down."""

    def __init__(
        self,
        names: OperationName | Collection[OperationName] | None,
        key: str,
        moment: Moment = "before",
        act: Act = lambda _: None,
        skip: int = 0,
        times: int | None = None,
    ) -> None:
        self._names = (names,) if isinstance(names, str) else names
        self._key = key
        self.moment: Moment = moment
        self.act = act
        self._skip, self._times = skip, times

    def fits(self, operation: Operation) -> bool:
        """Return True if the rule's names and key pattern match the operation."""
        named = self._names is None or operation.name in self._names
        return named and (self._key == "*" or any(fnmatchcase(key, self._key) for key in operation.keys))

    def is_due(self, operation: Operation) -> bool:
        """Return True if the rule applies now. The caller holds the store's lock."""
        if not self.fits(operation) or self._times == 0:
            return False
        if self._skip:
            self._skip -= 1
            return False
        if self._times is not None:
            self._times -= 1
        return True


class _Call:
    """Context manager around one running operation."""

    __slots__ = ("_acts", "_operation", "changes")

    def __init__(self, operation: Operation, acts: _Due, changes: list[Callable[[Any], Any]]) -> None:
        self._operation, self._acts, self.changes = operation, acts, changes

    def has(self, moment: Moment) -> bool:
        return any(due == moment for due, _ in self._acts)

    def reach(self, moment: Moment) -> None:
        for due, act in self._acts:
            if due == moment:
                act(self._operation)

    def whole(self, operation: Callable[[], Answer]) -> Answer:
        """Run an operation that has no partial effect, after ``during`` has been reached."""
        self.reach("during")
        return operation()

    def changed(self, answer: Answer) -> Answer:
        for change in self.changes:
            answer = change(answer)
        return answer

    def __enter__(self) -> Self:
        self.reach("before")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # If the store itself raises an error, there is no ``after``, because only a successful operation has an answer
        # to lose.
        if kind is None:
            self.reach("after")


def _act_of(do: Act | BaseException | None) -> Act:
    def act(operation: Operation) -> None:
        if isinstance(do, BaseException):
            raise do
        if do is not None:
            do(operation)

    return act
