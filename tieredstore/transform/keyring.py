"""The key ring: RSA key pairs (KEKs) that wrap the segments' data keys.

Data keys are wrapped by RSA-OAEP (RFC 8017, 7.1) with an empty label. SHA3-512 is the hash, also for MGF1. The
`cryptography` package refuses SHA-3 in OAEP, so this module uses pycryptodome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from Crypto.Cipher import PKCS1_OAEP
from Crypto.Hash import SHA3_512
from Crypto.PublicKey.RSA import RsaKey

from tieredstore.errors import KeyRingError, UnknownKeyError, WrongKeyError, excerpt
from tieredstore.format.sizes import DATA_KEY_SIZE

OAEP_OVERHEAD: Final = 2 * SHA3_512.digest_size + 2
MIN_MODULUS_BITS: Final = 8 * (DATA_KEY_SIZE + OAEP_OVERHEAD)
"""1296 bits, the size of the smallest modulus that can wrap a 32-byte data key."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key that wraps data keys and the private key that unwraps them."""

    public: RsaKey = field(repr=False)
    private: RsaKey = field(repr=False)

    @classmethod
    def of(cls, public: RsaKey, private: RsaKey, private_name: str, public_name: str) -> KeyPair:
        """Pair two keys. Raise KeyRingError, with their names, if the keys do not match or are too short."""
        pair = cls(public, private)
        # Data keys wrapped by a mismatched pair can never be unwrapped. Without this check, nothing would fail before
        # the first read.
        if (pair.public.n, pair.public.e) != (pair.private.n, pair.private.e):
            raise KeyRingError(f"{public_name} is not the public key of {private_name}")
        if pair.public.size_in_bits() < MIN_MODULUS_BITS:
            raise KeyRingError(
                f"{public_name} has {pair.public.size_in_bits()} bits; a data key needs at least "
                f"{MIN_MODULUS_BITS} (2048 or more is usual)"
            )
        return pair


class KeyRing:
    """Key pairs by id. The active pair wraps new data keys. To unwrap a segment's data key, use the pair that the
    manifest names. Thread-safe.
    """

    def __init__(self, active_id: str, pairs: Mapping[str, KeyPair]) -> None:
        self.active_id = active_id
        self._pairs = dict(pairs)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all key pairs, in the order in which the caller passed them."""
        return tuple(self._pairs)

    def wrap(self, data_key: bytes) -> bytes:
        """Encrypt ``data_key`` with the active pair. The result is as long as the pair's modulus."""
        # Make a cipher for each call, because pycryptodome's ciphers are not thread-safe. Making it takes much less
        # time than RSA.
        return PKCS1_OAEP.new(self._pairs[self.active_id].public, hashAlgo=SHA3_512).encrypt(data_key)

    def wrap_and_prove(self, data_key: bytes) -> bytes:
        """Encrypt ``data_key`` with the active pair, decrypt it again, and compare. Raise WrongKeyError if the two
        differ."""
        wrapped = self.wrap(data_key)
        if self.unwrap(self.active_id, wrapped) != data_key:
            raise WrongKeyError(
                f"the active key pair {self.active_id!r} cannot decrypt a data key that it has just encrypted: check "
                "that its two files belong together"
            )
        return wrapped

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Decrypt a data key. Raise UnknownKeyError if the ring lacks the pair, and WrongKeyError if the pair cannot
        decrypt the key.
        """
        pair, shown = self._pairs.get(key_id), excerpt(key_id)
        if pair is None:
            raise UnknownKeyError(
                f"the data key is wrapped by key pair {shown!r}, which is not on the ring ({_names(self._pairs)}); "
                "add it to encryption.key.pairs"
            )
        try:
            return PKCS1_OAEP.new(pair.private, hashAlgo=SHA3_512).decrypt(wrapped)
        except (ValueError, TypeError) as error:
            raise WrongKeyError(
                f"key pair {shown!r} does not decrypt the data key: another pair of this id encrypted it, or the "
                f"manifest is damaged; check the files of encryption.key.pairs.{shown}"
            ) from error


def _names(pairs: Mapping[str, KeyPair]) -> str:
    return excerpt(", ".join(sorted(pairs)), 1000) or "it is empty"
