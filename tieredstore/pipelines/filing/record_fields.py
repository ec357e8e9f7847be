"""Fields of values that are of a schema: where the parsers of Avro, Protocol Buffers and Thrift find a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Final, cast

from tieredstore.errors import ConfigError
from tieredstore.pipelines.filing.schemas import Schemas, of_topic
from tieredstore.pipelines.filing.times import EPOCH, BadMessageError, Millis, millis_of
from tieredstore.values.avro import AvroData
from tieredstore.values.protobuf import Protobuf, timestamp_ms
from tieredstore.values.thrift import Protocol, thrift_field

_SECORS: Final = ("timestamp",)
"""What the name of the field with the time is where nothing else is set."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of records of Avro, by its name, or by several where records hold records."""

    path: tuple[str, ...]
    schemas: Schemas = field(default_factory=Schemas)
    data: AvroData | None = None

    @property
    def name(self) -> str:
        """As the settings have it, about."""
        return ".".join(self.path)

    def for_topic(self, topic: str) -> AvroField:
        """The same, of the schemas of a topic."""
        return replace(self, data=self.schemas.avro_of(topic))

    def of(self, payload: bytes) -> object:
        """The field's value, a logical time in ms; BadMessageError where there is none."""
        assert self.data is not None
        try:
            content: object = self.data.datum(payload)
        except ValueError:
            raise BadMessageError("its value is not Avro of its schema") from None
        for part in self.path:
            content = cast("dict[str, object]", content).get(part) if isinstance(content, dict) else None
        if content is None:
            raise BadMessageError(f"its value has no field {self.name}")
        return _plain(content)


def _plain(content: object) -> object:
    """A logical type's moment as its milliseconds, of which the unit is known."""
    if isinstance(content, datetime):
        moment = content if content.tzinfo else content.replace(tzinfo=UTC)
        return Millis(millis_of(moment))
    if isinstance(content, date):
        return Millis((content - EPOCH.date()).days * 86_400_000)
    return content


@dataclass(frozen=True, slots=True)
class ProtobufField:
    """A field of messages of Protocol Buffers, by its name, or by several where messages hold messages."""

    path: tuple[str, ...]
    schemas: Schemas = field(default_factory=Schemas)
    message: Protobuf | None = None

    @property
    def name(self) -> str:
        """As the settings have it, about."""
        return ".".join(self.path)

    def for_topic(self, topic: str) -> ProtobufField:
        """The same, of the message of a topic; ConfigError if that has no such field.

        Where none is named, and there is none of Secor's name, it is the first uint64, as Secor has it.
        """
        message = self.schemas.protobuf_of(topic)
        try:
            path = message.field_path(self.path)
        except ConfigError:
            if self.path != _SECORS:
                raise
            path = message.first_number()
        return replace(self, path=path, message=message)

    def of(self, payload: bytes) -> object:
        """The field's value, a Timestamp in ms; BadMessageError where there is none."""
        assert self.message is not None
        try:
            content: Any = self.message.parsed(payload)
        except ConfigError:
            raise
        except ValueError:
            raise BadMessageError(f"its value is no {self.message.message} of Protocol Buffers") from None
        for part in self.path:
            if content.DESCRIPTOR.fields_by_name[part].has_presence and not content.HasField(part):
                raise BadMessageError(f"its value has no field {self.name}")
            content = getattr(content, part)
        time_ms = timestamp_ms(content)
        return content if time_ms is None else Millis(time_ms)


@dataclass(frozen=True, slots=True)
class ThriftField:
    """A field of Thrift, by the ids of those that lead to it; those of an IDL where it tells them."""

    ids: tuple[int, ...]
    protocol: Protocol = "binary"
    schemas: Schemas = field(default_factory=Schemas)

    @property
    def name(self) -> str:
        """The ids."""
        return ".".join(map(str, self.ids))

    def for_topic(self, topic: str) -> ThriftField:
        """The same, by the IDL's ids of a topic."""
        ids = of_topic(self.schemas.thrift, topic)
        return self if ids is None else replace(self, ids=ids)

    def of(self, payload: bytes) -> object:
        """The field's value, bytes as text; BadMessageError where there is none."""
        try:
            content = thrift_field(payload, self.ids, self.protocol)
            text = content.decode() if isinstance(content, bytes) else content
        except (ValueError, RecursionError):
            raise BadMessageError("its value is not Thrift of the protocol") from None
        if text is None:
            raise BadMessageError(f"its value has no field {self.name}")
        return text
