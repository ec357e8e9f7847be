"""Fields of JSON, Avro, Protocol Buffers and Thrift values, and times in values, for parsers."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Protocol, Self, cast
from zoneinfo import ZoneInfo

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.model import EPOCH
from tieredstore.pipelines.filing._json_scan import epoch_millis
from tieredstore.pipelines.filing.messagepack import unpack
from tieredstore.pipelines.filing.schemas import Schemas, of_topic
from tieredstore.values import thrift
from tieredstore.values.avro import AvroData
from tieredstore.values.protobuf import Protobuf, timestamp_ms

_INTEGER: Final = re.compile(r"[0-9]{1,19}")
_NUMBER: Final = re.compile(
    r"[\x00-\x20]*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?[\x00-\x20]*"
)
"""Decimal numbers that Java's ``Double.valueOf`` accepts."""
_XML_DATE: Final = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:T(\d\d):(\d\d):(\d\d(?:\.\d+)?))?)?)?(Z|[+-](?:0\d|1[0-3]):[0-5]\d|[+-]14:00)?",
    re.ASCII,
)
"""A dateTime, date, gYearMonth or gYear of XML Schema part 2: the dates that Secor's parser accepts."""
_OTHER_DATE: Final = re.compile(r"(?:\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d(?:-?\d)?)(?:[Tt ].+)?", re.ASCII)
"""Dates and times in ISO 8601 forms that XML Schema does not allow, such as ``20250131`` and ``2025-W05-5``."""
_SECORS: Final = ("timestamp",)
"""Path to the field with the time, by default in Secor."""


class BadMessageError(ValueError):
    """Raised for a message whose directory cannot be determined. The error's text must not contain the message's
    content."""


class Millis(int):
    """A number that is known to be a time in ms since the epoch. The unit of other numbers must be guessed from their
    size."""

    __slots__ = ()


class Field(Protocol):
    """A field of values in any encoding."""

    @property
    def name(self) -> str:
        """The name for error messages."""
        ...

    def for_topic(self, topic: str) -> Self:
        """Return the field for a topic. If the field needs the schema of the topic's values, the result has this
        schema."""
        ...

    def of(self, payload: bytes) -> object:
        """Return the field's value, as :class:`Millis` if its unit is known. Raise BadMessageError if the message lacks
        the field.
        """
        ...


class Time(ABC):
    """Function that finds the time of a message in the message's value. Frozen and picklable."""

    def for_topic(self, topic: str) -> Time:  # noqa: ARG002  for subclasses with schemas
        """Return this object, extended by a topic's schema. Raise ConfigError if the settings do not describe the
        topic's values.
        """
        return self

    @abstractmethod
    def __call__(self, payload: bytes) -> int:
        """Return the message's time in ms since the epoch. Raise BadMessageError if it has no time."""

    def quick(self, values: pa.Array) -> pa.Array | None:  # noqa: ARG002  for subclasses
        """Return the times of a column of values faster than by a call per value. Return None if this class has no
        faster method.

        A null in the result means that the fast method did not find the time. For each null, the caller must pass the
        value to ``__call__``.
        """
        return None


@dataclass(frozen=True, slots=True)
class _TimeInField(Time, ABC):
    field: Field

    def for_topic(self, topic: str) -> Time:
        return replace(self, field=self.field.for_topic(topic))


@dataclass(frozen=True, slots=True)
class JsonField:
    """A field of JSON objects, found by a path of names joined by ``separator``."""

    name: str
    separator: str = ""
    is_strict: bool = False
    """True if control characters in texts, or bytes that are not UTF-8, make a message bad."""

    @property
    def path(self) -> list[str]:
        """The path as a list of names."""
        return self.name.split(self.separator) if self.separator else [self.name]

    def of(self, payload: bytes) -> object:
        """Return the field's value. Raise BadMessageError if the message lacks the field."""
        try:
            content: object = json.loads(payload) if self.is_strict else _read_leniently(payload)
        except (ValueError, RecursionError):
            raise BadMessageError("its value is not JSON") from None
        for part in self.path:
            if not isinstance(content, dict):
                raise BadMessageError(f"its value has no field {self.name}")
            content = cast("Mapping[str, object]", content).get(part)
        if content is None:
            raise BadMessageError(f"its value has no field {self.name}")
        return content

    def for_topic(self, topic: str) -> JsonField:  # noqa: ARG002  all topics have the same field
        """Return this field unchanged: JSON needs no schema."""
        return self


def _read_leniently(payload: bytes) -> object:
    """Parse JSON as leniently as Secor does, because real topics contain Latin-1 and raw control characters."""
    text = payload.decode(json.detect_encoding(payload), "replace")
    return json.loads(text, strict=False)


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
    protocol: thrift.Protocol = "binary"
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
            content = thrift.thrift_field(payload, self.ids, self.protocol)
            text = content.decode() if isinstance(content, bytes) else content
        except (ValueError, RecursionError):
            raise BadMessageError("its value is not a Thrift struct in the configured protocol") from None
        if text is None:
            raise BadMessageError(f"its value has no field {self.name}")
        return text


@dataclass(frozen=True, slots=True)
class EpochTime(_TimeInField):
    """A time since the epoch in a field, in s, ms, us or ns."""

    is_strict: bool = False
    """True if only a whole number without other characters counts as a time."""

    def quick(self, values: pa.Array) -> pa.Array | None:
        """Return the times that the fast parser :func:`json_times` finds, or None if that parser cannot read the
        column."""
        return json_times(values, self.field.path) if isinstance(self.field, JsonField) else None

    def __call__(self, payload: bytes) -> int:
        """Return the time in ms."""
        content = self.field.of(payload)
        # Do not accept 0 as a time, because an unset Timestamp of Protocol Buffers is 0.
        if isinstance(content, Millis) and content:
            return content
        number = _whole_number(content, is_strict=self.is_strict)
        if number is None:
            raise BadMessageError(f"its field {self.field.name} is not a time since the epoch")
        return to_millis(number)


def _whole_number(content: object, *, is_strict: bool = False) -> int | None:
    """Return the whole part of a positive number or of a text with such a number. Return None for any other content."""
    if isinstance(content, str):
        number = None if is_strict else _NUMBER.fullmatch(content)
        if _INTEGER.fullmatch(content):
            content = int(content)
        elif number is not None:
            content = float(number[1])
    if isinstance(content, float) and 0 < content < 2**63:
        content = int(content)
    return content if isinstance(content, int) and not isinstance(content, bool) and content > 0 else None


@dataclass(frozen=True, slots=True)
class MessagePackTime(Time):
    """A time since the epoch in s, ms, us or ns, in a MessagePack map under the key ``name``."""

    name: str

    def __call__(self, payload: bytes) -> int:
        """Return the time in ms."""
        try:
            content = unpack(payload)
        except (ValueError, RecursionError):
            raise BadMessageError("its value is not MessagePack") from None
        time = _whole_number(content.get(self.name) if isinstance(content, dict) else None, is_strict=True)
        if time is None:
            raise BadMessageError(f"its value has no field {self.name} with a time since the epoch")
        return to_millis(time)


@dataclass(frozen=True, slots=True)
class Iso8601Time(_TimeInField):
    """A time in a field, written as a date of XML Schema or ISO 8601. A date without a zone is in UTC."""

    is_strict: bool = False
    """True if only dates of XML Schema are accepted."""

    def __call__(self, payload: bytes) -> int:
        """Return the time in ms."""
        content = self.field.of(payload)
        if not isinstance(content, str):
            raise BadMessageError(f"its field {self.field.name} is not a text")
        content = content.strip(" \t\r\n")
        try:
            if (parts := _XML_DATE.fullmatch(content)) is not None:
                return _xml_millis(parts)
            if not self.is_strict and _OTHER_DATE.fullmatch(content):
                moment = datetime.fromisoformat(content)
                return millis_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            pass
        raise BadMessageError(f"its field {self.field.name} is not an ISO 8601 date")


def _xml_millis(parts: re.Match[str]) -> int:
    year, month, day, hour, minute, second, zone = parts.groups()
    whole, _, fraction = (second or "0").partition(".")
    ahead = timedelta()
    if zone is not None and zone != "Z":
        ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:])) * (-1 if zone[0] == "-" else 1)
    since = _time_of_day(int(hour or 0), int(minute or 0), int(whole))
    millis = int(fraction[:3].ljust(3, "0"))
    return millis_of(datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC) + since - ahead) + millis


def _time_of_day(hour: int, minute: int, second: int) -> timedelta:
    """Return the time since midnight. 24:00:00 and leap seconds are valid. Raise ValueError for an invalid time."""
    since = timedelta(hours=hour, minutes=minute, seconds=second)
    if minute > 59 or second > 60 or (hour > 23 and since != timedelta(days=1)):
        raise ValueError
    return since


def millis_of(moment: datetime) -> int:
    """Return the milliseconds from the epoch to a datetime that has a zone."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DateTime(_TimeInField):
    """A time in a field, written by a Java date pattern in a time zone. A number counts as the text of its digits."""

    expression: str
    """A regular expression made by :func:`~tieredstore.pipelines.filing.directories.date_expression`."""
    zone: str = "UTC"

    def __call__(self, payload: bytes) -> int:
        """Return the time in ms."""
        content = self.field.of(payload)
        if isinstance(content, int) and not isinstance(content, bool):
            content = str(content)
        if not isinstance(content, str):
            raise BadMessageError(f"its field {self.field.name} is not a text")
        try:
            if (match := re.match(self.expression, content)) is not None:
                return self._millis(match.groupdict())
        except (ValueError, OverflowError):
            pass
        raise BadMessageError(f"its field {self.field.name} does not match message.timestamp.input.pattern")

    def _millis(self, fields: Mapping[str, str]) -> int:
        year = int(fields.get("yyyy") or _full_year(fields.get("yy", "0")))
        month, day = int(fields.get("MM", 1)), int(fields.get("dd", 1))
        hour, minute, second = (int(fields.get(unit, 0)) for unit in ("HH", "mm", "ss"))
        day_start = datetime(year, month, day, tzinfo=ZoneInfo(self.zone))
        return millis_of((day_start + _time_of_day(hour, minute, second)).astimezone(UTC))


def _full_year(text: str) -> int:
    """Return the year for the text of a ``yy`` field. Two digits mean 1950 to 2049. Any other number is the year
    itself.

    Java instead chooses a year from 80 years before the current time to 20 years after it. A message would then get
    another directory if it were written in a later year.
    """
    year = int(text)
    if len(text.strip()) != 2:
        return year
    return year + (1900 if year >= 50 else 2000)


@dataclass(frozen=True, slots=True)
class RegexTime(Time):
    """A time since the epoch, in the first group of a regular expression. The expression may match anywhere in the
    value."""

    pattern: str

    def __call__(self, payload: bytes) -> int:
        """Return the time in ms."""
        match = re.search(self.pattern.encode(), payload)
        # The group may be optional, and then match nothing.
        digits = b"" if match is None else match[1] or b""
        number = _whole_number(digits.decode("ascii", "replace").removeprefix("+"), is_strict=True)
        if number is None:
            raise BadMessageError("its value does not match message.timestamp.input.pattern")
        return to_millis(number)


def to_millis(number: int) -> int:
    """Convert a time of unknown unit to ms. As in Secor, the number's size decides between ns, us, ms and s."""
    if number >= 10**18:
        return number // 10**6
    if number >= 10**15:
        return number // 10**3
    return number if number >= 10**12 else number * 1000


def json_times(values: pa.Array, path: Sequence[str]) -> pa.Array | None:
    """Return the times at ``path`` in a column of JSON values, in ms since the epoch.

    This fast parser finds a time only if ``json.loads`` would accept the value, and each name of the path occurs once.
    Otherwise, the time is null.
    """
    rows = len(values)
    ends, data = values.buffers()[1:] if rows and pa.types.is_binary(values.type) else (None, None)
    if ends is None or data is None:
        return None
    valid, times, known = values.buffers()[0], bytearray(8 * rows), bytearray(-(-rows // 8))
    try:
        names = [name.encode() for name in path]
    except UnicodeEncodeError:
        return None
    epoch_millis(
        memoryview(ends).cast("i"), memoryview(data).cast("B"), None if valid is None else memoryview(valid).cast("B"),
        values.offset, rows, names, memoryview(times).cast("q"), known,
    )  # fmt: skip
    return pa.Array.from_buffers(pa.int64(), rows, [pa.py_buffer(known), pa.py_buffer(times)])
