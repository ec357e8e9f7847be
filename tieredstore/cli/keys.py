"""``tieredstore keys``: key pairs that encrypt the segments' data keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import javaproperties
import typer

from tieredstore.ops.key_pairs import KeyPairFiles, generate_key_pair

app: Final = typer.Typer(no_args_is_help=True, help="Make the key pairs that encryption needs.")


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
    sys.stdout.write(settings_lines(generate_key_pair(key_id, directory, bits)))


def settings_lines(files: KeyPairFiles) -> str:
    """The lines of a settings file that encrypt with the pair alone."""
    pairs, key_id = "encryption.key.pairs", files.key_id
    lines = {
        "encryption.enabled": "true",
        "encryption.key.pair.id": key_id,
        pairs: key_id,
        f"{pairs}.{key_id}.public.key.file": str(files.public.absolute()),
        f"{pairs}.{key_id}.private.key.file": str(files.private.absolute()),
    }
    return "".join(f"{javaproperties.join_key_value(name, value)}\n" for name, value in lines.items())
