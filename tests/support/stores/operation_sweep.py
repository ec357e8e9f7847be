"""Repeats work on a store for each of its operations, which fails, dies or is delayed there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tieredstore.backends.base import ObjectStore

Inner = TypeVar("Inner", bound=ObjectStore)
Over = TypeVar("Over", bound=ScriptedStore)


class Killed(BaseException):
    """Simulates the process's death: its code handles no error."""


class DyingStore(FaultyStore):
    """Store whose process dies at operation ``at`` (from 0; None: never): later operations have no effect."""

    def __init__(self, inner: ObjectStore, at: int | None = None, moment: Moment = "before") -> None:
        super().__init__(inner, at, error=Killed, moment=moment, for_good=True)


class Round(NamedTuple, Generic[Inner, Over]):
    """One round of a sweep: the operation, a new store, and that store with the fault at this operation."""

    number: int
    inner: Inner
    store: Over


class OperationSweep(Generic[Inner]):
    """Runs ``work`` on an undisturbed store of ``make``, then yields a new store for each of its ``operations``.

    The caller does the work on the round's ``store`` and checks its ``inner``. ``numbers`` selects operations.
    """

    def __init__(
        self, make: Callable[[], Inner], work: Callable[[ObjectStore], object], *, numbers: slice = slice(None)
    ) -> None:
        quiet = FaultyStore(make())
        work(quiet)
        self.operations = quiet.operations
        self._make, self._numbers = make, range(len(quiet.operations))[numbers]
        assert self._numbers, "no operation to sweep over: the test would check nothing"

    def fail(self, moment: Moment = "before", *, for_good: bool = False) -> Iterator[Round[Inner, FaultyStore]]:
        """Fail one operation, or all from it on; ``after``: its answer is lost."""
        for number in self._numbers:
            inner = self._make()
            yield Round(number, inner, FaultyStore(inner, number, moment=moment, for_good=for_good))

    def die(self, moment: Moment = "before") -> Iterator[Round[Inner, FaultyStore]]:
        """Raise Killed at one operation; later ones have no effect."""
        for number in self._numbers:
            inner = self._make()
            yield Round(number, inner, DyingStore(inner, number, moment))

    def sleep(self, meanwhile: Callable[[Inner], object]) -> Iterator[Round[Inner, ScriptedStore]]:
        """Call the function with the inner store before one operation, then let that operation continue."""
        for number in self._numbers:
            inner = self._make()
            yield Round(
                number, inner, ScriptedStore(inner).on(do=partial(_wake, meanwhile, inner), skip=number, times=1)
            )


def _wake(meanwhile: Callable[[Inner], object], inner: Inner, _: Operation) -> None:
    meanwhile(inner)
