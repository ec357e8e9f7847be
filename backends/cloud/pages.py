"""Large pieces of memory for uploads: pages of their own, kept from one upload to the next."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tieredstore.process.forks import begin_again_after_fork

_HUGE_PAGE: Final = 1 << 21
_LARGE: Final = 1 << 20
_MOST_KEPT: Final = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """One piece of memory. ``view`` has exactly the size that was asked for."""

    view: memoryview
    _mapped: mmap.mmap | None = field(default=None, repr=False)

    @classmethod
    def new(cls, size: int) -> Pages:
        """Memory that nobody has used. Only what is touched of it takes any.

        For a large piece the system is asked for huge pages: to touch it for the first time then takes a fifth of the
        time, since there is a fault for each 2 MiB and not for each 4 KiB.
        """
        if size < _LARGE or sys.platform != "linux":
            return cls(memoryview(bytearray(size)))
        # Whole huge pages: the end of one that is cut off would be small pages.
        whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE
        mapped = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel that was built without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return cls(memoryview(mapped)[:size], mapped)

    def put_by(self) -> bool:
        """Let the system take the memory if it runs short; what it holds is lost. False if that is not possible."""
        if self._mapped is None or sys.platform != "linux":
            return False
        try:
            self._mapped.madvise(mmap.MADV_FREE)
        except OSError:
            return False
        return True


class PagePool:
    """Pieces of memory that uploads have done with, for the next ones. Thread-safe.

    New pages cost more than all else that a process does for an upload. What is kept here the system may take at any
    time, and it counts as free (not in a container's working set); no more than ``most_kept`` bytes are kept.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self._most_kept = most_kept
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Nothing kept: a forked child would copy every page of its parent's that it writes to."""
        self._kept: deque[Pages] = deque()

    def take(self, size: int) -> Pages:
        """A piece of ``size`` bytes; what is in it is not defined."""
        try:
            pages = self._kept.pop()
        except IndexError:
            return Pages.new(size)
        # Of another size there is nothing to be had here: the uploads of a process have one.
        return pages if len(pages.view) == size else Pages.new(size)

    def give(self, pages: Pages) -> None:
        """Take a piece back that nobody looks at any more."""
        room = self._most_kept // max(1, len(pages.view))
        if len(self._kept) < room and pages.put_by():
            self._kept.append(pages)

    def clear(self) -> None:
        """Give everything back to the system."""
        self._kept.clear()


POOL: Final = PagePool()
"""The pool of this process."""
