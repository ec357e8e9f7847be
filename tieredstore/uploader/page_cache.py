"""The system's page cache, left unchanged: a broker serves its readers from there."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator, Iterator
from typing import Final

_BLOCK: Final = 1 << 20
_WOULD_WAIT: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})


@contextlib.contextmanager
def cache_as_it_was(descriptor: int) -> Generator[None]:
    """Drop pages of the file that the block brought into the cache; keep those cached before.

    ``descriptor`` is the caller's own, not shared with another process. If the system cannot list cached pages, nothing
    is dropped.
    """
    absent = list(list_uncached(descriptor))
    try:
        yield
    finally:
        for start, length in absent:
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def list_uncached(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the uncached ranges (start, length) of a file, by blocks of 1 MiB; none if the system cannot tell."""
    size = os.fstat(descriptor).st_size
    if size <= _BLOCK:
        # The usual case where files are many: a small one is read whole, so its first byte decides.
        yield from _small(descriptor, size)
        return
    start: int | None = None
    try:
        # Otherwise the first probe of an uncached page would read the pages after it.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(0, size, _BLOCK):
            if _is_cached(descriptor, offset):
                if start is not None:
                    yield start, offset - start
                    start = None
            elif start is None:
                start = offset
    except OSError:  # the file system cannot tell
        return
    finally:
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
    if start is not None:
        yield start, size - start


def _small(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):  # as above
        if size and not _is_cached(descriptor, 0):
            yield 0, size


def _is_cached(descriptor: int, offset: int) -> bool:
    """Return True if a byte is available without waiting for the disk."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _WOULD_WAIT:
            return False
        raise
    return True
