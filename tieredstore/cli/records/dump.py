"""``tieredstore dump``: what a file of a broker's log directory says. Asks no store."""

from __future__ import annotations

import contextlib
import json
import mmap
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from tieredstore.cli.app.arguments import Wide
from tieredstore.cli.bucket.decoded_indexes import Row, decoded_rows
from tieredstore.cli.records.record_rows import SHOWN, TABLE, json_lines, rows_of, table_cells
from tieredstore.cli.terminal.output import (
    column_name,
    complain,
    iso_utc,
    print_growing_table,
    print_lines,
    table_of_rows,
    terminal_width,
)
from tieredstore.cli.terminal.streams import StandardOutputFailed
from tieredstore.cli.terminal.tables import Column, number, word
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.batches import BatchHeader, read_batch_headers
from tieredstore.model import IndexType

_KINDS: Final[Mapping[str, IndexType]] = {
    ".index": IndexType.OFFSET,
    ".timeindex": IndexType.TIMESTAMP,
    ".txnindex": IndexType.TRANSACTION,
    ".snapshot": IndexType.PRODUCER_SNAPSHOT,
}
_RELATIVE: Final = (IndexType.OFFSET, IndexType.TIMESTAMP)
_BASE_OFFSET: Final = re.compile(r"\d{20}", re.ASCII)
_MAX_SIDE_FILE: Final = 1 << 30
_PIECE_SIZE: Final = 4 * 1024 * 1024


def dump(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help=".log, .index, .timeindex, .txnindex and .snapshot files of a broker."),
    ],
    records: Annotated[bool, typer.Option("--records", help="The records of a .log, not its batches.")] = False,
    base_offset: Annotated[
        int | None,
        typer.Option(
            "--base-offset", metavar="OFFSET", min=0, help="The segment's first offset; else by the file's name."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")] = False,
    wide: Wide = False,
) -> None:
    """Show what Kafka files on this machine say: batches, records, or the entries of an index.

    What a damaged file says is shown up to the damage; then the exit code is 4. The CRC of each batch is checked. Of
    several files each is shown, also after one that cannot be; the exit code is that of the first error.

    Example: tieredstore dump /var/lib/kafka/orders-0/00000000000000000000.log --json
    """
    if records and (others := [file for file in files if file.suffix != ".log"]):
        raise ConfigError(f"--records shows those of a .log file, and {others[0]} is none")
    exit_codes: list[int] = []
    for place, file in enumerate(files):
        if len(files) > 1 and not as_json:
            print_lines([*([""] if place else []), f"{file}:"])
        try:
            with _explained(file):
                _dump_file(_Dump(file, as_json=as_json, wide=wide), records=records, base_offset=base_offset)
        except StandardOutputFailed:
            raise
        except TieredStoreError as error:
            if len(files) == 1:
                raise
            sys.stdout.flush()
            complain(str(error) if str(file) in str(error) else f"{file}: {error}")
            exit_codes.append(error.exit_code)
    if exit_codes:
        raise typer.Exit(exit_codes[0])


@dataclass(frozen=True, slots=True)
class _Dump:
    """How one file is shown."""

    file: Path
    as_json: bool
    wide: bool

    def show(self, rows: Iterable[Row], columns: Sequence[Column]) -> None:
        """Rows of batches: JSON lines that name the file, or a table."""
        if self.as_json:
            sys.stdout.writelines(map(self.json_line, rows))
            return
        cells = (["-" if row[name] is None else str(row[name]) for name in _BATCH_COLUMNS] for row in rows)
        self.show_cells(columns, cells)

    def show_cells(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """A table, row by row."""
        print_growing_table(columns, rows, wide=self.wide)

    def json_line(self, row: Row) -> str:
        """A line that names its file."""
        return json.dumps({"file": str(self.file), **row}) + "\n"


def _dump_file(dump_of: _Dump, *, records: bool, base_offset: int | None) -> None:
    file = dump_of.file
    if records:
        _dump_records(dump_of)
    elif file.suffix == ".log":
        _dump_batches(dump_of)
    else:
        rows = _index_rows(file, base_offset)
        width = None if dump_of.wide else terminal_width()
        shown = "".join(map(dump_of.json_line, rows)) if dump_of.as_json else table_of_rows(rows, width=width)
        sys.stdout.write(shown)


@contextlib.contextmanager
def _explained(file: Path) -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _index_rows(file: Path, base_offset: int | None) -> list[Row]:
    kind = _KINDS.get(file.suffix)
    if kind is None:
        raise ConfigError(f"{file} cannot be shown: .log, {', '.join(_KINDS)} are the files that can")
    if file.stat().st_size > _MAX_SIDE_FILE:
        raise ConfigError(f"{file} cannot be shown: it is larger than any {file.suffix} file")
    base = base_offset
    if base is None:
        base = int(file.stem) if _BASE_OFFSET.fullmatch(file.stem) else None
    if base is None and kind in _RELATIVE:
        raise ConfigError(f"the name of {file} does not tell its segment's first offset: give it by --base-offset")
    return decoded_rows(kind, file.read_bytes(), base or 0)


def _dump_batches(dump_of: _Dump) -> None:
    with _mapped(dump_of.file) as log, contextlib.closing(_batch_rows(log)) as rows:
        dump_of.show(rows, [_column(name, rank) for name, rank in _BATCH_COLUMNS.items()])


@contextlib.contextmanager
def _mapped(file: Path) -> Generator[mmap.mmap | bytes]:
    with file.open("rb") as opened:
        if not file.stat().st_size:
            yield b""
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as log:
            yield log


def _batch_rows(log: mmap.mmap | bytes) -> Generator[Row]:
    for header in read_batch_headers(log, check_crc=True):
        yield _batch_row(header)


def _batch_row(header: BatchHeader) -> Row:
    kinds = {"control": header.is_control, "transactional": header.is_transactional}
    return {
        "position": header.position,
        "size": header.size_in_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "magic": header.magic,
        "compression": header.compression.name.lower(),
        "timestamp_type": header.timestamp_type.value,
        "max_timestamp_ms": header.max_timestamp,
        "max_timestamp": iso_utc(header.max_timestamp),
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        **kinds,
    }


_BATCH_COLUMNS: Final[Mapping[str, int]] = {
    "position": 0, "size": 0, "base_offset": 0, "last_offset": 0, "records": 0, "magic": 9, "compression": 2,
    "max_timestamp": 1, "leader_epoch": 4, "producer_id": 3, "producer_epoch": 6, "base_sequence": 6,
    "transactional": 5, "control": 5,
}  # fmt: skip
"""The columns of batches, with the rank by which they are left out on a narrow terminal."""

_BATCH_WORDS: Final = {"compression", "max_timestamp", "transactional", "control"}


def _column(name: str, rank: int) -> Column:
    return (word if name in _BATCH_WORDS else number)(column_name(name), rank=rank)


def _dump_records(dump_of: _Dump) -> None:
    from tieredstore.kafka.records import RecordDecoder

    decoder = RecordDecoder(SHOWN)
    with dump_of.file.open("rb", buffering=0) as log:
        batches = decoder.decode(_pieces(log))
        if dump_of.as_json:
            sys.stdout.writelines(line for batch in batches for line in json_lines(batch, None))
        else:
            # A file has one partition, and its records do not tell which.
            rows = (table_cells(row, "") for batch in batches for row in rows_of(batch))
            dump_of.show_cells(TABLE[1:], (cells[1:] for cells in rows))


def _pieces(log: BinaryIO) -> Iterator[bytes]:
    while piece := log.read(_PIECE_SIZE):
        yield piece
