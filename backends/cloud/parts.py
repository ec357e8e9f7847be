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

    All parts but the last have exactly the part size. The last one is shorter, full, or (of an empty body) empty.
    """

    number: int
    data: memoryview
    is_last: bool
    pages: Pages | None = field(default=None, repr=False)


@contextmanager
def cut(body: Body, part_size: int) -> Generator[PartCutter, None, None]:
    """The parts of ``body``; at the end of the block a body that is a generator is closed."""
    # The parts of a single buffer are slices of it; of a stream of buffers each dies when the next is asked for.
    copies = not isinstance(body, bytes | bytearray | memoryview)
    with open_body(body) as buffers:
        cutter = PartCutter(buffers, part_size, copies=copies)
        try:
            yield cutter
        finally:
            cutter.close()


class PartCutter(Iterator[Part]):
    """Cuts buffers into parts. At least one part comes out, so that an empty body makes an (empty) object.

    One source buffer is looked at ahead, to tell which part is the last. Parts that were copied into buffers of the
    cutter's own take a new buffer unless one was given back: at most one more exists than parts are out.
    Not thread-safe, but for ``give_back``.
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
        """Let the memory of ``part`` be used for another one."""
        if part.pages is not None:
            self._free.append(part.pages)

    def close(self) -> None:
        """Let later uploads have the memory that was given back."""
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
            # No view of the source stays: its owner may resize it as soon as the next buffer is asked for.
            with self._rest[: self._part_size - filled] as taken:
                count = len(taken)
                buffer[filled : filled + count] = taken
            filled += count
            self._rest = self._rest[count:]
        return Part(self._number, buffer[:filled], is_last=not self._has_more(), pages=pages)

    def _has_more(self) -> bool:
        """Whether bytes are left; the next source buffer is asked for only when the last one is used up."""
        while not self._rest:
            self._rest = _NOTHING
            following = next(self._buffers, None)
            if following is None:
                return False
            # A view of our own: theirs is released when the next is asked for.
            self._rest = following[:]
        return True


def send_parts(
    cutter: PartCutter, send: Callable[[Part], Result], parallelism: int, *, first: Part | None = None
) -> list[Result]:
    """``send`` every part (``first``, if one was taken already, before the others); the results in the parts' order.

    At most ``parallelism`` parts are being sent while one more is filled: this bounds the memory at
    ``(parallelism + 1)`` parts. After any failure, of the body, of a part, or an interrupt from the keyboard, no
    other part is begun, those on their way are waited for, and the failure is raised: nothing is sent after it. Only
    a signal that ends the process does not wait for them.
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
        # The process ends, and these with it: what time it has is for taking back what was sent.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    except BaseException:
        pool.shutdown()  # after an interrupt too it waits for the parts that are on their way
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
