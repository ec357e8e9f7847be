"""Schemas of values, from files that the settings name or from a schema registry."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa

from tieredstore.errors import ConfigError, quote
from tieredstore.installation import Extra
from tieredstore.values.avro import AvroData, SchemaLookup
from tieredstore.values.ddl import parse_ddl
from tieredstore.values.json_text import Json
from tieredstore.values.protobuf import Protobuf

ByTopic: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a topic and its schema (Avro JSON, message name or DDL). The topic ``*`` stands for all topics without a
pair."""

AVRO: Final = "secor.avro.message.schema."
PROTOBUF: Final = "secor.protobuf.message.class."
THRIFT: Final = "secor.thrift.message.class."
DDL: Final = ("json.schema.", "secor.orc.message.schema.")
OF_TOPICS: Final = (AVRO, PROTOBUF, THRIFT, *DDL)
"""Prefixes of the properties that define a topic's schema. The topic or ``*`` follows the prefix."""

REGISTRY: Final = "schema.registry."
REGISTRY_NAMES: Final = frozenset(
    f"{REGISTRY}{name}"
    for name in (
        "url", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location",
        "ssl.key.location",
    )
)  # fmt: skip
"""All properties of :mod:`tieredstore.schema_registry`. They are repeated here, because that module needs an optional
dependency."""
_STRUCT: Final = 12
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Schemas:
    """All schemas of a pipeline. Picklable."""

    avro: ByTopic = ()
    """Avro schemas as JSON text."""
    registry: SchemaLookup | None = field(default=None, repr=False)
    descriptor_set: bytes = field(default=b"", repr=False)
    messages: ByTopic = ()
    """Full names of Protocol Buffers messages."""
    thrift: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """For each topic, the field ids on the path to the time, found in a Thrift IDL."""

    ddl: ByTopic = ()
    """Columns of JSON values, as DDL."""

    @property
    def digest(self) -> str:
        """Digest of the schemas, or empty if there are none. It does not cover the address of a schema registry,
        because the address does not change a schema.
        """
        parts = self.avro, self.descriptor_set, self.messages, self.thrift, self.ddl
        return hashlib.sha256(repr(parts).encode()).hexdigest() if any(parts) else ""

    def avro_of(self, topic: str) -> AvroData:
        """Return the decoder of a topic's Avro values; raise ConfigError if the settings give no schema."""
        schema = of_topic(self.avro, topic)
        if schema is None and self.registry is None:
            raise ConfigError(
                f"no Avro schema is given for topic {topic}: set {AVRO}{topic} to a file, or schema.registry.url"
            )
        return AvroData(schema, self.registry)

    def protobuf_of(self, topic: str) -> Protobuf:
        """Return the decoder of a topic's Protocol Buffers values; raise ConfigError if the settings give no
        message.
        """
        message = of_topic(self.messages, topic)
        if message is None:
            raise ConfigError(f"no Protocol Buffers message type is given for topic {topic}: set {PROTOBUF}{topic}")
        return Protobuf(self.descriptor_set, message)

    def ddl_of(self, topic: str) -> pa.Schema:
        """Return the columns of a topic's JSON values; raise ConfigError if the settings define none."""
        text = of_topic(self.ddl, topic)
        if text is None:
            raise ConfigError(f"no JSON columns are given for topic {topic}: set {DDL[0]}{topic}")
        return parse_ddl(text)


def of_topic(table: tuple[tuple[str, _Kind], ...], topic: str) -> _Kind | None:
    """Return a table's value for a topic. If the table lacks the topic, return the value for ``*``."""
    known = dict(table)
    return known.get(topic, known.get("*"))


def read_schemas(
    properties: Mapping[str, str], base_dir: Path, *, descriptor_set: str, idl: str, time_path: tuple[str, ...]
) -> Schemas:
    """Load the schemas that the properties name. Raise ConfigError for unreadable or invalid files.

    ``idl`` is a Thrift IDL file. ``time_path`` has the names of the nested fields that lead to the time.
    """
    of = {start: _by_topic(properties, start) for start in OF_TOPICS}
    for start, needed, setting in ((PROTOBUF, descriptor_set, "protobuf.descriptor.set"), (THRIFT, idl, "thrift.idl")):
        if of[start] and not needed:
            raise ConfigError(
                f"{start}{next(iter(of[start]))} names a message type: set {setting} to the file that defines it"
            )
    schemas = Schemas(
        tuple((topic, _text(base_dir, f"{AVRO}{topic}", file).decode()) for topic, file in of[AVRO].items()),
        _registry({name: text for name, text in properties.items() if name.startswith(REGISTRY)}),
        _text(base_dir, "protobuf.descriptor.set", descriptor_set) if descriptor_set else b"",
        tuple(of[PROTOBUF].items()),
        tuple((topic, thrift_ids(base_dir / idl, name, time_path)) for topic, name in of[THRIFT].items()),
        tuple(sorted((of[DDL[1]] | of[DDL[0]]).items())),
    )
    for topic, text in schemas.ddl:
        try:
            Json(parse_ddl(text))
        except ConfigError as error:
            raise ConfigError(f"{DDL[0]}{topic}: {error}") from None
    for topic, _ in schemas.avro:
        schemas.avro_of(topic)
    for topic, _ in schemas.messages:
        schemas.protobuf_of(topic)
    return schemas


def _by_topic(properties: Mapping[str, str], start: str) -> dict[str, str]:
    names = sorted(name for name in properties if name.startswith(start))
    return {name.removeprefix(start): properties[name].strip() for name in names}


def _text(base_dir: Path, setting: str, file: str) -> bytes:
    try:
        return (base_dir / file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} names a file that cannot be read: {error.strerror or error}") from error


def _registry(properties: Mapping[str, str]) -> SchemaLookup | None:
    if not properties:
        return None
    from tieredstore.schema_registry import SchemaRegistry  # noqa: PLC0415  it needs an extra

    return SchemaRegistry(properties=properties)


def thrift_ids(idl: Path, name: str, path: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of the fields along ``path``, which begins in the struct ``name`` of a Thrift IDL file.

    Raises ConfigError for an invalid file, or an unknown struct or field.
    """
    with Extra("reading a Thrift IDL", "thrift"):
        thriftpy2 = importlib.import_module("thriftpy2")
    try:
        module = thriftpy2.load(str(idl), module_name=f"tieredstore_{idl.stem}_thrift")
    except OSError as error:
        raise ConfigError(f"thrift.idl names a file that cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise ConfigError(f"thrift.idl is not a valid Thrift IDL: {type(error).__name__}") from error
    struct = getattr(module, name.rpartition(".")[2], None)
    ids: list[int] = []
    for part in path:
        fields: Mapping[int, tuple[object, ...]] = getattr(struct, "thrift_spec", None) or {}
        number = next((number for number, spec in fields.items() if spec[1] == part), None)
        if number is None:
            raise ConfigError(f"thrift.idl has no struct {quote(name)} with a field {quote('.'.join(path))}")
        ids.append(number)
        struct = fields[number][2] if fields[number][0] == _STRUCT else None
    return tuple(ids)
