"""Sources of a private key in the settings: all give the same key ring, and each mistake has its own message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from tests.support.paths import GOLDEN
from tieredstore.config import Settings, settings_from
from tieredstore.errors import ConfigError, KeyRingError
from tieredstore.ops.keys.pairs import Passphrase, generate_key_pair, passphrase_from
from tieredstore.remote.key_ring import key_ring_of
from tieredstore.remote.private_keys import descriptor_content

KEYS = GOLDEN / "08-keyring" / "keys"
PLAIN = (KEYS / "key1.private.pem").read_bytes()
OF_PAIR = "encryption.key.pairs.key1."
WORDS = "pässword"


def settings_of(**private: str) -> Settings:
    """Build settings from ``private``, whose names follow ``private.key.`` and have ``_`` instead of dots."""
    named = {f"{OF_PAIR}private.key.{name.replace('_', '.')}": text for name, text in private.items()}
    return settings_from(
        {
            "storage.backend.class": "memory", "chunk.size": "1024", "encryption.enabled": "true",
            "encryption.key.pair.id": "key1", "encryption.key.pairs": "key1",
            f"{OF_PAIR}public.key.file": str(KEYS / "key1.public.pem"), **named,
        }
    )  # fmt: skip


def opens(settings: Settings) -> bool:
    ring = key_ring_of(settings)
    assert ring is not None
    return ring.unwrap("key1", ring.wrap(bytes(32))) == bytes(32)


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the golden key encrypted with ``WORDS``, by OpenSSL's library."""
    path = tmp_path_factory.mktemp("keys") / "protected.pem"
    key = serialization.load_pem_private_key(PLAIN, None)
    protection = serialization.BestAvailableEncryption(WORDS.encode())
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))
    return path


def test_a_variable_holds_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_KEY", PLAIN.decode())
    assert opens(settings_of(env="KAFKA_KEY"))
    monkeypatch.delenv("KAFKA_KEY")
    with pytest.raises(KeyRingError, match="KAFKA_KEY, which holds the private key of key1, is not set"):
        opens(settings_of(env="KAFKA_KEY"))


def test_a_descriptor_of_a_file_gives_the_key_again_and_again(tmp_path: Path) -> None:
    with (KEYS / "key1.private.pem").open("rb") as file:
        settings = settings_of(fd=str(file.fileno()))
        assert opens(settings)
        assert opens(settings)
        assert file.tell() == 0
        number = file.fileno()
    with pytest.raises(KeyRingError, match=f"descriptor {number}, which gives the private key of key1, cannot be read"):
        opens(settings_of(fd=str(number)))


def test_a_pipe_gives_the_key_once_and_it_is_kept() -> None:
    reading, writing = os.pipe()
    os.write(writing, PLAIN)
    os.close(writing)
    try:
        settings = settings_of(fd=str(reading))
        assert opens(settings)
        assert opens(settings)
    finally:
        os.close(reading)


def test_a_pipe_that_nobody_closes_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(KeyRingError, match="gave no key within"):
            descriptor_content(reading, "private key", timeout_s=0.1)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_passphrase_opens_what_openssl_protected(
    protected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSPHRASE", WORDS)
    assert opens(settings_of(file=str(protected), passphrase_env="PASSPHRASE"))
    for end in ("", "\n", "\r\n", "\nanother line\n"):
        (tmp_path / "passphrase").write_text(WORDS + end, newline="")
        assert opens(settings_of(file=str(protected), passphrase_file=str(tmp_path / "passphrase")))
    monkeypatch.setenv("KAFKA_KEY", protected.read_text())
    assert opens(settings_of(env="KAFKA_KEY", passphrase_env="PASSPHRASE"))


def test_a_wrong_or_missing_passphrase_is_told_and_not_shown(protected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("wrong-words", "x" * 300):
        monkeypatch.setenv("PASSPHRASE", wrong)
        with pytest.raises(KeyRingError, match="is not opened by its passphrase") as caught:
            opens(settings_of(file=str(protected), passphrase_env="PASSPHRASE"))
        assert wrong not in str(caught.value)
    with pytest.raises(KeyRingError, match=r"is protected by a passphrase: set private\.key\.passphrase\.env"):
        opens(settings_of(file=str(protected)))
    monkeypatch.setenv("PASSPHRASE", "")
    with pytest.raises(KeyRingError, match="PASSPHRASE, which holds the passphrase of key1, is not set"):
        opens(settings_of(file=str(protected), passphrase_env="PASSPHRASE"))


def test_a_passphrase_for_a_plain_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSPHRASE", WORDS)
    with pytest.raises(KeyRingError, match="is not protected by a passphrase, but the settings name one"):
        opens(settings_of(file=str(KEYS / "key1.private.pem"), passphrase_env="PASSPHRASE"))


@pytest.mark.slow
def test_a_pair_that_we_protect_is_opened_by_openssl_and_by_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSPHRASE", WORDS)
    passphrase = passphrase_from("PASSPHRASE", None)
    assert isinstance(passphrase, Passphrase)
    assert WORDS not in repr(passphrase)
    files = generate_key_pair("key1", tmp_path, 2048, passphrase=passphrase)
    assert files.private.read_text().startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    private = serialization.load_pem_private_key(files.private.read_bytes(), WORDS.encode())
    public = serialization.load_pem_public_key(files.public.read_bytes())
    assert isinstance(private, RSAPrivateKey)
    assert private.public_key() == public
    lines = {"encryption.enabled": "true", "encryption.key.pair.id": "key1", "encryption.key.pairs": "key1"}
    of_store = {"storage.backend.class": "memory", "chunk.size": "1024"}
    assert opens(settings_from({**of_store, **lines, **files.settings()}))


@pytest.mark.parametrize(
    ("private", "sentence"),
    [
        ({}, r"private\.key\.file is missing: set it to the path"),
        ({"file": "a", "env": "B"}, r"private\.key\.env cannot be set together with private\.key\.file"),
        ({"file": "a", "fd": "3"}, r"private\.key\.fd cannot be set together with private\.key\.file"),
        ({"fd": "-1"}, r"private\.key\.fd is '-1'"),
        ({"env": " "}, r"private\.key\.env is '\s*'; it must be a string: the name of an environment variable"),
        ({"file": "a", "passphrase_env": "B", "passphrase_file": "c"}, "set only one of the two"),
        ({"file": "a", "kms": "aws"}, r"private\.key\.kms\.key is missing"),
        ({"file": "a", "kms_key": "b"}, r"private\.key\.kms\.key is set without private\.key\.kms"),
        (
            {"file": "a", "kms_endpoint_url": "http://b"},
            r"private\.key\.kms\.endpoint\.url is set without private\.key\.kms",
        ),
        ({"file": "a", "kms": "aws", "kms_key": "b", "passphrase_env": "C"}, "a service encrypted has no passphrase"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(private: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings_of(**private)


def test_a_sealed_key_without_its_service_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sealed").write_text('{"format": "tieredstore.sealed.private.key"}')
    with pytest.raises(KeyRingError, match=r"if it was sealed, name the service by private\.key\.kms"):
        opens(settings_of(file=str(tmp_path / "sealed")))


def test_no_key_is_in_what_settings_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_KEY", PLAIN.decode())
    settings = settings_of(env="KAFKA_KEY")
    assert "PRIVATE" not in repr(settings)
    assert "KAFKA_KEY" in repr(settings.encryption)
