"""How records are filed: the settings of parsers, as Secor names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from pydantic import Field

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.values import BOOLEAN, long, string
from tieredstore.pipelines.config import secor

PARSERS: Final = (
    "offset",
    "daily-offset",
    "kafka-timestamp",
    "json",
    "iso8601",
    "date",
    "regex",
    "split-by-field",
    "messagepack",
    "avro",
    "avro-iso8601",
    "avro-split-by-field",
    "protobuf",
    "thrift",
)


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


def _ids(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}(\.[1-9]\d{0,4}){0,15}", text):
        raise ValueError
    return text


def named_text(names: Mapping[str, str | None], known: tuple[str, ...], *, own: bool = False) -> Callable[[str], str]:
    """What reads one of ``known``, or a class of Secor's that is one; with ``own`` also ``module:Class``."""

    def parse(text: str) -> str:
        if own and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
            return text
        short = names.get(text, text)
        if short is None or short not in known:
            raise ValueError
        return short

    return parse


class FilingSettings(SettingsGroup):
    """What records are filed by."""

    parser: Annotated[
        str, string("a short name, Secor's class, or module:Class", named_text(secor.PARSER_CLASSES, PARSERS, own=True))
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
    timestamp_id: Annotated[str, string("a field's id, or several with dots", _ids)] = Field(
        default="1",
        alias="message.timestamp.id",
        description="Of `thrift`: the id of the field that has the time, behind those of the structs that hold it.",
    )
    thrift_protocol: Annotated[
        str, string("binary, compact or Thrift's class", named_text(secor.THRIFT_PROTOCOLS, ("binary", "compact")))
    ] = Field(default="binary", alias="secor.thrift.protocol.class", description="How messages of Thrift are written.")
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
    schemas: str = ""
    """Of what the files say that these settings name: no property of its own, and part of the fingerprint."""
