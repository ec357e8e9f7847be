"""``tieredstore keys``: key pairs that encrypt the segments' data keys."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import javaproperties
import typer

from tieredstore.cli.app.arguments import SettingsPath
from tieredstore.cli.bucket.key_use import check, list_keys, rotate
from tieredstore.cli.terminal.output import print_lines
from tieredstore.config import load_settings
from tieredstore.config.encryption import PAIRS
from tieredstore.errors import ConfigError
from tieredstore.ops.keys.pairs import KeyPairFiles, generate_key_pair, passphrase_from
from tieredstore.ops.keys.sealing import KmsKey, sealed_pair
from tieredstore.ops.keys.settings import add_key_pair, folder_of_pairs, listed_pairs

PassphraseEnv: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--passphrase-env", metavar="NAME", help="Protect the private key by the passphrase in this variable."
    ),
]
PassphraseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help="Protect the private key by the passphrase in FILE's first line."
    ),
]

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
    bits: Bits = 3072,
    passphrase_env: PassphraseEnv = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make an RSA key pair, and print the settings that use it.

    Writes ID.private.pem (PKCS#8, readable by its owner alone) and ID.public.pem (X.509); existing files stay as they
    are. Whoever loses the private key loses the data.

    Example: tieredstore keys generate key1 -d /etc/kafka/keys
    """
    passphrase = passphrase_from(passphrase_env, passphrase_file)
    sys.stdout.write(settings_lines(generate_key_pair(key_id, directory, bits, passphrase=passphrase)))


@app.command()
def add(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair's name; segments record it for good.")],
    settings: SettingsPath = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "-d",
            "--directory",
            metavar="DIR",
            help="Where the two files go.",
            show_default="where the file's other pairs lie, or beside SETTINGS",
        ),
    ] = None,
    bits: Bits = 3072,
    passphrase_env: PassphraseEnv = None,
    passphrase_file: PassphraseFile = None,
    activate: Annotated[bool, typer.Option("--activate", help="New segments are encrypted by it from now on.")] = False,
) -> None:
    """Make an RSA key pair, and let it join those of the settings file.

    The active pair stays the active one unless there is none yet: first every reader and writer gets both pairs, then
    the new one becomes the active one. All other lines of the file stay as they are. What
    a killed run left is completed.

    Example: tieredstore keys add key2 -c store.properties
    """
    if settings is None:
        raise ConfigError("no settings file is named: give --settings FILE (-c)")
    if key_id in listed_pairs(settings):
        raise ConfigError(f"{settings} lists the key pair {key_id!r} already; choose another id")
    passphrase = passphrase_from(passphrase_env, passphrase_file)
    folder = folder_of_pairs(settings) if directory is None else directory
    files = generate_key_pair(key_id, folder, bits, passphrase=passphrase, resumes=True)
    add_key_pair(settings, files, activate=activate)
    print_lines([f"{files.private}", f"{files.public}", f"{settings} lists {', '.join(listed_pairs(settings))}"])


@app.command()
def seal(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair, one that the settings list.")],
    service: Annotated[
        str, typer.Option("--kms", metavar="NAME", help="The service: aws, gcp, azure, vault, or an installed one.")
    ],
    service_key: Annotated[
        str,
        typer.Option(
            "--kms-key", metavar="KEY", help="Its key: an ARN, a resource name, a key's URL, or Vault's MOUNT/KEY."
        ),
    ],
    settings: SettingsPath = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option("--kms-endpoint-url", metavar="URL", help="Where it is, if not where its own tools look."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The new file.", show_default="ID.private.sealed beside SETTINGS"
        ),
    ] = None,
) -> None:
    """Seal a pair's private key by a key management service, and print the settings that open it there.

    The private key is read as the settings say, sealed, opened again and compared before the file is written. Once
    all readers and writers have the new settings, remove the private key from where it was; keep a copy off-line.

    Example: tieredstore keys seal key1 -c store.properties --kms aws --kms-key alias/kafka
    """
    if settings is None:
        raise ConfigError("no settings file is named: give --settings FILE (-c)")
    path = settings.absolute().parent / f"{key_id}.private.sealed" if output is None else output
    pair = sealed_pair(load_settings(settings), key_id, KmsKey(service, service_key, endpoint_url), path)
    sys.stdout.write(_as_properties(pair))


def settings_lines(files: KeyPairFiles) -> str:
    """The lines of a settings file that encrypt with the pair alone."""
    alone = {"encryption.enabled": "true", "encryption.key.pair.id": files.key_id, PAIRS: files.key_id}
    return _as_properties(alone | files.settings())


def _as_properties(lines: Mapping[str, str]) -> str:
    return "".join(f"{javaproperties.join_key_value(name, value)}\n" for name, value in lines.items())
