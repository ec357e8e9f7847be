"""Parser, format, names and fingerprint of a pipeline, out of its settings."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tieredstore.config.named_class import named_class
from tieredstore.pipelines.container_formats import AvroContainer, Orc
from tieredstore.pipelines.directories import TimeDirectories, java_format
from tieredstore.pipelines.naming import Naming
from tieredstore.pipelines.parsers import (
    DateTime,
    FieldParser,
    Iso8601Time,
    JsonField,
    JsonTime,
    MessagePackTime,
    OffsetParser,
    Parser,
    RegexTime,
    TimeParser,
)
from tieredstore.pipelines.sequence_format import SequenceFile
from tieredstore.pipelines.settings import Pipeline, PipelineSettings
from tieredstore.pipelines.window_writing import Recipe
from tieredstore.pipelines.writers import Format, JsonLines, Parquet, Text

_VERSION: Final = 1
"""Of what the same settings make of the same records: one more whenever that changes, as when a default does."""

_NOT_OF_FILES: Final = frozenset(
    {
        "max_file_age_s", "max_bad_messages", "local_path", "starting",
        "minute_mark", "minute_mark_filter", "upload_on_shutdown", "outage_s",
        "finalize", "finalizer_delay_s", "hive_prefix",
    }
)  # fmt: skip
"""What changes neither names nor bytes of the files of a window."""


def parser_of(own: PipelineSettings) -> Parser:
    """What records are filed by."""
    times = TimeDirectories(
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
    field = JsonField(own.timestamp_name, own.timestamp_separator)
    offsets = OffsetParser(own.offsets_per_partition, own.offsets_prefix)
    match own.parser:
        case "offset":
            return offsets
        case "daily-offset":
            return TimeParser(times, None, offsets)
        case "kafka-timestamp":
            return TimeParser(times)
        case "json":
            return TimeParser(times, JsonTime(field))
        case "iso8601":
            return TimeParser(times, Iso8601Time(field))
        case "date":
            return TimeParser(times, DateTime(field, java_format(own.timestamp_pattern, "pattern"), own.zone))
        case "regex":
            return TimeParser(times, RegexTime(own.timestamp_pattern))
        case "messagepack":
            return TimeParser(times, MessagePackTime(own.timestamp_name))
        case _ if ":" in own.parser:
            own_parser: Parser = _own("secor.message.parser.class", own.parser, Parser)()
            return own_parser
        case _:
            return FieldParser(JsonField(own.split_field, own.timestamp_separator), times, JsonTime(field))


def _own(setting: str, name: str, base: type) -> Any:
    """A class of the user's own, as ``module:Class``."""
    return named_class(setting, name.replace(":", "."), base, f"which names no {base.__name__}, as module:Class")


def format_of(own: PipelineSettings) -> Format:
    """What files are written."""
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
            return Text(own.codec, own.delimiter.replace("\\n", "\n").encode())


def naming_of(pipeline: Pipeline) -> Naming:
    """The names of its files."""
    own = pipeline.own
    return Naming(pipeline.output.key_prefix, own.name, own.generation, own.extension or format_of(own).ending)


def recipe_of(pipeline: Pipeline) -> Recipe:
    """All that decides what its windows become."""
    own, naming = pipeline.own, naming_of(pipeline)
    return Recipe(
        parser_of(own), format_of(own), naming, own.max_file_bytes, own.max_file_records,
        f"{naming.folder}staging/", own.local_path or None,
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
