"""Files of the key pairs that wrap segments' data keys: creates pairs, and encrypts ("seals") private keys with a key
management service."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.config import Settings
from tieredstore.config.encryption import PAIRS
from tieredstore.errors import ConfigError, KeyServiceError, excerpt
from tieredstore.process.interruption import at_sudden_end
from tieredstore.process.whole_files import sync_folder
from tieredstore.remote.private_keys import passphrase_in, variable_content

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_PUBLIC_EXPONENT: Final = 65537


@dataclass(frozen=True, slots=True)
class Passphrase:
    """A private key's passphrase, and the setting by which readers find it.

    ``setting`` is the end of a property's name, and the property's value, such as ``("private.key.passphrase.env",
    "PASS")``.
    """

    words: bytes = field(repr=False)
    setting: tuple[str, str]


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """The files of a key pair. ``opened_by`` are further settings that readers need to open the private key."""

    key_id: str
    public: Path
    private: Path
    opened_by: tuple[tuple[str, str], ...] = ()

    def settings(self) -> dict[str, str]:
        """Return the properties that name this pair's keys."""
        of_pair = f"{PAIRS}.{self.key_id}"
        return {
            f"{of_pair}.public.key.file": str(self.public.absolute()),
            f"{of_pair}.private.key.file": str(self.private.absolute()),
            **{f"{of_pair}.{name}": text for name, text in self.opened_by},
        }


def passphrase_from(variable: str | None, file: Path | None) -> Passphrase | None:
    """Return the passphrase from an environment variable or from the first line of a file; None if neither is named.

    Raise ConfigError if both are named, and KeyRingError if the variable or file is absent.
    """
    if variable is not None and file is not None:
        raise ConfigError("a passphrase comes from a variable or from a file: give one of the two")
    if variable is not None:
        return Passphrase(variable_content(variable, "passphrase"), ("private.key.passphrase.env", variable))
    if file is not None:
        return Passphrase(passphrase_in(file), ("private.key.passphrase.file", str(file.absolute())))
    return None


def generate_key_pair(
    key_id: str, directory: Path, bits: int, *, passphrase: Passphrase | None = None, resumes: bool = False
) -> KeyPairFiles:
    """Create an RSA key pair in ``directory``: ``ID.private.pem`` (PKCS#8, readable only by its owner),
    ``ID.public.pem`` (X.509).

    A missing directory is created, accessible only to its owner. Both files are written, or neither. With ``resumes``,
    keep a private key that a killed run left, and complete the pair.

    Raise ConfigError for an invalid id and for existing files.
    """
    if not _ID.fullmatch(key_id):
        raise ConfigError(f"key id {excerpt(key_id)!r} is invalid: use letters, digits, '.', '_' and '-'")
    files = KeyPairFiles(
        key_id,
        directory / f"{key_id}.public.pem",
        directory / f"{key_id}.private.pem",
        () if passphrase is None else (passphrase.setting,),
    )
    if resumes and files.private.exists():
        _complete(files, passphrase)
        return files
    for path in (files.public, files.private):
        if path.exists():
            raise ConfigError(f"{path} already exists, and keys are never overwritten; choose another id or folder")
    private, public = _pem_pair(bits, None if passphrase is None else passphrase.words)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder {directory} cannot be created: {error.strerror}") from error
    remove = partial(files.private.unlink, missing_ok=True)
    write_new(files.private, private, mode=0o600)
    with at_sudden_end(remove):
        try:
            write_new(files.public, public, mode=0o644)
        except BaseException:
            remove()
            raise
    return files


def _complete(files: KeyPairFiles, passphrase: Passphrase | None) -> None:
    """Write the public key if it is missing, and check that both files are one pair. Raise ConfigError if not."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  needed by no other command about keys

    try:
        words = None if passphrase is None else passphrase.words
        key = serialization.load_pem_private_key(files.private.read_bytes(), words)
        public = _public_pem(key.public_key())
        if not files.public.exists():
            write_new(files.public, public, mode=0o644)
        if files.public.read_bytes() == public:
            return
    except OSError as error:
        raise ConfigError(f"{files.private} cannot be read: {error.strerror}") from error
    except ConfigError:
        raise
    except (ValueError, TypeError):
        pass
    raise ConfigError(
        f"{files.private} already exists, but does not match {files.public.name} (or has another passphrase): choose "
        "another id or folder, or remove both if no segment was encrypted by them"
    )


def _public_pem(key: PublicKeyTypes) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _pem_pair(bits: int, passphrase: bytes | None) -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  needed by no other command about keys
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    from tieredstore.transform.pem import protect  # noqa: PLC0415

    key = rsa.generate_private_key(public_exponent=_PUBLIC_EXPONENT, key_size=bits)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    if passphrase is not None:
        private = protect(private, passphrase)
    return private, _public_pem(key.public_key())


def write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a new file with ``mode`` from the start. Raise ConfigError if that fails."""
    try:
        # Create the file with its final mode. If the mode were set later, other users could read the file for a moment.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with contextlib.ExitStack() as undone:
            undone.callback(path.unlink, missing_ok=True)  # half a key is useless
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(path.parent)  # a power failure must not lose the name of a key that settings already list
            undone.pop_all()
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


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
    from tieredstore.kms.base import key_source  # noqa: PLC0415
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
