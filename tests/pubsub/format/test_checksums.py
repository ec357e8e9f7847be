"""CRC-32 of what lies behind each other, without reading it again."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pubsub.memq_batches import message_of
from tieredstore.pubsub.broker.processor import check_message
from tieredstore.pubsub.errors import MessageCorrupt
from tieredstore.pubsub.format._checksums import joined_crc
from tieredstore.pubsub.format.batches import batch_checksum, build_batch, split_checksums
from tieredstore.pubsub.format.messages import message_checksum, split_checksum
from tieredstore.pubsub.format.packets import WriteRequest


@given(first=st.binary(max_size=300), second=st.binary(max_size=300), zeros=st.integers(0, 1 << 18))
def test_the_crc_of_both_parts_is_that_of_the_whole(first: bytes, second: bytes, zeros: int) -> None:
    second += bytes(zeros)
    assert joined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_a_message_and_a_batch_have_the_crc_of_their_bytes(size: int) -> None:
    sealed = [message_of([(bytes([number]) * size, b"k", None, None, 0)]) for number in range(3)]
    assert [message_checksum(each) for each in sealed] == [zlib.crc32(each) for each in sealed]
    assert message_checksum(sealed[1], zlib.crc32(sealed[0])) == zlib.crc32(sealed[0] + sealed[1])
    batch = build_batch(sealed)
    assert batch_checksum(batch, sealed) == zlib.crc32(batch)


@given(data=st.binary(max_size=100))
def test_a_split_believes_nothing(data: bytes) -> None:
    whole, body = split_checksum(data)
    assert whole == zlib.crc32(data)
    assert body in {zlib.crc32(data[at:]) for at in range(len(data) + 1)}


def test_each_damaged_byte_of_a_message_is_seen() -> None:
    message = message_of([(b"value", b"k", None, None, 0)])
    assert check_message(WriteRequest("orders", zlib.crc32(message), message), 1000).record_count == 1
    for at in range(len(message)):
        damaged = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        with pytest.raises(MessageCorrupt, match="the request says"):
            check_message(WriteRequest("orders", zlib.crc32(message), damaged), 1000)
    body = bytearray(message)
    body[-1] ^= 1
    with pytest.raises(MessageCorrupt, match="its body has the CRC-32"):
        check_message(WriteRequest("orders", zlib.crc32(body), bytes(body)), 1000)


@pytest.mark.parametrize("size", [0, 100, 100_000])
def test_an_object_is_split_into_what_a_reader_checks(size: int) -> None:
    sealed = [message_of([(bytes([number]) * size, b"k", None, None, 0)]) for number in range(3)]
    batch = build_batch(sealed)
    whole, bodies = split_checksums(batch, "a batch")
    assert whole == zlib.crc32(batch)
    if size < 65_536:
        assert bodies is None
    else:
        headers = [int.from_bytes(message[:2]) for message in sealed]
        assert bodies == [zlib.crc32(message[header:]) for message, header in zip(sealed, headers, strict=True)]
    assert split_checksums(batch[:-1], "a batch") == (zlib.crc32(batch[:-1]), None)
