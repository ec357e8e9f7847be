"""The system's cache of files, left as it was: a broker serves its readers from there."""

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
    """What of the file the cache did not have before the block, it has no more afterwards; what it had stays.

    ``descriptor`` is the caller's own, not shared with another process. Where the system does not tell what is cached
    nothing is dropped.
    """
    absent = list(list_uncached(descriptor))
    try:
        yield
    finally:
        for start, length in absent:
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def list_uncached(descriptor: int) -> Iterator[tuple[int, int]]:
    """The ranges (start, length) of a file that are not in the cache, by blocks of 1 MiB; none if nobody tells."""
    size = os.fstat(descriptor).st_size
    if size <= _BLOCK:
        # As most are where there are many: they are read as a whole, whatever lies behind the first byte.
        yield from _small(descriptor, size)
        return
    start: int | None = None
    try:
        # Else the first look at what is not there would have the system read what lies behind it.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(0, size, _BLOCK):
            if _is_cached(descriptor, offset):
                if start is not None:
                    yield start, offset - start
                    start = None
            elif start is None:
                start = offset
    except OSError:  # a file system that cannot tell
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
    """Whether a byte can be had without waiting for the disk."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _WOULD_WAIT:
            return False
        raise
    return True
