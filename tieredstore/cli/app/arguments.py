"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tieredstore.cli.app.completion import complete_offset, complete_partition, complete_topic
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid

if TYPE_CHECKING:
    from tieredstore.catalog.listing import Scope

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
Topic: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)
]
Partition: TypeAlias = Annotated[
    int,
    typer.Argument(metavar="PARTITION", min=0, help="The partition's number.", autocompletion=complete_partition),
]
BaseOffset: TypeAlias = Annotated[
    int,
    typer.Argument(
        metavar="BASE_OFFSET",
        min=0,
        help="The offset that the segment begins with (see ls).",
        autocompletion=complete_offset,
    ),
]
TopicId: TypeAlias = Annotated[
    str | None, typer.Option("--topic-id", metavar="ID", help="Which topic, if one of this name was created again.")
]
SegmentId: TypeAlias = Annotated[
    str | None, typer.Option("--segment-id", metavar="ID", help="Which segment, if there are several at the offset.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of text for a person.")]
Wide: TypeAlias = Annotated[
    bool, typer.Option("--wide", help="All columns, ids too, however long the lines get; nothing is cut.")
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
SomePartition: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="PARTITION", help="Only this partition; the same as --partition.")
]
SomePartitions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="P",
        help="Only these partitions: 3, or 0,2, or 4-7. All without it.",
        autocompletion=complete_partition,
    ),
]
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
PartitionToo: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--partition",
        metavar="PARTITION",
        min=0,
        help="The same as PARTITION behind TOPIC.",
        autocompletion=complete_partition,
    ),
]
Parallel: TypeAlias = Annotated[
    int, typer.Option("--parallel", metavar="N", min=1, max=256, help="So many segments at once.")
]


def one_partition(argument: int | None, option: int | None) -> int | None:
    """The partition that is given behind the topic, by --partition, or both ways alike; ConfigError if they differ."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(f"two partitions are given: {argument} behind the topic, and --partition {option}")
    return option if argument is None else argument


def choose_scope(topic: str | None, topic_id: str | None, partition: int | None) -> Scope:
    """The segments that --topic, --topic-id and --partition leave; ConfigError for a partition of no topic."""
    if topic is None and (partition is not None or topic_id is not None):
        raise ConfigError("--partition and --topic-id narrow a topic: give --topic too")
    from tieredstore.catalog.listing import Scope

    return Scope(topic, None if topic_id is None else Uuid.parse(topic_id), partition)
