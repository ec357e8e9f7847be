"""Parts of one size, cut from a body of unknown length and sent in parallel with bounded memory."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
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
    """Part ``number`` (from 0) of a body. ``data`` is valid until ``PartCutter.give_back``.

    All parts except the last have exactly the part size. The last part may be shorter, and is empty if the body is
    empty.
    """

    number: int
    data: memoryview
    is_last: bool
    pages: Pages | None = field(default=None, repr=False)


@contextmanager
def cut(body: Body, part_size: int) -> Generator[PartCutter, None, None]:
    """Cut ``body`` into parts; if it is a generator, close it at the end of the block."""
    # Copy a stream's bytes into the parts, because each buffer is invalid once the next buffer is requested. A single
    # buffer needs no copies, because its parts are slices.
    copies = not isinstance(body, bytes | bytearray | memoryview)
    with open_body(body) as buffers:
        cutter = PartCutter(buffers, part_size, copies=copies)
        try:
            yield cutter
        finally:
            cutter.close()


class PartCutter(Iterator[Part]):
    """Iterator over the parts of a body. An empty body gives one empty part.

    The iterator reads one source buffer ahead, to know which part is the last. With ``copies``, each part is a copy, in
    memory that was given back or, if there is none, from the pool. Only ``give_back`` is thread-safe.
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
        """Release the memory of ``part`` for the next part."""
        if part.pages is not None:
            self._free.append(part.pages)

    def close(self) -> None:
        """Return unused memory to the pool, for later uploads."""
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
            # Release the view before requesting the next buffer, because the source can resize its buffer only while
            # no view of that buffer exists.
            with self._rest[: self._part_size - filled] as taken:
                count = len(taken)
                buffer[filled : filled + count] = taken
            filled += count
            self._rest = self._rest[count:]
        return Part(self._number, buffer[:filled], is_last=not self._has_more(), pages=pages)

    def _has_more(self) -> bool:
        """Return True if bytes remain; request the next source buffer only after the current one is used up."""
        while not self._rest:
            self._rest = _NOTHING
            following = next(self._buffers, None)
            if following is None:
                return False
            # Make another view, because the source releases its own view when the next buffer is requested.
            self._rest = following[:]
        return True


def send_parts(
    cutter: PartCutter, send: Callable[[Part], Result], parallelism: int, *, first: Part | None = None
) -> list[Result]:
    """Call ``send`` for every part; return the results in the order of the parts.

    ``first`` is a part that the caller has already taken from ``cutter``. At most ``parallelism`` parts are being sent
    while one more is filled. So memory is at most ``(parallelism + 1)`` parts.

    If the body or a part fails, or on KeyboardInterrupt, start no further part. Wait for the running parts, then raise
    the failure. Do not wait if a signal ends the process.
    """

    def send_one(part: Part) -> tuple[int, Result]:
        result = send(part)
        cutter.give_back(part)
        return part.number, result

    pool = ThreadPool(parallelism, "tieredstore-upload")
    try:
        parts = chain(() if first is None else (first,), cutter)
        results = dict(in_parallel(pool, send_one, parts, at_once=parallelism, ordered=False))
    except Interrupted:
        # The process is ending, so do not wait for the threads. The remaining time is needed for the rollback.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    except BaseException:
        pool.shutdown()  # wait for running parts, even after KeyboardInterrupt
        raise
    pool.shutdown()
    return [results[number] for number in sorted(results)]


_HUGE_PAGE: Final = 1 << 21
_LARGE: Final = 1 << 20
_MOST_KEPT: Final = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """A block of memory. ``view`` has exactly the requested size."""

    view: memoryview
    _mapped: mmap.mmap | None = field(default=None, repr=False)

    @classmethod
    def new(cls, size: int) -> Pages:
        """Allocate fresh memory; the system provides each page on first touch.

        Large blocks use huge pages, with one page fault per 2 MiB instead of one per 4 KiB, so that the first touch is
        five times as fast.
        """
        if size < _LARGE or sys.platform != "linux":
            return cls(memoryview(bytearray(size)))
        # Round up to whole huge pages, because the system would back a partial huge page with small pages.
        whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE
        mapped = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # ignore a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return cls(memoryview(mapped)[:size], mapped)

    def put_by(self) -> bool:
        """Let the system discard this block's content when memory is short. Return False if the system cannot do so."""
        if self._mapped is None or sys.platform != "linux":
            return False
        try:
            self._mapped.madvise(mmap.MADV_FREE)
        except OSError:
            return False
        return True


class PagePool:
    """Memory of finished uploads, which later uploads use again. Thread-safe.

    The pool exists because allocating fresh pages takes a process more time than all its other work for an upload. The
    pool keeps at most ``most_kept`` bytes. The system counts this memory as free, outside a container's working set,
    and may take it at any time.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self._most_kept = most_kept
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Drop all kept memory in a forked child, because the child would have to copy each page that it writes to."""
        self._kept: deque[Pages] = deque()

    def take(self, size: int) -> Pages:
        """Return a block of ``size`` bytes with undefined content."""
        try:
            pages = self._kept.pop()
        except IndexError:
            return Pages.new(size)
        # Drop a block of another size: such blocks are rare, because all uploads of a process use one size.
        return pages if len(pages.view) == size else Pages.new(size)

    def give(self, pages: Pages) -> None:
        """Take back a block that nothing refers to any more."""
        room = self._most_kept // max(1, len(pages.view))
        if len(self._kept) < room and pages.put_by():
            self._kept.append(pages)


POOL: Final = PagePool()
"""The pool of this process."""
