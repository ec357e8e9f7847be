"""The division of chunks into requests. Pure: chunk numbers and sizes in, requests out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_CHUNKS_OF_A_RUN: Final = 1024
"""The most chunks of one request: each costs a few objects, and 16 MiB of the plugin's own chunks are four."""

MAX_CHUNKS_ON_THEIR_WAY: Final = 4 * MAX_CHUNKS_OF_A_RUN
"""The most scheduled chunks of one stream when it starts another request."""


def greedy_run(
    first: int,
    limit: int,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> range:
    """Return the chunks of one request from chunk ``first`` on: adjacent missing ones before ``limit``.

    Whole chunks in order, as many as their original sizes fit ``max_bytes`` and no more than ``MAX_CHUNKS_OF_A_RUN``,
    and always ``first`` itself.
    """
    # The first chunk always comes: a limit below one chunk must not stop reading.
    total, stop = size_of(first), first + 1
    limit = min(limit, first + MAX_CHUNKS_OF_A_RUN)
    while stop < limit and (total := total + size_of(stop)) <= max_bytes and is_missing(stop):
        stop += 1
    return range(first, stop)
