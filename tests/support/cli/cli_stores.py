"""Store classes that a settings file names by their dotted path."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import ClassVar, NoReturn

from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tieredstore import errors
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import Settings


class StuckStore(ScriptedStore):
    """Store whose reads of data hang. Each read first creates the file that the variable STUCK_MARK names."""

    @classmethod
    def from_settings(cls, settings: Settings) -> StuckStore:
        """Return the file system store with this fault."""

        def hang(_: Operation) -> None:
            Path(os.environ["STUCK_MARK"]).touch()
            time.sleep(60)

        return cls(FilesystemObjectStore.from_settings(settings)).on("get_into", do=hang)


class FailingPuts(ScriptedStore):
    """Store whose puts fail from the n-th on, counted from 0. The variable FAILING_PUTS is ``<error class> <n>``."""

    @classmethod
    def from_settings(cls, settings: Settings) -> FailingPuts:
        """Return the file system store with this fault."""
        error, count = os.environ["FAILING_PUTS"].split()
        fault: errors.TieredStoreError = getattr(errors, error)("no puts any more")
        return cls(FilesystemObjectStore.from_settings(settings)).on("put", do=fault, skip=int(count))


def kill_this_process() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


class KillingStore(FaultyStore):
    """Store that kills the process at one operation. ``last`` is the store created last."""

    kill_at: ClassVar[int | None] = None
    kill_moment: ClassVar[Moment] = "before"
    last: ClassVar[KillingStore]

    @classmethod
    def from_settings(cls, settings: Settings) -> KillingStore:
        """Return the file system store with this fault."""
        inner = FilesystemObjectStore.from_settings(settings)
        KillingStore.last = cls(inner, cls.kill_at, error=kill_this_process, moment=cls.kill_moment)
        return cls.last
