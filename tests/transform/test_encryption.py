"""AES-256-GCM units: a test vector of the plugin, and a change of any bit of a unit, which must be noticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import CorruptDataError
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.transform.encryption import DataKey, SegmentCipher

KEY = DataKey(bytes(range(0x20)), bytes(range(0x20, 0x40)))
IV = bytes(range(0x40, 0x4C))
UNIT = bytes.fromhex("404142434445464748494a4b8adcc24f49198c4e915d144c44a510f9ec23a773dd")


def test_the_vector_exchanged_with_the_plugin() -> None:
    assert SegmentCipher(KEY).seal(IV, b"hello") == UNIT
    assert SegmentCipher(KEY).open(UNIT) == b"hello"


@given(st.binary(max_size=3000))
def test_a_unit_is_28_bytes_longer_and_opens(plaintext: bytes) -> None:
    cipher = SegmentCipher(KEY)
    unit = cipher.seal(IV, plaintext)
    assert len(unit) == len(plaintext) + ENCRYPTION_OVERHEAD == len(plaintext) + 28
    assert cipher.open(unit) == plaintext


def test_any_flipped_bit_of_a_unit_is_corrupt() -> None:
    for bit in range(8 * len(UNIT)):
        damaged = bytearray(UNIT)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError, match="tag does not match"):
            SegmentCipher(KEY).open(bytes(damaged))


@pytest.mark.parametrize("other", [DataKey(KEY.key, bytes(32)), DataKey(bytes(32), KEY.aad)])
def test_another_key_or_aad_is_corrupt(other: DataKey) -> None:
    with pytest.raises(CorruptDataError, match="tag does not match"):
        SegmentCipher(other).open(UNIT)


def test_a_unit_shorter_than_its_overhead_is_corrupt() -> None:
    for size in range(28):
        with pytest.raises(CorruptDataError):
            SegmentCipher(KEY).open(UNIT[:size])


@pytest.mark.parametrize("size", [0, 1, 15, 17, 31, 33, 64])
def test_a_key_of_no_aes_length_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptDataError, match=f"{size} bytes"):
        SegmentCipher(DataKey(bytes(size), b""))


@pytest.mark.parametrize("size", [16, 24, 32])
def test_any_aes_key_length_is_read_as_in_the_plugin(size: int) -> None:
    cipher = SegmentCipher(DataKey(bytes(size), b"aad"))
    assert cipher.open(cipher.seal(IV, b"text")) == b"text"


def test_keys_are_fresh_each_time_and_never_shown() -> None:
    first, second = DataKey.generate(), DataKey.generate()
    assert len(first.key) == len(first.aad) == 32
    assert len({first.key, second.key, first.aad, second.aad}) == 4
    assert first.key.hex() not in repr(first)
    assert repr(first.key) not in repr(first)


def test_one_cipher_serves_many_threads() -> None:
    cipher = SegmentCipher(KEY)

    def round_trip(number: int) -> bool:
        text = number.to_bytes(4, "big") * 5000
        return cipher.open(cipher.seal(number.to_bytes(12, "big"), text)) == text

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(400)))
