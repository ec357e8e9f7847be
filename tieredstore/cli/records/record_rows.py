"""Records as rows of a table, and as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.terminal.output import iso_utc
from tieredstore.cli.terminal.tables import Column, number, text, word
from tieredstore.query.writers import cell_text, json_line

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of records that commands show."""

TABLE: Final[Sequence[Column]] = (
    number("PARTITION", rank=2),
    number("OFFSET"),
    word("TIMESTAMP", rank=1),
    text("KEY"),
    text("VALUE"),
)
"""The columns of a table of records."""


def rows_of(records: pa.RecordBatch, columns: Sequence[str] = SHOWN) -> Iterator[dict[str, Any]]:
    """Yield each record as a mapping from the names in ``columns`` to values."""
    values: list[Sequence[Any]] = [_values(records.column(name)) for name in columns]
    # Without columns, still yield one row per record.
    rows = zip(*values, strict=True) if values else ((),) * records.num_rows
    return (dict(zip(columns, row, strict=True)) for row in rows)


def json_lines(records: pa.RecordBatch, partition: int | None, *, topic: str | None = None) -> Iterator[str]:
    """Yield a JSON object for each record, one per line. ``topic`` and ``partition`` are omitted if None."""
    known: dict[str, object] = {"topic": topic, "partition": partition}
    place = {name: value for name, value in known.items() if value is not None}
    for row in rows_of(records):
        time = row["timestamp"]
        row["timestamp_type"] = row.pop("timestampType")
        yield json_line({**place, **row, "timestamp": iso_utc(time) or time})


def table_cells(row: Mapping[str, Any], partition: str, offset_width: int = 0) -> list[str]:
    """Return the cells of a record, for the columns of ``TABLE``. ``offset_width`` aligns offsets."""
    time = "-" if row["timestamp"] is None else iso_utc(row["timestamp"]) or str(row["timestamp"])
    headers = "".join(f"  {header['key']}={shown_text(header['value'])}" for header in row["headers"] or ())
    # Show a dash for an unknown offset, because files of other tools may contain only values.
    offset = ("-" if row["offset"] is None else str(row["offset"])).rjust(offset_width)
    return [partition, offset, time, shown_text(row["key"]), shown_text(row["value"]) + headers]


def _values(column: pa.Array) -> Sequence[Any]:
    # Read times as milliseconds, because a record's time may be beyond Python's calendar.
    values: Sequence[Any] = (column.view("int64") if str(column.type).startswith("timestamp") else column).to_pylist()
    return values


def shown_text(data: object) -> str:
    """Return text unchanged, other bytes in hexadecimal, and structured values as JSON."""
    return cell_text(data, null="null")
