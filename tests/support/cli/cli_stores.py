"""Store classes that a settings file names by their dotted path."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import ClassVar, NoReturn

from tests.support.stores.doubles import DelegatingObjectStore, FaultyStore, Moment
from tieredstore import errors
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import Settings


class StuckStore(DelegatingObjectStore):
    """Store whose reads of data hang. Each read first creates the file that the variable STUCK_MARK names."""

    @classmethod
    def from_settings(cls, settings: Settings) -> StuckStore:
        """Return the file system store with this fault."""
        return cls(FilesystemObjectStore.from_settings(settings))

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Create the file, then hang for a while."""
        Path(os.environ["STUCK_MARK"]).touch()
        time.sleep(5)
        super().get_into(key, start, buffer)


class FailingPuts(DelegatingObjectStore):
    """Store whose puts fail from the n-th on, counted from 0. The variable FAILING_PUTS is ``<error class> <n>``."""

    @classmethod
    def from_settings(cls, settings: Settings) -> FailingPuts:
        """Return the file system store with this fault."""
        return cls(FilesystemObjectStore.from_settings(settings))

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        error, left = os.environ["FAILING_PUTS"].split()
        self._error: type[errors.TieredStoreError] = getattr(errors, error)
        self._left = int(left)

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Pass the first puts on, then raise."""
        if self._left <= 0:
            raise self._error("no puts any more")
        self._left -= 1
        super().put(key, body, if_absent=if_absent)


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
