"""The broker that a command is told to ask as well, and the properties of the client that asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    pass

BootstrapServer: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="Read on from this broker where the bucket ends; several as host:port,host:port.",
    ),
]
KafkaConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option("--kafka-config", metavar="FILE", help="Properties of the Kafka client: logins, TLS. See live.md."),
]
KafkaProperties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("-X", "--kafka-property", metavar="NAME=VALUE", help="One of them; may be given several times."),
]

MetadataTopicBrokers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metadata-topic",
        metavar="HOST:PORT",
        help="Ask these brokers which segments they list, by their __remote_log_metadata.",
    ),
]

_SERVERS: Final = "bootstrap.servers"


def client_properties(
    bootstrap_server: str | None, config: Path | None, properties: Sequence[str] | None
) -> Mapping[str, str] | None:
    """What the client is to be given: of the file, then of ``-X``; None if nothing was said of a broker.

    ConfigError for what is no property, and for properties that name no broker.
    """
    if bootstrap_server is None and config is None and not properties:
        return None
    from tieredstore.config.properties import read_properties

    client = {} if config is None else dict(read_properties(config))
    for text in properties or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # Not the text itself, which may be a password without its name.
            raise ConfigError("a property of the Kafka client (-X) is not NAME=VALUE, as client.id=tieredstore is")
        client[name.strip()] = value
    if bootstrap_server is not None:
        client[_SERVERS] = bootstrap_server
    if not client.get(_SERVERS):
        raise ConfigError(f"no broker is named: give --bootstrap-server HOST:PORT, or {_SERVERS} in --kafka-config")
    return client
