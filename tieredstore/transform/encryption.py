"""AES-256-GCM of chunks and indexes.

A stored unit (a chunk or an index) is ``IV (12 bytes, random) | ciphertext (as long as the plaintext) | tag (16
bytes)``. All units of a segment share one data key and the same additional authenticated data (AAD). Both are random,
and new for every attempt to copy the segment.

NIST SP 800-38D allows 2^32 random IVs per key. A segment needs at most some thousands, one for each unit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tieredstore.errors import CorruptDataError
from tieredstore.format.sizes import AAD_SIZE, DATA_KEY_SIZE, ENCRYPTION_OVERHEAD, IV_SIZE

RandomBytes: TypeAlias = Callable[[int], bytes]
"""``os.urandom``, or a test's replacement."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key and the AAD of one segment."""

    key: bytes = field(repr=False)
    aad: bytes

    @classmethod
    def generate(cls, random_bytes: RandomBytes = os.urandom) -> DataKey:
        """Generate a 256-bit key, then an AAD."""
        return cls(random_bytes(DATA_KEY_SIZE), random_bytes(AAD_SIZE))


class SegmentCipher:
    """Seals and opens the units of one segment. Safe from several threads; releases the GIL."""

    def __init__(self, data_key: DataKey) -> None:
        # Import the library only here, because unencrypted segments do not need it.
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._invalid_tag = InvalidTag
        try:
            self._aead = AESGCM(data_key.key)
        except ValueError as error:
            raise CorruptDataError(
                f"the data key has {len(data_key.key)} bytes, which is not the size of an AES key"
            ) from error
        self._aad = data_key.aad

    def seal_into(self, iv: bytes, plaintext: bytes | bytearray | memoryview, unit: memoryview) -> None:
        """Write IV, ciphertext and tag into ``unit``, which must be exactly ENCRYPTION_OVERHEAD longer than
        ``plaintext``."""
        # Let the library write ciphertext and tag straight into the unit, which saves a second buffer of a chunk's
        # size.
        unit[:IV_SIZE] = iv
        self._aead.encrypt_into(iv, plaintext, self._aad, unit[IV_SIZE:])

    def seal(self, iv: bytes, plaintext: bytes) -> bytes:
        """Return IV, ciphertext and tag of ``plaintext``."""
        unit = bytearray(len(plaintext) + ENCRYPTION_OVERHEAD)
        self.seal_into(iv, plaintext, memoryview(unit))
        return bytes(unit)

    def open_into(self, unit: memoryview, plaintext: memoryview) -> None:
        """Verify the tag and write the plaintext. Raise CorruptDataError if the tag does not match, or the sizes do
        not fit.
        """
        if len(unit) != len(plaintext) + ENCRYPTION_OVERHEAD:
            raise CorruptDataError(f"an encrypted unit of {len(unit)} bytes cannot hold {len(plaintext)} bytes")
        try:
            # The library requires the IV as bytes, so copy it. It writes `plaintext` before it checks the tag, so
            # `plaintext` is invalid after an error.
            self._aead.decrypt_into(bytes(unit[:IV_SIZE]), unit[IV_SIZE:], self._aad, plaintext)
        except self._invalid_tag as error:
            raise CorruptDataError(
                "the AES-GCM tag does not match: the bytes, the data key or the AAD changed"
            ) from error

    def open(self, unit: bytes | memoryview) -> bytes:
        """Verify the tag and return the plaintext."""
        # Avoid a negative size for a unit that is shorter than IV and tag, so that `open_into` can refuse it.
        plaintext = bytearray(max(0, len(unit) - ENCRYPTION_OVERHEAD))
        self.open_into(memoryview(unit), memoryview(plaintext))
        return bytes(plaintext)
