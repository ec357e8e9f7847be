"""Parsers, which choose the directory of each record. A record for which the parser finds no directory is quarantined
with a reason."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import ConfigError
from tieredstore.pipelines.filing.directories import MINUTE_MS, WHOLE_MINUTES_MS, TimeDirectories, escape, is_path
from tieredstore.pipelines.filing.times import BadMessageError, Field, Time

__all__ = ["BadMessageError", "FieldParser", "Filed", "MessageParser", "OffsetParser", "Parser", "TimeParser"]


_NO_DIRECTORY: Final = "its time is missing, or outside the years that directories can have"
_STRAY: Final = "its parser returned an invalid directory: a part is empty, . or .., or has a backslash"


@dataclass(slots=True)
class Filed:
    """Directories of the rows of a batch. ``codes`` has each row's index into ``directories``; bad rows have index -1
    and a reason."""

    directories: list[str] = field(default_factory=list[str])
    codes: list[int] = field(default_factory=list[int])
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    _numbers: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, directory: str) -> None:
        """Put the next row into a directory."""
        code = self._numbers.get(directory)
        if code is None:
            code = self._numbers[directory] = len(self.directories)
            self.directories.append(directory)
        self.codes.append(code)

    def add_run(self, directory: str, rows: int) -> None:
        """Put the next ``rows`` rows into a directory."""
        self.add(directory)
        self.codes.extend(self.codes[-1:] * (rows - 1))

    def put_aside(self, reason: str) -> None:
        """Mark the next row as bad."""
        self.reasons[len(self.codes)] = reason
        self.codes.append(-1)

    def put_aside_strays(self) -> None:
        """Mark rows as bad if their directory would be outside the topic's directory."""
        strays = {code for code, directory in enumerate(self.directories) if not is_path(directory)}
        for row, code in enumerate(self.codes if strays else ()):
            if code in strays:
                self.codes[row], self.reasons[row] = -1, _STRAY


class Parser(ABC):
    """Parser that chooses directories for records. Frozen, picklable and stateless: the same records always get the
    same directories.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Parser:
        """Return an instance of this class, if it is a user's own parser. ``options`` are the settings ``parser.*``
        without that prefix.

        Unless a class overrides this method, it accepts no options. Raises ConfigError for unknown or unusable options.
        """
        for name in options:
            raise ConfigError(f"parser.{name} is set, but {cls.__module__}:{cls.__qualname__} has no options")
        return cls()

    @abstractmethod
    def file(self, records: pa.RecordBatch) -> Filed:
        """Return the directories of the records, relative to the topic's directory."""

    def period(self, directory: str) -> tuple[str, int] | None:  # noqa: ARG002  for parsers by time
        """Return the directory of the period (day, hour or minute), and the period's end in ms since the epoch.

        The period's directory is ``directory`` itself or a parent of it. The object ``_SUCCESS`` is written there once
        the period is complete. Return None if the directory has no period.
        """
        return None

    def for_topic(self, topic: str) -> Parser:  # noqa: ARG002  for subclasses with schemas
        """Return the parser for a topic; raise ConfigError if the settings do not describe its records."""
        return self


class MessageParser(Parser):
    """Base class of users' parsers of single messages. The settings name a parser as ``module:Class``."""

    @abstractmethod
    def parts(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int
    ) -> Sequence[tuple[str, str]]:
        """Return the directories of a message, outermost first, as pairs of a prefix such as ``dt=`` and a text.

        The caller escapes the texts, so that a message cannot choose another path. To quarantine a message, raise
        BadMessageError. Other exceptions, such as ValueError or KeyError, have the same effect.
        """

    def file(self, records: pa.RecordBatch) -> Filed:
        """Choose the directory of each row by ``parts``."""
        filed = Filed()
        columns = [records.column(name).to_pylist() for name in ("key", "value", "timestamp", "offset")]
        for row in zip(*columns, strict=True):
            try:
                directory = "/".join(escape(text, prefix) for prefix, text in self.parts(*row))
            except BadMessageError as bad:
                filed.put_aside(str(bad))
            except ConfigError:
                raise  # a wrong setting does not make single messages bad
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
                # Name only the error's class, because the error's text may contain the message.
                filed.put_aside(f"its parser failed with {type(error).__name__}")
            else:
                filed.add(directory)
        return filed


@dataclass(frozen=True, slots=True)
class OffsetParser(Parser):
    """Parser that gives each range of offsets a directory, as for a backup."""

    per_directory: int = 10_000_000
    prefix: str = "base_offset="

    def file(self, records: pa.RecordBatch) -> Filed:
        """Choose directories by offset alone; no record is bad."""
        filed = Filed()
        numbers = pc.divide(records.column("offset"), self.per_directory)
        for number, rows in runs_of(numbers):
            filed.add_run(f"{self.prefix}{number * self.per_directory}", rows)
        return filed

    def directory(self, offset: int) -> str:
        """Return the directory of an offset."""
        return f"{self.prefix}{offset // self.per_directory * self.per_directory}"


@dataclass(frozen=True, slots=True)
class TimeParser(Parser):
    """Parser that chooses directories by the record's timestamp, or by a time in its value. ``by_offset`` splits each
    directory by offset.
    """

    directories: TimeDirectories
    time_of: Time | None = None
    """Function that reads the time from the value. None means the record's timestamp."""
    by_offset: OffsetParser | None = None

    def file(self, records: pa.RecordBatch) -> Filed:
        """Choose the directories. All rows of a minute have the same directory, so choose it once per minute."""
        filed = Filed()
        times = records.column("timestamp") if self.time_of is None else self.time_of.quick(records.column("value"))
        if times is None:
            times = pa.nulls(records.num_rows, pa.int64())
        within = pc.and_(pc.greater_equal(times, WHOLE_MINUTES_MS), pc.less(times, self.directories.last_ms))
        minutes = pc.if_else(within, pc.divide(times, MINUTE_MS), None)
        directory_of = functools.cache(self.directories.of_second)
        at = 0
        for minute, rows in runs_of(minutes):
            if minute is None or self.by_offset is not None:
                self._file_one_by_one(filed, records.slice(at, rows), directory_of)
            else:
                filed.add_run(directory_of(minute * 60), rows)
            at += rows
        return filed

    def _file_one_by_one(self, filed: Filed, records: pa.RecordBatch, directory_of: Callable[[int], str]) -> None:
        offsets = records.column("offset").to_pylist()
        for row, time_ms in enumerate(self._times(records)):
            second = None if isinstance(time_ms, str) else self.directories.second_of(time_ms)
            if second is None:
                filed.put_aside(time_ms if isinstance(time_ms, str) else _NO_DIRECTORY)
                continue
            directory = directory_of(second)
            if self.by_offset is not None:
                directory = f"{directory}/{self.by_offset.directory(offsets[row])}"
            filed.add(directory)

    def period(self, directory: str) -> tuple[str, int] | None:
        """Return the period's directory and end. If directories are split by offset, the period's directory is the
        parent.
        """
        path = directory if self.by_offset is None else directory.rpartition("/")[0]
        ends_ms = self.directories.end_ms(path)
        return None if ends_ms is None else (path, ends_ms)

    def for_topic(self, topic: str) -> TimeParser:
        """Return the parser with the schemas of the topic."""
        return self if self.time_of is None else replace(self, time_of=self.time_of.for_topic(topic))

    def _times(self, records: pa.RecordBatch) -> list[int | str]:
        """Return each row's time, or the reason why it has none."""
        if self.time_of is None:
            return [time_ms if time_ms > 0 else _NO_DIRECTORY for time_ms in records.column("timestamp").to_pylist()]
        times: list[int | str] = []
        for value in records.column("value").to_pylist():
            try:
                times.append(self.time_of(_some(value)))
            except BadMessageError as bad:
                times.append(str(bad))
        return times


@dataclass(frozen=True, slots=True)
class FieldParser(Parser):
    """Parser that chooses directories by a field of the value, and directories below them by a time in the value."""

    field: Field
    directories: TimeDirectories
    time_of: Time
    prefix: str = ""

    def file(self, records: pa.RecordBatch) -> Filed:
        """Choose the directory of each row."""
        filed = Filed()
        for value in records.column("value").to_pylist():
            try:
                payload = _some(value)
                filed.add(f"{self._name(payload)}/{self.directories.of_second(self._second(payload))}")
            except BadMessageError as bad:
                filed.put_aside(str(bad))
        return filed

    def period(self, directory: str) -> tuple[str, int] | None:
        """Return the directory and the end of its period. The path below the field's directory names the period."""
        ends_ms = self.directories.end_ms(directory.partition("/")[2])
        return None if ends_ms is None else (directory, ends_ms)

    def for_topic(self, topic: str) -> FieldParser:
        """Return the parser with the schemas of the topic."""
        return replace(self, field=self.field.for_topic(topic), time_of=self.time_of.for_topic(topic))

    def _second(self, payload: bytes) -> int:
        second = self.directories.second_of(self.time_of(payload))
        if second is None:
            raise BadMessageError(_NO_DIRECTORY)
        return second

    def _name(self, payload: bytes) -> str:
        content = self.field.of(payload)
        if not isinstance(content, str | int) or isinstance(content, bool):
            raise BadMessageError(f"its field {self.field.name} is neither a text nor a whole number")
        try:
            return escape(str(content), self.prefix)
        except ValueError as error:
            raise BadMessageError(f"its field {self.field.name} cannot be a directory: {error}") from None


def runs_of(numbers: Any) -> Iterator[tuple[Any, int]]:
    """Yield each run of equal numbers in a column: the number, and the length of the run."""
    if len(numbers):
        runs = pc.run_end_encode(numbers)
        ends = cast("list[int]", runs.run_ends.to_pylist())
        for number, start, stop in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False):
            yield number, stop - start


def _some(value: bytes | None) -> bytes:
    if value is None:
        raise BadMessageError("its value is null")
    return value
