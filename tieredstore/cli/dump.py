"""``tieredstore dump``: what a file of a broker's log directory says. Asks no store."""

from __future__ import annotations

import contextlib
import json
import mmap
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from tieredstore.cli.decoded_indexes import Row, decoded_rows
from tieredstore.cli.output import iso_utc, table_of_rows
from tieredstore.cli.record_rows import SHOWN, arrow_module, header_line, json_lines, text_lines
from tieredstore.cli.tables import plain
from tieredstore.errors import ConfigError
from tieredstore.kafka.batches import BatchHeader, read_batch_headers
from tieredstore.model import IndexType

if TYPE_CHECKING:
    from tieredstore.kafka.records import RecordDecoder

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
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A .log, .index, .timeindex, .txnindex or .snapshot file of a broker."),
    ],
    records: Annotated[bool, typer.Option("--records", help="The records of a .log, not its batches.")] = False,
    base_offset: Annotated[
        int | None,
        typer.Option(
            "--base-offset", metavar="OFFSET", min=0, help="The segment's first offset; else by the file's name."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")] = False,
) -> None:
    """Show what a Kafka file on this machine says: batches, records, or the entries of an index.

    What a damaged file says is shown up to the damage; then the exit code is 4. The CRC of each batch is checked.

    Example: tieredstore dump /var/lib/kafka/orders-0/00000000000000000000.log --json
    """
    if records and file.suffix != ".log":
        raise ConfigError(f"--records shows those of a .log file, and {file} is none")
    with _explained(file):
        if records:
            _dump_records(file, as_json=as_json)
        elif file.suffix == ".log":
            _dump_batches(file, as_json=as_json)
        else:
            rows = _index_rows(file, base_offset)
            sys.stdout.write("".join(map(_json_line, rows)) if as_json else table_of_rows(rows))


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


def _dump_batches(file: Path, *, as_json: bool) -> None:
    line: Callable[[Row], str] = _json_line if as_json else _text_line
    with _mapped(file) as log, contextlib.closing(_batch_rows(log)) as rows:
        if not as_json:
            sys.stdout.write(_text_line({name: name.upper().replace("_", " ") for name in _WIDTHS}))
        sys.stdout.writelines(map(line, rows))


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


_WIDTHS: Final[Mapping[str, int]] = {
    "position": 10, "size": 9, "base_offset": 12, "last_offset": 12, "records": 8, "magic": 5, "compression": 11,
    "max_timestamp": 24, "leader_epoch": 12, "producer_id": 11, "producer_epoch": 14, "base_sequence": 13,
    "transactional": 13, "control": 7,
}  # fmt: skip


def _text_line(row: Row) -> str:
    """A row in columns of fixed width, since all rows are not known when the first one is shown."""
    cells = (("-" if row[name] is None else str(row[name])).rjust(width) for name, width in _WIDTHS.items())
    return plain("  ".join(cells)).rstrip() + "\n"


def _json_line(row: Row) -> str:
    return json.dumps(row) + "\n"


def _dump_records(file: Path, *, as_json: bool) -> None:
    decoder: RecordDecoder = arrow_module("tieredstore.kafka.records").RecordDecoder(SHOWN)
    if not as_json:
        sys.stdout.write(header_line())
    with file.open("rb", buffering=0) as log:
        for batch in decoder.decode(_pieces(log)):
            sys.stdout.writelines((json_lines if as_json else text_lines)(batch, None))


def _pieces(log: BinaryIO) -> Iterator[bytes]:
    while piece := log.read(_PIECE_SIZE):
        yield piece
