"""The settings of a pipeline: one file for one group, with the bucket that is read and the store that is written."""

from __future__ import annotations

import functools
import importlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from tieredstore.config import Settings, settings_from
from tieredstore.config.fields import broken_rule, property_names
from tieredstore.config.nearest import nearest_name
from tieredstore.config.properties import OwnProperties, read_properties, shown_name
from tieredstore.config.source import SettingProblem, SettingsReader
from tieredstore.config.values import BOOLEAN, choice, compiled, integer, long, string
from tieredstore.errors import ConfigError
from tieredstore.pipelines.config import secor
from tieredstore.pipelines.config.filing_settings import named_text
from tieredstore.pipelines.config.policy_settings import PolicySettings, regex
from tieredstore.pipelines.config.table_settings import (
    CATALOG,
    HIVE_TABLE,
    catalog_properties,
    hive_tables,
    refused_of_table,
)
from tieredstore.pipelines.filing.directories import date_expression, java_format
from tieredstore.pipelines.filing.schemas import (
    AVRO,
    DDL,
    OF_TOPICS,
    PROTOBUF,
    REGISTRY,
    REGISTRY_NAMES,
    Schemas,
    read_schemas,
)

_logger: Final = logging.getLogger(__name__)

FORMATS: Final = ("parquet", "orc", "avro", "json", "text", "sequencefile", "messagepack-sequencefile")
CODECS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "parquet": ("none", "gzip", "zstd", "snappy"),
    "orc": ("none", "gzip", "zstd", "snappy", "deflate", "lz4"),
    "avro": ("none", "gzip", "snappy", "deflate", "bzip2"),
    "json": ("none", "gzip", "zstd"),
    "text": ("none", "gzip", "zstd"),
    "sequencefile": ("none", "gzip", "zstd", "snappy", "deflate", "lz4", "bzip2"),
    "messagepack-sequencefile": ("none", "gzip", "zstd", "snappy", "deflate", "lz4", "bzip2"),
}
"""What each format can be compressed by."""
_OUTPUT: Final = "output."
_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
_CONSUMER: Final = "kafka.new.consumer."
_SOURCE: Final = ("storage.", "key.prefix", "chunk.size", "encryption.", "fetch.", "compression.", "rsm.config.")
_CHUNK_SIZE: Final = {"chunk.size": "4194304"}


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise ValueError
    return text


def _delimiter(text: str) -> str:
    secor.delimiter_bytes(text)
    return text


def _function(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        raise ValueError
    return text


def _extension(text: str) -> str:
    if not re.fullmatch(r"\.[A-Za-z0-9._-]{1,40}", text):
        raise ValueError
    return text


class PipelineSettings(PolicySettings):
    """What a group reads, how it files it, and when a file ends."""

    name: Annotated[str, string("letters, digits, ., _ and -", _name)] = Field(
        alias="pipeline.name", description="The group's name: its commit log lies under it."
    )
    generation: Annotated[int, integer(0, 999999999)] = Field(
        default=1,
        alias="secor.generation",
        description="Stands in the names of files; generations run side by side, each with its log.",
    )
    topic_filter: Annotated[str, string("a regular expression", regex)] = Field(
        default=".*", alias="secor.kafka.topic_filter", description="The topics that are read: the whole name matches."
    )
    topic_list: Annotated[str, string("names parted by commas")] = Field(
        default="", alias="kafka.new.consumer.topic.list", description="The topics that are read, by name."
    )
    topic_blacklist: Annotated[str, string("a regular expression", regex)] = Field(
        default="", alias="secor.kafka.topic_blacklist", description="Topics that are not read all the same."
    )
    starting: Annotated[str, choice("earliest", "latest")] = Field(
        default="earliest",
        alias="kafka.new.consumer.auto.offset.reset",
        description="Where a partition begins of which nothing is committed.",
    )
    isolation: Annotated[str, choice("read_committed", "read_uncommitted")] = Field(
        default="read_committed",
        alias="kafka.new.consumer.isolation.level",
        description="Whether records of open and aborted transactions are left out.",
    )
    format: Annotated[
        str, string("a short name, Secor's class, or module:Class", named_text(secor.WRITER_CLASSES, FORMATS, own=True))
    ] = Field(
        default="parquet",
        alias="secor.file.reader.writer.factory",
        description=f"What files are written: {', '.join(FORMATS)}.",
    )
    columns: Annotated[str, choice("none", "json", "avro", "protobuf")] = Field(
        default="none",
        alias="columns",
        description="What values are decoded to columns from; none: files have them as they came.",
    )
    codec: Annotated[
        str,
        string(
            "none, gzip, zstd, snappy, deflate, lz4, bzip2 or Hadoop's class",
            named_text(secor.CODEC_CLASSES, CODECS_OF["sequencefile"]),
        ),
    ] = Field(
        default="zstd", alias="secor.compression.codec", description="How files are compressed; there and empty: not."
    )
    extension: Annotated[str, string("begins with a dot", _extension)] = Field(
        default="", alias="secor.file.extension", description="What files end with; unset, by format and codec."
    )
    delimiter: Annotated[str, string("a text; \\n, \\t, \\r, \\s, \\f and \\uXXXX are escapes", _delimiter)] = Field(
        default="\\n",
        alias="secor.file.writer.Delimiter",
        description="What ends a value in a file of text; there and empty, nothing does.",
    )
    outage_s: Annotated[int, long(0)] = Field(
        default=3600,
        alias="outage.seconds",
        description="For so long a service waits for a store or broker that is away; then it ends, with exit code 75.",
    )
    max_bad_messages: Annotated[int, long(-1)] = Field(
        default=1000,
        alias="secor.consumer.max_bad_messages",
        description="With more in a batch nothing of it appears; -1: any number is put aside.",
    )
    finalize: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="pipeline.finalize",
        description="Whether each run finalizes directories of times that are over: they get `_SUCCESS`.",
    )
    finalizer_delay_s: Annotated[int, long(0)] = Field(
        default=3600,
        alias="partitioner.finalizer.delay.seconds",
        description="So long after a directory's time, by the times of records, it is finalized.",
    )
    transformer: Annotated[
        str,
        string("module:Class, module:function or Secor's own", named_text(secor.TRANSFORMERS, ("",), own=True)),
    ] = Field(
        default="",
        alias="secor.message.transformer.class",
        description="Changes messages, or leaves them out, before they are filed.",
    )
    frame: Annotated[str, string("module:function", _function)] = Field(
        default="",
        alias="frame",
        description="A function that makes of the records as a DataFrame another one, on Spark alone.",
    )
    local_path: Annotated[str, string("a folder")] = Field(
        default="", alias="secor.local.path", description="Where files are written before they are uploaded."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> PipelineSettings:
        if self.parser in {"date", "regex"} and not self.timestamp_pattern:
            raise broken_rule("message.timestamp.input.pattern", f"is missing; the parser {self.parser} needs it")
        if self.parser.endswith("split-by-field") and not self.split_field:
            raise broken_rule("message.split.field.name", f"is missing; the parser {self.parser} needs it")
        if self.columns != "none" and self.format in {"text", "sequencefile", "messagepack-sequencefile"}:
            raise broken_rule("columns", f"are none of {self.format}: give parquet, orc, avro or json")
        able = CODECS_OF.get(self.format)
        if able is not None and self.codec not in able:
            raise broken_rule(
                "secor.compression.codec",
                f"is {self.codec}, which a file of {self.format} cannot be: give one of {', '.join(able)}",
            )
        for name, pattern, read in (
            ("partitioner.granularity.date.format", self.date_format, java_format),
            ("partitioner.granularity.hour.format", self.hour_format, java_format),
            ("partitioner.granularity.minute.format", self.minute_format, java_format),
            ("message.timestamp.input.pattern", self._date_pattern, date_expression),
        ):
            try:
                read(pattern, name)
            except ConfigError as error:
                raise broken_rule(name, str(error).removeprefix(f"{name} ")) from None
            if read is java_format and not all(pattern.split("/")):
                raise broken_rule(name, "has an empty level: no slash stands at its ends, nor beside another")
        if self.parser == "regex":
            self._check_timestamp_regex()
        return self

    @property
    def _date_pattern(self) -> str:
        return self.timestamp_pattern if self.parser == "date" else ""

    def _check_timestamp_regex(self) -> None:
        try:
            groups = compiled(self.timestamp_pattern.encode()).groups
        except ValueError as error:
            raise broken_rule("message.timestamp.input.pattern", str(error)) from None
        if not groups:
            raise broken_rule("message.timestamp.input.pattern", "has no group, which is what holds the time")

    @model_validator(mode="after")
    def _has_whole_days(self) -> PipelineSettings:
        if self.finalize and self.hashed and self.parser == "daily-offset":
            raise broken_rule("pipeline.finalize", "excludes secor.s3.prefix.md5hash where daily-offset parts the days")
        return self

    @model_validator(mode="after")
    def _has_one_way_to_columns(self) -> PipelineSettings:
        if self.frame and (self.columns != "none" or self.transformer):
            raise broken_rule("frame", "excludes columns and secor.message.transformer.class: let it do their work")
        return self


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One group: its own settings, the bucket that it reads (None: the broker alone), the client, and the output."""

    own: PipelineSettings
    output: Settings
    source: Settings | None
    client: tuple[tuple[str, str], ...] = ()
    tables: tuple[tuple[str, str], ...] = ()
    """Hive's tables, by topic."""
    schemas: Schemas = field(default_factory=Schemas)
    catalog: tuple[tuple[str, str], ...] = ()
    """What pyiceberg is told of the table's catalog, secrets too."""

    def __repr__(self) -> str:
        return f"Pipeline({self.own.name!r}, generation={self.own.generation})"


def with_generation(pipeline: Pipeline, generation: int) -> Pipeline:
    """The same pipeline as another generation of it."""
    return replace(pipeline, own=pipeline.own.model_copy(update={"generation": generation}))


def load_pipeline(path: Path | str) -> Pipeline:
    """The pipeline that a file describes; ConfigError with all that is wrong with it."""
    return pipeline_from(read_properties(path), base_dir=Path(path).absolute().parent, source=str(path))


def pipeline_from(properties: Mapping[str, str], *, base_dir: Path | None = None, source: str = "pipeline") -> Pipeline:
    """The same of a mapping; relative paths start from ``base_dir``."""
    # Secor's own files have most names with nothing behind them.
    given = secor.given_properties(properties)
    own_names = set(property_names(PipelineSettings))
    output = {name.removeprefix(_OUTPUT): text for name, text in given.items() if name.startswith(_OUTPUT)}
    stored = {name: text for name, text in given.items() if name.startswith(_SOURCE)}
    rest = {name: text for name, text in given.items() if name not in stored and not name.startswith(_OUTPUT)}
    own = secor.implied(rest) | {name: text for name, text in rest.items() if name in own_names}
    reader = SettingsReader(OwnProperties(source, "", own), base_dir or Path())
    tables = hive_tables(rest, reader)
    prefixes = (HIVE_TABLE, CATALOG, *OF_TOPICS, REGISTRY)
    client = _sorted_out(
        {
            name: text
            for name, text in rest.items()
            if not name.startswith(prefixes) or (name.startswith(REGISTRY) and name not in REGISTRY_NAMES)
        },
        own_names | REGISTRY_NAMES,
        reader,
    )
    settings = reader.result(reader.read(PipelineSettings))
    _check_groups(settings, client, source)
    schemas = _schemas(rest, settings, base_dir or Path(), source)
    settings = settings.model_copy(update={"schemas": schemas.digest})
    if not output:
        raise ConfigError(f"{source}: no output is named: give output.storage.backend.class, and what that store needs")
    if not stored and _SERVERS not in client:
        raise ConfigError(
            f"{source}: no source is named: give the bucket's storage.backend.class, kafka.bootstrap.servers, or both"
        )
    written = settings_from({**_CHUNK_SIZE, **output}, base_dir=base_dir, source=f"{source}, output.*")
    if refusal := refused_of_table(settings, settings.format, written, tables):
        raise ConfigError(f"{source}: {refusal}")
    return Pipeline(
        settings,
        written,
        settings_from({**_CHUNK_SIZE, **stored}, base_dir=base_dir, source=source) if stored else None,
        tuple(sorted(client.items())) if _SERVERS in client else (),
        tables,
        schemas,
        catalog_properties(rest),
    )


def _check_groups(own: PipelineSettings, client: Mapping[str, str], source: str) -> None:
    """Groups that are kept in Kafka need a broker."""
    if _SERVERS in client:
        return
    if own.commit_group:
        raise ConfigError(f"{source}: commit.to.group needs a broker: give kafka.bootstrap.servers")
    if own.starting_group and own.group_storage == "kafka":
        raise ConfigError(
            f"{source}: startingOffsets needs a broker: give kafka.bootstrap.servers, or, for offsets in ZooKeeper, "
            "kafka.offsets.storage=zookeeper and zookeeper.quorum"
        )


def _schemas(rest: Mapping[str, str], own: PipelineSettings, base_dir: Path, source: str) -> Schemas:
    """What files and registry say of values; only where something asks for it."""
    wanted = {name: text for name, text in rest.items() if name.startswith(OF_TOPICS)}
    if own.parser.startswith("avro") or own.columns == "avro":
        wanted |= {name: text for name, text in rest.items() if name.startswith(REGISTRY)}
    path = field_path(own.timestamp_name, own)
    schemas = read_schemas(wanted, base_dir, descriptor_set=own.descriptor_set, idl=own.thrift_idl, time_path=path)
    if (own.parser.startswith("avro") or own.columns == "avro") and not schemas.avro and schemas.registry is None:
        raise ConfigError(f"{source}: nothing says what Avro is: give schema.registry.url, or {AVRO}TOPIC, a file")
    if "protobuf" in (own.parser, own.columns) and not schemas.messages:
        raise ConfigError(f"{source}: nothing says which messages there are: give {PROTOBUF}TOPIC, or {PROTOBUF}*")
    if own.columns == "json" and not schemas.ddl:
        raise ConfigError(f"{source}: nothing says which columns JSON has: give {DDL[0]}TOPIC, or {DDL[0]}*")
    return schemas


def field_path(name: str, own: PipelineSettings) -> tuple[str, ...]:
    """The names that lead to a field of a schema."""
    return tuple(name.split(own.timestamp_separator or "."))


def _sorted_out(rest: Mapping[str, str], own_names: set[str], reader: SettingsReader) -> dict[str, str]:
    """The properties of the Kafka client; notes what is refused or unknown, and says what has no effect."""
    client: dict[str, str] = {}
    idle: list[str] = []
    for name, text in rest.items():
        if name in own_names or text.strip() in secor.HARMLESS.get(name, ()):
            continue
        if name in secor.WITHOUT_EFFECT:
            idle.append(name)
        elif (way_out := secor.entry_of(name, secor.REFUSED)) is not None:
            reader.problems.append(SettingProblem(name, f"{name} is refused: {way_out}"))
        elif secor.entry_of(name, secor.WITHOUT_EFFECT) is not None:
            idle.append(name)
        elif name.startswith(_KAFKA):
            client[name] = text
        else:
            _note_unknown(name, own_names, reader)
    idle += _checked(client, own_names, reader)
    if idle:
        _say_idle(reader.own.source, ", ".join(sorted(idle)))
    return {_of_client(name): text for name, text in client.items()}


@functools.cache
def _say_idle(source: str, names: str) -> None:
    """Once of a file, however often it is read."""
    _logger.info("%s: accepted without effect: %s", source, names)


def _of_client(name: str) -> str:
    return name.removeprefix(_CONSUMER).removeprefix(_KAFKA)


def _checked(client: Mapping[str, str], own_names: set[str], reader: SettingsReader) -> list[str]:
    """Of the client's properties those that have no effect, since there is no broker; notes which are unknown."""
    names = {name: _of_client(name) for name in client if _of_client(name) != _SERVERS}
    has_broker = len(names) < len(client)
    if not names:
        return []
    try:
        known: Any = importlib.import_module("tieredstore.live.properties")
    except ConfigError:
        if not has_broker:
            # Nobody is there who could tell which of them are any.
            words = "is a property of the Kafka client, and no broker is named: leave it out"
            reader.problems.extend(SettingProblem(name, f"{shown_name(name)} {words}") for name in names)
        return []
    unknown = set(known.unknown_properties(names.values()))
    for name, short in names.items():
        if short in unknown:
            _note_unknown(name, own_names | {f"{_KAFKA}{_SERVERS}"}, reader)
    return [] if has_broker else [name for name, short in names.items() if short not in unknown]


def _note_unknown(name: str, known: set[str], reader: SettingsReader) -> None:
    near = nearest_name(name, frozenset(known))
    nearest = f"; the nearest is {near}" if near else ""
    reader.problems.append(SettingProblem(name, f"{shown_name(name)} is not known{nearest}"))
