"""Decoded rows on their way from a reader to the caller, and how many of them were taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tieredstore.kafka.arrow_values import repeated

# What its type stubs say of arrays is partial.
arrow: Any = pa


class ConsumedRecord(NamedTuple):
    """One record and its place. ``timestamp`` in ms; None where the format has none."""

    partition: int
    offset: int
    message: int
    record: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    message_id: bytes | None
    timestamp: int | None


@dataclass(slots=True)
class RowsAtHand:
    """Rows of one batch in their order, with their places. A row that was taken is never given again."""

    rows: Any
    taken: int = 0
    _records: Iterator[ConsumedRecord] | None = None

    @property
    def are_left(self) -> bool:
        """Whether there are rows that were not taken."""
        return self.taken < int(self.rows.num_rows)

    def take(self) -> ConsumedRecord:
        """Take the next row."""
        if self._records is None:
            self._records = _records_of(self.rows.slice(self.taken))
        record = next(self._records)
        self.taken += 1
        return record

    def rest(self) -> pa.RecordBatch:
        """Take all rows that are left."""
        rest: pa.RecordBatch = self.rows.slice(self.taken) if self.taken else self.rows
        self.taken = self.rows.num_rows
        return rest


def with_places(rows: Any, partition: int, offset: int) -> Any:
    """The same rows with columns for their partition and offset."""
    columns = [
        *rows.columns,
        repeated(partition, rows.num_rows, arrow.int32()),
        repeated(offset, rows.num_rows, arrow.int64()),
    ]
    return arrow.RecordBatch.from_arrays(columns, names=[*rows.schema.names, "partition", "offset"])


def _records_of(rows: Any) -> Iterator[ConsumedRecord]:
    for row in rows.to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row.pop("headers") or ())
        yield ConsumedRecord(headers=headers, **row)
