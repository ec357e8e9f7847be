"""Reading of files without displacing pages in the system's page cache, from which a broker serves its consumers."""

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
    """Drop the file's pages that the block read into the page cache. Keep pages that were cached before.

    ``descriptor`` must be the caller's own, not shared with another process. If the system cannot list cached pages,
    drop nothing.
    """
    absent = list(list_uncached(descriptor))
    try:
        yield
    finally:
        for start, length in absent:
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def list_uncached(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the uncached ranges (start, length) of a file, in blocks of 1 MiB. Yield nothing if the system cannot list
    cached pages."""
    size = os.fstat(descriptor).st_size
    start: int | None = None
    try:
        # Turn read-ahead off, because otherwise the check of an uncached page would also load the following pages.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in range(0, size, _BLOCK):
            if _is_cached(descriptor, offset):
                if start is not None:
                    yield start, offset - start
                    start = None
            elif start is None:
                start = offset
    except OSError:  # the file system does not support RWF_NOWAIT
        return
    finally:
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)
    if start is not None:
        yield start, size - start


def _is_cached(descriptor: int, offset: int) -> bool:
    """Return True if the byte at ``offset`` can be read without waiting for the disk."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _WOULD_WAIT:
            return False
        raise
    return True
