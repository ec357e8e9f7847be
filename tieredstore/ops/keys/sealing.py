"""Encrypts ("seals") a private key with a key management service. The sealed file replaces an unprotected one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tieredstore.config import Settings
from tieredstore.config.encryption import PAIRS
from tieredstore.errors import ConfigError, KeyServiceError, excerpt
from tieredstore.ops.keys.pairs import write_new


@dataclass(frozen=True, slots=True)
class KmsKey:
    """A key of a key management service, named by ``private.key.kms`` and the settings below ``private.key.kms``."""

    service: str
    key: str
    endpoint_url: str | None = None


def seal_pair(settings: Settings, key_id: str, kms: KmsKey, path: Path) -> dict[str, str]:
    """Seal a pair's private key and write it to a new file. Return the settings that open the sealed key.

    Before the file is written, the sealed key is opened again and compared with the private key.

    Raise ConfigError if the settings do not list the pair, or if the file exists. Raise KeyServiceError and
    KeyRingError if the service or the key fails.
    """
    # These modules load libraries for RSA and AES, which other commands about keys do not need.
    from tieredstore.kms import sealed_key  # noqa: PLC0415
    from tieredstore.kms.registry import key_source  # noqa: PLC0415
    from tieredstore.remote.private_keys import open_pair  # noqa: PLC0415

    pairs = () if settings.encryption is None else settings.encryption.key_pairs
    pair = next((pair for pair in pairs if pair.id == key_id), None)
    if pair is None:
        listed = ", ".join(pair.id for pair in pairs) or "none"
        raise ConfigError(f"the settings list no key pair {excerpt(key_id)!r}: {excerpt(listed)}")
    if path.exists():
        raise ConfigError(f"{path} already exists, and keys are never overwritten; choose another file (--sealed)")
    _, private_key = open_pair(pair)  # raises an error unless the private key is RSA and matches the public key
    source = key_source(kms.service, kms.key, kms.endpoint_url)
    text = sealed_key.seal(private_key, pair=key_id, service=kms.service, source=source)
    name = f"the key that {kms.service} has just sealed"
    if sealed_key.open_sealed(text, name=name, pair=key_id, service=kms.service, source=source) != private_key:
        raise KeyServiceError(f"{name} differs from the private key when opened again; nothing was written")
    write_new(path, text, mode=0o600)
    lines = {"file": str(path.absolute()), "kms": kms.service, "kms.key": kms.key}
    if kms.endpoint_url is not None:
        lines["kms.endpoint.url"] = kms.endpoint_url
    return {f"{PAIRS}.{key_id}.private.key.{name}": text for name, text in lines.items()}
