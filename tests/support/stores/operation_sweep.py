"""Repetitions of work on a store, each with a fault at another operation. `make soak` takes each operation.

`make test` takes some of the operations, the same in each run: see :func:`numbers_to_sweep`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from pathlib import PurePath
from typing import Final, Generic, NamedTuple, TypeVar

from tests.support.examples import SOAK
from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore

Inner = TypeVar("Inner", bound=ObjectStore)
Over = TypeVar("Over", bound=ScriptedStore)


STRIDE: Final = 4
"""Stride of `make test`, which sweeps the first operation of a kind, and each fourth operation after it."""


def numbers_to_sweep(kinds: Sequence[Hashable], *, whole: bool = SOAK) -> list[int]:
    """Return the numbers of the operations to sweep, given the kind of each operation. With ``whole``, return all
    numbers. Otherwise, return the first and each fourth operation of each kind, and the last operation of all.

    Operations come in cycles, such as one for each segment. Because the stride counts each kind separately, it meets
    each step of a cycle, whatever the cycle's length.
    """
    assert kinds, "no operation to sweep over: the test would check nothing"
    seen: Counter[Hashable] = Counter()
    numbers: list[int] = []
    for number, kind in enumerate(kinds):
        if whole or seen[kind] % STRIDE == 0 or number == len(kinds) - 1:
            numbers.append(number)
        seen[kind] += 1
    return numbers


def kinds_of(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Return the kind of each operation of a store: its name, and the extension of its first key."""
    return [(operation.name, PurePath(next(iter(operation.keys), "")).suffix) for operation in operations]


def copies_of(store: ObjectStore) -> Callable[[], MemoryObjectStore]:
    """Return a factory of stores that have the present content of ``store``."""
    objects = {info.key: store.get(info.key) for info in store.list("")}

    def copy() -> MemoryObjectStore:
        copied = MemoryObjectStore()
        for key, data in objects.items():
            copied.put(key, data)
        return copied

    return copy


class Killed(BaseException):
    """Simulated death of the process: not an ``Exception``, so that the product's code does not handle it."""


class DyingStore(FaultyStore):
    """Store whose process dies at operation ``at`` (from 0; None for never). Later operations have no effect."""

    def __init__(self, inner: ObjectStore, at: int | None = None, moment: Moment = "before") -> None:
        super().__init__(inner, at, error=Killed, moment=moment, for_good=True)


class Round(NamedTuple, Generic[Inner, Over]):
    """One round of a sweep: the operation, a new store, and that store with the fault at this operation."""

    number: int
    inner: Inner
    store: Over


class OperationSweep(Generic[Inner]):
    """Sweep that runs ``work`` on an undisturbed store of ``make``, then yields a new store for each operation to
    sweep.

    The caller does the work on the round's ``store`` and checks its ``inner``. ``numbers`` restricts the operations to
    sweep. If ``numbers`` has a step, every operation that it names is swept, also in `make test`.
    """

    def __init__(
        self, make: Callable[[], Inner], work: Callable[[ObjectStore], object], *, numbers: slice = slice(None)
    ) -> None:
        quiet = FaultyStore(make())
        work(quiet)
        self.operations = quiet.operations
        self._make = make
        within = range(len(quiet.operations))[numbers]
        chosen = numbers_to_sweep(kinds_of(quiet.operations), whole=SOAK or numbers.step is not None)
        self.numbers = [number for number in chosen if number in within]
        assert self.numbers, "no operation to sweep over: the test would check nothing"

    def fail(self, moment: Moment = "before", *, for_good: bool = False) -> Iterator[Round[Inner, FaultyStore]]:
        """Yield rounds in which one operation fails and, with ``for_good``, all later ones too.

        At the moment ``after``, the operation takes full effect before it fails.
        """
        for number in self.numbers:
            inner = self._make()
            yield Round(number, inner, FaultyStore(inner, number, moment=moment, for_good=for_good))

    def die(self, moment: Moment = "before") -> Iterator[Round[Inner, FaultyStore]]:
        """Yield rounds in which one operation raises Killed, and later ones have no effect."""
        for number in self.numbers:
            inner = self._make()
            yield Round(number, inner, DyingStore(inner, number, moment))

    def sleep(self, act: Callable[[Inner], object]) -> Iterator[Round[Inner, ScriptedStore]]:
        """Yield rounds in which ``act`` is called with the inner store just before one operation."""
        for number in self.numbers:
            inner = self._make()
            yield Round(number, inner, ScriptedStore(inner).on(do=partial(_wake, act, inner), skip=number, times=1))


def _wake(act: Callable[[Inner], object], inner: Inner, _: Operation) -> None:
    act(inner)
