"""Transformers: user code that changes or drops records before a parser chooses their directories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

from tieredstore.config.named_class import import_named
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.pipelines.filing.times import BadMessageError

_SETTING: Final = "secor.message.transformer.class"
_CHANGED: Final = ("key", "value", "headers")
"""Columns that a transformer may change. It cannot change offsets and timestamps."""

_OF_BATCHES: Final = "_tieredstore_of_batches"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Message:
    """A record as a transformer gets it. Use ``dataclasses.replace`` to change key, value or headers."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Transformer(ABC):
    """Base class of transformers of Arrow batches. The constructor of a subclass takes no arguments. The same records
    must give the same result.
    """

    @abstractmethod
    def transform(self, records: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the rows to write, in order of ``offset``, with new ``key``, ``value`` and ``headers``.

        Return None to drop all rows. The pipeline ignores changes to ``timestamp`` and ``timestampType``.
        """


class MessageTransformer(ABC):
    """Base class of transformers of single messages. The constructor of a subclass takes no arguments, and a subclass
    keeps no state."""

    @abstractmethod
    def transform(self, message: Message) -> Message | None:
        """Return the message to write, or None to drop it.

        To quarantine the message, raise BadMessageError. Any other exception, such as ValueError or KeyError, has the
        same effect.
        """


def of_batches(function: _Function) -> _Function:
    """Mark a function as a transformer of Arrow batches, like :meth:`Transformer.transform`."""
    setattr(function, _OF_BATCHES, True)
    return function


@dataclass(frozen=True, slots=True)
class Transformed:
    """Result of transforming a batch: the remaining rows, and the number of dropped rows. ``faults`` has the reasons
    why rows are bad, by row number."""

    records: pa.RecordBatch
    filtered: int
    faults: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Transforming:
    """Caller of the transformer that the settings name as ``module:name``. Picklable."""

    name: str

    def __post_init__(self) -> None:
        self._function()

    def apply(self, records: pa.RecordBatch, topic: str, partition: int) -> Transformed:
        """Transform a batch. Raise ConfigError if the transformer invents or reorders offsets."""
        function, is_of_batches = self._function()
        if not is_of_batches:
            return self._one_by_one(records, function, topic, partition)
        try:
            return self._whole(records, function)
        except TieredStoreError:
            raise
        except Exception:  # noqa: BLE001  user code; find the bad rows one by one
            return self._row_by_row(records, function)

    def _function(self) -> tuple[Callable[..., Any], bool]:
        known: Any = import_named(_SETTING, self.name, "which cannot be imported")
        if isinstance(known, type) and issubclass(known, Transformer | MessageTransformer):
            return known().transform, issubclass(known, Transformer)
        if isinstance(known, type) or not callable(known):
            raise ConfigError(f"{_SETTING} is {self.name!r:.120}, not a function or a transformer")
        return known, bool(getattr(known, _OF_BATCHES, False))

    def _whole(self, records: pa.RecordBatch, function: Callable[..., Any]) -> Transformed:
        changed: pa.RecordBatch | None = function(records)
        if changed is None or changed.num_rows == 0:
            return Transformed(records.slice(0, 0), records.num_rows, {})
        places = {offset: row for row, offset in enumerate(records.column("offset").to_pylist())}
        offsets: list[int] = changed.column("offset").to_pylist()
        rows = [places.get(offset, -1) for offset in offsets]
        if -1 in rows or any(one >= other for one, other in pairwise(rows)):
            raise ConfigError(f"{_SETTING}, {self.name}, must return only offsets of its input, in the same order")
        kept = records.take(pa.array(rows))
        arrays = {name: changed.column(name).cast(kept.schema.field(name).type) for name in _CHANGED}
        return Transformed(_replace(kept, arrays), records.num_rows - len(rows), {})

    def _row_by_row(self, records: pa.RecordBatch, function: Callable[..., Any]) -> Transformed:
        kept: list[pa.RecordBatch] = []
        faults: dict[int, str] = {}
        for row in range(records.num_rows):
            try:
                kept.append(self._whole(records.slice(row, 1), function).records)
            except TieredStoreError:
                raise
            except Exception as error:  # noqa: BLE001  user code can raise anything
                faults[row] = _reason(error)
        whole = pa.concat_batches(kept) if kept else records.slice(0, 0)
        return Transformed(whole, records.num_rows - whole.num_rows - len(faults), faults)

    def _one_by_one(
        self, records: pa.RecordBatch, function: Callable[..., Any], topic: str, partition: int
    ) -> Transformed:
        kept: list[int] = []
        changed: list[Message] = []
        faults: dict[int, str] = {}
        names = ("offset", "timestamp", "key", "value", "headers")
        for row, (offset, time, key, value, headers) in enumerate(
            zip(*(records.column(name).to_pylist() for name in names), strict=True)
        ):
            pairs = tuple((header["key"], header["value"]) for header in headers or ())
            message = Message(topic, partition, offset, time, key, value, pairs)
            try:
                outcome = function(message)
            except Exception as error:  # noqa: BLE001  user code can raise anything
                faults[row] = _reason(error)
                continue
            if outcome is None:
                continue
            if not isinstance(outcome, Message) or outcome.offset != offset:
                raise ConfigError(f"{_SETTING}, {self.name}, must return None or the message with its offset")
            kept.append(row)
            # Keep null headers null if the transformer adds no headers.
            changed.append(outcome if outcome.headers or headers else replace(outcome, headers=()))
        batch = self._columns(records, kept, changed)
        return Transformed(batch, records.num_rows - len(kept) - len(faults), faults)

    def _columns(self, records: pa.RecordBatch, kept: list[int], changed: list[Message]) -> pa.RecordBatch:
        rows = records.take(pa.array(kept, pa.int64()))
        was_null = rows.column("headers").is_null().to_pylist()
        headers = [
            None if is_null and not one.headers else [{"key": key, "value": value} for key, value in one.headers]
            for one, is_null in zip(changed, was_null, strict=True)
        ]
        contents: dict[str, Sequence[object]] = {
            "key": [one.key for one in changed],
            "value": [one.value for one in changed],
            "headers": headers,
        }
        try:
            arrays = {name: pa.array(content, rows.schema.field(name).type) for name, content in contents.items()}
        except (pa.ArrowException, TypeError):
            raise ConfigError(f"{_SETTING}, {self.name}, must return bytes or None as keys and values") from None
        return _replace(rows, arrays)


def _replace(rows: pa.RecordBatch, arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
    columns = [arrays.get(name, rows.column(name)) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _reason(error: Exception) -> str:
    """Return the reason why a message is quarantined, as a text that does not contain the message."""
    if isinstance(error, BadMessageError):
        return str(error)
    return f"its transformer failed with {type(cast('object', error)).__name__}"
