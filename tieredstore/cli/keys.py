"""``tieredstore keys``: key pairs that encrypt the segments' data keys."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import javaproperties
import typer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tieredstore.errors import ConfigError

app: Final = typer.Typer(no_args_is_help=True, help="Make the key pairs that encryption needs.")

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_PUBLIC_EXPONENT: Final = 65537


@app.callback()
def keys() -> None:
    """Make the key pairs that encryption needs."""


@app.command()
def generate(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair's name; segments record it for good.")],
    directory: Annotated[
        Path, typer.Option("-d", "--directory", metavar="DIR", help="Where the two files go.", show_default="here")
    ] = Path(),
    bits: Annotated[int, typer.Option("--bits", min=2048, max=16384, help="Size of the RSA modulus.")] = 3072,
) -> None:
    """Make an RSA key pair, and print the settings that use it.

    Writes ID.private.pem (PKCS#8, readable by its owner alone) and ID.public.pem (X.509); existing files stay as they
    are. Whoever loses the private key loses the data.

    Example: tieredstore keys generate key1 -d /etc/kafka/keys
    """
    if not _ID.fullmatch(key_id):
        raise ConfigError(f"key id {key_id!r} cannot be used: letters, digits, '.', '_' and '-' are possible")
    files = {name: directory / f"{key_id}.{name}.pem" for name in ("public", "private")}
    for path in files.values():
        if path.exists():
            raise ConfigError(f"{path} exists already, and a key is never overwritten; choose another id or folder")
    private, public = _pem_pair(bits)
    _write_new(files["private"], private, mode=0o600)
    try:
        _write_new(files["public"], public, mode=0o644)
    except ConfigError:
        files["private"].unlink()
        raise
    sys.stdout.write(settings_lines(key_id, files["public"].absolute(), files["private"].absolute()))


def settings_lines(key_id: str, public_key_file: Path, private_key_file: Path) -> str:
    """The lines of a settings file that encrypt with the pair alone."""
    pairs = "encryption.key.pairs"
    lines = {
        "encryption.enabled": "true",
        "encryption.key.pair.id": key_id,
        pairs: key_id,
        f"{pairs}.{key_id}.public.key.file": str(public_key_file),
        f"{pairs}.{key_id}.private.key.file": str(private_key_file),
    }
    return "".join(f"{javaproperties.join_key_value(name, value)}\n" for name, value in lines.items())


def _pem_pair(bits: int) -> tuple[bytes, bytes]:
    key = rsa.generate_private_key(public_exponent=_PUBLIC_EXPONENT, key_size=bits)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that must not exist yet, never readable by more than ``mode`` says; ConfigError if it cannot be."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
