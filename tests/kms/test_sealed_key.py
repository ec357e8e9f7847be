"""The text of a sealed key, with a service in memory: it opens only the sealed key, for its own pair."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, Self, cast

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import KeyRingError, KeyServiceDeniedError, KeyServiceError
from tieredstore.kms import sealed_key
from tieredstore.kms.base import KeySource

PRIVATE = b"\x30\x82 a private key"


class MemoryKms(KeySource):
    """A key in memory that counts its calls."""

    def __init__(self, key: bytes) -> None:
        self._key = AESSIV(key)
        self.requests = 0

    @classmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        return cls(key.encode())

    def seal(self, secret: bytes) -> bytes:
        self.requests += 1
        return self._key.encrypt(secret, None)

    def open(self, sealed: bytes) -> bytes:
        self.requests += 1
        try:
            return self._key.decrypt(sealed, None)
        except Exception as error:
            raise KeyRingError("another key has sealed it") from error


KMS = MemoryKms(b"k" * 32)
TEXT = sealed_key.seal(PRIVATE, pair="key1", service="memory", source=KMS)


def opened(text: bytes, *, pair: str = "key1", service: str = "memory", source: KeySource = KMS) -> bytes:
    return sealed_key.open_sealed(text, name="key1.sealed", pair=pair, service=service, source=source)


def test_a_sealed_key_opens_and_neither_key_is_in_the_text() -> None:
    assert opened(TEXT) == PRIVATE
    assert PRIVATE not in TEXT
    # Each text uses its own key.
    assert sealed_key.seal(PRIVATE, pair="key1", service="memory", source=KMS) != TEXT


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"pair": "key2"}, "was sealed for the keyPair 'key1', but the settings say 'key2'"),
        ({"service": "aws"}, "was sealed for the service 'memory', but the settings say 'aws'"),
        ({"source": MemoryKms(b"x" * 32)}, "cannot be opened by memory: another key has sealed it"),
    ],
)
def test_for_another_pair_service_or_key_it_does_not_open(others: dict[str, object], sentence: str) -> None:
    with pytest.raises(KeyRingError, match=sentence):
        opened(TEXT, **others)  # type: ignore[arg-type]


def test_a_text_that_was_renamed_to_another_pair_does_not_open() -> None:
    fields = json.loads(TEXT)
    fields["keyPair"] = "key2"
    with pytest.raises(KeyRingError, match="does not open its sealed content"):
        opened(json.dumps(fields).encode(), pair="key2")


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 7))
def test_any_flipped_bit_is_noticed_or_changes_nothing(at: int, bit: int) -> None:
    damaged = bytearray(TEXT)
    damaged[at] ^= 1 << bit
    with contextlib.suppress(KeyRingError):
        assert opened(bytes(damaged)) == PRIVATE


@given(st.integers(0, len(TEXT) - 2))
def test_a_text_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(KeyRingError):
        opened(TEXT[:length])


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(json.loads(TEXT))), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_text_is_a_sealed_key_or_one_sentence(text: bytes) -> None:
    with pytest.raises(KeyRingError, match=r"^key1\.sealed "):
        opened(text)


@pytest.mark.parametrize("depth", [100_000])
def test_a_text_of_endless_depth_is_refused(depth: int) -> None:
    with pytest.raises(KeyRingError, match="is not a sealed private key"):
        opened(b"[" * depth)


def test_nobody_is_asked_about_a_text_of_another_pair() -> None:
    before = KMS.requests
    with pytest.raises(KeyRingError):
        opened(TEXT, pair="key2")
    assert KMS.requests == before


def test_a_refusal_of_the_service_stays_its_refusal() -> None:
    class Refusing(MemoryKms):
        def open(self, sealed: bytes) -> bytes:
            raise KeyServiceDeniedError("no")

    with pytest.raises(KeyServiceDeniedError):
        opened(TEXT, source=Refusing(b"k" * 32))


@pytest.mark.parametrize("answer", [None, "k" * 32, 32, [107] * 32])
def test_an_answer_that_is_not_bytes_is_an_error_of_the_service(answer: Any) -> None:
    """Users may install services of their own."""

    class Careless(MemoryKms):
        def seal(self, secret: bytes) -> bytes:
            return cast("bytes", answer)

        def open(self, sealed: bytes) -> bytes:
            return cast("bytes", answer)

    careless, sentence = Careless(b"k" * 32), "the answer of memory has the type"
    with pytest.raises(KeyServiceError, match=sentence):
        opened(TEXT, source=careless)
    with pytest.raises(KeyServiceError, match=sentence):
        sealed_key.seal(PRIVATE, pair="key1", service="memory", source=careless)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_an_answer_in_another_type_of_bytes_is_taken(kind: Callable[[bytes], bytes]) -> None:
    class Other(MemoryKms):
        def seal(self, secret: bytes) -> bytes:
            return kind(super().seal(secret))

        def open(self, sealed: bytes) -> bytes:
            return kind(super().open(sealed))

    other = Other(b"k" * 32)
    text = sealed_key.seal(PRIVATE, pair="key1", service="memory", source=other)
    assert opened(text, source=other) == PRIVATE
