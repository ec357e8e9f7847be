"""Rows of a read or a query: an Arrow stream, which becomes a frame of any library, a file, or records one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tieredstore.errors import AlreadyClosedError
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
    """One record; key, value and headers are what the read was told to make of them."""

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
    """Rows that are read once, as they are asked for: exhaust it, or close it.

    It is an Arrow stream (``__arrow_c_stream__``): pyarrow, pandas, Polars, DuckDB and others take it as it is.
    Iterating gives records, of a query rows as mappings. Only its end means that there is no more: a read that was
    closed raises AlreadyClosedError, one that failed its error, again and again.
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
        """That of all batches."""
        return self._rows.schema

    def left_out(self, *, asks: bool = True) -> list[str]:
        """What was left out of what was read so far, since nobody has committed it: aborted and open transactions.

        A sentence for each. ``asks=False``: the broker, if there is one, is not asked what it holds back.
        """
        return [] if self._left_out is None else self._left_out.sentences(asks=asks)

    @property
    def end_offset(self) -> int:
        """Where the log ended that reaches furthest of those that are read, when it began; of a query 0."""
        return 0 if self._left_out is None else self._left_out.end_offset

    def batches(self) -> Generator[pa.RecordBatch]:
        """The rows in record batches, without empty ones."""
        with self._reading():
            yield from self._rows

    def __iter__(self) -> Iterator[Any]:
        with contextlib.closing(self.batches()) as batches:
            for batch in batches:
                rows = _rows(batch)
                yield from map(_record, rows) if self._are_records else rows

    def to_arrow(self) -> pa.Table:
        """All of it as a table of pyarrow's."""
        with self._reading():
            table: pa.Table = self._rows.reader().read_all()
            return table

    def to_pandas(self) -> Any:
        """All of it as a frame of pandas'."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All of it as a frame of Polars', in which JSON is text."""
        from tieredstore.polars import frame_of  # noqa: PLC0415  of the extra `polars`

        return frame_of(self.to_arrow())

    def write(self, path: str | Path) -> int:
        """Write all of it into a new file, whole or not at all, and return how many rows there are.

        Its name ends with a format, as in ``orders.parquet``; ``query.writers.WRITERS`` lists all formats.
        """
        target = Path(path)
        write = writer_for(target)
        with self._reading(), whole_file(target) as file:
            return write(self._rows.reader(), file)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self._begin()
        return self._rows.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End it; the rest of what was asked for is an error."""
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
            raise AlreadyClosedError("this read was read before: read to its end, or call read() again")
        self._is_begun = True


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    untyped: Any = batch
    rows: list[dict[str, Any]] = batch.to_pylist()
    for column in untyped.schema:
        if is_json(column.type):
            for row, value in zip(rows, json_values(untyped.column(column.name)), strict=True):
                row[column.name] = value
    return rows


def _record(row: dict[str, Any]) -> Record:
    return Record(
        row.get("topic", ""), row.get("partition", -1), row.get("offset", -1), row.get("timestamp"),
        row.get("timestamp_type"), row.get("key"), row.get("value"), row.get("headers"), row.get("leader_epoch"),
    )  # fmt: skip
