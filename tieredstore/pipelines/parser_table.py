"""Table of parsers. A row has the function that makes the parser from the settings, the parser's own settings, and the
names of the parser's classes in Secor.

To add a parser, add its class and a row of ``PARSERS``. The row names a group of settings if only this parser has them.
If directories are named as in ``dt=...``, add the prefix to :func:`partition_names`, so that no column has its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import pydantic

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.named_class import import_class
from tieredstore.config.values import compile_pattern, long, string
from tieredstore.errors import ConfigError
from tieredstore.pipelines.config import secor
from tieredstore.pipelines.config.secor import matcher, path_prefix, read_name
from tieredstore.pipelines.filing.directories import TimeDirectories, date_expression, escape, java_format
from tieredstore.pipelines.filing.schemas import Schemas
from tieredstore.pipelines.filing.times import (
    AvroField,
    DateTime,
    EpochTime,
    Field,
    Iso8601Time,
    JsonField,
    MessagePackTime,
    ProtobufField,
    RegexTime,
    ThriftField,
    Time,
)
from tieredstore.pipelines.parsers import FieldParser, OffsetParser, Parser, TimeParser

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import PipelineSettings
    from tieredstore.values.thrift import Protocol

_PATTERN: Final = "message.timestamp.input.pattern"
_SPLIT_FIELD: Final = "message.split.field.name"


class OffsetSettings(SettingsGroup):
    """Settings of parsers that choose directories by offset."""

    offsets_per_partition: Annotated[int, long(1), secor.HONOURED] = pydantic.Field(
        default=10000000,
        alias="secor.offsets.per.partition",
        description="Number of offsets in each directory of the parsers `offset` and `daily-offset`.",
    )
    offsets_prefix: Annotated[str, string("without /", path_prefix), secor.HONOURED] = pydantic.Field(
        default="base_offset=",
        alias="secor.offsets.prefix",
        description="Text before the offset in names of directories. With Secor's `offset=`, readers "
        "would confuse directories with the files' column `offset`.",
    )


class PatternSettings(SettingsGroup):
    """Settings of parsers that find the time by a pattern."""

    timestamp_pattern: Annotated[str, string("a Java date pattern or a regular expression"), secor.HONOURED] = (
        pydantic.Field(
            default="",
            alias=_PATTERN,
            description="For the parser `date`, the date pattern of the time. For `regex`, an expression with "
            "the time as its first group.",
        )
    )


class SplitSettings(SettingsGroup):
    """Settings of parsers that choose directories by a field."""

    split_field: Annotated[str, string("a field"), secor.HONOURED] = pydantic.Field(
        default="",
        alias=_SPLIT_FIELD,
        description="Field that names the directories of `split-by-field` and `avro-split-by-field`.",
    )
    field_prefix: Annotated[str | None, string("without /", path_prefix), secor.HONOURED] = pydantic.Field(
        default=None,
        alias="partitioner.granularity.field.prefix",
        description="Text before the field's value in names of directories. If unset, it is the field's "
        "name and `=`, with `by_` in front if `columns` is set. If empty, the names have no prefix, as in Secor.",
    )


class ThriftSettings(SettingsGroup):
    """Settings of the parser ``thrift``."""

    timestamp_id: Annotated[
        str,
        string("a field's id, or several with dots", matcher(r"[1-9]\d{0,4}(\.[1-9]\d{0,4}){0,15}")),
        secor.HONOURED,
    ] = pydantic.Field(
        default="1",
        alias="message.timestamp.id",
        description="Id of the field with the time in a Thrift message. For a nested field, write the ids "
        "of the enclosing structs in front, separated by dots.",
    )
    thrift_protocol: Annotated[
        str, string("binary, compact or Thrift's class", read_name(secor.THRIFT_PROTOCOLS)), secor.HONOURED
    ] = pydantic.Field(
        default="binary", alias="secor.thrift.protocol.class", description="Protocol of Thrift messages."
    )
    thrift_idl: Annotated[str, string("a file")] = pydantic.Field(
        default="",
        alias="thrift.idl",
        description="Thrift IDL file that defines the types in `secor.thrift.message.class.TOPIC`. The "
        "parser looks up the field `message.timestamp.name` in it.",
    )


@dataclass(frozen=True, slots=True)
class ParserKind:
    """A kind of parser: a row of ``PARSERS``."""

    make: Callable[[PipelineSettings, Schemas], Parser]
    secor: tuple[str, ...] = ()
    """Names of this parser's classes in Secor, without prefix and suffix."""
    settings: type[SettingsGroup] | None = None
    """Settings of this parser only. Never rename their fields, because the fingerprint of the settings in the commit
    log is computed from these names.
    """
    needs: str = ""
    """Name of a property that the parser requires."""
    check_pattern: Callable[[str], object] | None = None
    """Function that raises ConfigError for an invalid time pattern. Only parsers with PatternSettings have this
    function."""
    by_time: bool = True
    """True if each directory belongs to a day, an hour or a minute."""
    schemas: Literal["", "avro", "protobuf"] = ""
    """Kind of schema that the parser requires for each topic."""


def _by_time(time_of: Callable[[PipelineSettings, Schemas], Time]) -> Callable[[PipelineSettings, Schemas], Parser]:
    return lambda own, schemas: TimeParser(_directories(own), time_of(own, schemas))


def _by_epoch(field: Callable[[PipelineSettings, Schemas], Field]) -> Callable[[PipelineSettings, Schemas], Parser]:
    return _by_time(lambda own, schemas: EpochTime(field(own, schemas), own.filing.strict))


def _by_iso8601(field: Callable[[PipelineSettings, Schemas], Field]) -> Callable[[PipelineSettings, Schemas], Parser]:
    return _by_time(lambda own, schemas: Iso8601Time(field(own, schemas), own.filing.strict))


def _by_field(
    field: Callable[[PipelineSettings, Schemas, str], Field],
) -> Callable[[PipelineSettings, Schemas], Parser]:
    return lambda own, schemas: FieldParser(
        field(own, schemas, own.of_parser(SplitSettings).split_field),
        _directories(own),
        EpochTime(field(own, schemas, own.filing.timestamp_name), own.filing.strict),
        field_prefix_of(own),
    )


def _directories(own: PipelineSettings) -> TimeDirectories:
    filing = own.filing
    return TimeDirectories(
        filing.zone,
        filing.hours or filing.minutes,
        filing.minutes,
        (filing.date_prefix, filing.hour_prefix, filing.minute_prefix),
        (
            java_format(filing.date_format, "date.format"),
            java_format(filing.hour_format, "hour.format"),
            java_format(filing.minute_format, "minute.format"),
        ),
    )


def _offsets(own: PipelineSettings) -> OffsetParser:
    offsets = own.of_parser(OffsetSettings)
    return OffsetParser(offsets.offsets_per_partition, offsets.offsets_prefix)


def _json(own: PipelineSettings, _: Schemas, name: str = "") -> JsonField:
    return JsonField(name or own.filing.timestamp_name, own.filing.timestamp_separator, own.filing.strict)


def _avro(own: PipelineSettings, schemas: Schemas, name: str = "") -> AvroField:
    return AvroField(own.filing.field_path(name), schemas)


def _thrift(own: PipelineSettings, schemas: Schemas) -> ThriftField:
    thrift = own.of_parser(ThriftSettings)
    ids = tuple(map(int, thrift.timestamp_id.split(".")))
    return ThriftField(ids, cast("Protocol", thrift.thrift_protocol), schemas)


def _date(own: PipelineSettings, schemas: Schemas) -> DateTime:
    pattern, filing = own.of_parser(PatternSettings).timestamp_pattern, own.filing
    return DateTime(_json(own, schemas), date_expression(pattern, _PATTERN, is_strict=filing.strict), filing.zone)


def _check_expression(pattern: str) -> None:
    try:
        groups = compile_pattern(pattern.encode()).groups
    except ValueError as error:
        raise ConfigError(f"{_PATTERN} {error}") from None
    if not groups:
        raise ConfigError(f"{_PATTERN} has no group for the time")


PARSERS: Final[Mapping[str, ParserKind]] = {
    "offset": ParserKind(lambda own, _: _offsets(own), ("Offset",), OffsetSettings, by_time=False),
    "daily-offset": ParserKind(
        lambda own, _: TimeParser(_directories(own), None, _offsets(own)), ("DailyOffset",), OffsetSettings
    ),
    "kafka-timestamp": ParserKind(lambda own, _: TimeParser(_directories(own))),
    "json": ParserKind(_by_epoch(_json), ("Json",)),
    "iso8601": ParserKind(_by_iso8601(_json), ("Iso8601",)),
    "date": ParserKind(
        _by_time(_date),
        ("Date", "PatternDate"),
        PatternSettings,
        _PATTERN,
        check_pattern=lambda pattern: date_expression(pattern, _PATTERN),
    ),
    "regex": ParserKind(
        _by_time(lambda own, _: RegexTime(own.of_parser(PatternSettings).timestamp_pattern)),
        ("Regex",),
        PatternSettings,
        _PATTERN,
        check_pattern=_check_expression,
    ),
    "split-by-field": ParserKind(_by_field(_json), ("SplitByField",), SplitSettings, _SPLIT_FIELD),
    "messagepack": ParserKind(_by_time(lambda own, _: MessagePackTime(own.filing.timestamp_name)), ("MessagePack",)),
    "avro": ParserKind(_by_epoch(_avro), ("Avro",), schemas="avro"),
    "avro-iso8601": ParserKind(_by_iso8601(_avro), ("AvroIso8601",), schemas="avro"),
    "avro-split-by-field": ParserKind(
        _by_field(_avro), ("AvroSplitByField",), SplitSettings, _SPLIT_FIELD, schemas="avro"
    ),
    "protobuf": ParserKind(
        _by_epoch(lambda own, schemas: ProtobufField(own.filing.field_path(), schemas)),
        ("Protobuf",),
        schemas="protobuf",
    ),
    "thrift": ParserKind(_by_epoch(_thrift), ("Thrift",), ThriftSettings),
}

OWN_PARSER: Final = ParserKind(lambda own, _: _own_parser(own.filing.parser, dict(own.filing.parser_options)))
"""The row for a user's own class."""


def parser_settings() -> tuple[type[SettingsGroup], ...]:
    """Return the distinct settings groups of all parsers."""
    return tuple(dict.fromkeys(kind.settings for kind in PARSERS.values() if kind.settings is not None))


def kind_of(own: PipelineSettings) -> ParserKind:
    """Return the row of ``PARSERS`` for the parser that the settings name."""
    return PARSERS.get(own.filing.parser, OWN_PARSER)


def _own_parser(name: str, options: Mapping[str, str]) -> Parser:
    words = "which is not a Parser, named as module:Class"
    own_class: type[Parser] = import_class("secor.message.parser.class", name, Parser, words)
    return own_class.from_options(options)


def parser_of(own: PipelineSettings, schemas: Schemas | None = None) -> Parser:
    """Return the parser that the settings name. Without ``schemas`` the parser can only name output directories."""
    return kind_of(own).make(own, schemas or Schemas())


def field_prefix_of(own: PipelineSettings) -> str:
    """Return the prefix of directory names that contain a field's value. The default is ``<field>=``, or
    ``by_<field>=`` if files have decoded columns.
    """
    split = own.of_parser(SplitSettings)
    if split.field_prefix is not None:
        return split.field_prefix
    return f"{'' if own.columns == 'none' else 'by_'}{escape(split.split_field)}="


def partition_names(own: PipelineSettings) -> dict[str, str]:
    """Return the columns that readers such as Hive derive from directories (``dt`` of ``dt=...``), in lower case. Map
    each column to the property that sets its name.
    """
    kind, filing = kind_of(own), own.filing
    if kind is OWN_PARSER:
        return {}
    settings: dict[str, str] = {}
    if kind.settings is SplitSettings:
        settings["partitioner.granularity.field.prefix"] = field_prefix_of(own)
    if kind.settings is OffsetSettings:
        settings["secor.offsets.prefix"] = own.of_parser(OffsetSettings).offsets_prefix
    if kind.by_time:
        settings["partitioner.granularity.date.prefix"] = filing.date_prefix
        settings["partitioner.granularity.hour.prefix"] = filing.hour_prefix if filing.hours or filing.minutes else ""
        settings["partitioner.granularity.minute.prefix"] = filing.minute_prefix if filing.minutes else ""
    return {prefix.partition("=")[0].lower(): setting for setting, prefix in settings.items() if "=" in prefix}
