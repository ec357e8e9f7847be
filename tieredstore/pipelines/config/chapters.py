"""Groups of pipeline settings: directories, consumer groups, names, tables, limits. Settings that Secor also has keep
Secor's names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import Field

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.source import SettingsReader
from tieredstore.config.values import BOOLEAN, choice, compile_pattern, integer, long, string
from tieredstore.pipelines.config import secor
from tieredstore.pipelines.config.secor import matcher, path_prefix, read_name
from tieredstore.pipelines.parser_table import PARSERS

if TYPE_CHECKING:
    from tieredstore.config import Settings

HIVE_TABLE: Final = "hive.table.name."
CATALOG: Final = "table.iceberg.catalog."
_GROUP: Final = "group:"


def _time_zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError from None
    return text


_PARSER_NAMES: Final = {name: name for name in PARSERS} | {
    f"{secor.PARSERS}{secors}{'' if secors == 'MessagePack' else 'Message'}Parser": name
    for name, kind in PARSERS.items()
    for secors in kind.secor
}


class FilingSettings(SettingsGroup):
    """Settings that choose each record's directory. Settings of a single parser are in ``parser_table``."""

    parser_options: tuple[tuple[str, str], ...] = ()
    """Properties ``parser.*`` for a user's own parser, as pairs of name (without ``parser.``) and text."""

    parser: Annotated[
        str, string("a short name, Secor's class, or module:Class", read_name(_PARSER_NAMES, own=True)), secor.HONOURED
    ] = Field(
        default="offset",
        alias="secor.message.parser.class",
        description=f"Parser that chooses a record's directory: {', '.join(PARSERS)}. Your own class "
        "receives the properties `parser.*`.",
    )
    hours: Annotated[bool, BOOLEAN, secor.HONOURED] = Field(
        default=False, alias="partitioner.granularity.hour", description="Make a directory per hour below each day."
    )
    minutes: Annotated[bool, BOOLEAN, secor.HONOURED] = Field(
        default=False,
        alias="partitioner.granularity.minute",
        description="Make a directory per minute below each hour.",
    )
    date_prefix: Annotated[str, string("without /", path_prefix), secor.HONOURED] = Field(
        default="dt=",
        alias="partitioner.granularity.date.prefix",
        description="Text before the date in names of day directories.",
    )
    hour_prefix: Annotated[str, string("without /", path_prefix), secor.HONOURED] = Field(
        default="hr=",
        alias="partitioner.granularity.hour.prefix",
        description="Text before the hour in names of hour directories.",
    )
    minute_prefix: Annotated[str, string("without /", path_prefix), secor.HONOURED] = Field(
        default="min=",
        alias="partitioner.granularity.minute.prefix",
        description="Text before the minute in names of minute directories.",
    )
    date_format: Annotated[str, string("a Java date pattern"), secor.HONOURED] = Field(
        default="yyyy-MM-dd",
        alias="partitioner.granularity.date.format",
        description="Pattern of the date in names of day directories.",
    )
    hour_format: Annotated[str, string("a Java date pattern"), secor.HONOURED] = Field(
        default="HH",
        alias="partitioner.granularity.hour.format",
        description="Pattern of the hour in names of hour directories.",
    )
    minute_format: Annotated[str, string("a Java date pattern"), secor.HONOURED] = Field(
        default="mm",
        alias="partitioner.granularity.minute.format",
        description="Pattern of the minute in names of minute directories.",
    )
    zone: Annotated[str, string("a time zone", _time_zone), secor.HONOURED] = Field(
        default="UTC",
        alias="secor.parser.timezone",
        description="Time zone of the times in directory names, and of times that the parser `date` reads.",
    )
    strict: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.parser.strict",
        description="Treat messages as bad although Secor accepts them: JSON that is not UTF-8 or has raw "
        "control characters, numeric texts with blanks or fractions, text after a date.",
    )
    timestamp_name: Annotated[str, string("a field"), secor.HONOURED] = Field(
        default="timestamp", alias="message.timestamp.name", description="Field that holds a message's time."
    )
    timestamp_separator: Annotated[str, string("a text"), secor.HONOURED] = Field(
        default="",
        alias="message.timestamp.name.separator",
        description="Separator of names in the path to a nested field. If unset, it is a dot for messages "
        "with a schema; for other messages, the path is one field's name.",
    )
    descriptor_set: Annotated[str, string("a file")] = Field(
        default="",
        alias="protobuf.descriptor.set",
        description="File of Protocol Buffers descriptors, as `protoc --include_imports "
        "--descriptor_set_out` writes it.",
    )

    def field_path(self, name: str = "") -> tuple[str, ...]:
        """Return the path to a schema's field as a tuple of names. The default is the field with the time."""
        return tuple((name or self.timestamp_name).split(self.timestamp_separator or "."))


def _group(text: str) -> str:
    """Return a consumer group's name. Kafka accepts any text. Refuse control characters, because they are surely a
    mistake."""
    if not text or len(text) > 255 or not text.isprintable():
        raise ValueError
    return text


def _start(text: str) -> str:
    if not text.startswith(_GROUP):
        raise ValueError
    return _group(text.removeprefix(_GROUP))


def _node(text: str) -> str:
    """Return the path of a ZooKeeper node without a trailing slash."""
    if not re.fullmatch(r"/?|(/[^/\x00-\x1f]+)+/?", text):
        raise ValueError
    return text.rstrip("/")


class GroupSettings(SettingsGroup):
    """Settings of consumer groups: the group to start from, and the group that receives published offsets."""

    starting_group: Annotated[str, string("group:NAME", _start)] = Field(
        default="",
        alias="startingOffsets",
        description="Consumer group from whose offsets new partitions are read. If unset, "
        "`kafka.new.consumer.auto.offset.reset` decides.",
    )
    group_storage: Annotated[str, choice("kafka", "zookeeper"), secor.HONOURED] = Field(
        default="kafka",
        alias="kafka.offsets.storage",
        description="System that stores the offsets of the group in `startingOffsets`.",
    )
    zookeeper: Annotated[str, string("host:port, several separated by commas"), secor.HONOURED] = Field(
        default="",
        alias="zookeeper.quorum",
        description="ZooKeeper servers that store the offsets of the group in `startingOffsets`.",
    )
    zookeeper_path: Annotated[str, string("a node's path", _node), secor.HONOURED] = Field(
        default="",
        alias="kafka.zookeeper.path",
        description="Path of the ZooKeeper node that contains `/consumers`. If unset, the root contains it.",
    )
    commit_group: Annotated[str, string("a group's name", _group)] = Field(
        default="",
        alias="commit.to.group",
        description="Consumer group to which the pipeline commits its published offsets, so that Kafka's "
        "tools show its lag.",
    )


def _day(text: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError from None


def _root(text: str) -> str:
    """Return the path with a trailing slash, as Secor does."""
    path = text.strip("/")
    if not path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError
    return f"{path}/"


class NamingSettings(SettingsGroup):
    """Settings for the parts of object keys other than topic and directory."""

    name_offset: Annotated[str, choice("file", "window")] = Field(
        default="file",
        alias="name.offset",
        description="Offset in a file's name. `file`: the first offset of the file. `window`: the first "
        "offset of the file's window (the offsets that one task writes), as in Secor.",
    )
    hashed: Annotated[bool, BOOLEAN, secor.HONOURED] = Field(
        default=False,
        alias="secor.s3.prefix.md5hash",
        description="Begin each object key, in any store, with four digits of the MD5 of topic and directory.",
    )
    alternative_root: Annotated[str, string("a path", _root), secor.HONOURED] = Field(
        default="",
        alias="secor.s3.alternative.path",
        description="Path that replaces `output.key.prefix` for days from `secor.s3.alter.path.date` on. "
        "The pipeline adds a slash at its end.",
    )
    alternative_since: Annotated[str, string("a day, as 2026-01-31", _day), secor.HONOURED] = Field(
        default="",
        alias="secor.s3.alter.path.date",
        description="First day whose files go to `secor.s3.alternative.path`. If unset, no files go there.",
    )


class TableSettings(SettingsGroup):
    """Settings of the Hive or Iceberg table that lists the files."""

    hive_prefix: Annotated[
        str,
        string("letters, digits and _, optionally after a database and a dot", matcher(r"(?a)(\w+\.)?\w*")),
        secor.HONOURED,
    ] = Field(
        default="",
        alias="hive.table.prefix",
        description="Text before the topic's name in the name of its Hive table, for topics without "
        "`hive.table.name.TOPIC`.",
    )

    kind: Annotated[str, choice("none", "iceberg")] = Field(
        default="none",
        alias="table",
        description=f"`iceberg` adds the files of each batch to an Iceberg table; `{CATALOG}*` configures its catalog.",
    )
    name: Annotated[str, string("namespace.table", matcher(r"(?a)(\w+\.)+\w+"))] = Field(
        default="",
        alias="table.iceberg.name",
        description="Name of the Iceberg table. The pipeline creates the table if it does not exist.",
    )
    catalog: Annotated[str, string("letters, digits, _ and -", matcher(r"(?a)[\w-]+"))] = Field(
        default="default",
        alias="table.iceberg.catalog",
        description="Name of the Iceberg catalog. If pyiceberg's configuration has an entry of this name, "
        "the entry applies.",
    )


def hive_tables(rest: Mapping[str, str], reader: SettingsReader) -> tuple[tuple[str, str], ...]:
    """Return the Hive table of each topic. Report invalid table names to ``reader``."""
    tables = {name.removeprefix(HIVE_TABLE): text.strip() for name, text in rest.items() if name.startswith(HIVE_TABLE)}
    for topic, table in tables.items():
        if not topic or not re.fullmatch(r"(\w+\.)?\w+", table, re.ASCII):
            reader.note_stray(f"{HIVE_TABLE}{topic}", "is not the name of a table: give [database.]table")
    return tuple(sorted(tables.items()))


def catalog_properties(rest: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return properties for pyiceberg's catalog; any of them may be a secret."""
    return tuple(sorted((name.removeprefix(CATALOG), text) for name, text in rest.items() if name.startswith(CATALOG)))


def find_table_fault(
    own: TableSettings, naming: NamingSettings, file_format: str, output: Settings, hive: Sequence[object]
) -> str:
    """Return the reason why a Hive or Iceberg table cannot list this output's files, or an empty text if it can."""
    if (naming.hashed or naming.alternative_since) and (hive or own.hive_prefix):
        return (
            "Hive tables need all directories of a topic below one directory: leave out secor.s3.prefix.md5hash and "
            "secor.s3.alter.path.date, or hive.table.*"
        )
    if own.kind == "none":
        return ""
    if file_format != "parquet":
        return f"table=iceberg needs parquet files, not {file_format}: leave out table or the file format"
    if output.storage_backend not in {"filesystem", "s3"}:
        return "table=iceberg needs an output in a folder or on S3"
    if not output.endpoint.is_default:
        return "table=iceberg needs an output of one store in the default layout: leave out output.rsm.config.*"
    return ""


def regex(text: str) -> str:
    """Return ``text`` if it is a regular expression; raise ValueError otherwise."""
    compile_pattern(text)
    return text


class LimitSettings(SettingsGroup):
    """Limits at which files end: bytes, age and number of records."""

    max_file_bytes: Annotated[int, long(1), secor.HONOURED] = Field(
        default=200000000,
        alias="secor.max.file.size.bytes",
        description="Log bytes at which a window (the offsets that one task writes) and its files end.",
    )
    max_file_age_s: Annotated[int, long(0), secor.HONOURED] = Field(
        default=3600,
        alias="secor.max.file.age.seconds",
        description="Longest time in seconds that a record waits before the pipeline writes it.",
    )
    max_file_records: Annotated[int, long(0)] = Field(
        default=0, alias="max.file.records", description="Maximum number of records per file; 0: no limit."
    )
    minute_mark: Annotated[int, integer(0, 59), secor.HONOURED] = Field(
        default=0,
        alias="secor.upload.minute_mark",
        description="Minute of each hour at which the pipeline writes all records seen so far, for topics "
        "that match `secor.kafka.upload_at_minute_mark.topic_filter`.",
    )
    minute_mark_filter: Annotated[str, string("a regular expression", regex), secor.HONOURED] = Field(
        default="",
        alias="secor.kafka.upload_at_minute_mark.topic_filter",
        description="Topics to which `secor.upload.minute_mark` applies. If unset, it applies to no topic.",
    )
    upload_on_shutdown: Annotated[bool, BOOLEAN, secor.HONOURED] = Field(
        default=False,
        alias="secor.upload.on.shutdown",
        description="Write all available records before a service stops.",
    )
    is_deterministic: Annotated[bool, BOOLEAN, secor.HONOURED] = Field(
        default=False,
        alias="secor.upload.deterministic",
        description="End all files of a partition together, at a limit for the total bytes of values or for the "
        "range of timestamps. File size and minute mark then end no files.",
    )
    max_payload_bytes: Annotated[int, long(0), secor.HONOURED] = Field(
        default=0,
        alias="secor.max.input.payload.size.bytes",
        description="With deterministic uploads, bytes of values at which a partition's files end; 0: no limit.",
    )
    max_range_ms: Annotated[int, long(0), secor.HONOURED] = Field(
        default=0,
        alias="secor.max.file.timestamp.range.millis",
        description="With deterministic uploads, range of timestamps, in ms, at which a partition's files end; "
        "0: no limit.",
    )
    max_open_files: Annotated[int, long(-1), secor.HONOURED] = Field(
        default=-1,
        alias="secor.max.file.count",
        description="Maximum number of open files per window; -1: no limit. To open a further file, the "
        "pipeline ends the least recently written file.",
    )
