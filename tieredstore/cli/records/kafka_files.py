"""The formats of files in a broker's log directory, for ``show``. This module uses no store.

This module is separate from ``show``, which reaches the code of every format only through a table of formats.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Final

from tieredstore.cli.bucket.decoded_indexes import Entry, decode_rows, row_of
from tieredstore.cli.records.formats import Asked, Format, Records, Rows, View
from tieredstore.cli.records.record_output import SHOWN
from tieredstore.cli.terminal.output import iso_utc
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import number, word
from tieredstore.errors import ConfigError
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


def _has_suffix(*suffixes: str) -> Callable[[Asked], bool]:
    """Return a function that matches local files by suffix, even missing files. It matches no objects of a store."""

    def knows(asked: Asked) -> bool:
        is_key = asked.path is None and asked.store.is_given
        return not is_key and Path(asked.name).suffix in suffixes

    return knows


@contextlib.contextmanager
def _show_log(asked: Asked) -> Generator[Rows[BatchHeader] | Records]:
    if asked.view is View.RECORDS:
        from tieredstore.kafka.records import RecordDecoder  # this import needs the extra `arrow`

        with Path(asked.name).open("rb", buffering=0) as log:
            pieces = iter(lambda: log.read(_PIECE_SIZE), b"")
            # The partition is None, because the records of a file do not name it.
            yield Records((None, batch) for batch in RecordDecoder(SHOWN).decode(pieces))
        return
    # Close the reader before the file, because it holds views of the file.
    with (
        _map(Path(asked.name)) as mapped,
        contextlib.closing(batch for batch in read_batch_headers(mapped, check_crc=True)) as batches,
    ):
        yield Rows(_BATCH, batches)


@contextlib.contextmanager
def _map(file: Path) -> Generator[mmap.mmap | bytes]:
    with file.open("rb") as opened:
        if not file.stat().st_size:
            yield b""
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as log:
            yield log


@contextlib.contextmanager
def _show_index(asked: Asked) -> Generator[Rows[Entry]]:
    file = Path(asked.name)
    kind = _KINDS[file.suffix]
    if file.stat().st_size > _MAX_SIDE_FILE:
        raise ConfigError(f"{file} cannot be shown: it is larger than any {file.suffix} file")
    base = asked.base_offset
    if base is None:
        base = int(file.stem) if _BASE_OFFSET.fullmatch(file.stem) else None
    if base is None and kind in _RELATIVE:
        raise ConfigError(f"the name of {file} does not contain the segment's base offset: give --base-offset OFFSET")
    entries = decode_rows(kind, file.read_bytes(), base or 0)
    yield Rows(row_of(entries), entries) if entries else Rows(Row(), (), "no entries", lambda _: ())


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
KAFKA_FILES: Final = (
    Format("Kafka's .log files", frozenset({View.CONTENTS, View.RECORDS}), _has_suffix(".log"), _show_log),
    Format(f"Kafka's {', '.join(_KINDS)} files", frozenset({View.CONTENTS}), _has_suffix(*_KINDS), _show_index),
)
