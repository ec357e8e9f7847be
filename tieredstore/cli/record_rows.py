"""Records as lines: for a person, and for scripts."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.output import iso_utc
from tieredstore.cli.tables import plain
from tieredstore.errors import ConfigError
from tieredstore.installation import install_command

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
"""The columns of records that commands show."""


def arrow_module(name: str) -> ModuleType:
    """A module of ours that needs pyarrow, imported when a command asks for it; ConfigError names the extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"showing records needs {error.name}: {install_command('arrow')}") from error


def json_lines(records: pa.RecordBatch, partition: int | None) -> Iterator[str]:
    """A JSON object for each record, bytes as base64; without ``partition`` where it is None."""
    place = {} if partition is None else {"partition": partition}
    for row in _rows(records):
        coded = {"key": _base64(row["key"]), "value": _base64(row["value"]), "headers": _coded_headers(row["headers"])}
        yield json.dumps({**place, **row, **coded}) + "\n"


def header_line() -> str:
    """The names over ``text_lines``."""
    return _line("PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE")


def text_lines(records: pa.RecordBatch, partition: int | None) -> Iterator[str]:
    """A line for each record. On a terminal it is cut to the width; in a pipe nothing is cut."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in _rows(records):
        time = iso_utc(row["timestamp"]) or str(row["timestamp"])
        headers = "".join(f"  {name}={_text(value)}" for name, value in _pairs(row["headers"]))
        place = "-" if partition is None else str(partition)
        line = _line(place, str(row["offset"]), time, _text(row["key"]), _text(row["value"]) + plain(headers))
        yield line if width is None else f"{line.rstrip()[:width]}\n"


def _line(partition: str, offset: str, time: str, key: str, value: str) -> str:
    return f"{partition:>9}  {offset:>12}  {time:<24}  {key:<24}  {value}\n"


def _rows(records: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns: list[Sequence[Any]] = [records.column(name).to_pylist() for name in SHOWN]
    for values in zip(*columns, strict=True):
        yield dict(zip(SHOWN, values, strict=True))


def _pairs(headers: list[dict[str, Any]] | None) -> Iterator[tuple[str, bytes | None]]:
    return ((header["key"], header["value"]) for header in headers or ())


def _coded_headers(headers: list[dict[str, Any]] | None) -> list[list[str | None]]:
    return [[_base64(name.encode()), _base64(value)] for name, value in _pairs(headers)]


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _text(data: bytes | None) -> str:
    """Text as it is, anything else in hexadecimal."""
    if data is None:
        return "null"
    try:
        return plain(data.decode())
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
