"""Groups of options that commands share: each option is declared once, and means the same everywhere."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, TypeAlias

import typer

from tieredstore.cli.app.completion import complete_offset, complete_partition, complete_topic
from tieredstore.cli.app.groups import Group
from tieredstore.cli.terminal.output import JsonValue, complain, human_time, iso_utc
from tieredstore.errors import ConfigError, ResourceNotFoundError, excerpt
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.model import DEFAULT_ISOLATION, AtTime, Isolation, Uuid
from tieredstore.query.writers import formats_text

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.scopes import Which
    from tieredstore.config import Settings
    from tieredstore.remote.stores import NamedStore

_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?", re.ASCII)
_MOST_PARTITIONS: Final = 100_000
ALL: Final = "all"
"""Value of ``-p`` for all partitions."""
_DIGITS: Final = len(str(MAX_OFFSET))
_SERVERS: Final = "bootstrap.servers"


_Settings: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--settings",
        envvar="TIEREDSTORE_SETTINGS",
        metavar="FILE",
        help="The store's .properties file; a broker's server.properties works as it is.",
    ),
]


@dataclass(frozen=True, slots=True)
class SettingsFile(Group):
    """The settings file of a service. The service reads the file again while it runs."""

    PANEL: ClassVar[str] = "Store"
    settings: _Settings = None

    def path(self, own: str) -> Path:
        """Return the settings file. If there is none, raise a ConfigError that names the needed settings (``own``)."""
        if self.settings is None:
            raise ConfigError(
                f"no settings are named: give --settings FILE (-c), with {own} and the settings of the store"
            )
        return self.settings


@dataclass(frozen=True, slots=True)
class Store(Group):
    """The bucket to use."""

    PANEL: ClassVar[str] = "Store"
    settings: _Settings = None
    url: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL|DIR",
            help="A store to use without settings, or in place of the settings' store: s3://bucket/prefix, gs://…, "
            "az://container/prefix, or a folder.",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """True if a store was named."""
        return self.settings is not None or self.url is not None

    def read_settings(self) -> Settings:
        """Return the settings of the file, or of the URL. If both are given, use the file's settings with the URL as
        the store.

        Raise ConfigError if neither is given.
        """
        return self.resolve()[0]

    def resolve(self) -> tuple[Settings, NamedStore | None]:
        """Return the settings and their source."""
        if not self.is_given:
            raise ConfigError("no store is named: give --settings FILE (-c) or --store URL")
        from tieredstore.remote.stores import resolve_store

        return resolve_store(self.settings, store=self.url)

    @contextlib.contextmanager
    def open(self, cluster: Cluster | None = None, *, is_all: bool = False) -> Generator[Bucket]:
        """Open the bucket, and close it at the end of the block. ``is_all``: see :func:`naming_other_prefix`."""
        from tieredstore.api.bucket import Bucket

        settings, named = self.resolve()
        client = None if cluster is None else cluster.client()
        with Bucket(settings, client, named) as bucket, naming_other_prefix(bucket, is_all=is_all):
            yield bucket


@contextlib.contextmanager
def naming_other_prefix(bucket: Bucket, *, is_all: bool) -> Generator[None]:
    """If the bucket's prefix has no segments, tell the user of another prefix that has segments.

    Search for another prefix if the block raises ResourceNotFoundError or, with ``is_all``, at the block's end.
    """
    try:
        yield
    except ResourceNotFoundError as error:
        if (hint := _other_prefix(bucket)) and hint not in str(error):
            error.add_note(f"{hint}: correct key.prefix")
        raise
    if is_all and (hint := _other_prefix(bucket)):
        complain(f"{hint}: correct key.prefix")


def _other_prefix(bucket: Bucket) -> str:
    from tieredstore.catalog.absence import prefix_hint
    from tieredstore.catalog.listing import Scope, list_segments

    store, prefix = bucket.opened().store, bucket.opened().prefix
    return "" if any(True for _ in list_segments(store, prefix, Scope())) else prefix_hint(store, prefix)


@dataclass(frozen=True, slots=True)
class Cluster(Group):
    """The brokers whose log the bucket extends."""

    PANEL: ClassVar[str] = "Cluster"
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            metavar="HOST:PORT",
            help="The Kafka cluster of these topics; several brokers as host:port,host:port.",
        ),
    ] = None
    kafka_config: Annotated[
        Path | None,
        typer.Option("--kafka-config", metavar="FILE", help="Properties file of the Kafka client: logins, TLS."),
    ] = None
    kafka_property: Annotated[
        list[str] | None,
        typer.Option("-X", "--kafka-property", metavar="NAME=VALUE", help="A client property; may be repeated."),
    ] = None

    def require(self, why: str = "a running cluster is needed") -> Mapping[str, str]:
        """Return the client's properties. Without any broker option, raise ConfigError with the reason ``why``."""
        client = self.client()
        if client is None:
            raise ConfigError(f"{why}: give --bootstrap-server HOST:PORT")
        return client

    def client(self) -> Mapping[str, str] | None:
        """Return the client's properties: those of the file, overridden by ``-X``. Without any broker option, return
        None.

        Raises ConfigError for a ``-X`` that is not NAME=VALUE, and for properties without a broker's address.
        """
        if self.bootstrap_server is None and self.kafka_config is None and not self.kafka_property:
            return None
        from tieredstore.config.properties import read_properties

        client = {} if self.kafka_config is None else dict(read_properties(self.kafka_config))
        for text in self.kafka_property or ():
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                # Do not show the text, because it may be a password, if the user forgot the property's name.
                raise ConfigError("a Kafka client's property (-X) must be NAME=VALUE, such as client.id=tieredstore")
            client[name.strip()] = value
        if self.bootstrap_server is not None:
            client[_SERVERS] = self.bootstrap_server
        if not client.get(_SERVERS):
            raise ConfigError(f"no broker is named: give --bootstrap-server HOST:PORT, or {_SERVERS} in --kafka-config")
        return client


Partitions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--partitions",
        metavar="P",
        help="Only these partitions, such as 3, 0,2 or 4-7; default: all.",
        autocompletion=complete_partition,
    ),
]
_TopicId: TypeAlias = Annotated[
    str | None, typer.Option("--topic-id", metavar="ID", help="Topic id, if the topic was deleted and re-created.")
]


@dataclass(frozen=True, slots=True)
class Topics(Group):
    """The topics and partitions to use. Without topics, a command uses all."""

    PANEL: ClassVar[str] = "Topics"
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these topics, by name or glob.", autocompletion=complete_topic),
    ] = None
    partitions: Partitions = None
    topic_id: _TopicId = None

    @property
    def names(self) -> Sequence[str]:
        """The named topics."""
        return self.topics or ()

    def which(self, work: Work | None = None, *, of_all: bool = False) -> Which:
        """Return partitions, topic id and parallelism as arguments of a bucket's methods.

        Without ``of_all``, raise ConfigError for partitions or an id that are given without a topic.
        """
        if not of_all and not self.topics and (self.partitions not in (None, [ALL]) or self.topic_id):
            raise ConfigError("-p and --topic-id select within a topic: name the topic too")
        return _which(self.partitions, self.topic_id, work)


@dataclass(frozen=True, slots=True)
class OneTopic(Group):
    """One topic, and the partitions to use."""

    PANEL: ClassVar[str] = "Topics"
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)]
    partitions: Partitions = None
    topic_id: _TopicId = None

    def which(self, work: Work | None = None) -> Which:
        """Return partitions, topic id and parallelism as arguments of a bucket's methods."""
        return _which(self.partitions, self.topic_id, work)


@dataclass(frozen=True, slots=True)
class Address(Group):
    """Arguments that name a segment: topic, partition, and base offset or segment id."""

    PANEL: ClassVar[str] = "Segment"
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)]
    partition: Annotated[
        int,
        typer.Argument(metavar="PARTITION", min=0, help="The partition's number.", autocompletion=complete_partition),
    ]
    offset: Annotated[
        str,
        typer.Argument(
            metavar="OFFSET|ID",
            help="The offset that the segment begins with (see ls), or its id.",
            autocompletion=complete_offset,
        ),
    ]
    topic_id: _TopicId = None

    @property
    def segment(self) -> int | Uuid:
        """The offset or the id. Raise ConfigError for a text that is neither."""
        return parse_segment(self.offset)

    @property
    def life(self) -> Uuid | None:
        """The topic's id."""
        return _parse_id(self.topic_id)


_Stop: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="OFFSET|TIME",
        help="Stop before this offset or time.",
        autocompletion=complete_offset,
    ),
]


@dataclass(frozen=True)
class End(Group):
    """The end of a range."""

    PANEL: ClassVar[str] = "Window"
    stop: _Stop = None

    @functools.cached_property
    def end(self) -> int | AtTime | None:
        """The end, exclusive. For an invalid end, raises a ConfigError that names the option."""
        return parse_option("--to", self.stop)

    def json(self) -> dict[str, JsonValue]:
        """Return the range for the summary of a report: offsets, or times in UTC."""
        return {"to": _show_place(self.end)}


From: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from",
        rich_help_panel="Window",
        metavar="OFFSET|TIME",
        help="Start: an offset, or the first record at or after a time: 2026-01-31T08:00Z, 10:00, yesterday, "
        "-1h, now, @MS. Times without a zone are UTC.",
        autocompletion=complete_offset,
    ),
]
Last: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--last", metavar="N", min=0, rich_help_panel="Window", help="Begin with the last N records of each partition."
    ),
]


@dataclass(frozen=True)
class FromTo(Group):
    """The start and the end of a range."""

    PANEL: ClassVar[str] = "Window"
    start: From = None
    stop: _Stop = None

    @functools.cached_property
    def first(self) -> int | AtTime | None:
        """The start. For an invalid start, raises a ConfigError that names the option."""
        return parse_option("--from", self.start)

    def check_order(self) -> None:
        """Raise ConfigError for a range that ends before it begins."""
        from tieredstore.query.positions import ends_before

        if ends_before(self.first, self.end):
            raise ConfigError(f"--from {self.start} is after --to {self.stop}: the window ends before it begins")

    @functools.cached_property
    def end(self) -> int | AtTime | None:
        """The end, exclusive."""
        return parse_option("--to", self.stop)

    def json(self) -> dict[str, JsonValue]:
        """Return the range for the summary of a report: offsets, or times in UTC."""
        return {"from": _show_place(self.first), "to": _show_place(self.end)}


RegistryUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help="URL of the schema registry, for Avro messages."),
]
RegistryConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option("--registry-config", metavar="FILE", help="Properties file of the registry: logins, TLS."),
]


@dataclass(frozen=True, slots=True)
class Values(Group):
    """The types of keys and values."""

    PANEL: ClassVar[str] = "Values"
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="TYPE", help="Type of the keys; takes the same values as --value."),
    ] = None
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="TYPE",
            help="Type of the values: bytes, text, json, json:FILE, avro:FILE (a schema), or avro with --registry; "
            "for one topic: orders=text.",
        ),
    ] = None
    registry: RegistryUrl = None
    registry_config: RegistryConfig = None
    invalid: Annotated[
        Literal["fail", "null"],
        typer.Option("--invalid", help="If a key or value does not match its type: fail, or read it as null."),
    ] = "fail"


OnLoss: TypeAlias = Annotated[
    Literal["fail", "report"],
    typer.Option("--on-loss", help="If offsets are in no segment: fail, or report them and continue."),
]


@dataclass(frozen=True, slots=True)
class Records(Group):
    """The records to read."""

    PANEL: ClassVar[str] = "Records"
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="read_uncommitted also shows aborted and open transactions.")
    ] = DEFAULT_ISOLATION
    on_loss: OnLoss = "fail"


ToFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        rich_help_panel="Output",
        help="Write into FILE, which appears once it is complete; - is stdout.",
    ),
]
_AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, then a summary (not after records).")
]


@dataclass(frozen=True, slots=True)
class Rows(Group):
    """Options for the destination, format and number of records or rows."""

    PANEL: ClassVar[str] = "Output"
    output: ToFile = None
    row_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"{formats_text()}; default: by FILE's ending, or a table on the screen.",
        ),
    ] = None
    as_json: _AsJson = False
    count: Count = None


@dataclass(frozen=True, slots=True)
class Output(Group):
    """Options for the form of a command's report."""

    PANEL: ClassVar[str] = "Output"
    as_json: _AsJson = False
    wide: Annotated[bool, typer.Option("--wide", help="Show all columns, including ids, in full width.")] = False


@dataclass(frozen=True, slots=True)
class Json(Group):
    """The output option of commands that print sentences or JSON, but no table."""

    PANEL: ClassVar[str] = "Output"
    as_json: _AsJson = False


@dataclass(frozen=True, slots=True)
class Work(Group):
    """Concurrency and bandwidth."""

    PANEL: ClassVar[str] = "Work"
    parallel: Annotated[
        int | None, typer.Option("--parallel", metavar="N", min=1, max=256, help="N segments or windows in parallel.")
    ] = None


@dataclass(frozen=True, slots=True)
class Apply(Group):
    """Option ``--yes`` of commands that delete or rewrite: without the option, they only show their plan.

    Commands never prompt, even on a terminal, so that a command line has the same effect in a shell, a script and cron.
    """

    PANEL: ClassVar[str] = "Work"
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make the changes; without --yes, only show them.")] = False


DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", rich_help_panel="Work", help="Only show what would be done.")
]
"""Option ``--dry-run`` of commands that only add to a bucket. Without the option, they act at once."""

MinAge: TypeAlias = Annotated[
    str,
    typer.Option(
        "--min-age", metavar="AGE", rich_help_panel="Work", help="Minimum age by the store's clock, such as 7d."
    ),
]
"""Option ``--min-age`` of commands that collect garbage."""

Count: TypeAlias = Annotated[
    int | None, typer.Option("-n", metavar="N", min=1, rich_help_panel="Output", help="Stop after N records.")
]
"""Option ``-n`` of commands that show records."""

Follow: TypeAlias = Annotated[
    bool,
    typer.Option("-f", "--follow", rich_help_panel="Window", help="Keep following new records until stopped."),
]
"""Option ``--follow`` of commands that read."""

GroupName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        rich_help_panel="Window",
        help="Join this consumer group: share the topic, resume at the group's offsets, commit written offsets.",
    ),
]

Prices: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--prices", metavar="FILE", help="Also show monthly costs, by this price file (like examples/prices.toml)."
    ),
]

Once: TypeAlias = Annotated[bool, typer.Option("--once", help="Do the work that is due now, then exit.")]
"""The option ``--once`` of services."""

BACKUP: Final = typer.Option(
    "--backup", metavar="FILE", help="Settings of a backup: a pipeline, Secor (raw records) or, for a restore, batches."
)
"""The option ``--backup`` of commands that can read records from other sources than segments."""

JsonLogs: TypeAlias = Annotated[
    bool,
    typer.Option("--json-logs", rich_help_panel="Output", help="Write log lines as JSON, for a log collector."),
]
"""The option ``--json-logs`` of services."""


def parse_partitions(texts: Sequence[str] | None) -> tuple[int, ...] | None:
    """Parse partitions such as ``3``, ``0,2`` and ``4-7``. Return each partition once, ascending; None for all."""
    if not texts or ALL in texts:
        return None
    ranges = [each for text in texts for each in _ranges(text)]
    if sum(map(len, ranges)) > _MOST_PARTITIONS:
        raise ConfigError(f"-p names more than {_MOST_PARTITIONS} partitions: leave it out for all of a topic")
    return tuple(sorted({number for each in ranges for number in each}))


def parse_option(option: str, text: str | None) -> int | AtTime | None:
    """Parse the position that an option gives. For an invalid position, raise a ConfigError that names the option.

    If the text is a relative time or has no time zone, print the time in UTC on stderr.
    """
    if text is None:
        return None
    from tieredstore.query.positions import has_own_zone, parse_place

    place = parse_place(option, text)
    if isinstance(place, AtTime) and not has_own_zone(text):
        complain(f"{option} {text} is {human_time(place.timestamp_ms)} UTC")
    return place


def parse_time(option: str, text: str | None) -> AtTime | None:
    """Parse the time that an option gives, as :func:`parse_option` does. Raise ConfigError also for an offset."""
    from tieredstore.query.positions import time_of

    return time_of(option, parse_option(option, text))


def _show_place(place: int | AtTime | None) -> JsonValue:
    return iso_utc(place.timestamp_ms) if isinstance(place, AtTime) else place


def parse_segment(text: str, name: str = "OFFSET|ID") -> int | Uuid:
    """Parse a segment's base offset or id. For anything else, raise a ConfigError that names the option."""
    if text.isascii() and text.isdecimal():
        if len(text) > _DIGITS or int(text) > MAX_OFFSET:
            raise ConfigError(f"{name} is {excerpt(text)}: an offset is at most {MAX_OFFSET}")
        return int(text)
    try:
        return Uuid.parse(text)
    except ConfigError as error:
        problem = f"{name} is {excerpt(text)!r}, not an offset or the id of a segment"
        raise ConfigError(problem) from error


def _which(partitions: Sequence[str] | None, topic_id: str | None, work: Work | None) -> Which:
    which: Which = {"partitions": parse_partitions(partitions), "topic_id": _parse_id(topic_id)}
    if work is not None and work.parallel is not None:
        which["parallel"] = work.parallel
    return which


def _parse_id(text: str | None) -> Uuid | None:
    return None if text is None else Uuid.parse(text)


def _ranges(text: str) -> Iterator[range]:
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip(" "))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_INT32:
            raise ConfigError(f"-p is {excerpt(text)!r}: it must have the form 3, 0,2 or 4-7")
        yield range(first, last + 1)
