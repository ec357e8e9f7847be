"""Private keys from a file, a variable or a descriptor: plain, protected by a passphrase, or sealed by a key service.

A key's bytes stay in this process, and no message shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.errors import KeyRingError
from tieredstore.remote.key_texts import descriptor_content, passphrase_in, variable_content
from tieredstore.transform.keyring import KeyPair
from tieredstore.transform.pem import first_block, key_file_content, private_key, read_public_key, unprotect

if TYPE_CHECKING:
    from tieredstore.config.encryption import KeyPairSettings


def open_pair(pair: KeyPairSettings) -> tuple[KeyPair, bytes]:
    """Open the key pair that the settings describe. Return the pair and its private key (PKCS#8, DER). A passphrase is
    read only once, and a key service is called only once.

    Raise KeyRingError or KeyServiceError as ``key_ring_of`` does.
    """
    name, public = _name(pair), read_public_key(pair.public_key_file)
    der = _private_key_der(pair)
    return KeyPair.of(public, private_key(der, name), name, str(pair.public_key_file)), der


def _private_key_der(pair: KeyPairSettings) -> bytes:
    name, text = _name(pair), _text(pair)
    if pair.kms is not None and pair.kms_key is not None:
        from tieredstore.kms import sealed_key  # noqa: PLC0415  rare, and loads a library
        from tieredstore.kms.registry import key_source  # noqa: PLC0415

        source = key_source(pair.kms, pair.kms_key, pair.kms_endpoint_url)
        return sealed_key.open_sealed(text, name=name, pair=pair.id, service=pair.kms, source=source)
    if text.lstrip()[:1] == b"{":
        raise KeyRingError(f"{name} is not a PEM file; if it was sealed, name the service by private.key.kms")
    der = first_block(text, name)
    passphrase = _passphrase(pair)
    return der if passphrase is None else unprotect(der, passphrase, name)


def _name(pair: KeyPairSettings) -> str:
    if pair.private_key_env is not None:
        return f"the private key in the variable {pair.private_key_env}"
    if pair.private_key_fd is not None:
        return f"the private key from descriptor {pair.private_key_fd}"
    return str(pair.private_key_file)


def _text(pair: KeyPairSettings) -> bytes:
    if pair.private_key_env is not None:
        return variable_content(pair.private_key_env, f"private key of {pair.id}")
    if pair.private_key_fd is not None:
        return descriptor_content(pair.private_key_fd, f"private key of {pair.id}")
    # The settings require a file, a variable or a descriptor, so here it is a file.
    assert pair.private_key_file is not None
    return key_file_content(pair.private_key_file)


def _passphrase(pair: KeyPairSettings) -> bytes | None:
    if pair.passphrase_env is not None:
        return variable_content(pair.passphrase_env, f"passphrase of {pair.id}")
    if pair.passphrase_file is not None:
        return passphrase_in(pair.passphrase_file)
    return None
