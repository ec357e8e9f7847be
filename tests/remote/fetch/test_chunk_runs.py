"""Grouping of chunks into requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.remote.fetch.chunk_loads import greedy_run


def plan(
    chunks: range,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> Iterator[range]:
    """Yield the requests of a stream that reads ``chunks`` in order: one run after the other."""
    chunk = chunks.start
    while chunk < chunks.stop:
        if not is_missing(chunk):
            chunk += 1
            continue
        run = greedy_run(chunk, chunks.stop, size_of=size_of, max_bytes=max_bytes, is_missing=is_missing)
        yield run
        chunk = run.stop


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def test_whole_chunks_in_order_up_to_the_limit() -> None:
    sizes = [4, 4, 4, 4, 4, 2]
    assert list(plan(range(6), size_of=sizes.__getitem__, max_bytes=8)) == [range(2), range(2, 4), range(4, 6)]
    assert list(plan(range(1, 4), size_of=sizes.__getitem__, max_bytes=100)) == [range(1, 4)]


def test_a_chunk_larger_than_the_limit_comes_alone() -> None:
    assert list(plan(range(3), size_of=lambda _: 10, max_bytes=1)) == [range(1), range(1, 2), range(2, 3)]


def test_what_is_not_missing_parts_requests() -> None:
    missing = {0, 1, 3, 4, 5}
    runs = plan(range(6), size_of=lambda _: 1, max_bytes=100, is_missing=missing.__contains__)
    assert list(runs) == [range(2), range(3, 6)]


@given(SIZES, st.integers(1, 120), st.data())
def test_every_missing_chunk_comes_once_and_no_request_can_take_one_more(
    sizes: list[int], max_bytes: int, data: st.DataObject
) -> None:
    missing = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    start = data.draw(st.integers(0, len(sizes)))
    stop = data.draw(st.integers(start, len(sizes)))
    runs = list(
        plan(range(start, stop), size_of=sizes.__getitem__, max_bytes=max_bytes, is_missing=missing.__contains__)
    )
    assert [chunk for run in runs for chunk in run] == sorted(missing & set(range(start, stop)))
    for run in runs:
        total = sum(sizes[chunk] for chunk in run)
        assert total <= max_bytes or len(run) == 1
        following = run.stop
        if following < stop and following in missing:
            assert total + sizes[following] > max_bytes


@given(SIZES, st.integers(1, 120))
def test_a_run_never_passes_its_limit(sizes: list[int], max_bytes: int) -> None:
    for first in range(len(sizes)):
        for limit in range(first + 1, len(sizes) + 1):
            run = greedy_run(first, limit, size_of=sizes.__getitem__, max_bytes=max_bytes)
            assert run.start == first
            assert first < run.stop <= limit
