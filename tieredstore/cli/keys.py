"""``tieredstore keys``: key pairs that encrypt the segments' data keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import javaproperties
import typer

from tieredstore.cli.arguments import SettingsPath
from tieredstore.cli.key_use import check, list_keys, rotate
from tieredstore.cli.output import print_lines
from tieredstore.errors import ConfigError
from tieredstore.ops.key_pairs import KeyPairFiles, generate_key_pair
from tieredstore.ops.key_settings import add_key_pair, listed_pairs

app: Final = typer.Typer(no_args_is_help=True, help="Key pairs: make, count, rotate and retire them.")
app.command()(rotate)
app.command("list")(list_keys)
app.command()(check)


Bits: TypeAlias = Annotated[
    int, typer.Option("--bits", metavar="BITS", min=2048, max=16384, help="Size of the RSA modulus.")
]


@app.callback()
def keys() -> None:
    """Key pairs: make, count, rotate and retire them."""


@app.command()
def generate(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair's name; segments record it for good.")],
    directory: Annotated[
        Path, typer.Option("-d", "--directory", metavar="DIR", help="Where the two files go.", show_default="here")
    ] = Path(),
    bits: Annotated[
        int, typer.Option("--bits", metavar="BITS", min=2048, max=16384, help="Size of the RSA modulus.")
    ] = 3072,
) -> None:
    """Make an RSA key pair, and print the settings that use it.

    Writes ID.private.pem (PKCS#8, readable by its owner alone) and ID.public.pem (X.509); existing files stay as they
    are. Whoever loses the private key loses the data.

    Example: tieredstore keys generate key1 -d /etc/kafka/keys
    """
    sys.stdout.write(settings_lines(generate_key_pair(key_id, directory, bits)))


@app.command()
def add(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair's name; segments record it for good.")],
    settings: SettingsPath = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "-d", "--directory", metavar="DIR", help="Where the two files go.", show_default="beside SETTINGS"
        ),
    ] = None,
    bits: Annotated[
        int, typer.Option("--bits", metavar="BITS", min=2048, max=16384, help="Size of the RSA modulus.")
    ] = 3072,
    activate: Annotated[bool, typer.Option("--activate", help="New segments are encrypted by it from now on.")] = False,
) -> None:
    """Make an RSA key pair, and let it join those of the settings file.

    The active pair stays the active one unless there is none yet: first every reader and writer gets both pairs, then
    the new one becomes the active one. All other lines of the file stay as they are.

    Example: tieredstore keys add key2 -c store.properties
    """
    if settings is None:
        raise ConfigError("no settings file is named: give --settings FILE (-c)")
    if key_id in listed_pairs(settings):
        raise ConfigError(f"{settings} lists the key pair {key_id!r} already; choose another id")
    files = generate_key_pair(key_id, settings.absolute().parent if directory is None else directory, bits)
    add_key_pair(settings, files, activate=activate)
    print_lines([f"{files.private}", f"{files.public}", f"{settings} lists {', '.join(listed_pairs(settings))}"])


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
