"""Which chunks come with which request. Pure: chunk numbers and sizes in, requests out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_CHUNKS_OF_A_RUN: Final = 1024
"""Chunks that one request brings at most: each is a few objects, and 16 MiB of the plugin's own chunks are four."""

MAX_CHUNKS_ON_THEIR_WAY: Final = 4 * MAX_CHUNKS_OF_A_RUN
"""Chunks of one stream that are scheduled when it starts another request, at most."""


def greedy_run(
    first: int,
    limit: int,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> range:
    """The chunks that one request starting at chunk ``first`` brings: adjacent missing ones before ``limit``.

    Whole chunks in order, as many as their original sizes fit ``max_bytes`` and no more than ``MAX_CHUNKS_OF_A_RUN``,
    and always ``first`` itself.
    """
    # The first chunk comes whatever its size: a limit below one chunk must not stop reading.
    total, stop = size_of(first), first + 1
    limit = min(limit, first + MAX_CHUNKS_OF_A_RUN)
    while stop < limit and (total := total + size_of(stop)) <= max_bytes and is_missing(stop):
        stop += 1
    return range(first, stop)
