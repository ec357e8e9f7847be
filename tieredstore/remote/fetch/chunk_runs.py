"""Division of chunks into requests, by chunk numbers and sizes. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_CHUNKS_OF_A_RUN: Final = 1024
"""Maximum number of chunks in one request. The limit exists because each chunk costs a few Python objects. With the
plugin's default size, a request of 16 MiB has four chunks.
"""

MAX_CHUNKS_ON_THEIR_WAY: Final = 4 * MAX_CHUNKS_OF_A_RUN
"""A stream with this many scheduled chunks starts no further request."""


def greedy_run(
    first: int,
    limit: int,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> range:
    """Return the chunks of one request: ``first``, and adjacent missing chunks before ``limit``.

    The result has at most ``MAX_CHUNKS_OF_A_RUN`` chunks with at most ``max_bytes`` original bytes together. ``first``
    is included even if it alone exceeds ``max_bytes``.
    """
    # Always take the first chunk. A limit below the size of one chunk must not stop the reader.
    total, stop = size_of(first), first + 1
    limit = min(limit, first + MAX_CHUNKS_OF_A_RUN)
    while stop < limit and (total := total + size_of(stop)) <= max_bytes and is_missing(stop):
        stop += 1
    return range(first, stop)
