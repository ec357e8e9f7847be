"""Writes Arrow rows to files: Parquet, Arrow, CSV and JSON lines.

The commands' help names the formats, so importing this module loads neither pyarrow nor other slow libraries.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, Protocol, TypeAlias, cast

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_NS: Final = 10**9
_A_SECOND: Final[Mapping[str | None, int]] = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


class BatchRows(Protocol):
    """Batches of rows with one schema, which can be read once: a pyarrow reader, or a stream of this package.

    Topic and partition are dictionary columns, and JSON is an extension type. A writer whose format lacks these types
    must cast them.
    """

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        ...


Writer: TypeAlias = Callable[[BatchRows, BinaryIO], int]
"""A function that writes all rows of a reader and returns their number."""


def write_parquet(reader: BatchRows, file: BinaryIO) -> int:
    """Write Parquet, compressed by zstd."""
    import pyarrow.parquet as pq  # noqa: PLC0415  see above

    rows = 0
    try:
        writer = pq.ParquetWriter(file, reader.schema, compression="zstd")
    except NotImplementedError:
        raise _without_type(reader.schema) from None
    with writer:
        for batch in reader:
            rows += batch.num_rows
            writer.write_batch(batch)
    return rows


def _without_type(schema: pa.Schema) -> ConfigError:
    import pyarrow as pa  # noqa: PLC0415  see above
    import pyarrow.parquet as pq  # noqa: PLC0415

    for column in schema:
        try:
            pq.ParquetWriter(io.BytesIO(), pa.schema([column])).close()
        except NotImplementedError:
            return ConfigError(
                f"Parquet has no type for the column {column.name}, {column.type}: CAST it in the query, or write "
                "another format"
            )
    return ConfigError("Parquet has no type for one of the columns: write another format")


def write_arrow(reader: BatchRows, file: BinaryIO) -> int:
    """Write an Arrow file (Feather, version 2), compressed by zstd."""
    from pyarrow import ipc  # noqa: PLC0415  see above

    rows = 0
    with ipc.new_file(file, reader.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        for batch in reader:
            rows += batch.num_rows
            writer.write_batch(batch)
    return rows


def write_csv(reader: BatchRows, file: BinaryIO) -> int:
    """Write a line of column names, and a line per row. Null becomes empty text, and nested values become JSON."""
    import csv  # noqa: PLC0415  see above

    writer = csv.writer(_Text(file), lineterminator="\n")
    writer.writerow(reader.schema.names)
    rows = 0
    for cells in cells_of(reader):
        writer.writerow([cell_text(value, null="") for value in cells])
        rows += 1
    return rows


def write_json_lines(reader: BatchRows, file: BinaryIO) -> int:
    """Write one JSON object per row.

    Times and durations are ISO 8601. Bytes are text, or ``0x…`` if they are not UTF-8. NaN and infinities are text. A
    map is an object if its keys are text or whole numbers. JSON values are written as JSON, not as text.
    """
    names = reader.schema.names
    rows = 0
    for cells in cells_of(reader, parses_json=True):
        _write(file, json_line(dict(zip(names, cells, strict=True))).encode())
        rows += 1
    return rows


@dataclass(frozen=True, slots=True)
class RowFormat:
    """A file format: the function that writes rows, and facts about the file for commands."""

    write: Writer
    is_binary: bool
    """True for a binary format, which commands write to a terminal only with ``-o -``."""
    takes_equal_names: bool = False
    """True if the format can have two columns of the same name."""
    other_endings: tuple[str, ...] = ()
    """Further file name suffixes of the format. Its name is a suffix too."""


WRITERS: Final[Mapping[str, RowFormat]] = {
    "parquet": RowFormat(write_parquet, is_binary=True),
    "arrow": RowFormat(write_arrow, is_binary=True),
    "csv": RowFormat(write_csv, is_binary=False, takes_equal_names=True),
    "jsonl": RowFormat(write_json_lines, is_binary=False, other_endings=(".json",)),
}
"""All file formats by name, which is also the suffix of file names. To add a format, add its function and a row here.
"""


def format_of(path: Path) -> str | None:
    """Return the format of the file name's suffix, in upper or lower case; None for another suffix."""
    ending = path.suffix.lower()
    return next((name for name, row in WRITERS.items() if ending in (f".{name}", *row.other_endings)), None)


def writer_for(path: Path) -> Writer:
    """Return the writer for the file name's suffix. Raise ConfigError for an unknown suffix."""
    name = format_of(path)
    if name is None:
        raise ConfigError(f"{str(path)!r:.120} has no known ending: name it {endings_text()}")
    return WRITERS[name].write


def formats_text() -> str:
    """Return the names of all formats as a phrase: "parquet, ... or jsonl"."""
    return _one_of(WRITERS)


def endings_text() -> str:
    """Return the suffixes of all formats as a phrase."""
    return _one_of(f".{name}" for name in WRITERS)


def _one_of(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def cells_of(reader: BatchRows, *, parses_json: bool = False) -> Iterator[tuple[object, ...]]:
    """Yield the values of each row. JSON is yielded as text or, with ``parses_json``, as parsed objects."""
    for batch in reader:
        # Take columns by position, because two columns of a query may have the same name.
        yield from zip(*(_cells(column, parses_json) for column in batch.columns), strict=True)


def _cells(column: pa.Array, parses_json: bool) -> list[object]:
    from pyarrow import types  # noqa: PLC0415  see above

    from tieredstore.values.json_text import is_json, json_values  # noqa: PLC0415  needs pyarrow

    if parses_json and is_json(column.type):
        return json_values(column)
    maps = [kind for kind in _types_in(column.type) if types.is_map(kind)]
    # Text and whole numbers can be names in a JSON object. Maps with other keys become lists of pairs.
    is_plain = maps and all(types.is_string(kind.key_type) or types.is_integer(kind.key_type) for kind in maps)
    cells = _python(column, "strict" if is_plain else None)
    if any(types.is_interval(kind) for kind in _types_in(column.type)):
        cells = [_with_durations(cell) for cell in cells]
    return cells


def _types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for number in range(kind.num_fields):
        yield from _types_in(kind.field(number).type)


def _python(column: pa.Array, maps: Literal["strict"] | None) -> list[object]:
    try:
        return column.to_pylist(maps_as_pydicts=maps)
    except KeyError:
        return _python(column, None)  # some map has a key twice
    except (OverflowError, ValueError):
        # Convert values one by one. The conversion of a whole column fails if one time is beyond Python's calendar, as
        # producers may set it.
        return [_cell(scalar) for scalar in column]


def _cell(scalar: pa.Scalar) -> object:
    """Return the value. For a time or date beyond Python's calendar, return its number of milliseconds or days."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        number = getattr(scalar, "value", None)
        if number is None:
            return f"(beyond the calendar: {scalar.type})"
        unit = getattr(scalar.type, "unit", None)
        return number * 1000 // _A_SECOND[unit] if unit in _A_SECOND else number


def _with_durations(value: object) -> object:
    """Replace intervals (tuples of months, days and nanoseconds) in the value by texts."""
    match value:
        case tuple() if hasattr(cast("object", value), "nanoseconds"):
            return _duration(*cast("tuple[int, int, int]", value))
        case list():
            return [_with_durations(one) for one in cast("Sequence[object]", value)]
        case dict():
            return {name: _with_durations(one) for name, one in cast("Mapping[str, object]", value).items()}
        case _:
            return value


def _duration(months: int, days: int, nanoseconds: int) -> str:
    """Format an interval as ISO 8601, ``P1M2DT3H4M5.5S``. Each part has its own sign."""
    minus, left = "-" * (nanoseconds < 0), abs(nanoseconds)
    hours, left = divmod(left, 3_600 * _NS)
    minutes, left = divmod(left, 60 * _NS)
    seconds, fraction = divmod(left, _NS)
    digits = f"{seconds}.{fraction:09d}".rstrip("0").rstrip(".")
    date = "".join(f"{count}{unit}" for count, unit in ((months, "M"), (days, "D")) if count)
    time = "".join(f"{minus}{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    time += f"{minus}{digits}S" if digits != "0" else ""
    return f"P{date}T{time}" if time else f"P{date}" if date else "PT0S"


def cell_text(value: object, *, null: str) -> str:
    """Format a value as a cell of a table or of CSV."""
    match value:
        case None:
            return null
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case dict() | list() | tuple():
            return json.dumps(value, default=_plain, ensure_ascii=False)
        case _:
            return str(_plain(value))


def _plain(value: object) -> object:
    match value:
        case datetime():
            digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
            return value.isoformat(timespec=digits).replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case bytes():
            return _bytes_text(value)
        case _:
            return value if isinstance(value, int | float) else str(value)


def json_line(row: Mapping[str, object]) -> str:
    """Format a row as a line of JSON, with the newline."""
    try:
        line = json.dumps(row, default=_plain, allow_nan=False)
    except ValueError:
        # JSON has only finite numbers. Write NaN and infinities as texts ("NaN", "Infinity"), as Spark does.
        plain: object = json.loads(json.dumps(row, default=_plain), parse_constant=str)
        line = json.dumps(plain)
    return line + "\n"


def _bytes_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def _write(file: BinaryIO, data: bytes) -> None:
    """Write all bytes, by several calls if needed, because an unbuffered file may accept only some at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


class _Text:
    """Encodes text into a binary file, for the CSV writer."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        _write(self._file, text.encode())
