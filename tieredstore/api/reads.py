"""Rows of a read or a query: an Arrow stream that converts to frames, files, or single records."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tieredstore.api.rows import time_of
from tieredstore.errors import AlreadyClosedError, ConfigError
from tieredstore.process.closing import Closing
from tieredstore.process.whole_files import whole_file
from tieredstore.query.writers import writer_for
from tieredstore.values.json_text import is_json, json_values

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from tieredstore.reading.omitted_records import LeftOut
    from tieredstore.records.arrow_stream import ArrowStream


@dataclass(frozen=True, slots=True)
class Record:
    """One record. The options of the read determine the types of key, value and headers.

    ``timestamp`` is None if it is outside Python's calendar, which ends with the year 9999.
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    timestamp_type: int | None
    key: Any
    value: Any
    headers: Any
    leader_epoch: int | None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class Read(Closing):
    """Rows that are read once, on demand. Exhaust the read, or close it.

    A read is an Arrow stream (``__arrow_c_stream__``): pyarrow, pandas, Polars, DuckDB and others accept it directly.
    Iterating yields records, or mappings for a query's rows.

    Only a regular end means that there are no more rows. A closed read raises AlreadyClosedError, and a failed read
    raises its error again each time.

    Example::

        with bucket.read("orders", columns=["offset", "timestamp"]) as read:
            for batch in read.batches():
                print(batch.num_rows, batch.column("offset")[-1])
    """

    def __init__(
        self,
        rows: ArrowStream,
        opened: contextlib.ExitStack,
        *,
        are_records: bool,
        left_out: LeftOut | None = None,
    ) -> None:
        self._rows = rows
        self._opened = opened
        self._are_records = are_records
        self._is_begun = False
        self._left_out = left_out

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self._rows.schema

    def left_out(self, *, asks: bool = True) -> list[str]:
        """Return sentences about records left out so far because they are not committed (in aborted or open
        transactions).

        If the bucket has a broker and ``asks`` is True, this method also asks the broker for open transactions.
        """
        return [] if self._left_out is None else self._left_out.sentences(asks=asks)

    @property
    def end_offset(self) -> int:
        """The greatest end offset of the logs at the time when the read began; 0 if this is a query's result."""
        return 0 if self._left_out is None else self._left_out.end_offset

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the rows in record batches; none is empty."""
        with self._reading():
            yield from self._rows

    def __iter__(self) -> Iterator[Any]:
        with contextlib.closing(self.batches()) as batches:
            for batch in batches:
                rows = _rows(batch, are_records=self._are_records)
                yield from map(_record, rows) if self._are_records else rows

    def to_arrow(self) -> pa.Table:
        """Return all rows as a pyarrow table."""
        with self._reading():
            table: pa.Table = self._rows.reader().read_all()
            return table

    def to_pandas(self) -> Any:
        """Return all rows as a pandas frame, with partitions as integers."""
        import pyarrow as pa  # noqa: PLC0415

        rows = self.to_arrow()
        for place, column in enumerate(rows.schema):
            # Convert partitions to integers, because pandas' categories have no order: `partition > 0` would be an
            # error.
            if pa.types.is_dictionary(column.type) and pa.types.is_integer(column.type.value_type):
                rows = rows.set_column(place, column.name, rows.column(place).cast(column.type.value_type))
        return rows.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars frame, with JSON as text."""
        from tieredstore.polars import frame_of  # noqa: PLC0415  needs the extra `polars`

        return frame_of(self.to_arrow())

    def write(self, path: str | Path) -> int:
        """Write all rows into a new file, complete or not at all, and return their number.

        The name's suffix selects the format (``orders.parquet``); ``query.writers.WRITERS`` lists all formats.
        """
        target = Path(path)
        write = writer_for(target)
        with self._reading(), whole_file(target) as file:
            return write(self._rows.reader(), file)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self._begin()
        return self._rows.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Close the read; further reading raises an error."""
        self._opened.close()

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        self._begin()
        try:
            yield
        finally:
            self.close()

    def _begin(self) -> None:
        if self._is_begun:
            raise AlreadyClosedError("the records of this read are already used up: iterate once, or call read() again")
        self._is_begun = True


def _rows(batch: pa.RecordBatch, *, are_records: bool) -> list[dict[str, Any]]:
    try:
        rows = batch.to_pylist()
    except OverflowError:  # a time outside Python's calendar
        rows = _without_times(batch, are_records=are_records)
    for column in batch.schema:
        if is_json(column.type):
            for row, value in zip(rows, json_values(batch.column(column.name)), strict=True):
                row[column.name] = value
    return rows


def _without_times(batch: pa.RecordBatch, *, are_records: bool) -> list[dict[str, Any]]:
    """Return records, with None for timestamps outside Python's calendar. Raise ConfigError for such times elsewhere,
    where None would be a wrong value.
    """
    try:
        names = [name for name in batch.schema.names if not are_records or name != "timestamp"]
        rows = batch.select(names).to_pylist()
    except OverflowError:
        raise ConfigError(
            "a time is outside Python's calendar, which ends with the year 9999: iterate over batches(), call "
            "to_arrow(), or select epoch_ms of the time"
        ) from None
    if len(names) < batch.num_columns:
        for row, time in zip(rows, batch.column("timestamp").view("int64").to_pylist(), strict=True):
            row["timestamp"] = time_of(time)
    return rows


def _record(row: dict[str, Any]) -> Record:
    return Record(
        row.get("topic", ""), row.get("partition", -1), row.get("offset", -1), row.get("timestamp"),
        row.get("timestamp_type"), row.get("key"), row.get("value"), row.get("headers"), row.get("leader_epoch"),
    )  # fmt: skip
