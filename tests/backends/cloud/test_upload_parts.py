"""Cutting a body into parts and sending them in parallel: exact bytes, bounded memory, nothing sent after a failure."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.backends.base import Body
from tieredstore.backends.cloud.upload_parts import POOL, PagePool, Pages, Part, PartCutter, cut, send_parts
from tieredstore.process.interruption import Interrupted


def parts_of(body: Body, size: int) -> list[tuple[int, bytes, bool]]:
    with cut(body, size) as cutter:
        return [(part.number, bytes(part.data), part.is_last) for part in cutter]


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 17))
def test_parts_are_the_body_in_pieces_of_one_size(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    for body in (whole, bytearray(whole), memoryview(whole), pieces, iter(pieces)):
        parts = parts_of(body, size)
        assert b"".join(data for _, data, _ in parts) == whole
        assert [number for number, _, _ in parts] == list(range(len(parts)))
        assert all(len(data) == size for _, data, _ in parts[:-1])
        assert [is_last for _, _, is_last in parts] == [False] * (len(parts) - 1) + [True]
        assert len(parts) == max(1, -(-len(whole) // size))


def test_a_buffer_that_its_owner_resizes_is_not_held() -> None:
    def body() -> Iterator[bytearray]:
        buffer = bytearray()
        for number in range(10):
            buffer[:] = bytes([number]) * (number * 7)
            yield buffer
            # ``clear`` raises BufferError if a view of the buffer still exists.
            buffer.clear()

    assert b"".join(data for _, data, _ in parts_of(body(), 16)) == b"".join(bytes([n]) * (n * 7) for n in range(10))


def test_parts_of_a_single_buffer_are_not_copied() -> None:
    source = bytearray(b"abcdef")
    with cut(source, 4) as cutter:
        first = next(cutter)
        source[0:1] = b"X"
        assert bytes(first.data) == b"Xbcd"


def test_memory_is_kept_for_the_next_upload_within_a_bound() -> None:
    pool = PagePool(most_kept=5 << 20)
    first, second, third = (pool.take(2 << 20) for _ in range(3))
    for pages in (first, second, third):
        assert len(pages.view) == 2 << 20
        pages.view[-1] = 1
        pool.give(pages)
    kept = [pool.take(2 << 20) for _ in range(3)]
    assert kept[0] is second
    assert kept[1] is first
    assert kept[2] not in (first, second, third)


def test_memory_of_another_size_is_not_handed_out() -> None:
    pool = PagePool()
    small = pool.take(1 << 20)
    pool.give(small)
    assert len(pool.take(3 << 20).view) == 3 << 20
    pool.give(small)
    pool.begin_again()
    assert pool.take(1 << 20) is not small


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 21) - 1, (1 << 21) + 1, 26214400])
def test_new_memory_has_exactly_the_size_and_is_zero(size: int) -> None:
    pages = Pages.new(size)
    assert len(pages.view) == size
    assert bytes(pages.view) == bytes(size)


def test_small_memory_is_not_kept() -> None:
    pool = PagePool()
    small = pool.take(1000)
    pool.give(small)
    assert pool.take(1000) is not small


def test_an_upload_takes_the_memory_of_the_last_one() -> None:
    def upload() -> set[int]:
        with cut((b"x" * (1 << 19) for _ in range(8)), 1 << 20) as cutter:
            return {id(pages) for pages in send_parts(cutter, lambda part: part.pages, 2)}

    POOL.begin_again()
    first, second = upload(), upload()
    assert second <= first
    assert len(first) <= 3


def test_a_part_whose_sending_failed_is_not_given_to_another_upload() -> None:
    POOL.begin_again()
    failed: list[Pages | None] = []

    def send(part: Part) -> None:
        failed.append(part.pages)
        raise ValueError("part")

    with cut((b"x" * (1 << 20) for _ in range(2)), 1 << 20) as cutter, pytest.raises(ValueError, match="part"):
        send_parts(cutter, send, 1)
    assert POOL.take(1 << 20) not in failed


def test_memory_that_was_given_back_is_used_again() -> None:
    with cut((b"x" * 10 for _ in range(100)), 10) as cutter:
        buffers: set[int] = set()
        for part in cutter:
            buffers.add(id(part.pages))
            cutter.give_back(part)
    assert len(buffers) == 1


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_results_come_in_order_and_memory_is_bounded(parallelism: int) -> None:
    lock = threading.Lock()
    out, most, buffers = 0, 0, set[int]()
    is_sent = [threading.Event() for _ in range(25)]

    def send(part: Part) -> bytes:
        nonlocal out, most
        with lock:
            out += 1
            most = max(most, out)
            buffers.add(id(part.pages))
        if parallelism > 1 and part.number % 2 == 0 and not part.is_last:
            # Wait, so that every second part ends after the part that follows it.
            assert is_sent[part.number + 1].wait(60)
        is_sent[part.number].set()
        with lock:
            out -= 1
        return bytes(part.data)

    data = bytes(range(250))
    with cut((data[at : at + 7] for at in range(0, 250, 7)), 10) as cutter:
        assert b"".join(send_parts(cutter, send, parallelism)) == data
    assert most <= parallelism
    assert len(buffers) <= parallelism + 1


def test_parts_are_really_sent_at_the_same_time() -> None:
    meeting = threading.Barrier(4, timeout=60)

    def send(part: Part) -> int:
        return meeting.wait()

    with cut((b"x" for _ in range(4)), 1) as cutter:
        assert sorted(send_parts(cutter, send, 4)) == [0, 1, 2, 3]


def test_the_part_that_was_taken_already_is_sent_first() -> None:
    with cut([b"abcdef"], 2) as cutter:
        first = next(cutter)
        assert send_parts(cutter, lambda part: bytes(part.data), 2, first=first) == [b"ab", b"cd", b"ef"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_a_failed_part_no_other_is_begun_and_those_underway_are_waited_for(error: type[BaseException]) -> None:
    begun: list[int] = []
    ended: list[int] = []
    failed = threading.Event()

    def send(part: Part) -> None:
        begun.append(part.number)
        if part.number == 3:
            failed.set()
            raise error("part 3")
        # All later parts wait, so that they are still being sent when part 3 fails.
        assert part.number < 3 or failed.wait(60)
        ended.append(part.number)

    with cut((b"x" for _ in range(100)), 1) as cutter, pytest.raises(error, match="part 3"):
        send_parts(cutter, send, 2)
    assert len(begun) < 60
    assert sorted([*ended, 3]) == sorted(begun)


def test_a_signal_that_ends_the_process_waits_for_no_part() -> None:
    go, ended = threading.Event(), list[int]()

    def body() -> Iterator[bytes]:
        yield b"xxx"
        raise Interrupted

    def send(part: Part) -> None:
        go.wait(30)
        ended.append(part.number)

    with pytest.raises(Interrupted), cut(body(), 1) as cutter:
        send_parts(cutter, send, 2)
    assert ended == []
    go.set()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_what_the_body_raises_is_raised_on_after_those_underway(error: type[BaseException]) -> None:
    ended: list[int] = []
    raising = threading.Event()

    def body() -> Iterator[bytes]:
        yield b"x"
        yield b"x"
        raising.set()
        raise error("body")

    def send(part: Part) -> None:
        assert raising.wait(60)
        ended.append(part.number)

    with pytest.raises(error, match="body"), cut(body(), 1) as cutter:
        send_parts(cutter, send, 2)
    # The second part is not sent: it waits for the next part or the body's end, but the body fails before either.
    assert ended == [0]


def test_a_generator_is_closed_when_its_upload_fails() -> None:
    closed = threading.Event()

    def body() -> Generator[bytes, None, None]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    def send(part: Part) -> None:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"), cut(body(), 1) as cutter:
        send_parts(cutter, send, 2)
    assert closed.is_set()


def test_no_thread_stays() -> None:
    # A thread left by an earlier test may still be ending.
    before = set(threading.enumerate())
    with cut((b"x" for _ in range(10)), 1) as cutter:
        send_parts(cutter, lambda part: None, 3)
    assert not [thread for thread in set(threading.enumerate()) - before if "tieredstore-upload" in thread.name]


def test_a_cutter_has_no_part_after_the_last() -> None:
    cutter = PartCutter(iter((memoryview(b"ab"),)), 2, copies=True)
    assert [part.is_last for part in cutter] == [True]
    assert list(cutter) == []
