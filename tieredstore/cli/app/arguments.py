"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tieredstore.cli.app.completion import complete_partition, complete_topic

SettingsPath: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--settings",
        envvar="TIEREDSTORE_SETTINGS",
        metavar="SETTINGS",
        help="The store's .properties file; a broker's server.properties works as it is.",
    ),
]
StoreUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Instead of the settings' store, or without settings: s3://bucket/prefix, gs://…, az://container/prefix, "
        "or a folder.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of text for a person.")]
OnlyTopic: TypeAlias = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this topic.", autocompletion=complete_topic),
]
OnlyPartition: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--partition",
        metavar="PARTITION",
        min=0,
        help="Only this partition; needs --topic.",
        autocompletion=complete_partition,
    ),
]
