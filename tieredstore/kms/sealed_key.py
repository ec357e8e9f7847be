"""A sealed private key: a JSON text that is stored instead of the private key's PEM text.

A new AES key encrypts the private key (PKCS#8, DER) by AES-256-GCM (NIST SP 800-38D). The service encrypts this AES
key. The names of service and key pair are authenticated, so that the text of another pair cannot replace this text. The
addresses of the service and its key come only from the settings. If they came from the text, an attacker could replace
the text, and so redirect the credentials to another server.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tieredstore.errors import KeyRingError, KeyServiceError
from tieredstore.kms.base import KeySource, ask_service
from tieredstore.versions import SEALED_KEY

_FORMAT: Final = "tieredstore.sealed.private.key"
_FIELDS: Final = {"format", "version", "service", "keyPair", "wrappedKey", "nonce", "sealed"}
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32


def seal(private_key: bytes, *, pair: str, service: str, source: KeySource) -> bytes:
    """Return the sealed text of ``private_key`` (DER) of the key pair ``pair``; raise KeyServiceError if the service
    refuses.
    """
    key, nonce = AESGCM.generate_key(8 * _KEY_BYTES), os.urandom(_NONCE_BYTES)
    wrapped = _bytes_of(ask_service(f"sealing by {service}", lambda: source.seal(key)), service)
    sealed = AESGCM(key).encrypt(nonce, private_key, _context(service, pair))
    fields = {
        "format": _FORMAT, "version": SEALED_KEY.version, "service": service, "keyPair": pair,
        "wrappedKey": _base64(wrapped), "nonce": _base64(nonce), "sealed": _base64(sealed),
    }  # fmt: skip
    return json.dumps(fields, indent=1).encode() + b"\n"


def open_sealed(text: bytes, *, name: str, pair: str, service: str, source: KeySource) -> bytes:
    """Return the private key in the sealed ``text``. Error messages call the text ``name``.

    Raise KeyRingError if the text is not a sealed key, is damaged, or belongs to another pair or service key. Raise
    KeyServiceError if the service fails.
    """
    fields = _parse(text, name)
    for field, expected in (("service", service), ("keyPair", pair)):
        if fields[field] != expected:
            raise KeyRingError(
                f"{name} was sealed for the {field} {fields[field]!r}, but the settings say {expected!r}"
            )
    wrapped, nonce, sealed = (_decode(fields[field], name) for field in ("wrappedKey", "nonce", "sealed"))
    try:
        key = _bytes_of(ask_service(f"opening {name} by {service}", lambda: source.open(wrapped)), service)
    except KeyRingError as error:
        raise KeyRingError(f"{name} cannot be opened by {service}: {error}") from error
    if len(key) != _KEY_BYTES or len(nonce) != _NONCE_BYTES:
        raise KeyRingError(f"{name} is damaged: its key or nonce has a wrong size")
    try:
        return AESGCM(key).decrypt(nonce, sealed, _context(service, pair))
    except InvalidTag as error:
        raise KeyRingError(f"{name} is damaged: its wrapped key does not open its sealed content") from error


def _parse(text: bytes, name: str) -> dict[str, str]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if fields.get("format") != _FORMAT:
        raise KeyRingError(f"{name} is not a sealed private key; make it: tieredstore keys seal")
    version = fields.get("version")
    if type(version) is not int or version < 1:
        raise KeyRingError(f"{name} is damaged: its version {str(version)[:20]} is unknown")
    SEALED_KEY.refuse_newer(version, name)
    texts = {field: text for field, text in fields.items() if isinstance(text, str)}
    if set(texts) != _FIELDS - {"version"}:
        raise KeyRingError(f"{name} is damaged: it has other fields than {', '.join(sorted(_FIELDS))}")
    return texts


def _bytes_of(answer: object, service: str) -> bytes:
    """Return the answer of a service, which may be one that the user has installed."""
    if not isinstance(answer, bytes | bytearray | memoryview):
        raise KeyServiceError(f"the answer of {service} has the type {type(answer).__name__}, not bytes")
    return bytes(cast("bytes", answer))


def _context(service: str, pair: str) -> bytes:
    # Use a JSON list, so that different names always give different bytes: joined texts could be equal. The number is
    # the format's version.
    return json.dumps([_FORMAT, 1, service, pair]).encode()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise KeyRingError(f"{name} is damaged: a field is not base64") from error
