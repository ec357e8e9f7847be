"""The key ring against PEM files made by openssl, and data keys wrapped by the plugin."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

from tests.support.paths import GOLDEN
from tieredstore.errors import KeyRingError, ManifestCorrupt, UnknownKey
from tieredstore.transform.keyring import KeyPair, KeyRing
from tieredstore.transform.pem import read_private_key, read_public_key

KEYS = GOLDEN / "08-keyring" / "keys"
PUBLIC, PRIVATE = KEYS / "key1.public.pem", KEYS / "key1.private.pem"


def golden_ring(active: str = "key1") -> KeyRing:
    files = {key: (KEYS / f"{key}.public.pem", KEYS / f"{key}.private.pem") for key in ("key1", "key2")}
    return KeyRing.from_files(active, files)


def openssl(*arguments: str, given: bytes | None = None) -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True, timeout=60).stdout


def openssl_unwrap(private: Path, wrapped: bytes, folder: Path) -> bytes:
    """The data key, by an implementation that shares no code with ours."""
    (folder / "wrapped").write_bytes(wrapped)
    options = ["rsa_padding_mode:oaep", "rsa_oaep_md:sha3-512", "rsa_mgf1_md:sha3-512"]
    flags = [word for option in options for word in ("-pkeyopt", option)]
    return openssl("pkeyutl", "-decrypt", "-inkey", str(private), "-in", str(folder / "wrapped"), *flags)


@cache
def pair_of(bits: int) -> KeyPair:
    private = RSA.generate(bits)
    return KeyPair(private.public_key(), private)


def test_openssl_opens_what_the_active_pair_wraps(tmp_path: Path) -> None:
    data_key = bytes(range(32))
    for active in ("key1", "key2"):
        wrapped = golden_ring(active).wrap(data_key)
        assert len(wrapped) == 384
        assert openssl_unwrap(KEYS / f"{active}.private.pem", wrapped, tmp_path) == data_key


def test_any_pair_of_the_ring_unwraps_whichever_is_active() -> None:
    wrapped = golden_ring("key1").wrap(b"k" * 32)
    assert golden_ring("key2").unwrap("key1", wrapped) == b"k" * 32


def test_an_id_that_is_not_on_the_ring_is_named_with_those_that_are() -> None:
    with pytest.raises(UnknownKey, match=r"'key9'.*key1, key2.*encryption\.key\.pairs"):
        golden_ring().unwrap("key9", bytes(384))


def test_a_data_key_that_the_pair_does_not_open_is_corrupt() -> None:
    wrapped = bytearray(golden_ring().wrap(b"k" * 32))
    for damaged in (bytes(384), bytes(wrapped[:-1]), b"", bytes(wrapped) + b"x", b"\xff" * 384):
        with pytest.raises(ManifestCorrupt, match="'key1' does not open"):
            golden_ring().unwrap("key1", damaged)
    wrapped[100] ^= 1
    with pytest.raises(ManifestCorrupt):
        golden_ring().unwrap("key1", bytes(wrapped))
    with pytest.raises(ManifestCorrupt):
        golden_ring().unwrap("key2", golden_ring().wrap(b"k" * 32))


@pytest.mark.parametrize("key_id", ["a:b", ":", "", "  "])
def test_ids_that_a_manifest_cannot_carry_are_refused_at_start_up(key_id: str) -> None:
    with pytest.raises(KeyRingError, match="must not be blank or contain ':'"):
        KeyRing(key_id, {key_id: pair_of(2048)})


def test_the_active_id_must_be_on_the_ring() -> None:
    with pytest.raises(KeyRingError, match="'new' is not on the ring: old"):
        KeyRing("new", {"old": pair_of(2048)})


def test_secrets_are_not_shown() -> None:
    pair = pair_of(2048)
    shown = repr(pair) + repr(golden_ring()) + str(golden_ring().__dict__)
    assert str(pair.private.d) not in shown


def test_the_smallest_modulus_that_holds_a_data_key_works(tmp_path: Path) -> None:
    openssl("genrsa", "-out", str(tmp_path / "traditional"), "1296")
    openssl("pkcs8", "-topk8", "-nocrypt", "-in", str(tmp_path / "traditional"), "-out", str(tmp_path / "private"))
    openssl("rsa", "-in", str(tmp_path / "private"), "-pubout", "-out", str(tmp_path / "public"))
    ring = KeyRing.from_files("a", {"a": (tmp_path / "public", tmp_path / "private")})
    assert ring.unwrap("a", ring.wrap(b"k" * 32)) == b"k" * 32


def test_a_smaller_modulus_is_refused_at_start_up(tmp_path: Path) -> None:
    openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024", "-out", str(tmp_path / "private"))
    openssl("pkey", "-in", str(tmp_path / "private"), "-pubout", "-out", str(tmp_path / "public"))
    with pytest.raises(KeyRingError, match="has 1024 bits; a data key needs at least 1296"):
        KeyPair.from_files(tmp_path / "public", tmp_path / "private")


def test_files_that_are_not_a_pair_are_refused() -> None:
    with pytest.raises(KeyRingError, match=r"key1\.public\.pem is not the public key of .*key2\.private\.pem"):
        KeyPair.from_files(PUBLIC, KEYS / "key2.private.pem")


def test_pkcs1_files_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    openssl("pkey", "-in", str(PRIVATE), "-traditional", "-out", str(tmp_path / "private"))
    openssl("rsa", "-in", str(PRIVATE), "-RSAPublicKey_out", "-out", str(tmp_path / "public"))
    with pytest.raises(KeyRingError, match=r"not an unencrypted PKCS#8.*openssl pkcs8 -topk8"):
        read_private_key(tmp_path / "private")
    with pytest.raises(KeyRingError, match=r"not a SubjectPublicKeyInfo.*openssl rsa"):
        read_public_key(tmp_path / "public")


def test_encrypted_private_keys_are_refused(tmp_path: Path) -> None:
    openssl("pkey", "-in", str(PRIVATE), "-aes256", "-passout", "pass:secret", "-out", str(tmp_path / "private"))
    with pytest.raises(KeyRingError, match="not an unencrypted PKCS#8"):
        read_private_key(tmp_path / "private")


def test_keys_that_are_not_rsa_are_refused(tmp_path: Path) -> None:
    curve = "ec_paramgen_curve:P-256"
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", str(tmp_path / "private"))
    openssl("pkey", "-in", str(tmp_path / "private"), "-pubout", "-out", str(tmp_path / "public"))
    with pytest.raises(KeyRingError, match="not RSA"):
        read_private_key(tmp_path / "private")
    with pytest.raises(KeyRingError, match="does not hold an RSA key"):
        read_public_key(tmp_path / "public")


def test_public_and_private_files_in_each_others_place_are_refused() -> None:
    with pytest.raises(KeyRingError, match="holds a private key where the public key is expected"):
        read_public_key(PRIVATE)
    with pytest.raises(KeyRingError, match="not an unencrypted PKCS#8"):
        read_private_key(PUBLIC)


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
        read_private_key(tmp_path / "absent.pem")
