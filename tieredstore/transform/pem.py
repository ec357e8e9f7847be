"""RSA keys in PEM files, read as the plugin reads them: the first block counts, its label does not.

Public keys are X.509 SubjectPublicKeyInfo, private keys unencrypted PKCS#8 (RFC 5280 and RFC 5208).
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Final

from Crypto.IO import PKCS8
from Crypto.PublicKey import RSA
from Crypto.PublicKey.RSA import RsaKey

from tieredstore.errors import KeyRingError

# The label between BEGIN and END is not looked at, as the plugin does not: the DER inside decides.
_BLOCK: Final = re.compile(rb"-----BEGIN [^-]*-----\s(.*?)-----END [^-]*-----", re.DOTALL)
_RSA_OID: Final = "1.2.840.113549.1.1.1"
# A key has a few kilobytes; a wrong path may lead to a file of any size.
_MAX_FILE_BYTES: Final = 1 << 20
_TO_PKCS8: Final = "convert it: openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW"
_TO_SPKI: Final = "convert it: openssl rsa -RSAPublicKey_in -pubout -in OLD -out NEW"


def read_public_key(path: Path) -> RsaKey:
    """The RSA public key of a SubjectPublicKeyInfo PEM file; KeyRingError naming the file otherwise."""
    der = _first_block(path)
    key = _import(der, path)
    if key.has_private():
        raise KeyRingError(f"{path} holds a private key where the public key is expected")
    if key.export_key("DER") != der:
        # pycryptodome takes PKCS#1 and certificates too, and the broker would refuse what we took.
        raise KeyRingError(f"{path} is not a SubjectPublicKeyInfo ('BEGIN PUBLIC KEY') file; {_TO_SPKI}")
    return key


def read_private_key(path: Path) -> RsaKey:
    """The RSA private key of an unencrypted PKCS#8 PEM file; KeyRingError naming the file otherwise."""
    der = _first_block(path)
    try:
        oid = PKCS8.unwrap(der)[0]
    except ValueError as error:
        raise KeyRingError(f"{path} is not an unencrypted PKCS#8 ('BEGIN PRIVATE KEY') file; {_TO_PKCS8}") from error
    # PKCS#8 holds keys of every kind, and the import below would take an elliptic curve's for a damaged RSA key.
    if oid != _RSA_OID:
        raise KeyRingError(f"{path} holds a key that is not RSA; make a pair: tieredstore keys generate")
    return _import(der, path)


def _import(der: bytes, path: Path) -> RsaKey:
    try:
        return RSA.import_key(der)
    except (ValueError, IndexError, TypeError) as error:
        raise KeyRingError(f"{path} does not hold an RSA key: {error}") from error


def _first_block(path: Path) -> bytes:
    """The DER bytes of the first PEM block."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise KeyRingError(f"key file {path} cannot be read: {error.strerror}") from error
    block = _BLOCK.search(text)
    if block is None:
        raise KeyRingError(f"{path} is not a PEM file: it has no BEGIN and END lines")
    try:
        return base64.b64decode(b"".join(block[1].split()), validate=True)
    except binascii.Error as error:
        raise KeyRingError(f"{path} is damaged: what lies between its BEGIN and END lines is not base64") from error
