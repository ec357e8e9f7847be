"""Records as lines: for a person, and for scripts."""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.terminal.output import JsonValue, iso_utc
from tieredstore.cli.terminal.tables import Column, number, text, word

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


class JsonBytes(enum.Enum):
    """How keys, values and the values of headers stand in JSON, which has no bytes."""

    BASE64 = "base64"
    TEXT = "text"
    BOTH = "both"


def rows_of(records: pa.RecordBatch, columns: Sequence[str] = SHOWN) -> Iterator[dict[str, Any]]:
    """Each record as a map of these columns."""
    untyped: Any = records
    values: list[Sequence[Any]] = [untyped.column(name).to_pylist() for name in columns]
    # Without columns there are as many rows all the same.
    rows = zip(*values, strict=True) if values else ((),) * records.num_rows
    return (dict(zip(columns, row, strict=True)) for row in rows)


def json_lines(
    records: pa.RecordBatch, partition: int | None, *, topic: str | None = None, coding: JsonBytes = JsonBytes.BOTH
) -> Iterator[str]:
    """A JSON object for each record; without ``topic`` and ``partition`` where they are None."""
    known: dict[str, JsonValue] = {"topic": topic, "partition": partition}
    place = {name: value for name, value in known.items() if value is not None}
    for row in rows_of(records):
        headers: list[JsonValue] = [
            {"key": header["key"], **_encode("value", header["value"], coding)} for header in row["headers"] or ()
        ]
        yield (
            json.dumps(
                {
                    **place,
                    "offset": row["offset"],
                    "timestamp_ms": row["timestamp"],
                    "timestamp": iso_utc(row["timestamp"]),
                    "timestamp_type": row["timestampType"],
                    "bytes": coding.value,
                    **_encode("key", row["key"], coding),
                    **_encode("value", row["value"], coding),
                    "headers": headers,
                }
            )
            + "\n"
        )


def table_cells(row: Mapping[str, Any], partition: str, offset_width: int = 0) -> list[str]:
    """The cells of one record, for the columns of ``TABLE``; offsets of one width stand below each other."""
    time = "-" if row["timestamp"] is None else iso_utc(row["timestamp"]) or str(row["timestamp"])
    headers = "".join(f"  {header['key']}={shown_text(header['value'])}" for header in row["headers"] or ())
    # Files of others have values alone.
    offset = ("-" if row["offset"] is None else str(row["offset"])).rjust(offset_width)
    return [partition, offset, time, shown_text(row["key"]), shown_text(row["value"]) + headers]


def shown_text(data: bytes | None) -> str:
    """Text as it is, anything else in hexadecimal."""
    if data is None:
        return "null"
    decoded = _text(data)
    return f"0x{data.hex()}" if decoded is None else decoded


def _encode(name: str, data: bytes | None, coding: JsonBytes) -> dict[str, str | None]:
    """``name`` has the bytes in base64, ``name_text`` the same as text.

    Beside base64 the text is null where the bytes are none; asked for alone it is replaced by base64 there.
    """
    coded = None if data is None else base64.b64encode(data).decode("ascii")
    if coding is JsonBytes.BASE64:
        return {name: coded}
    decoded = None if data is None else _text(data)
    if coding is JsonBytes.BOTH:
        return {name: coded, f"{name}_text": decoded}
    return {name: coded} if data is not None and decoded is None else {f"{name}_text": decoded}


def _text(data: bytes) -> str | None:
    """None for what is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
