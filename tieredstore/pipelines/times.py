"""Times and other fields in values: where the parsers find them, and what is none."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, Self, cast
from zoneinfo import ZoneInfo

from tieredstore.pipelines.json_times import json_times
from tieredstore.pipelines.messagepack import unpacked

_INTEGER: Final = re.compile(r"-?\d{1,19}")


class BadMessage(ValueError):
    """Why a message cannot be filed; in words without its content."""


class Millis(int):
    """A time that is known to be in ms since the epoch."""

    __slots__ = ()


class Field(Protocol):
    """A field in values, wherever that is in them."""

    @property
    def name(self) -> str:
        """As the settings have it."""
        ...

    def for_topic(self, topic: str) -> Self:
        """The same in the values of a topic."""
        ...

    def of(self, payload: bytes) -> object:
        """The field's value, a :class:`Millis` where its unit is known; BadMessage where there is none."""
        ...


class Time(ABC):
    """Finds a time in values. Frozen, and picklable."""

    def for_topic(self, topic: str) -> Time:  # noqa: ARG002  for those that know schemas of topics
        """The same in the values of a topic; ConfigError where the settings do not say what these are."""
        return self

    @abstractmethod
    def __call__(self, payload: bytes) -> int:
        """In ms since the epoch; BadMessage where there is none."""

    def quick(self, values: Any) -> Any:  # noqa: ARG002  for those that know a quick way
        """The times of a column of values, null where only a call tells; None if that is so of all of them."""
        return None


@dataclass(frozen=True, slots=True)
class _TimeInField(Time, ABC):
    field: Field

    def for_topic(self, topic: str) -> Time:
        return replace(self, field=self.field.for_topic(topic))


@dataclass(frozen=True, slots=True)
class JsonField:
    """A field of JSON objects, by its name, or by several parted by ``separator`` where objects hold objects."""

    name: str
    separator: str = ""

    @property
    def path(self) -> list[str]:
        """The names that lead to it."""
        return self.name.split(self.separator) if self.separator else [self.name]

    def of(self, payload: bytes) -> object:
        """The field's value; BadMessage where there is none."""
        try:
            content: object = json.loads(payload)
        except (ValueError, RecursionError):
            raise BadMessage("its value is not JSON") from None
        for part in self.path:
            if not isinstance(content, dict):
                raise BadMessage(f"its value has no field {self.name}")
            content = cast("Mapping[str, object]", content).get(part)
        if content is None:
            raise BadMessage(f"its value has no field {self.name}")
        return content

    def for_topic(self, topic: str) -> JsonField:  # noqa: ARG002  JSON says itself what it is
        """The same."""
        return self


def _text_of(field: Field, payload: bytes) -> str:
    """The field's value, which must be a text."""
    content = field.of(payload)
    if not isinstance(content, str):
        raise BadMessage(f"its field {field.name} is no text")
    return content


@dataclass(frozen=True, slots=True)
class EpochTime(_TimeInField):
    """A time since the epoch, in s, ms, us or ns, in a field."""

    def quick(self, values: Any) -> Any:
        """Of whole numbers in JSON."""
        return json_times(values, self.field.path) if isinstance(self.field, JsonField) else None

    def __call__(self, payload: bytes) -> int:
        """In ms."""
        content = self.field.of(payload)
        if isinstance(content, Millis):
            return content
        if isinstance(content, str) and _INTEGER.fullmatch(content):
            content = int(content)
        if isinstance(content, float) and content == content and abs(content) < 2**63:
            content = int(content)
        if not isinstance(content, int) or isinstance(content, bool):
            raise BadMessage(f"its field {self.field.name} is no number since the epoch")
        return to_millis(content)


@dataclass(frozen=True, slots=True)
class MessagePackTime(Time):
    """A time since the epoch, in s, ms, us or ns, under a name in a map of MessagePack."""

    name: str

    def __call__(self, payload: bytes) -> int:
        """In ms."""
        try:
            content = unpacked(payload)
        except (ValueError, RecursionError):
            raise BadMessage("its value is not MessagePack") from None
        time = content.get(self.name) if isinstance(content, dict) else None
        if isinstance(time, str) and _INTEGER.fullmatch(time):
            time = int(time)
        if isinstance(time, float) and abs(time) < 2**63:
            time = int(time)
        if not isinstance(time, int) or isinstance(time, bool):
            raise BadMessage(f"its value has no field {self.name} with a number since the epoch")
        return to_millis(time)


@dataclass(frozen=True, slots=True)
class Iso8601Time(_TimeInField):
    """A date with a time by ISO 8601, in a field; without a zone it is in UTC."""

    def __call__(self, payload: bytes) -> int:
        """In ms."""
        content = _text_of(self.field, payload)
        try:
            moment = datetime.fromisoformat(content)
            return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise BadMessage(f"its field {self.field.name} is no date by ISO 8601") from None


@dataclass(frozen=True, slots=True)
class DateTime(_TimeInField):
    """A date in a format of the user's, in a field of JSON, in a zone."""

    format: str
    zone: str = "UTC"

    def __call__(self, payload: bytes) -> int:
        """In ms."""
        content = _text_of(self.field, payload)
        try:
            moment = datetime.strptime(content, self.format).replace(tzinfo=ZoneInfo(self.zone))
            return int(moment.timestamp() * 1000)
        except (ValueError, OverflowError):
            raise BadMessage(f"its field {self.field.name} is no date of the pattern") from None


@dataclass(frozen=True, slots=True)
class RegexTime(Time):
    """A time since the epoch in the first group of an expression that the value matches."""

    pattern: str

    def __call__(self, payload: bytes) -> int:
        """In ms."""
        match = re.search(self.pattern.encode(), payload)
        digits = match[1] if match is not None else None
        if digits is None or not re.fullmatch(rb"\d{1,19}", digits):
            raise BadMessage("its value does not match the expression of the time")
        return to_millis(int(digits))


def to_millis(number: int) -> int:
    """A time of unknown unit, as Secor takes it: by how large it is, ns, us, ms or s."""
    if number >= 10**18:
        return number // 10**6
    if number >= 10**15:
        return number // 10**3
    return number if number >= 10**12 else number * 1000
