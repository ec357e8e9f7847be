"""``tieredstore init``: a new settings file, from a broker's file or from answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tieredstore.cli.app.options import Apply, Json, Store
from tieredstore.cli.bucket.doctor import doctor
from tieredstore.cli.terminal.output import print_lines, quantity
from tieredstore.errors import ConfigError


def init(
    server_properties: Annotated[
        Path | None,
        typer.Argument(
            metavar="SERVER_PROPERTIES", help="A broker's settings file; its settings of tiered storage are copied."
        ),
    ] = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The new settings file.")] = Path(
        "store.properties"
    ),
) -> None:
    """Write a settings file for a bucket, and check it as doctor does.

    The settings come from a broker's SERVER_PROPERTIES; without it, init asks for them. From a broker's file it takes
    only the settings that readers of the bucket need: store, prefix, chunk size, compression and keys. The new file may
    contain secrets, so only its owner can read it. Secrets are never printed. An existing file is never changed. If a
    check fails, the new file stays, and the exit code is that of the first failed check.

    Example: tieredstore init /etc/kafka/server.properties
    """
    if file.exists():
        raise ConfigError(f"{file} exists already, and init never changes a file: choose another one with --file")
    import javaproperties

    from tieredstore.config import settings_from
    from tieredstore.ops.keys.pairs import write_new

    if server_properties is None:
        properties, left = _ask(), list[str]()
        source = "the answers"
    else:
        from tieredstore.config.properties import bucket_properties

        properties, left = bucket_properties(server_properties)
        source = str(server_properties)
    settings_from(properties, base_dir=file.absolute().parent, source=source)
    lines = (f"{javaproperties.join_key_value(name, text)}\n" for name, text in properties.items())
    write_new(file, "".join(lines).encode("latin-1"), mode=0o600)
    without = f", without {', '.join(left)}" if left else ""
    print_lines([f"{file}: {quantity(len(properties), 'setting')} of {source}{without}"])
    print_lines([f"next: tieredstore ls -c {file}"])
    doctor(Store(settings=file), apply=Apply(), output=Json())


def _ask() -> dict[str, str]:
    """Ask the user for the settings, and return them as properties. Raise ConfigError without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError("init asks for the settings, and stdin is not a terminal: name a broker's server.properties")
    from tieredstore.remote.stores import NamedStore, find_store

    try:
        store: str = typer.prompt("Store: s3://bucket/prefix, gs://…, az://…, or a folder")
        found = find_store({}, store=store.strip())
        assert isinstance(found, NamedStore)  # a URL or a folder never gives loaded settings
        properties = dict(found.properties)
        if properties["storage.backend.class"] == "s3":
            properties |= _ask_about_s3(properties)
        properties |= _ask_about_keys()
    except typer.Abort:
        raise ConfigError("the questions ended before the last answer: nothing is written") from None
    return properties


def _ask_about_s3(found: dict[str, str]) -> dict[str, str]:
    region, endpoint = "storage.s3.region", "storage.s3.endpoint.url"
    answers = {
        region: _prompt("Region of the bucket", found[region]),
        endpoint: _prompt("URL of the server (empty: Amazon's)", found.get(endpoint, "")),
        "storage.aws.access.key.id": _prompt("Access key id (empty: AWS's environment, profile or role)"),
    }
    if answers["storage.aws.access.key.id"]:
        answers["storage.aws.secret.access.key"] = typer.prompt("Secret access key", hide_input=True)
    return {name: text for name, text in answers.items() if text}


def _ask_about_keys() -> dict[str, str]:
    key_id = _prompt("Id of the key pair (empty: no encryption)")
    if not key_id:
        return {}
    pair = f"encryption.key.pairs.{key_id}"
    return {
        "encryption.enabled": "true",
        "encryption.key.pair.id": key_id,
        "encryption.key.pairs": key_id,
        f"{pair}.public.key.file": _path("PEM file of its public key"),
        f"{pair}.private.key.file": _path("PEM file of its private key"),
    }


def _prompt(question: str, default: str = "") -> str:
    answer: str = typer.prompt(question, default=default, show_default=bool(default))
    return answer.strip()


def _path(question: str) -> str:
    answer: str = typer.prompt(question)
    return str(Path(answer.strip()).expanduser().absolute())
