"""The destinations and formats of records and rows. Rows go to the screen as a table, or as Parquet, Arrow, CSV or JSON
lines to a file or stdout.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tieredstore.cli.terminal.output import complain, print_growing_table, quantity
from tieredstore.cli.terminal.output_file import output_to, refuse_binary
from tieredstore.cli.terminal.tables import Column, number, text, word
from tieredstore.errors import ConfigError, excerpt
from tieredstore.query import writers

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.cli.app.options import Rows
    from tieredstore.query.writers import BatchRows


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of rows: ``path`` or stdout, in a file format. The format is None for a table."""

    path: Path | None
    ending: str | None
    is_folder: bool = False

    @classmethod
    def parse(cls, rows: Rows, *, takes_folder: bool = False) -> Target:
        """Parse the options. Raise ConfigError for an impossible combination."""
        if rows.as_json and rows.row_format is not None:
            raise ConfigError("--json and --format exclude each other: give one of them")
        ending = "jsonl" if rows.as_json else rows.row_format
        if ending is not None and ending not in writers.WRITERS:
            raise ConfigError(f"--format is {excerpt(ending)!r}; it must be one of {', '.join(writers.WRITERS)}")
        path = rows.output
        if path is None or str(path) == "-":
            if path is not None and ending is None:
                raise ConfigError("-o - has no file name: give --format")
            if _is_binary(ending):
                refuse_binary(path)
            return cls(None, ending)
        named = None if path.is_dir() else writers.format_of(path)
        if takes_folder and named is None and (path.is_dir() or not path.exists() or path.is_file()):
            return cls(path, ending or "parquet", is_folder=True)
        if named is not None and ending not in (None, named):
            option = "--json" if rows.as_json else "--format"
            raise ConfigError(f"{path} is a name for {named}, but {option} asks for {ending}: leave one of them out")
        if named is None and ending is None:
            raise ConfigError(f"{str(path)!r} has no known ending: name it {writers.endings_text()}, or give --format")
        return cls(path, ending or named)

    @contextlib.contextmanager
    def open(self) -> Generator[BinaryIO]:
        """Open the destination: a file or stdout.

        The file appears only when it is complete. On a terminal, control characters are removed from stdout.
        """
        with output_to(self.path) as file:
            is_screen = self.path is None and not _is_binary(self.ending) and sys.stdout.isatty()
            yield cast("BinaryIO", _Screen(file)) if is_screen else file

    def write(self, rows: BatchRows, *, noun: str = "row") -> None:
        """Write the rows in their format, and report a finished file on stderr. Raise ConfigError for duplicate
        column names.
        """
        row_format = writers.WRITERS[self.ending or ""]
        if not row_format.takes_equal_names:
            check_names(rows)
        with self.open() as file:
            count = row_format.write(GivenRows(rows.schema, _flush_each(rows, file)), file)
        if self.path is not None:
            complain(f"{quantity(count, noun)} in {self.path}")


def _is_binary(name: str | None) -> bool:
    return name is not None and writers.WRITERS[name].is_binary


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Batches with a given schema."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


def _flush_each(rows: BatchRows, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Flush what was written before requesting the next batch."""
    for batch in rows:
        yield batch
        file.flush()


class _Screen:
    """A terminal as a destination. Control characters in records are removed, because the terminal would obey them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write all data, without control characters except line ends and tabs."""
        self._file.write(bytes_in_terminal(bytes(data)))
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def bytes_in_terminal(data: bytes) -> bytes:
    """Make untrusted bytes safe for a terminal: remove control characters except line ends and tabs."""
    text = data.decode(errors="replace")
    kept = (
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )
    return "".join(kept).encode()


def print_rows(reader: BatchRows) -> None:
    """Print a table to stdout. The table may have millions of rows. Numbers and times are never cut."""
    print_growing_table(
        [_column(field) for field in reader.schema],
        ([writers.cell_text(value, null="null") for value in cells] for cells in writers.cells_of(reader)),
    )


def _column(field: pa.Field) -> Column:
    from pyarrow import types

    if types.is_integer(field.type) or types.is_floating(field.type):
        return number(field.name)
    return word(field.name) if types.is_temporal(field.type) else text(field.name)


def check_names(reader: BatchRows) -> None:
    """Raise ConfigError for duplicate column names, which only a table or CSV can show."""
    names = reader.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the query returns two columns named {twice}: rename one of them with AS")
