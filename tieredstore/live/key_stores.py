"""Java's key stores and trust stores, as their properties name them, in the words of librdkafka.

PEM and PKCS12 files can be used; JKS files cannot be read without Java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from tieredstore.errors import ConfigError

_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM_MARK: Final = b"-----BEGIN "
_MAX_BYTES: Final = 16 * 1024 * 1024
"""More is no key store."""

_IN_WORDS: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.key.location")
_TYPES: Final = ("JKS", "PKCS12", "PEM")
_PARTS: Final = ("location", "type", "password")
OF_JAVAS_STORES: Final = frozenset(_IN_WORDS) | {
    f"{store}.{part}" for store in ("ssl.truststore", "ssl.keystore") for part in _PARTS
}
"""What :func:`translate_stores` takes."""


def translate_stores(given: MutableMapping[str, str]) -> dict[str, str]:
    """Take Java's properties of stores out of ``given``; what they are for librdkafka.

    Reads the files, to tell their type. ConfigError for what cannot be read or used.
    """
    for name in _FILES:
        # librdkafka says no more than that it failed. Authorities may be a folder, or a word for where to look.
        if name in given and not Path(given[name]).exists() and given[name] != "probe":
            raise ConfigError(f"{name} cannot be read: there is no {given[name]}")
    settings = {ours: given.pop(java) for java, ours in _IN_WORDS.items() if java in given}
    trust = _taken(given, "ssl.truststore")
    # These names are librdkafka's own as well; only the type is not.
    key = _taken(given, "ssl.keystore")
    if "location" in trust:
        settings |= _by_type("ssl.truststore", trust, {"PEM": _pem_trust, "PKCS12": _pkcs12_trust})
    if "location" in key:
        settings |= _by_type("ssl.keystore", key, {"PEM": _pem_key, "PKCS12": _pkcs12_key})
    return settings


def _taken(given: MutableMapping[str, str], store: str) -> dict[str, str]:
    return {part: given.pop(f"{store}.{part}") for part in _PARTS if f"{store}.{part}" in given}


_Translation = Callable[[Mapping[str, str], bytes], dict[str, str]]


def _by_type(store: str, given: Mapping[str, str], known: Mapping[str, _Translation]) -> dict[str, str]:
    written = given.get("type", "").upper()
    if written and written not in _TYPES:
        raise ConfigError(f"{store}.type is {given['type']}; PEM and PKCS12 can be used")
    content = _content(f"{store}.location", given["location"])
    if content.startswith(_JKS_MAGICS):
        raise ConfigError(
            f"{store}.location names a JKS file, which only Java can read: make a PKCS12 file of it by "
            f"keytool -importkeystore -deststoretype PKCS12, or name PEM files, with {store}.type"
        )
    # As in Java, whose default type is JKS, a PKCS12 file needs no type.
    kind = "PEM" if _PEM_MARK in content else "PKCS12"
    if written in {"PEM", "PKCS12"} and written != kind:
        raise ConfigError(f"{store}.type is {written}, and the file of {store}.location is not")
    return known[kind](given, content)


def _content(name: str, location: str) -> bytes:
    try:
        with Path(location).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}: {location}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{name} is no key store, it is over {_MAX_BYTES} bytes long: {location}")
    return content


def _pem_trust(given: Mapping[str, str], _content: bytes) -> dict[str, str]:
    return {"ssl.ca.location": given["location"]}


def _pem_key(given: Mapping[str, str], _content: bytes) -> dict[str, str]:
    """Java has the key and its chain in one file; each is found in it."""
    return {"ssl.key.location": given["location"], "ssl.certificate.location": given["location"]}


def _pkcs12_key(given: Mapping[str, str], _content: bytes) -> dict[str, str]:
    return {f"ssl.keystore.{part}": given[part] for part in ("location", "password") if part in given}


def _pkcs12_trust(given: Mapping[str, str], content: bytes) -> dict[str, str]:
    """librdkafka trusts PEM only."""
    password = given.get("password")
    try:
        store = load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise ConfigError(
            f"ssl.truststore.location is no PEM or PKCS12 file, or ssl.truststore.password is not its password: "
            f"{given['location']}"
        ) from error
    certificates = [entry.certificate for entry in (store.cert, *store.additional_certs) if entry is not None]
    if not certificates:
        raise ConfigError(f"ssl.truststore.location holds no certificate: {given['location']}")
    return {"ssl.ca.pem": "".join(each.public_bytes(Encoding.PEM).decode("ascii") for each in certificates)}
