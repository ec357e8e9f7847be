"""Key pairs that encrypt the segments' data keys, made as files."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError, excerpt
from tieredstore.process.interruption import at_sudden_end

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_PUBLIC_EXPONENT: Final = 65537


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """Where the two keys of a pair lie."""

    key_id: str
    public: Path
    private: Path


def generate_key_pair(key_id: str, directory: Path, bits: int) -> KeyPairFiles:
    """Make an RSA key pair in ``directory``: ``ID.private.pem`` (PKCS#8, its owner's alone), ``ID.public.pem`` (X.509).

    A folder that is not there is made. Both files are new, or neither is there: ConfigError for an id that cannot be
    used and for files that exist.
    """
    if not _ID.fullmatch(key_id):
        raise ConfigError(f"key id {excerpt(key_id)!r} cannot be used: letters, digits, '.', '_' and '-' are possible")
    files = KeyPairFiles(key_id, directory / f"{key_id}.public.pem", directory / f"{key_id}.private.pem")
    for path in (files.public, files.private):
        if path.exists():
            raise ConfigError(f"{path} exists already, and a key is never overwritten; choose another id or folder")
    private, public = _pem_pair(bits)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder {directory} cannot be made: {error.strerror}") from error
    remove = partial(files.private.unlink, missing_ok=True)
    write_new(files.private, private, mode=0o600)
    with at_sudden_end(remove):
        try:
            write_new(files.public, public, mode=0o644)
        except BaseException:
            remove()
            raise
    return files


def _pem_pair(bits: int) -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  needed by no other command about keys
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    key = rsa.generate_private_key(public_exponent=_PUBLIC_EXPONENT, key_size=bits)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that must not exist yet, never readable by more than ``mode`` says; ConfigError if it cannot be."""
    try:
        # The mode is given as the file is made: one that is narrowed afterwards was open to all for a moment.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with contextlib.ExitStack() as undone:
            undone.callback(path.unlink, missing_ok=True)  # half a key is none
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            undone.pop_all()
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
