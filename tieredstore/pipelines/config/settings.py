"""Settings of a pipeline from one file: settings of the pipeline itself, of the source bucket, and of the output."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import Field
from pydantic.fields import FieldInfo

from tieredstore.config import Settings, settings_from
from tieredstore.config.fields import SettingsGroup, property_fields
from tieredstore.config.nearest import did_you_mean
from tieredstore.config.properties import OwnProperties, read_properties
from tieredstore.config.source import SettingsReader
from tieredstore.config.values import BOOLEAN, Kind, choice, integer, long, string
from tieredstore.errors import ConfigError
from tieredstore.model import DEFAULT_ISOLATION
from tieredstore.pipelines.config import secor
from tieredstore.pipelines.config.chapters import (
    CATALOG,
    HIVE_TABLE,
    FilingSettings,
    GroupSettings,
    LimitSettings,
    NamingSettings,
    TableSettings,
    catalog_properties,
    find_table_fault,
    hive_tables,
    regex,
)
from tieredstore.pipelines.config.secor import matcher, read_name
from tieredstore.pipelines.filing.directories import java_format
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
from tieredstore.pipelines.format_table import FACTORIES, FORMATS
from tieredstore.pipelines.parser_table import (
    OWN_PARSER,
    OffsetSettings,
    PatternSettings,
    ThriftSettings,
    kind_of,
    parser_settings,
)

_logger: Final = logging.getLogger(__name__)
_GroupT = TypeVar("_GroupT", bound=SettingsGroup)

_OUTPUT: Final = "output."
_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
_CONSUMER: Final = "kafka.new.consumer."
_PARSER: Final = "parser."
_SOURCE: Final = ("storage.", "key.prefix", "chunk.size", "encryption.", "fetch.", "compression.", "rsm.config.")


def _delimiter(text: str) -> str:
    secor.delimiter_bytes(text)
    return text


_FORMAT_NAMES: Final = {name: name for name in FORMATS} | {name: short for name, (short, _) in FACTORIES.items()}
_CODEC_NAMES: Final = {codec: codec for kind in FORMATS.values() for codec in kind.codecs} | secor.CODEC_NAMES


class PipelineSettings(SettingsGroup):
    """The pipeline's own settings: which records it reads and which files it writes. The first fields are groups of
    settings.
    """

    filing: FilingSettings = FilingSettings()
    groups: GroupSettings = GroupSettings()
    naming: NamingSettings = NamingSettings()
    table: TableSettings = TableSettings()
    limits: LimitSettings = LimitSettings()
    parsers: tuple[SettingsGroup, ...] = tuple(group() for group in parser_settings())
    """Groups of settings for single parsers, declared in ``parser_table``."""
    schemas: str = ""
    """Digest of the schema files, which the settings' fingerprint includes. Users cannot set it."""

    name: Annotated[str, string("letters, digits, ., _ and -", matcher(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"))] = Field(
        alias="pipeline.name", description="Name of the pipeline, and of its commit log in the output."
    )
    generation: Annotated[int, integer(0, 999999999), secor.HONOURED] = Field(
        default=1,
        alias="secor.generation",
        description="Version of the output, part of file names. Each generation has its own commit log; "
        "several generations can run in parallel.",
    )
    topic_filter: Annotated[str, string("a regular expression", regex), secor.HONOURED] = Field(
        default=".*",
        alias="secor.kafka.topic_filter",
        description="Topics to read. The expression must match a topic's whole name.",
    )
    topic_list: Annotated[str, string("names separated by commas"), secor.HONOURED] = Field(
        default="",
        alias="kafka.new.consumer.topic.list",
        description="Topics to read. The list replaces `secor.kafka.topic_filter`.",
    )
    topic_blacklist: Annotated[str, string("a regular expression", regex), secor.HONOURED] = Field(
        default="", alias="secor.kafka.topic_blacklist", description="Topics not to read."
    )
    starting: Annotated[str, choice("earliest", "latest"), secor.HONOURED] = Field(
        default="earliest",
        alias="kafka.new.consumer.auto.offset.reset",
        description="Where to begin in a partition without progress: at its first offset, or at its end.",
    )
    isolation: Annotated[str, choice("read_committed", "read_uncommitted"), secor.HONOURED] = Field(
        default=DEFAULT_ISOLATION,
        alias="kafka.new.consumer.isolation.level",
        description="`read_committed` leaves out records of open and aborted transactions.",
    )
    format: Annotated[
        str, string("a short name, Secor's class, or module:Class", read_name(_FORMAT_NAMES, own=True)), secor.HONOURED
    ] = Field(
        default="parquet",
        alias="secor.file.reader.writer.factory",
        description=f"Format of files: {', '.join(FORMATS)}.",
    )
    columns: Annotated[str, choice("none", "json", "avro", "protobuf")] = Field(
        default="none",
        alias="columns",
        description="Format of values, which are decoded into columns. `none`: files hold the values unchanged.",
    )
    codec: Annotated[
        str,
        string(
            "none, gzip, zstd, snappy, deflate, lz4, bzip2 or a Hadoop class",
            read_name(_CODEC_NAMES),
        ),
        secor.HONOURED,
    ] = Field(
        default="zstd",
        alias="secor.compression.codec",
        description="Compression of files. If empty, files are not compressed.",
    )
    extension: Annotated[str, string("begins with a dot", matcher(r"\.[A-Za-z0-9._-]{1,40}")), secor.HONOURED] = Field(
        default="",
        alias="secor.file.extension",
        description="Extension of file names. If unset, format and codec decide.",
    )
    delimiter: Annotated[
        str, string("a text; \\n, \\t, \\r, \\s, \\f and \\uXXXX are escapes", _delimiter), secor.HONOURED
    ] = Field(
        default="\\n",
        alias="secor.file.writer.Delimiter",
        description="Text after each value in text files. If empty, no text follows the values. Secor's "
        "DelimitedTextFile always has a newline.",
    )
    outage_s: Annotated[int, long(0)] = Field(
        default=3600,
        alias="outage.seconds",
        description="Seconds that a service waits for an unavailable store or broker. Then it ends with exit code 75.",
    )
    max_bad_messages: Annotated[int, long(-1), secor.HONOURED] = Field(
        default=1000,
        alias="secor.consumer.max_bad_messages",
        description="Maximum number of bad messages in a batch; -1: no limit. A batch with more bad "
        "messages is not written.",
    )
    finalize: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="pipeline.finalize",
        description="Write `_SUCCESS` to complete directories of past days, hours or minutes.",
    )
    finalizer_delay_s: Annotated[int, long(0), secor.HONOURED] = Field(
        default=3600,
        alias="partitioner.finalizer.delay.seconds",
        description="Seconds from the end of a directory's day, hour or minute, measured by record "
        "timestamps, until the directory gets `_SUCCESS`.",
    )
    transformer: Annotated[
        str,
        string("module:Class, module:function or Secor's own", read_name(secor.TRANSFORMERS, own=True)),
        secor.HONOURED,
    ] = Field(
        default="",
        alias="secor.message.transformer.class",
        description="Your code that changes or drops messages before the parser chooses their directories.",
    )
    frame: Annotated[str, string("module:function", matcher(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"))] = Field(
        default="",
        alias="frame",
        description="Your function that changes the records as a DataFrame. It works only on Spark.",
    )
    local_path: Annotated[str, string("a folder"), secor.HONOURED] = Field(
        default="", alias="secor.local.path", description="Folder for files that are not uploaded yet."
    )

    def of_parser(self, group: type[_GroupT]) -> _GroupT:
        """Return the parser settings of this group."""
        return next(one for one in self.parsers if isinstance(one, group))


CHAPTERS: Final[Mapping[str, type[SettingsGroup]]] = {
    "filing": FilingSettings,
    "groups": GroupSettings,
    "naming": NamingSettings,
    "table": TableSettings,
    "limits": LimitSettings,
}


def own_properties() -> Iterator[tuple[str, FieldInfo, Kind]]:
    """Yield the name, field and kind of each property in the pipeline's own groups of settings."""
    filing, *others = CHAPTERS.values()
    groups: tuple[type[SettingsGroup], ...] = (PipelineSettings, filing, *parser_settings(), *others)
    for group in groups:
        yield from property_fields(group)


def _find_broken_rules(own: PipelineSettings) -> Iterator[tuple[str, str]]:
    """Yield each property that conflicts with another property, and the reason."""
    kind, groups, limits = kind_of(own), own.groups, own.limits
    yield from _find_broken_parser(own)
    yield from _find_broken_files(own)
    yield from _find_broken_directories(own)
    if own.finalize and own.naming.hashed and kind.settings is OffsetSettings and kind.by_time:
        yield "pipeline.finalize", "excludes secor.s3.prefix.md5hash with the parser daily-offset"
    if groups.starting_group and groups.group_storage == "zookeeper" and not groups.zookeeper:
        yield "zookeeper.quorum", "is missing; startingOffsets with kafka.offsets.storage=zookeeper needs it"
    if own.table.kind == "iceberg" and not own.table.name:
        yield "table.iceberg.name", "is missing; table=iceberg needs it"
    if limits.is_deterministic and not (limits.max_payload_bytes or limits.max_range_ms):
        needed = "secor.max.input.payload.size.bytes or secor.max.file.timestamp.range.millis"
        yield "secor.upload.deterministic", f"needs {needed}"
    if limits.is_deterministic and limits.upload_on_shutdown:
        yield "secor.upload.deterministic", "excludes secor.upload.on.shutdown"


def _find_broken_parser(own: PipelineSettings) -> Iterator[tuple[str, str]]:
    kind, filing = kind_of(own), own.filing
    given = {
        info.alias
        for group in own.parsers
        for field, info in type(group).model_fields.items()
        if field in group.model_fields_set
    }
    if kind.needs and kind.needs not in given:
        yield kind.needs, f"is missing; the parser {filing.parser} needs it"
    elif kind.check_pattern is not None:
        try:
            kind.check_pattern(own.of_parser(PatternSettings).timestamp_pattern)
        except ConfigError as error:
            yield kind.needs, str(error).removeprefix(f"{kind.needs} ")
    if kind is not OWN_PARSER:
        for name, _ in filing.parser_options:
            yield f"{_PARSER}{name}", f"is only for a parser of your own, not for {filing.parser}: leave it out"


def _find_broken_files(own: PipelineSettings) -> Iterator[tuple[str, str]]:
    if (kind := FORMATS.get(own.format)) is not None:
        if own.columns != "none" and not kind.holds_columns:
            yield "columns", f"cannot be in {own.format} files: choose parquet, orc, avro or json"
        if own.codec not in kind.codecs:
            words = f"which {own.format} files cannot have: choose {', '.join(kind.codecs)}"
            yield "secor.compression.codec", f"is {own.codec}, {words}"
    if own.frame and (own.columns != "none" or own.transformer):
        words = "cannot be combined with columns or secor.message.transformer.class"
        yield "frame", f"{words}: decode and transform in the frame function"


def _find_broken_directories(own: PipelineSettings) -> Iterator[tuple[str, str]]:
    """Yield faults in the settings that format directories by time, and in ``secor.s3.alter.path.date``.

    The setting ``secor.s3.alter.path.date`` needs directories by day. Without them Secor itself would fail at the first
    file.
    """
    naming = own.naming
    for level in ("date", "hour", "minute"):
        name, pattern = f"partitioner.granularity.{level}.format", getattr(own.filing, f"{level}_format")
        try:
            java_format(pattern, name)
        except ConfigError as error:
            yield name, str(error).removeprefix(f"{name} ")
            return
        if not all(pattern.split("/")):
            yield name, "has an empty level: remove a leading, trailing or double slash"
    if not naming.alternative_since:
        return
    if not naming.alternative_root:
        yield "secor.s3.alternative.path", "is missing; secor.s3.alter.path.date needs it"
    if not kind_of(own).by_time:
        yield "secor.s3.alter.path.date", f"needs directories of days, but the parser {own.filing.parser} makes none"
    codes = java_format(own.filing.date_format, "partitioner.granularity.date.format")
    has_day = all(any(code in codes for code in codes_of) for codes_of in (("%Y", "%y"), ("%m",), ("%d",)))
    if "/" in codes or not has_day:
        yield (
            "secor.s3.alter.path.date",
            "needs a partitioner.granularity.date.format with year, month and day in one level",
        )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Settings of a pipeline, its source, Kafka client and output. ``source`` is None if the pipeline reads no
    bucket."""

    own: PipelineSettings
    output: Settings
    source: Settings | None
    client: tuple[tuple[str, str], ...] = ()
    tables: tuple[tuple[str, str], ...] = ()
    """Hive tables by topic."""
    schemas: Schemas = field(default_factory=Schemas)
    catalog: tuple[tuple[str, str], ...] = ()
    """Properties for pyiceberg's catalog, secrets included."""

    def __repr__(self) -> str:
        return f"Pipeline({self.own.name!r}, generation={self.own.generation})"


def with_generation(pipeline: Pipeline, generation: int) -> Pipeline:
    """Return a copy of the pipeline with this generation number."""
    return replace(pipeline, own=pipeline.own.model_copy(update={"generation": generation}))


def load_pipeline(path: Path | str) -> Pipeline:
    """Read a pipeline from a .properties file. Raise ConfigError with all problems of the file."""
    return pipeline_from(read_properties(path), base_dir=Path(path).absolute().parent, source=str(path))


def pipeline_from(properties: Mapping[str, str], *, base_dir: Path | None = None, source: str = "pipeline") -> Pipeline:
    """Return the pipeline of these properties. Relative paths start from ``base_dir``."""
    # An empty property counts as unset, because Secor's sample files leave most properties empty.
    given = secor.read_properties(properties)
    own_names = {name for name, _, _ in own_properties()}
    output = {name.removeprefix(_OUTPUT): text for name, text in given.items() if name.startswith(_OUTPUT)}
    stored = {name: text for name, text in given.items() if name.startswith(_SOURCE)}
    rest = {name: text for name, text in given.items() if name not in stored and not name.startswith(_OUTPUT)}
    # Secor's writers of columnar formats decode values. So a writer's class name also gives the setting ``columns``.
    _, columns = FACTORIES.get(rest.get(secor.WRITER, "").strip(), ("", "none"))
    implied = {} if columns == "none" else {"columns": columns}
    own = implied | {name: text for name, text in rest.items() if name in own_names}
    reader = SettingsReader(OwnProperties(source, "", own), base_dir or Path())
    tables = hive_tables(rest, reader)
    prefixes = (HIVE_TABLE, CATALOG, _PARSER, *OF_TOPICS, REGISTRY)
    client = _sort_out(
        {
            name: text
            for name, text in rest.items()
            if not name.startswith(prefixes) or (name.startswith(REGISTRY) and name not in REGISTRY_NAMES)
        },
        own_names | REGISTRY_NAMES,
        reader,
    )
    options = {name.removeprefix(_PARSER): text for name, text in rest.items() if name.startswith(_PARSER)}
    settings = _read_settings(reader, options)
    _check_groups(settings, client, source)
    schemas = _schemas(rest, settings, base_dir or Path(), source)
    settings = settings.model_copy(update={"schemas": schemas.digest})
    if not output:
        raise ConfigError(
            f"{source}: the output is missing: set output.storage.backend.class and the settings of that store"
        )
    if not stored and _SERVERS not in client:
        raise ConfigError(
            f"{source}: the source is missing: set the bucket's storage.backend.class, kafka.bootstrap.servers, or both"
        )
    written = settings_from(output, base_dir=base_dir, source=f"{source}, output.*")
    if refusal := find_table_fault(settings.table, settings.naming, settings.format, written, tables):
        raise ConfigError(f"{source}: {refusal}")
    return Pipeline(
        settings,
        written,
        settings_from(stored, base_dir=base_dir, source=source) if stored else None,
        tuple(sorted(client.items())) if _SERVERS in client else (),
        tables,
        schemas,
        catalog_properties(rest),
    )


def _read_settings(reader: SettingsReader, parser_options: Mapping[str, str]) -> PipelineSettings:
    chapters = {name: reader.read(group) for name, group in CHAPTERS.items() if group is not FilingSettings}
    chapters["filing"] = reader.read(FilingSettings, fields={"parser_options": tuple(sorted(parser_options.items()))})
    fields: dict[str, object] = {name: one for name, one in chapters.items() if one is not None}
    fields["parsers"] = tuple(one for group in parser_settings() if (one := reader.read(group)) is not None)
    own = reader.read(PipelineSettings, fields=fields)
    # An invalid setting may also look like a conflict, so check conflicts only if each setting is valid.
    for name, why in _find_broken_rules(own) if own is not None and not reader.problems else ():
        reader.note(name, why)
    return reader.result(own)


def _check_groups(own: PipelineSettings, client: Mapping[str, str], source: str) -> None:
    """Raise ConfigError if the settings use consumer groups in Kafka but name no broker."""
    if _SERVERS in client:
        return
    if own.groups.commit_group:
        raise ConfigError(f"{source}: commit.to.group needs a broker: set kafka.bootstrap.servers")
    if own.groups.starting_group and own.groups.group_storage == "kafka":
        raise ConfigError(
            f"{source}: startingOffsets needs a broker: set kafka.bootstrap.servers, or, for offsets in ZooKeeper, "
            "kafka.offsets.storage=zookeeper and zookeeper.quorum"
        )


def _schemas(rest: Mapping[str, str], own: PipelineSettings, base_dir: Path, source: str) -> Schemas:
    """Return the schemas that the settings need, from files and registry."""
    wanted = {name: text for name, text in rest.items() if name.startswith(OF_TOPICS)}
    decoded = {kind_of(own).schemas, own.columns}
    if "avro" in decoded:
        wanted |= {name: text for name, text in rest.items() if name.startswith(REGISTRY)}
    filing = own.filing
    schemas = read_schemas(
        wanted,
        base_dir,
        descriptor_set=filing.descriptor_set,
        idl=own.of_parser(ThriftSettings).thrift_idl,
        time_path=filing.field_path(),
    )
    if "avro" in decoded and not schemas.avro and schemas.registry is None:
        raise ConfigError(f"{source}: no Avro schema is given: set schema.registry.url, or {AVRO}TOPIC to a file")
    if "protobuf" in decoded and not schemas.messages:
        raise ConfigError(f"{source}: no Protocol Buffers message type is given: set {PROTOBUF}TOPIC, or {PROTOBUF}*")
    if own.columns == "json" and not schemas.ddl:
        raise ConfigError(f"{source}: no JSON columns are given: set {DDL[0]}TOPIC, or {DDL[0]}*")
    return schemas


def _sort_out(rest: Mapping[str, str], own_names: set[str], reader: SettingsReader) -> dict[str, str]:
    """Return the properties for the Kafka client. Report refused and unknown properties to ``reader``; log properties
    without effect.
    """
    client: dict[str, str] = {}
    idle: list[str] = []
    for name, text in rest.items():
        if name in own_names or text.strip() in secor.HARMLESS.get(name, ()):
            continue
        if name in secor.WITHOUT_EFFECT:
            idle.append(name)
        elif (way_out := secor.entry_of(name, secor.REFUSED)) is not None:
            reader.note(name, f"is refused: {way_out}")
        elif secor.entry_of(name, secor.WITHOUT_EFFECT) is not None:
            idle.append(name)
        elif name.startswith(_KAFKA):
            client[name] = text
        else:
            reader.note_stray(name, f"is not known{did_you_mean(name, own_names)}")
    idle += _check_client(client, own_names, reader)
    if idle:
        _say_idle(reader.own.source, ", ".join(sorted(idle)))
    return {_of_client(name): text for name, text in client.items()}


@functools.cache
def _say_idle(source: str, names: str) -> None:
    """Log properties without effect, once per settings file."""
    _logger.info("%s: properties without effect here: %s", source, names)


def _of_client(name: str) -> str:
    return name.removeprefix(_CONSUMER).removeprefix(_KAFKA)


def _check_client(client: Mapping[str, str], own_names: set[str], reader: SettingsReader) -> list[str]:
    """Report unknown properties of the Kafka client to ``reader``. If no broker is set, the known properties have no
    effect: return them. Otherwise, return an empty list."""
    names = {name: _of_client(name) for name in client if _of_client(name) != _SERVERS}
    has_broker = len(names) < len(client)
    if not names:
        return []
    try:
        from tieredstore.live import properties  # noqa: PLC0415
    except ConfigError:
        if not has_broker:
            # Report all names as faults. Only the Kafka client library knows the valid names, and it is not installed.
            for name in names:
                reader.note_stray(name, "is a property of the Kafka client, but no broker is set: leave it out")
        return []
    unknown = [name for name, short in names.items() if not properties.is_known(short)]
    for name in unknown:
        reader.note_stray(name, f"is not known{did_you_mean(name, own_names | {f'{_KAFKA}{_SERVERS}'})}")
    return [] if has_broker else [name for name in names if name not in unknown]
