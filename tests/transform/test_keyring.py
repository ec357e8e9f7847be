"""The key ring with PEM files from pyca/cryptography, and with data keys wrapped by the plugin."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from Crypto.IO import PKCS8
from Crypto.PublicKey import RSA
from Crypto.Util.asn1 import DerSequence
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tests.support.golden.keys import KEYS, PAIRS, pair_in, private_in
from tests.support.records.node_crypto import unwrap_with_node
from tieredstore.errors import KeyRingError, UnknownKeyError, WrongKeyError
from tieredstore.transform.keyring import KeyPair, KeyRing
from tieredstore.transform.pem import first_block, key_file_content, private_key, read_public_key

PUBLIC, PRIVATE = KEYS / "key1.public.pem", KEYS / "key1.private.pem"


def golden_ring(active: str = "key1") -> KeyRing:
    return KeyRing(active, PAIRS)


def write_pair(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, folder: Path) -> None:
    """Write ``private`` and ``public`` to ``folder`` by a foreign library, in the formats that the plugin reads."""
    (folder / "private").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "public").write_bytes(public)


@cache
def pair_of(bits: int) -> KeyPair:
    private = RSA.generate(bits)
    return KeyPair(private.public_key(), private)


def test_another_implementation_opens_what_the_active_pair_wraps() -> None:
    data_key = bytes(range(32))
    for active in ("key1", "key2"):
        wrapped = golden_ring(active).wrap(data_key)
        assert len(wrapped) == 384
        assert unwrap_with_node(KEYS / f"{active}.private.pem", wrapped) == data_key


def test_any_pair_of_the_ring_unwraps_whichever_is_active() -> None:
    wrapped = golden_ring("key1").wrap(b"k" * 32)
    assert golden_ring("key2").unwrap("key1", wrapped) == b"k" * 32


def test_an_id_that_is_not_on_the_ring_is_named_with_those_that_are() -> None:
    with pytest.raises(UnknownKeyError, match=r"'key9'.*key1, key2.*encryption\.key\.pairs"):
        golden_ring().unwrap("key9", bytes(384))


@pytest.mark.slow
def test_a_data_key_that_the_pair_does_not_open_is_a_wrong_key() -> None:
    wrapped = bytearray(golden_ring().wrap(b"k" * 32))
    for damaged in (bytes(384), bytes(wrapped[:-1]), b"", bytes(wrapped) + b"x", b"\xff" * 384):
        with pytest.raises(WrongKeyError, match="'key1' does not decrypt"):
            golden_ring().unwrap("key1", damaged)
    wrapped[100] ^= 1
    with pytest.raises(WrongKeyError):
        golden_ring().unwrap("key1", bytes(wrapped))
    with pytest.raises(WrongKeyError):
        golden_ring().unwrap("key2", golden_ring().wrap(b"k" * 32))


def test_secrets_are_not_shown() -> None:
    pair = pair_of(2048)
    shown = repr(pair) + repr(golden_ring()) + str(golden_ring().__dict__)
    assert str(pair.private.d) not in shown


def test_the_smallest_modulus_that_holds_a_data_key_works(tmp_path: Path) -> None:
    write_pair(rsa.generate_private_key(65537, 1296), tmp_path)
    ring = KeyRing("a", {"a": pair_in(tmp_path / "public", tmp_path / "private")})
    assert ring.unwrap("a", ring.wrap(b"k" * 32)) == b"k" * 32


def test_a_smaller_modulus_is_refused_at_start_up(tmp_path: Path) -> None:
    write_pair(rsa.generate_private_key(65537, 1024), tmp_path)
    with pytest.raises(KeyRingError, match="has 1024 bits; a data key needs at least 1296"):
        pair_in(tmp_path / "public", tmp_path / "private")


def test_files_that_are_not_a_pair_are_refused() -> None:
    with pytest.raises(KeyRingError, match=r"key1\.public\.pem is not the public key of .*key2\.private\.pem"):
        pair_in(PUBLIC, KEYS / "key2.private.pem")


def test_pkcs1_files_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    private = load_pem_private_key(PRIVATE.read_bytes(), None)
    traditional = private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (tmp_path / "private").write_bytes(traditional)
    public = load_pem_public_key(PUBLIC.read_bytes())
    (tmp_path / "public").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.PKCS1))
    with pytest.raises(KeyRingError, match=r"not an unencrypted PKCS#8.*openssl pkcs8 -topk8"):
        private_in(tmp_path / "private")
    with pytest.raises(KeyRingError, match=r"not a SubjectPublicKeyInfo.*openssl rsa"):
        read_public_key(tmp_path / "public")


def test_encrypted_private_keys_are_refused(tmp_path: Path) -> None:
    private = load_pem_private_key(PRIVATE.read_bytes(), None)
    encryption = BestAvailableEncryption(b"secret")
    (tmp_path / "private").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    with pytest.raises(KeyRingError, match=r"private is protected by a passphrase: set .*passphrase\.env"):
        private_in(tmp_path / "private")


def test_keys_that_are_not_rsa_are_refused(tmp_path: Path) -> None:
    write_pair(ec.generate_private_key(ec.SECP256R1()), tmp_path)
    with pytest.raises(KeyRingError, match="not RSA"):
        private_in(tmp_path / "private")
    with pytest.raises(KeyRingError, match="does not hold an RSA key"):
        read_public_key(tmp_path / "public")


CHANGES = {"more": 1, "less": -1, "a bit": 1 << 700, "too many": 2**8192, "zero": None}
CHANGED = [
    pytest.param(number, change, id=f"{name}-{how}")
    for number, name in enumerate(("version", "n", "e", "d", "p", "q"))
    for how, change in CHANGES.items()
    if (name, how) != ("version", "zero")  # it is zero
]


@pytest.mark.parametrize(("number", "change"), CHANGED)
def test_a_private_key_with_a_changed_number_is_refused(number: int, change: int | None) -> None:
    oid, encoded, _ = PKCS8.unwrap(first_block(PRIVATE.read_bytes(), "key"))
    numbers = DerSequence().decode(encoded, nr_elements=9, only_ints_expected=True)
    numbers[number] = 0 if change is None else numbers[number] + change
    with pytest.raises(KeyRingError, match="key does not hold an RSA key"):
        private_key(PKCS8.wrap(numbers.encode(), oid), "key")


def test_the_modulus_of_a_private_key_is_bounded() -> None:
    p, q = 2**20000 + 1, 2**20000 + 3
    numbers = DerSequence([0, p * q, 3, 5, p, q, 1, 1, 1])
    with pytest.raises(KeyRingError, match="modulus is larger than"):
        private_key(PKCS8.wrap(numbers.encode(), "1.2.840.113549.1.1.1"), "key")


def test_public_and_private_files_in_each_others_place_are_refused() -> None:
    with pytest.raises(KeyRingError, match="holds a private key where the public key is expected"):
        read_public_key(PRIVATE)
    with pytest.raises(KeyRingError, match="not an unencrypted PKCS#8"):
        private_in(PUBLIC)


def test_the_label_does_not_matter_and_the_first_block_counts(tmp_path: Path) -> None:
    text = PUBLIC.read_text().replace("PUBLIC KEY", "WHATEVER")
    (tmp_path / "public").write_text("a comment\n" + text + (KEYS / "key2.public.pem").read_text())
    assert read_public_key(tmp_path / "public").n == read_public_key(PUBLIC).n


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no BEGIN and END lines"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n", "no BEGIN and END lines"),
        (b"-----BEGIN PUBLIC KEY-----\n****\n-----END PUBLIC KEY-----\n", "not base64"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "does not hold an RSA key"),
    ],
)
def test_files_that_are_not_keys_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "odd.pem").write_bytes(content)
    with pytest.raises(KeyRingError, match=f"odd.pem.*{says}"):
        read_public_key(tmp_path / "odd.pem")


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyRingError, match=r"absent\.pem cannot be read: No such file"):
        key_file_content(tmp_path / "absent.pem")
