"""Fields of Avro, Protocol Buffers and Thrift values, from which parsers read the time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Final, cast

from tieredstore.errors import ConfigError
from tieredstore.model import EPOCH
from tieredstore.pipelines.filing.schemas import Schemas, of_topic
from tieredstore.pipelines.filing.times import BadMessageError, Millis, millis_of
from tieredstore.values.avro import AvroData
from tieredstore.values.protobuf import Protobuf, timestamp_ms
from tieredstore.values.thrift import Protocol, thrift_field

_SECORS: Final = ("timestamp",)
"""Path to the field with the time, by default in Secor."""


@dataclass(frozen=True, slots=True)
class _NamedField:
    """A field that is found by a path of names, in values with a schema."""

    path: tuple[str, ...]
    schemas: Schemas = field(default_factory=Schemas)

    @property
    def name(self) -> str:
        """The path joined by dots, for error messages."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class AvroField(_NamedField):
    """A field of Avro records."""

    data: AvroData | None = None

    def for_topic(self, topic: str) -> AvroField:
        """Return a copy of this field that uses the Avro schemas of a topic."""
        return replace(self, data=self.schemas.avro_of(topic))

    def of(self, payload: bytes) -> object:
        """Return the field's value. A date or time of a logical type becomes :class:`Millis`. Raise BadMessageError if
        the message lacks the field.
        """
        assert self.data is not None
        try:
            content: object = self.data.datum(payload)
        except ValueError:
            raise BadMessageError("its value does not match its Avro schema") from None
        for part in self.path:
            content = cast("dict[str, object]", content).get(part) if isinstance(content, dict) else None
        if content is None:
            raise BadMessageError(f"its value has no field {self.name}")
        return _plain(content)


def _plain(content: object) -> object:
    """Return a date or time of an Avro logical type as ``Millis``, so that nothing later guesses its unit. Return any
    other content unchanged."""
    if isinstance(content, datetime):
        moment = content if content.tzinfo else content.replace(tzinfo=UTC)
        return Millis(millis_of(moment))
    if isinstance(content, date):
        return Millis((content - EPOCH.date()).days * 86_400_000)
    return content


@dataclass(frozen=True, slots=True)
class ProtobufField(_NamedField):
    """A field of Protocol Buffers messages."""

    message: Protobuf | None = None

    def for_topic(self, topic: str) -> ProtobufField:
        """Return a copy of this field that uses the message type of a topic. Raise ConfigError if the type lacks the
        field.

        By default, the field is ``timestamp``. If the type has no such field, it is the first uint64 field, as in
        Secor.
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
        """Return the field's value; a Timestamp becomes :class:`Millis`. Raise BadMessageError if the message lacks the
        field.
        """
        assert self.message is not None
        try:
            content: Any = self.message.parse(payload)
        except ConfigError:
            raise
        except ValueError:
            raise BadMessageError(f"its value is not a Protocol Buffers message {self.message.message}") from None
        for part in self.path:
            if content.DESCRIPTOR.fields_by_name[part].has_presence and not content.HasField(part):
                raise BadMessageError(f"its value has no field {self.name}")
            content = getattr(content, part)
        time_ms = timestamp_ms(content)
        return content if time_ms is None else Millis(time_ms)


@dataclass(frozen=True, slots=True)
class ThriftField:
    """A field of Thrift structs, found by a path of field ids. The ids may come from an IDL file."""

    ids: tuple[int, ...]
    protocol: Protocol = "binary"
    schemas: Schemas = field(default_factory=Schemas)

    @property
    def name(self) -> str:
        """The ids joined by dots, for error messages."""
        return ".".join(map(str, self.ids))

    def for_topic(self, topic: str) -> ThriftField:
        """Return the field for a topic. Its ids come from the topic's IDL, if there is one."""
        ids = of_topic(self.schemas.thrift, topic)
        return self if ids is None else replace(self, ids=ids)

    def of(self, payload: bytes) -> object:
        """Return the field's value, with bytes decoded as text. Raise BadMessageError if the message lacks the
        field.
        """
        try:
            content = thrift_field(payload, self.ids, self.protocol)
            text = content.decode() if isinstance(content, bytes) else content
        except (ValueError, RecursionError):
            raise BadMessageError("its value is not a Thrift struct in the configured protocol") from None
        if text is None:
            raise BadMessageError(f"its value has no field {self.name}")
        return text
