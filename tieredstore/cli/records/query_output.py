"""Where the rows of a query go: a table for a person, lines of JSON, CSV, or a file of Parquet or Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.terminal.output import complain, counted, print_growing_table
from tieredstore.cli.terminal.output_file import output_to
from tieredstore.cli.terminal.tables import number, text
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.query.writers import BatchRows


ENDINGS: Final[Mapping[str, str]] = {
    ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl",
}  # fmt: skip
"""The formats of files, by how their names end."""


def check_name(path: Path, ending: str) -> None:
    """ConfigError for a file that is named for another format than is written into it."""
    named = ENDINGS.get(path.suffix.lower(), ending)
    if named != ending:
        raise ConfigError(f"{path} is a name for {named}, and {ending} is asked for: leave one of them out")


def write_table(reader: BatchRows) -> None:
    """A table on stdout, of rows that may be millions."""
    from pyarrow import types

    from tieredstore.query import writers

    untyped: Any = reader
    columns = [
        number(field.name) if types.is_integer(field.type) or types.is_floating(field.type) else text(field.name)
        for field in untyped.schema
    ]
    print_growing_table(
        columns, ([writers.cell_text(value, null="null") for value in cells] for cells in writers.cells_of(reader))
    )


def write_rows(reader: BatchRows, ending: str, path: Path | None) -> None:
    """The rows in a format, to a file, which is told of on stderr, or to stdout."""
    from tieredstore.query import writers

    if ending != "csv":
        check_names(reader)
    with output_to(path) as file:
        rows = writers.WRITERS[ending](reader, file)
    if path is not None and str(path) != "-":
        complain(f"{counted(rows, 'row')} in {path}")


def check_names(reader: BatchRows) -> None:
    """ConfigError where two columns have one name, of which only a table or CSV would show both."""
    untyped: Any = reader
    names: list[str] = untyped.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the query gives two columns {twice}: name one of them, with AS")
