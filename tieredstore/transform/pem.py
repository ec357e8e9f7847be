"""Reads RSA keys from PEM texts. Like the plugin, uses the first block, whatever its label is.

Public keys are X.509 SubjectPublicKeyInfo (RFC 5280). Private keys are PKCS#8 (RFC 5208). A passphrase may protect a
private key (PBES2 of RFC 8018). The plugin reads only unprotected keys.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from Crypto.IO import PKCS8
from Crypto.PublicKey import RSA
from Crypto.PublicKey.RSA import RsaKey
from Crypto.Util.asn1 import DerSequence

from tieredstore.errors import KeyRingError

# Like the plugin, ignore the labels after BEGIN and END: only the DER inside determines the kind of key.
_BLOCK: Final = re.compile(rb"-----BEGIN [^-]*-----\s(.*?)-----END [^-]*-----", re.DOTALL)
_RSA_OID: Final = "1.2.840.113549.1.1.1"
_PROTECTION: Final = "PBKDF2WithHMAC-SHA512AndAES256-CBC"
_ROUNDS: Final[Any] = {"iteration_count": 210_000}
_OCTET_STRING: Final = b"\x04"
_TO_PKCS8: Final = "convert it: openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW"
_NOT_RSA: Final = "holds a key that is not RSA; make a pair: tieredstore keys new"
_TO_SPKI: Final = "convert it: openssl rsa -RSAPublicKey_in -pubout -in OLD -out NEW"


def read_public_key(path: Path) -> RsaKey:
    """Read the RSA public key from a SubjectPublicKeyInfo PEM file.

    Raise KeyRingError, which names the file, if the file has no such key.
    """
    name = str(path)
    der = first_block(key_file_content(path), name)
    key = _import(der, name)
    if key.has_private():
        raise KeyRingError(f"{path} holds a private key where the public key is expected")
    if key.export_key("DER") != der:
        # pycryptodome also accepts PKCS#1 and certificates, which the plugin in the broker does not.
        raise KeyRingError(f"{path} is not a SubjectPublicKeyInfo ('BEGIN PUBLIC KEY') file; {_TO_SPKI}")
    return key


def private_key(der: bytes, name: str) -> RsaKey:
    """Decode the RSA private key of an unencrypted PKCS#8 text. For other texts, raise KeyRingError with ``name`` in
    its message."""
    if _is_protected(der):
        raise KeyRingError(
            f"{name} is protected by a passphrase: set private.key.passphrase.env or private.key.passphrase.file"
        )
    try:
        oid, key, _ = PKCS8.unwrap(der)
    except ValueError as error:
        raise KeyRingError(f"{name} is not an unencrypted PKCS#8 ('BEGIN PRIVATE KEY') file; {_TO_PKCS8}") from error
    # PKCS#8 can contain any kind of key. Without this check, an elliptic curve key would be reported as a damaged RSA
    # key.
    if oid != _RSA_OID:
        raise KeyRingError(f"{name} {_NOT_RSA}")
    return _import(key, name, _from_pkcs1)


def _from_pkcs1(key: bytes) -> RsaKey:
    """Decode an RSAPrivateKey (RFC 8017, appendix A.1.2). Raise ValueError if the text is damaged.

    Check the numbers against each other, which detects a change of one of them. Do without pycryptodome's own check,
    because it also tests that ``p`` and ``q`` are prime, which takes 30 ms for a key of 3,072 bits.
    """
    numbers = list(DerSequence().decode(key, nr_elements=9, only_ints_expected=True)[:])
    version, n, e, d, p, q = cast("list[int]", numbers)[:6]
    if version != 0 or not (1 < e < n and 1 < d < n and 1 < p < n and n == p * q):
        raise ValueError("its numbers do not belong together")
    private = RSA.construct((n, e, d, p, q), consistency_check=False)  # raises ValueError for a huge n
    if (e * d - 1) % (p - 1) or (e * d - 1) % (q - 1):
        raise ValueError("its numbers do not belong together")
    return private


def unprotect(der: bytes, passphrase: bytes, name: str) -> bytes:
    """Decrypt a PKCS#8 text. Raise KeyRingError if the text is unprotected, or if ``passphrase`` is wrong."""
    if not _is_protected(der):
        raise KeyRingError(f"{name} is not protected by a passphrase, but the settings name one: remove that setting")
    try:
        oid, key, _ = PKCS8.unwrap(der, passphrase)
    except (ValueError, IndexError, TypeError) as error:
        # With a wrong passphrase the padding is wrong or, sometimes, the decrypted bytes are not a key.
        raise KeyRingError(
            f"{name} is not opened by its passphrase: the passphrase is wrong, or the key is damaged"
        ) from error
    if oid != _RSA_OID:
        raise KeyRingError(f"{name} {_NOT_RSA}")
    return PKCS8.wrap(key, oid)


def protect(pem: bytes, passphrase: bytes) -> bytes:
    """Encrypt the PEM text of a plain private key with a passphrase; OpenSSL can read the result."""
    # Use PBES2 of RFC 8018 with as many rounds as OWASP recommends for this hash. These rounds take about half a
    # second.
    return (
        RSA.import_key(pem).export_key(
            "PEM", passphrase=passphrase.decode("latin-1"), pkcs=8, protection=_PROTECTION, prot_params=_ROUNDS
        )
        + b"\n"
    )


def first_block(text: bytes, name: str) -> bytes:
    """Return the DER bytes of the first PEM block. If there is no block, raise KeyRingError with ``name`` in its
    message."""
    block = _BLOCK.search(text)
    if block is None:
        raise KeyRingError(f"{name} is not a PEM file: it has no BEGIN and END lines")
    try:
        return base64.b64decode(b"".join(block[1].split()), validate=True)
    except binascii.Error as error:
        raise KeyRingError(f"{name} is damaged: the text between its BEGIN and END lines is not base64") from error


def _is_protected(der: bytes) -> bool:
    """Return True for an EncryptedPrivateKeyInfo: an algorithm and an octet string. A public key has a bit string."""
    try:
        parts: list[object] = list(DerSequence().decode(der, nr_elements=2)[:])
    except (ValueError, IndexError):
        return False
    return all(isinstance(part, bytes) for part in parts) and cast("bytes", parts[1])[:1] == _OCTET_STRING


def _import(der: bytes, name: str, read: Callable[[bytes], RsaKey] = RSA.import_key) -> RsaKey:
    try:
        return read(der)
    except (ValueError, IndexError, TypeError) as error:
        raise KeyRingError(f"{name} does not hold an RSA key: {error}") from error


MAX_BYTES: Final = 1 << 20
"""The maximum number of bytes to read from a file. A key has a few kilobytes, but a wrong path may name a file of any
size.
"""


def key_file_content(path: Path) -> bytes:
    """Read the first ``MAX_BYTES`` of a key file. Raise KeyRingError if the read fails."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise KeyRingError(f"key file {path} cannot be read: {error.strerror}") from error
