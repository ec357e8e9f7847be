"""The pipeline: it keeps the order, it bounds its memory, and nothing continues after its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import is_within, wait_until
from tieredstore.errors import CorruptDataError
from tieredstore.transform.chunks import ChunkDecoder, ChunkEncoder, GrowingBuffer, ReadInto, TransformedChunks
from tieredstore.transform.encryption import DataKey, SegmentCipher

CIPHER = SegmentCipher(DataKey(bytes(32), bytes(32)))
ENCODERS = [ChunkEncoder(level, cipher) for level in (None, 3) for cipher in (None, CIPHER)]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


def reader_of(data: bytes) -> ReadInto:
    def read_into(position: int, buffer: memoryview) -> None:
        buffer[:] = data[position : position + len(buffer)]

    return read_into


def counting_random(taken: list[int]) -> Iterator[bytes]:
    for number in range(1 << 30):
        taken.append(number)
        yield number.to_bytes(12, "big")


@settings(deadline=None)
@given(st.binary(max_size=2000), st.integers(1, 700), st.sampled_from(ENCODERS), st.integers(1, 5))
def test_chunks_come_in_order_and_decode_to_the_original(
    data: bytes, chunk_size: int, encoder: ChunkEncoder, in_flight: int
) -> None:
    with ThreadPoolExecutor(2) as pool:
        chunks = TransformedChunks(
            reader_of(data), len(data), chunk_size, encoder, pool=pool, chunks_in_flight=in_flight
        )
        stored = [bytes(chunk) for chunk in chunks]
    assert list(chunks.stored_sizes) == [len(chunk) for chunk in stored]
    decoder = ChunkDecoder(encoder.compression_level is not None, encoder.cipher)
    originals: list[bytes] = []
    for number, chunk in enumerate(stored):
        original = bytearray(min(chunk_size, len(data) - number * chunk_size))
        decoder.decode_into(memoryview(chunk), memoryview(original))
        originals.append(bytes(original))
    assert b"".join(originals) == data


def test_ivs_are_drawn_in_chunk_order(pool: ThreadPoolExecutor) -> None:
    taken: list[int] = []
    random = counting_random(taken)
    data = bytes(1000)
    chunks = TransformedChunks(
        reader_of(data), 1000, 10, ENCODERS[1], pool=pool, chunks_in_flight=4, random_bytes=lambda _: next(random)
    )
    assert [int.from_bytes(bytes(chunk[:12]), "big") for chunk in chunks] == list(range(100))


def test_no_more_chunks_are_read_ahead_than_are_in_flight(pool: ThreadPoolExecutor) -> None:
    read: list[int] = []

    def read_into(position: int, buffer: memoryview) -> None:
        read.append(position)
        buffer[:] = bytes(len(buffer))

    chunks = iter(TransformedChunks(read_into, 1000, 10, ENCODERS[0], pool=pool, chunks_in_flight=4))
    for consumed in range(1, 50):
        next(chunks)
        assert len(read) <= consumed + 3
    chunks.close()


def test_memory_does_not_grow_with_the_segment(pool: ThreadPoolExecutor) -> None:
    buffers: set[int] = set()

    def read_into(_position: int, buffer: memoryview) -> None:
        assert isinstance(buffer.obj, bytearray)
        buffers.add(id(buffer.obj))

    for _ in TransformedChunks(read_into, 100_000, 100, ENCODERS[1], pool=pool, chunks_in_flight=5):
        pass
    assert len(buffers) <= 5


class HeldReads:
    """Reads that do not end, from position ``start`` on, before the reader of the chunks waits for running tasks."""

    def __init__(self, start: int) -> None:
        self.begun, self.ended = set[int](), set[int]()
        self.is_held = threading.Event()
        self._start, self._reader = start, threading.current_thread()

    def read_into(self, position: int, _buffer: memoryview) -> None:
        self.begun.add(position)
        if position >= self._start:
            self.is_held.set()
            wait_until(lambda: is_within(self._reader, wait), 10)
        self.ended.add(position)


def test_a_failing_read_is_raised_at_its_chunk_and_nothing_runs_on(pool: ThreadPoolExecutor) -> None:
    held = HeldReads(30)

    def read_into(position: int, buffer: memoryview) -> None:
        if position == 20:
            assert held.is_held.wait(60)
            raise CorruptDataError("the disk said no")
        held.read_into(position, buffer)

    chunks = iter(TransformedChunks(read_into, 1000, 10, ENCODERS[0], pool=pool, chunks_in_flight=6))
    assert [len(next(chunks)), len(next(chunks))] == [10, 10]
    with pytest.raises(CorruptDataError, match="the disk said no"):
        next(chunks)
    assert held.begun == held.ended


def test_closing_early_waits_for_what_runs(pool: ThreadPoolExecutor) -> None:
    held = HeldReads(10)
    chunks = iter(TransformedChunks(held.read_into, 1000, 10, ENCODERS[0], pool=pool, chunks_in_flight=3))
    next(chunks)
    assert held.is_held.wait(60)
    chunks.close()
    assert held.begun == held.ended


def test_an_empty_source_has_no_chunks(pool: ThreadPoolExecutor) -> None:
    chunks = TransformedChunks(reader_of(b""), 0, 10, ENCODERS[3], pool=pool, chunks_in_flight=2)
    assert list(chunks) == []
    assert len(chunks.stored_sizes) == 0


def test_a_large_buffer_has_room_for_a_little_more() -> None:
    mib, buffer = 1 << 20, GrowingBuffer()
    first = buffer.first(mib + 1)
    first[0] = 7
    assert (len(first), buffer.first(2 * mib)[0]) == (mib + 1, 7)
    assert buffer.first(2 * mib + 1)[0] == 0  # the larger buffer is new memory, full of zeros
    assert len(buffer.first(5)) == 5
