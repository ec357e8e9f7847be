"""The key pairs of the golden data, and key pairs of other files."""

from __future__ import annotations

from pathlib import Path

from Crypto.PublicKey.RSA import RsaKey

from tests.support.paths import GOLDEN
from tieredstore.transform.keyring import KeyPair
from tieredstore.transform.pem import first_block, private_key, read_public_key

KEYS = GOLDEN / "08-keyring" / "keys"


def private_in(path: Path) -> RsaKey:
    return private_key(first_block(path.read_bytes(), str(path)), str(path))


def pair_in(public: Path, private: Path) -> KeyPair:
    return KeyPair.of(read_public_key(public), private_in(private), str(private), str(public))


PAIRS = {key: pair_in(KEYS / f"{key}.public.pem", KEYS / f"{key}.private.pem") for key in ("key1", "key2")}
