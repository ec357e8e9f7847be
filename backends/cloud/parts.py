"""A body of unknown length, cut into parts of one size and sent in parallel within a bound of memory."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tieredstore.backends.base import Body
from tieredstore.backends.contract.bodies import open_body
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.interruption import Interrupted
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool

Result = TypeVar("Result")

_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Part:
    """Part ``number`` (from 0) of a body; ``data`` is valid until the part is given back.

    All parts except the last have exactly the part size. The last one is shorter, full, or (of an empty body) empty.
    """

    number: int
    data: memoryview
    is_last: bool
    pages: Pages | None = field(default=None, repr=False)


@contextmanager
def cut(body: Body, part_size: int) -> Generator[PartCutter, None, None]:
    """Cut ``body`` into parts; close a generator at the end of the block."""
    # The parts of a single buffer are slices of it; each buffer of a stream ends when the next is requested.
    copies = not isinstance(body, bytes | bytearray | memoryview)
    with open_body(body) as buffers:
        cutter = PartCutter(buffers, part_size, copies=copies)
        try:
            yield cutter
        finally:
            cutter.close()


class PartCutter(Iterator[Part]):
    """Cuts buffers into parts, at least one, so that an empty body makes an (empty) object.

    It reads one source buffer ahead to know which part is the last. Copied parts take a new buffer unless one was given
    back: at most one more exists than parts are in use. Not thread-safe, except ``give_back``.
    """

    def __init__(self, buffers: Iterator[memoryview], part_size: int, *, copies: bool) -> None:
        self._buffers = buffers
        self._part_size = part_size
        self._copies = copies
        self._free: deque[Pages] = deque()
        self._rest = _NOTHING
        self._number = 0
        self._ended = False

    def __next__(self) -> Part:
        if self._ended:
            raise StopIteration
        part = self._take_copy() if self._copies else self._take_slice()
        self._number += 1
        self._ended = part.is_last
        return part

    def give_back(self, part: Part) -> None:
        """Make the memory of ``part`` available for another one."""
        if part.pages is not None:
            self._free.append(part.pages)

    def close(self) -> None:
        """Leave the returned memory to later uploads."""
        while self._free:
            POOL.give(self._free.pop())

    def _take_slice(self) -> Part:
        self._has_more()
        taken, self._rest = self._rest[: self._part_size], self._rest[self._part_size :]
        return Part(self._number, taken, is_last=not self._rest)

    def _take_copy(self) -> Part:
        pages = self._free.pop() if self._free else POOL.take(self._part_size)
        buffer = pages.view
        filled = 0
        while filled < self._part_size and self._has_more():
            # Keep no view of the source: its owner may resize it as soon as the next buffer is requested.
            with self._rest[: self._part_size - filled] as taken:
                count = len(taken)
                buffer[filled : filled + count] = taken
            filled += count
            self._rest = self._rest[count:]
        return Part(self._number, buffer[:filled], is_last=not self._has_more(), pages=pages)

    def _has_more(self) -> bool:
        """Return True if bytes remain; requests the next source buffer only when the last one is used up."""
        while not self._rest:
            self._rest = _NOTHING
            following = next(self._buffers, None)
            if following is None:
                return False
            # A separate view: theirs is released when the next is requested.
            self._rest = following[:]
        return True


def send_parts(
    cutter: PartCutter, send: Callable[[Part], Result], parallelism: int, *, first: Part | None = None
) -> list[Result]:
    """``send`` every part (``first``, if already taken, before the others); return the results in the parts' order.

    At most ``parallelism`` parts are being sent while one more is filled: memory is at most ``(parallelism + 1)``
    parts. After any failure, of the body, of a part, or a KeyboardInterrupt, no further part begins, running ones are
    awaited, and the failure is raised. Only a signal that ends the process does not wait for them.
    """

    def send_one(part: Part) -> tuple[int, Result]:
        result = send(part)
        cutter.give_back(part)
        return part.number, result

    pool = ThreadPool(parallelism, "tieredstore-upload")
    try:
        parts = _chain(first, cutter)
        results = dict(in_parallel(pool, send_one, parts, at_once=parallelism, ordered=False))
    except Interrupted:
        # The process ends, and these with it: its time is needed to roll back.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    except BaseException:
        pool.shutdown()  # waits for running parts, after an interrupt too
        raise
    pool.shutdown()
    return [results[number] for number in sorted(results)]


def _chain(first: Part | None, cutter: PartCutter) -> Iterator[Part]:
    if first is not None:
        yield first
    yield from cutter


_HUGE_PAGE: Final = 1 << 21
_LARGE: Final = 1 << 20
_MOST_KEPT: Final = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """One piece of memory. ``view`` has exactly the requested size."""

    view: memoryview
    _mapped: mmap.mmap | None = field(default=None, repr=False)

    @classmethod
    def new(cls, size: int) -> Pages:
        """Allocate fresh memory. Only touched pages take any.

        For a large piece the system is asked for huge pages: the first touch then takes a fifth of the time, because
        there is one fault for each 2 MiB, not for each 4 KiB.
        """
        if size < _LARGE or sys.platform != "linux":
            return cls(memoryview(bytearray(size)))
        # Whole huge pages: the end of a partial one would be small pages.
        whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE
        mapped = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # the kernel was built without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return cls(memoryview(mapped)[:size], mapped)

    def put_by(self) -> bool:
        """Let the system take the memory if it runs short, and lose its content. Return False if that is not
        possible.
        """
        if self._mapped is None or sys.platform != "linux":
            return False
        try:
            self._mapped.madvise(mmap.MADV_FREE)
        except OSError:
            return False
        return True


class PagePool:
    """Memory of finished uploads for later ones. Thread-safe.

    New pages cost more than everything else that a process does for an upload. The system may take kept memory at any
    time, and it counts as free (not in a container's working set); at most ``most_kept`` bytes are kept.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self._most_kept = most_kept
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Drop everything: a forked child would copy each page that it writes to."""
        self._kept: deque[Pages] = deque()

    def take(self, size: int) -> Pages:
        """Take a piece of ``size`` bytes with undefined content."""
        try:
            pages = self._kept.pop()
        except IndexError:
            return Pages.new(size)
        # Other sizes are rare: the uploads of a process have one.
        return pages if len(pages.view) == size else Pages.new(size)

    def give(self, pages: Pages) -> None:
        """Take back a piece that is no longer referenced."""
        room = self._most_kept // max(1, len(pages.view))
        if len(self._kept) < room and pages.put_by():
            self._kept.append(pages)

    def clear(self) -> None:
        """Return everything to the system."""
        self._kept.clear()


POOL: Final = PagePool()
"""The pool of this process."""
