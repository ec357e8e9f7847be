"""Parser, format, names and fingerprint of a pipeline, out of its settings."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from datetime import date
from typing import TYPE_CHECKING, Any, Final, cast

from tieredstore.config.named_class import named_class
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.config import secor
from tieredstore.pipelines.config.settings import Pipeline, PipelineSettings, field_path
from tieredstore.pipelines.files.columns import Columns, Decoder, OfOneSchema, OfRegistry
from tieredstore.pipelines.files.container_formats import AvroContainer, Orc
from tieredstore.pipelines.files.input_limits import InputLimits
from tieredstore.pipelines.files.parquet_format import Parquet
from tieredstore.pipelines.files.sequence_format import SequenceFile
from tieredstore.pipelines.files.text_format import Text
from tieredstore.pipelines.filing.directories import TimeDirectories, date_expression, escaped, java_format
from tieredstore.pipelines.filing.naming import Naming
from tieredstore.pipelines.filing.places import ByDate, Places
from tieredstore.pipelines.filing.record_fields import AvroField, ProtobufField, ThriftField
from tieredstore.pipelines.filing.schemas import Schemas
from tieredstore.pipelines.filing.times import (
    DateTime,
    EpochTime,
    Iso8601Time,
    JsonField,
    MessagePackTime,
    RegexTime,
    Time,
)
from tieredstore.pipelines.parsers import FieldParser, OffsetParser, Parser, TimeParser
from tieredstore.pipelines.run.window_writing import Recipe
from tieredstore.pipelines.transforming import Transforming
from tieredstore.pipelines.writers import ENVELOPE, Format, JsonLines

if TYPE_CHECKING:
    from tieredstore.values.thrift import Protocol

_logger: Final = logging.getLogger(__name__)

_VERSION: Final = 2
"""Of what the same settings make of the same records: one more whenever that changes, as when a default does."""

_NOT_OF_FILES: Final = frozenset(
    {
        "max_file_age_s", "max_bad_messages", "local_path", "starting",
        "minute_mark", "minute_mark_filter", "upload_on_shutdown", "outage_s",
        "finalize", "finalizer_delay_s", "hive_prefix",
        "descriptor_set", "thrift_idl",
        "starting_group", "group_storage", "zookeeper", "zookeeper_path", "commit_group",
        "table", "table_name", "table_catalog",
    }
)  # fmt: skip
"""What changes neither names nor bytes of the files of a window; of files of schemas it is their content that does."""


def parser_of(own: PipelineSettings, schemas: Schemas | None = None) -> Parser:
    """What records are filed by; without schemas it knows the directories alone."""
    times = _times(own)
    if own.parser in {"avro", "avro-iso8601", "avro-split-by-field", "protobuf", "thrift"}:
        return _of_schemas(own, times, schemas or Schemas())
    offsets = OffsetParser(own.offsets_per_partition, own.offsets_prefix)
    match own.parser:
        case "offset":
            return offsets
        case "daily-offset":
            return TimeParser(times, None, offsets)
        case "kafka-timestamp":
            return TimeParser(times)
        case "split-by-field":
            split = JsonField(own.split_field, own.timestamp_separator, own.strict)
            return FieldParser(split, times, _time_of(own), field_prefix_of(own))
        case _ if ":" in own.parser:
            own_parser: Parser = _own("secor.message.parser.class", own.parser, Parser)()
            return own_parser
        case _:
            return TimeParser(times, _time_of(own))


def _time_of(own: PipelineSettings) -> Time:
    """Where the time is in values that say themselves what they are."""
    field = JsonField(own.timestamp_name, own.timestamp_separator, own.strict)
    match own.parser:
        case "iso8601":
            return Iso8601Time(field, own.strict)
        case "date":
            expression = date_expression(own.timestamp_pattern, "message.timestamp.input.pattern", is_strict=own.strict)
            return DateTime(field, expression, own.zone)
        case "regex":
            return RegexTime(own.timestamp_pattern)
        case "messagepack":
            return MessagePackTime(own.timestamp_name)
        case _:
            return EpochTime(field, own.strict)


def _times(own: PipelineSettings) -> TimeDirectories:
    return TimeDirectories(
        own.zone,
        own.hours or own.minutes,
        own.minutes,
        (own.date_prefix, own.hour_prefix, own.minute_prefix),
        (
            java_format(own.date_format, "date.format"),
            java_format(own.hour_format, "hour.format"),
            java_format(own.minute_format, "minute.format"),
        ),
    )


def _of_schemas(own: PipelineSettings, times: TimeDirectories, schemas: Schemas) -> Parser:
    path = field_path(own.timestamp_name, own)
    match own.parser:
        case "protobuf":
            return TimeParser(times, EpochTime(ProtobufField(path, schemas), own.strict))
        case "thrift":
            ids = tuple(map(int, own.timestamp_id.split(".")))
            field = ThriftField(ids, cast("Protocol", own.thrift_protocol), schemas)
            return TimeParser(times, EpochTime(field, own.strict))
        case "avro-iso8601":
            return TimeParser(times, Iso8601Time(AvroField(path, schemas), own.strict))
        case "avro-split-by-field":
            split = AvroField(field_path(own.split_field, own), schemas)
            time_of = EpochTime(AvroField(path, schemas), own.strict)
            return FieldParser(split, times, time_of, field_prefix_of(own))
        case _:
            return TimeParser(times, EpochTime(AvroField(path, schemas), own.strict))


def _own(setting: str, name: str, base: type) -> Any:
    """A class of the user's own, as ``module:Class``."""
    return named_class(setting, name.replace(":", "."), base, f"which names no {base.__name__}, as module:Class")


def format_of(own: PipelineSettings, schemas: Schemas | None = None) -> Format:
    """What files are written; without schemas it knows their names alone."""
    if own.columns == "none" or schemas is None:
        return _format_of(own)
    taken = tuple(partition_names(own).items())
    known: Decoder = OfOneSchema(schemas, own.columns, taken)
    if own.columns == "avro" and not schemas.avro and schemas.registry is not None:
        known = OfRegistry(schemas.registry, taken)
    return Columns(_format_of(own), known, own.local_path or None)


def _format_of(own: PipelineSettings) -> Format:
    match own.format:
        case "parquet":
            return Parquet(own.codec)
        case "json":
            return JsonLines(own.codec)
        case "orc":
            return Orc(own.codec)
        case "avro":
            return AvroContainer(own.codec)
        case "sequencefile" | "messagepack-sequencefile":
            return SequenceFile(own.codec, own.format.startswith("messagepack"))
        case _ if ":" in own.format:
            own_format: Format = _own("secor.file.reader.writer.factory", own.format, Format)(own.codec)
            return own_format
        case _:
            return Text(own.codec, secor.delimiter_bytes(own.delimiter))


def field_prefix_of(own: PipelineSettings) -> str:
    """Return what directories by a field begin with; unset, the field's name, but never that of a column of files."""
    if own.field_prefix is not None:
        return own.field_prefix
    return f"{'' if own.columns == 'none' else 'by_'}{escaped(own.split_field)}="


def partition_names(own: PipelineSettings) -> dict[str, str]:
    """Return the names that readers take from paths (``dt`` of ``dt=``), in small letters, each with its setting."""
    if ":" in own.parser:
        return {}
    settings = {
        "partitioner.granularity.field.prefix": field_prefix_of(own) if own.parser.endswith("split-by-field") else "",
        "secor.offsets.prefix": own.offsets_prefix if own.parser in {"offset", "daily-offset"} else "",
    }
    if own.parser != "offset":
        settings["partitioner.granularity.date.prefix"] = own.date_prefix
        settings["partitioner.granularity.hour.prefix"] = own.hour_prefix if own.hours or own.minutes else ""
        settings["partitioner.granularity.minute.prefix"] = own.minute_prefix if own.minutes else ""
    return {prefix.partition("=")[0].lower(): setting for setting, prefix in settings.items() if "=" in prefix}


def _check_names(pipeline: Pipeline) -> None:
    """Refuse directories that have the name of a column: readers would see one of both, and not say which.

    Secor's own ``offset=``, if it is asked for, is a warning.
    """
    own = pipeline.own
    if own.columns != "none":
        decoder = format_of(own, pipeline.schemas)
        for table in (pipeline.schemas.ddl, pipeline.schemas.avro, pipeline.schemas.messages):
            for topic, _ in table:
                decoder.for_window(topic)
        return
    names = partition_names(own)
    for column in _COLUMNS.get(own.format, ()):
        setting = names.get(column.lower())
        if setting is None:
            continue
        words = f"files of {own.format} have a column {column}, and directories have that name too: give {setting} "
        if setting != "secor.offsets.prefix" or "offsets_prefix" not in own.model_fields_set:
            raise ConfigError(f"{words}another one")
        _warn_once(f"{words}another one, unless it is Secor's that is wanted: Spark and DuckDB read the directory's")


_COLUMNS: Final = {**dict.fromkeys(("parquet", "orc", "avro", "json"), ENVELOPE.names), "text": ["value"]}
"""What readers find in the files of each format."""


@functools.cache
def _warn_once(words: str) -> None:
    _logger.warning(words)


def naming_of(pipeline: Pipeline) -> Naming:
    """The names of its files."""
    own = pipeline.own
    ending = own.extension or format_of(own).ending
    return Naming(places_of(pipeline), own.name, own.generation, ending, by_window=own.name_offset == "window")


def places_of(pipeline: Pipeline) -> Places:
    """Where the directories of its topics lie."""
    own, by_date = pipeline.own, None
    if own.alternative_since:
        since, how = date.fromisoformat(own.alternative_since), java_format(own.date_format, "date.format")
        by_date = ByDate(own.alternative_root, since, own.date_prefix, how)
    return Places(pipeline.output.key_prefix, own.hashed, by_date)


def recipe_of(pipeline: Pipeline) -> Recipe:
    """All that decides what its windows become."""
    _check_names(pipeline)
    own, naming = pipeline.own, naming_of(pipeline)
    # Secor passes over the size then, and over these two otherwise.
    limits = InputLimits(own.max_payload_bytes, own.max_range_ms) if own.is_deterministic else None
    file_bytes = MAX_INT64 if own.is_deterministic else own.max_file_bytes
    return Recipe(
        parser_of(own, pipeline.schemas), format_of(own, pipeline.schemas), naming,
        file_bytes, own.max_file_records,
        f"{naming.folder}staging/", own.local_path or None,
        Transforming(own.transformer) if own.transformer else None, limits, max(0, own.max_open_files),
    )  # fmt: skip


def fingerprint_of(own: PipelineSettings) -> str:
    """Of all that decides which files a window becomes, and of which bytes.

    What is as by default is left out, so that a setting that comes with another version changes no fingerprint.
    """
    decisive = {
        name: value
        for name, value in own.model_dump().items()
        if name not in _NOT_OF_FILES and value != PipelineSettings.model_fields[name].default
    }
    return hashlib.sha256(json.dumps([_VERSION, decisive], sort_keys=True).encode()).hexdigest()
