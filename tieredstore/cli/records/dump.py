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
from tieredstore.cli.bucket.decoded_indexes import decode_rows
from tieredstore.cli.records.record_rows import SHOWN, TABLE, json_lines, rows_of, table_cells
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    iso_utc,
    print_growing_table,
    print_lines,
    table_of_rows,
    terminal_width,
)
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.streams import StandardOutputFailedError
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
            with _explain(file):
                _dump_file(_Dump(file, as_json=as_json, wide=wide), records=records, base_offset=base_offset)
        except StandardOutputFailedError:
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

    def show_cells(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """A table, row by row."""
        print_growing_table(columns, rows, wide=self.wide)

    def json_line(self, row: Mapping[str, JsonValue]) -> str:
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
def _explain(file: Path) -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _index_rows(file: Path, base_offset: int | None) -> Sequence[Mapping[str, JsonValue]]:
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
    return decode_rows(kind, file.read_bytes(), base or 0)


def _dump_batches(dump_of: _Dump) -> None:
    # Closed before the file is: it holds views of it.
    with (
        _map(dump_of.file) as log,
        contextlib.closing(batch for batch in read_batch_headers(log, check_crc=True)) as batches,
    ):
        if dump_of.as_json:
            sys.stdout.writelines(dump_of.json_line(_BATCH.json(batch)) for batch in batches)
        else:
            dump_of.show_cells(_BATCH.columns, map(_BATCH.cells, batches))


@contextlib.contextmanager
def _map(file: Path) -> Generator[mmap.mmap | bytes]:
    with file.open("rb") as opened:
        if not file.stat().st_size:
            yield b""
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as log:
            yield log


_BATCH: Final[Row[BatchHeader]] = Row(
    field("position", lambda batch: batch.position, number("POSITION")),
    field("size", lambda batch: batch.size_in_bytes, number("SIZE")),
    field("base_offset", lambda batch: batch.base_offset, number("BASE OFFSET")),
    field("last_offset", lambda batch: batch.last_offset, number("LAST OFFSET")),
    field("records", lambda batch: batch.record_count, number("RECORDS")),
    field("magic", lambda batch: batch.magic, number("MAGIC", rank=9)),
    field("compression", lambda batch: batch.compression.name.lower(), word("COMPRESSION", rank=2)),
    field("timestamp_type", lambda batch: batch.timestamp_type.value),
    field("max_timestamp_ms", lambda batch: batch.max_timestamp),
    field("max_timestamp", lambda batch: iso_utc(batch.max_timestamp), word("MAX TIMESTAMP", rank=1)),
    field("leader_epoch", lambda batch: batch.partition_leader_epoch, number("LEADER EPOCH", rank=4)),
    field("producer_id", lambda batch: batch.producer_id, number("PRODUCER ID", rank=3)),
    field("producer_epoch", lambda batch: batch.producer_epoch, number("PRODUCER EPOCH", rank=6)),
    field("base_sequence", lambda batch: batch.base_sequence, number("BASE SEQUENCE", rank=6)),
    column(word("TRANSACTIONAL", rank=5), lambda batch: str(batch.is_transactional)),
    field("control", lambda batch: batch.is_control, word("CONTROL", rank=5)),
    field("transactional", lambda batch: batch.is_transactional),
)


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
