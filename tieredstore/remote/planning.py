"""Which chunks come with which request. Pure: chunk numbers and sizes in, requests out."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def greedy_run(
    first: int,
    limit: int,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> range:
    """The chunks that one request starting at chunk ``first`` brings: adjacent missing ones before ``limit``.

    Whole chunks in order, as many as their original sizes fit ``max_bytes``, and always ``first`` itself.
    """
    total, stop = size_of(first), first + 1
    while stop < limit and (total := total + size_of(stop)) <= max_bytes and is_missing(stop):
        stop += 1
    return range(first, stop)


def plan(
    chunks: range,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> Iterator[range]:
    """The requests for ``chunks``, in order; chunks that are not missing are in none of them."""
    chunk = chunks.start
    while chunk < chunks.stop:
        if not is_missing(chunk):
            chunk += 1
            continue
        run = greedy_run(chunk, chunks.stop, size_of=size_of, max_bytes=max_bytes, is_missing=is_missing)
        yield run
        chunk = run.stop
