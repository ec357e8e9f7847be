"""The chapters of a pipeline's settings, named as Secor names them: filing, groups, naming, tables, ends of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import Field

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.properties import shown_name
from tieredstore.config.source import SettingProblem, SettingsReader
from tieredstore.config.values import BOOLEAN, choice, compiled, integer, long, string
from tieredstore.pipelines.config import secor
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


def _path_prefix(text: str) -> str:
    if "/" in text or text in {".", ".."}:
        raise ValueError
    return text


def matcher(pattern: str) -> Callable[[str], str]:
    """What takes a text that matches all of an expression."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


def read_name(names: Mapping[str, str], *, own: bool = False) -> Callable[[str], str]:
    """What reads a short name, or a class of Secor's that ``names`` has one for; with ``own`` also ``module:Class``."""
    known = {**names, **{short: short for short in names.values()}}

    def parse(text: str) -> str:
        if own and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
            return text
        if text not in known:
            raise ValueError
        return known[text]

    return parse


_PARSER_NAMES: Final = {name: name for name in PARSERS} | {
    f"{secor.PARSERS}{secors}{'' if secors == 'MessagePack' else 'Message'}Parser": name
    for name, kind in PARSERS.items()
    for secors in kind.secor
}


class FilingSettings(SettingsGroup):
    """What records are filed by."""

    parser: Annotated[
        str, string("a short name, Secor's class, or module:Class", read_name(_PARSER_NAMES, own=True))
    ] = Field(
        default="offset",
        alias="secor.message.parser.class",
        description=f"What records are filed by: {', '.join(PARSERS)}.",
    )
    offsets_per_partition: Annotated[int, long(1)] = Field(
        default=10000000, alias="secor.offsets.per.partition", description="Offsets of a directory of `offset`."
    )
    offsets_prefix: Annotated[str, string("without /", _path_prefix)] = Field(
        default="base_offset=",
        alias="secor.offsets.prefix",
        description="What such a directory's name begins with; Secor's `offset=` hides the column `offset` of files.",
    )
    hours: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="partitioner.granularity.hour", description="Directories of hours within those of days."
    )
    minutes: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="partitioner.granularity.minute", description="And of minutes within these."
    )
    date_prefix: Annotated[str, string("without /", _path_prefix)] = Field(
        default="dt=", alias="partitioner.granularity.date.prefix", description="Of directories of days."
    )
    hour_prefix: Annotated[str, string("without /", _path_prefix)] = Field(
        default="hr=", alias="partitioner.granularity.hour.prefix", description="Of directories of hours."
    )
    minute_prefix: Annotated[str, string("without /", _path_prefix)] = Field(
        default="min=", alias="partitioner.granularity.minute.prefix", description="Of directories of minutes."
    )
    date_format: Annotated[str, string("a date pattern of Java's")] = Field(
        default="yyyy-MM-dd", alias="partitioner.granularity.date.format", description="How a day is written."
    )
    hour_format: Annotated[str, string("a date pattern of Java's")] = Field(
        default="HH", alias="partitioner.granularity.hour.format", description="How an hour is written."
    )
    minute_format: Annotated[str, string("a date pattern of Java's")] = Field(
        default="mm", alias="partitioner.granularity.minute.format", description="How a minute is written."
    )
    zone: Annotated[str, string("a time zone", _time_zone)] = Field(
        default="UTC", alias="secor.parser.timezone", description="Of the directories, and of what `date` parses."
    )
    strict: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.parser.strict",
        description="Whether what Secor files leniently (JSON that is no UTF-8 or has raw control characters, numbers "
        "in texts with blanks or fractions, text behind a date) is a bad message.",
    )
    timestamp_name: Annotated[str, string("a field")] = Field(
        default="timestamp", alias="message.timestamp.name", description="The field that has the time."
    )
    timestamp_separator: Annotated[str, string("a text")] = Field(
        default="",
        alias="message.timestamp.name.separator",
        description="Parts the names of fields where objects hold objects; unset, in what is of a schema, a dot.",
    )
    timestamp_pattern: Annotated[str, string("a date pattern of Java's, or a regular expression")] = Field(
        default="",
        alias="message.timestamp.input.pattern",
        description="For `date` a pattern of its dates; for `regex` an expression whose first group is the time.",
    )
    split_field: Annotated[str, string("a field")] = Field(
        default="",
        alias="message.split.field.name",
        description="The field that `split-by-field` and `avro-split-by-field` file by.",
    )
    field_prefix: Annotated[str | None, string("without /", _path_prefix)] = Field(
        default=None,
        alias="partitioner.granularity.field.prefix",
        description="Of directories by a field; unset, the field's name and `=` (`by_` before it where files have "
        "`columns`); there and empty, none, as Secor's `split-by-field`.",
    )
    timestamp_id: Annotated[
        str, string("a field's id, or several with dots", matcher(r"[1-9]\d{0,4}(\.[1-9]\d{0,4}){0,15}"))
    ] = Field(
        default="1",
        alias="message.timestamp.id",
        description="Of `thrift`: the id of the field that has the time, behind those of the structs that hold it.",
    )
    thrift_protocol: Annotated[str, string("binary, compact or Thrift's class", read_name(secor.THRIFT_PROTOCOLS))] = (
        Field(default="binary", alias="secor.thrift.protocol.class", description="How messages of Thrift are written.")
    )
    thrift_idl: Annotated[str, string("a file")] = Field(
        default="",
        alias="thrift.idl",
        description="Tells the ids of `message.timestamp.name` in structs of `secor.thrift.message.class.TOPIC`.",
    )
    descriptor_set: Annotated[str, string("a file")] = Field(
        default="",
        alias="protobuf.descriptor.set",
        description="What `protoc --include_imports --descriptor_set_out` wrote, for `protobuf`.",
    )

    def field_path(self, name: str = "") -> tuple[str, ...]:
        """The names that lead to a field of a schema, by default to that of the time."""
        return tuple((name or self.timestamp_name).split(self.timestamp_separator or "."))


def _group(text: str) -> str:
    """Kafka takes any name; one with a control character is a slip."""
    if not text or len(text) > 255 or not text.isprintable():
        raise ValueError
    return text


def _start(text: str) -> str:
    if not text.startswith(_GROUP):
        raise ValueError
    return _group(text.removeprefix(_GROUP))


def _node(text: str) -> str:
    """The path of a node of ZooKeeper, without the slash at its end."""
    if not re.fullmatch(r"/?|(/[^/\x00-\x1f]+)+/?", text):
        raise ValueError
    return text.rstrip("/")


class GroupSettings(SettingsGroup):
    """Which groups are read and written."""

    starting_group: Annotated[str, string("group:NAME", _start)] = Field(
        default="",
        alias="startingOffsets",
        description="Partitions of which nothing is written begin where this consumer group stands; unset, by "
        "`kafka.new.consumer.auto.offset.reset`.",
    )
    group_storage: Annotated[str, choice("kafka", "zookeeper")] = Field(
        default="kafka",
        alias="kafka.offsets.storage",
        description="Where the offsets of that group are: in Kafka, or in ZooKeeper, as Secor may have them.",
    )
    zookeeper: Annotated[str, string("host:port, several parted by commas")] = Field(
        default="", alias="zookeeper.quorum", description="That ZooKeeper. Of no use to anything else."
    )
    zookeeper_path: Annotated[str, string("a node's path", _node)] = Field(
        default="",
        alias="kafka.zookeeper.path",
        description="The node above its `/consumers/GROUP/offsets/TOPIC/PARTITION`; unset, or `/`, none.",
    )
    commit_group: Annotated[str, string("a group's name", _group)] = Field(
        default="",
        alias="commit.to.group",
        description="A consumer group that gets the offsets of what is published, for tools that show its lag.",
    )


def _day(text: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError from None


def _root(text: str) -> str:
    """With the slash at its end that Secor adds."""
    path = text.strip("/")
    if not path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError
    return f"{path}/"


class NamingSettings(SettingsGroup):
    """What keys are made of, beside topic and directory."""

    name_offset: Annotated[str, choice("file", "window")] = Field(
        default="file",
        alias="name.offset",
        description="The offset in a file's name: the first in that file; or, as in Secor's, the first of its window, "
        "all of whose directories have it then.",
    )
    hashed: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.s3.prefix.md5hash",
        description="Whether keys begin with four digits of the MD5 of topic and directory, in any store.",
    )
    alternative_root: Annotated[str, string("a path", _root)] = Field(
        default="",
        alias="secor.s3.alternative.path",
        description="In place of `output.key.prefix` for directories of later days, a slash behind it.",
    )
    alternative_since: Annotated[str, string("a day, as 2026-01-31", _day)] = Field(
        default="", alias="secor.s3.alter.path.date", description="The first of these days; unset, there are none."
    )


class TableSettings(SettingsGroup):
    """Which table has the files."""

    hive_prefix: Annotated[
        str, string("letters, digits and _, behind a database and a dot", matcher(r"(?a)(\w+\.)?\w*"))
    ] = Field(
        default="",
        alias="hive.table.prefix",
        description="Begins the names of Hive's tables of topics that no `hive.table.name.TOPIC` names one for.",
    )

    kind: Annotated[str, choice("none", "iceberg")] = Field(
        default="none",
        alias="table",
        description=f"iceberg: each batch's files are added to a table of Iceberg; `{CATALOG}*` says in which catalog.",
    )
    name: Annotated[str, string("namespace.table", matcher(r"(?a)(\w+\.)+\w+"))] = Field(
        default="", alias="table.iceberg.name", description="That table, made if it is not there."
    )
    catalog: Annotated[str, string("letters, digits, _ and -", matcher(r"(?a)[\w-]+"))] = Field(
        default="default",
        alias="table.iceberg.catalog",
        description="The catalog's name: that of an entry of pyiceberg's own settings, or any.",
    )


def hive_tables(rest: Mapping[str, str], reader: SettingsReader) -> tuple[tuple[str, str], ...]:
    """Hive's tables by topic; notes what is no table's name."""
    tables = {name.removeprefix(HIVE_TABLE): text.strip() for name, text in rest.items() if name.startswith(HIVE_TABLE)}
    for topic, table in tables.items():
        if not topic or not re.fullmatch(r"(\w+\.)?\w+", table, re.ASCII):
            name = f"{HIVE_TABLE}{topic}"
            reader.problems.append(
                SettingProblem(name, f"{shown_name(name)} is no table's name: give [database.]table")
            )
    return tuple(sorted(tables.items()))


def catalog_properties(rest: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What pyiceberg is told of the catalog; any of it may be a secret."""
    return tuple(sorted((name.removeprefix(CATALOG), text) for name, text in rest.items() if name.startswith(CATALOG)))


def find_table_fault(
    own: TableSettings, naming: NamingSettings, file_format: str, output: Settings, hive: Sequence[object]
) -> str:
    """Why files of this output cannot be entered in the table, or in those of Hive's; empty if they can."""
    if (naming.hashed or naming.alternative_since) and (hive or own.hive_prefix):
        return (
            "tables of Hive need all directories of a topic below one: leave secor.s3.prefix.md5hash and "
            "secor.s3.alter.path.date out, or hive.table.*"
        )
    if own.kind == "none":
        return ""
    if file_format != "parquet":
        return f"table=iceberg needs files of parquet, and these are {file_format}: leave one of the two out"
    if output.storage_backend not in {"filesystem", "s3"}:
        return "table=iceberg needs an output in a folder or on S3: other stores are not known to it"
    if not output.endpoint.is_default:
        return "table=iceberg needs an output with one place and the usual layout: leave output.rsm.config.* out"
    return ""


def regex(text: str) -> str:
    """What is one; ValueError for anything else."""
    compiled(text)
    return text


class LimitSettings(SettingsGroup):
    """By which sizes, ages and numbers."""

    max_file_bytes: Annotated[int, long(1)] = Field(
        default=200000000,
        alias="secor.max.file.size.bytes",
        description="A window is so many bytes of the log, and a file ends at the record that reaches it.",
    )
    max_file_age_s: Annotated[int, long(0)] = Field(
        default=3600,
        alias="secor.max.file.age.seconds",
        description="Records are written at the latest so long after the first unwritten one was seen.",
    )
    max_file_records: Annotated[int, long(0)] = Field(
        default=0, alias="max.file.records", description="A file ends at this many records; 0: at none."
    )
    minute_mark: Annotated[int, integer(0, 59)] = Field(
        default=0,
        alias="secor.upload.minute_mark",
        description="The minute of each hour at which records are written that were seen before it.",
    )
    minute_mark_filter: Annotated[str, string("a regular expression", regex)] = Field(
        default="",
        alias="secor.kafka.upload_at_minute_mark.topic_filter",
        description="Topics of which that is done; unset, of none.",
    )
    upload_on_shutdown: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.upload.on.shutdown",
        description="Whether a service that is stopped first writes all that there is.",
    )
    is_deterministic: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="secor.upload.deterministic",
        description="Whether all files of a partition end together by the next two, and not by size and mark.",
    )
    max_payload_bytes: Annotated[int, long(0)] = Field(
        default=0,
        alias="secor.max.input.payload.size.bytes",
        description="If so, files end at the record with which the values of all reach so many bytes; 0: at none.",
    )
    max_range_ms: Annotated[int, long(0)] = Field(
        default=0,
        alias="secor.max.file.timestamp.range.millis",
        description="If so, files end at the record with which the times of all reach over so much; 0: at none.",
    )
    max_open_files: Annotated[int, long(-1)] = Field(
        default=-1,
        alias="secor.max.file.count",
        description="So many files of a window are under way at most; the stalest is ended. -1: any number.",
    )
