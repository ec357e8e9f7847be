"""A process that is killed at one operation of its store: nothing that it does later reaches the store."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.stores.doubles import FaultyStore, Moment, ScriptedStore
from tieredstore.backends.base import ObjectStore


class Killed(BaseException):
    """What a killed process never sees."""


class DyingStore(FaultyStore):
    """Dies ``before``, ``during`` or ``after`` operation number ``at`` (from 0); None: never."""

    def __init__(self, inner: ObjectStore, at: int | None = None, moment: Moment = "before") -> None:
        super().__init__(inner, at, error=Killed, moment=moment, for_good=True)

    @property
    def count(self) -> int:
        """How many operations there were."""
        return len(self.operations)


class PausedStore(ScriptedStore):
    """A process that stands still before operation number ``at``, while ``meanwhile`` happens, and goes on then."""

    def __init__(self, inner: ObjectStore, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self.on(do=lambda _: meanwhile(), skip=at, times=1)
