"""Copy of a span (a range of offsets) of a stored segment to the files of a broker's segment.

A batch stays unchanged, except that its leader epoch becomes 0. The CRC does not cover the leader epoch.

A restored partition is new in its cluster. Its leader epochs therefore begin at 0. With the old cluster's epochs, the
log would be ahead of its leader. Followers would then truncate it (KIP-101). Batches of magic 0 and 1 have no epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from tieredstore.catalog.lineage import Span
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import FRAME_SIZE, BatchHeader, check_batch_crc, first_batch_size, next_batch_header
from tieredstore.kafka.end_markers import play_markers, transaction_steps
from tieredstore.kafka.indexes import IndexBuilder, format_txn_index
from tieredstore.restore.logdir.producers import marker_of

if TYPE_CHECKING:
    from tieredstore.model import RemoteLogSegmentMetadata
    from tieredstore.remote import RemoteStorageManager

DRAFT: Final = ".restore"
_EPOCH: Final = slice(12, 16)
_WRITE_SIZE: Final = 1 << 20


def copy_span(
    source: RemoteStorageManager, span: Span, folder: Path, snapshot: bytes, pending: Mapping[int, int]
) -> tuple[dict[Path, Path], Mapping[int, int]]:
    """Write the files of the span's segment as drafts (unfinished files), and sync them. Return each draft with its
    final name, and the transactions that are open at the span's end. The log comes last.

    ``snapshot`` is the snapshot of producers at the span's end. ``pending`` maps producer ids to the first offsets of
    transactions that are open at the span's start. Memory holds at most the largest batch, one chunk and the indexes.

    Raise BatchCorruptError for a damaged batch, and for a batch that crosses the span's start or end.
    """
    path = folder / f"{span.start:020d}.log"
    with _draft(path).open("wb", buffering=_WRITE_SIZE) as log:
        indexes, pending = build_indexes(span.start, _copy_batches(source, span, log), pending)
        sync(log)
    drafts = draft_files(folder, span.start, span.stop, {**indexes, "snapshot": snapshot})
    return {**drafts, _draft(path): path}, pending


def _copy_batches(source: RemoteStorageManager, span: Span, log: BinaryIO) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Write each batch to the log, then yield it."""
    for header, batch in batches_in(source, span):
        if header.base_offset < span.start or header.last_offset >= span.stop:
            cut = span.start if header.base_offset < span.start else span.stop
            raise BatchCorruptError(
                f"{span.segment} is cut at offset {cut}, inside the batch of offsets {header.base_offset} to "
                f"{header.last_offset}"
            )
        if header.magic == 2 and header.partition_leader_epoch:
            log.write(batch[: _EPOCH.start])
            log.write(bytes(4))
            log.write(batch[_EPOCH.stop :])
        else:
            log.write(batch)
        yield header, batch


def build_indexes(
    base_offset: int, batches: Iterable[tuple[BatchHeader, memoryview]], pending: Mapping[int, int]
) -> tuple[dict[str, bytes], Mapping[int, int]]:
    """Return the indexes of a segment with these batches, by their suffixes, and the transactions that are open at its
    end. ``pending`` has those at its start.

    The bucket's indexes are not copied, because they have no checksum. With a wrong index, a broker would skip records,
    or return aborted records.
    """
    built, position, batch = IndexBuilder(base_offset), 0, memoryview(b"")

    def add_batches() -> Iterator[BatchHeader]:
        nonlocal position, batch
        for header, batch in batches:
            built.add(position, len(batch), header.last_offset, header.max_timestamp)
            position += len(batch)
            yield header

    aborted, pending = play_markers(transaction_steps(add_batches(), lambda _: marker_of(batch)), pending)
    indexes = {"index": bytes(built.offset_index), "timeindex": built.close()}
    # A broker creates the transaction index only with its first entry, and indexes no marker without records.
    entries = [entry for entry in aborted if entry.first_offset < entry.last_offset]
    return indexes | ({"txnindex": format_txn_index(entries)} if entries else {}), pending


def read_copy(span: Span, path: Path) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of the copy of the span's log.

    A failing disk may have changed a file without changing its size.

    Raise BatchCorruptError if the file has a damaged batch, or a batch that is not the span's.
    """
    with path.open("rb", buffering=0) as log:
        chunks = (memoryview(chunk) for chunk in iter(partial(log.read, _WRITE_SIZE), b""))
        for header, batch in whole_batches(chunks, path.stat().st_size):
            if header.base_offset < span.start or header.last_offset >= span.stop:
                raise BatchCorruptError(
                    f"the record batch at byte {header.position} has the offsets {header.base_offset} to "
                    f"{header.last_offset}, outside of the segment"
                )
            yield header, batch


def check_copy(span: Span, folder: Path, snapshot: bytes, pending: Mapping[int, int]) -> Mapping[int, int] | None:
    """Return the transactions that are open at the span's end, as :func:`copy_span` does. Return None unless the folder
    has an undamaged copy of the span's log, the indexes that belong to it, and the ``snapshot`` of producers."""
    path = folder / f"{span.start:020d}.log"
    try:
        indexes, pending = build_indexes(span.start, read_copy(span, path), pending)
        stored = {suffix: path.with_suffix(f".{suffix}").read_bytes() for suffix in indexes}
        is_intact = (stored, (folder / f"{span.stop:020d}.snapshot").read_bytes()) == (indexes, snapshot)
    except (BatchCorruptError, FileNotFoundError):
        return None
    return pending if is_intact else None


def draft_files(folder: Path, start: int, stop: int, contents: Mapping[str, bytes]) -> dict[Path, Path]:
    """Write files of the segment from ``start`` to ``stop`` as drafts, and sync them. ``contents`` maps a file's suffix
    to its content.

    Return each draft (unfinished file) with its final name.
    """
    drafts: dict[Path, Path] = {}
    for suffix, content in contents.items():
        # The name of the producer snapshot is the offset after the last record.
        path = folder / f"{stop if suffix == 'snapshot' else start:020d}.{suffix}"
        with _draft(path).open("wb") as file:
            file.write(content)
            sync(file)
        drafts[_draft(path)] = path
    return drafts


def is_whole(span: Span) -> bool:
    """Return True if the span is a whole segment."""
    return (span.start, span.stop) == (span.segment.start_offset, span.segment.end_offset + 1)


def batches_in(source: RemoteStorageManager, span: Span) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches that have offsets of the span. The bytes of a batch are valid until the next batch.

    A span may end before its segment because later batches are damaged. These batches are not read.

    Raise BatchCorruptError for a damaged batch.
    """
    segment = span.segment
    with source.fetch_log_segment(segment, 0) as stream:
        try:
            for header, batch in whole_batches(stream.chunks(), segment.segment_size_in_bytes):
                _check_offsets(header, segment)
                if header.base_offset < span.stop and header.last_offset >= span.start:
                    yield header, batch
                if header.last_offset == span.stop - 1 < segment.end_offset:
                    return
        except BatchCorruptError as error:
            raise BatchCorruptError(f"{segment}: {error}") from error


def _check_offsets(header: BatchHeader, segment: RemoteLogSegmentMetadata) -> None:
    if not segment.start_offset <= header.base_offset <= header.last_offset <= segment.end_offset:
        raise BatchCorruptError(
            f"a batch has the offsets {header.base_offset} to {header.last_offset}, outside of the segment"
        )


def whole_batches(chunks: Iterable[memoryview], size: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Check and yield each batch of a log of ``size`` bytes. The bytes of a batch are valid until the next batch.

    Raise BatchCorruptError for a damaged batch, and for a log that does not end with a whole batch. Memory holds at
    most the largest batch.
    """
    position, last_offset = 0, -1
    for batch in _split(chunks, size):
        view_at = partial(_view_of, batch)
        # The header is never None. Only a batch of zeros has no header, and ``_split`` refuses such a batch.
        header = cast("BatchHeader", next_batch_header(view_at, size, position, last_offset))
        check_batch_crc(batch, header)
        yield header, batch
        position, last_offset = position + header.size_in_bytes, header.last_offset


def _split(chunks: Iterable[memoryview], size: int) -> Iterator[memoryview]:
    """Yield the bytes of each batch. The length at the beginning of a batch shows where the batch ends. Most batches
    lie within one chunk, and are not copied.
    """
    begun, position = bytearray(), 0
    for chunk in chunks:
        at = 0
        while begun and at < len(chunk):
            lacking = _count_lacking(begun, position, size)
            begun += chunk[at : at + lacking]
            at += lacking
            if not _count_lacking(begun, position, size):
                yield memoryview(begun)
                begun, position = bytearray(), position + len(begun)
        while at < len(chunk) and not _count_lacking(chunk[at:], position, size):
            batch = chunk[at : at + (first_batch_size(chunk[at:]) or 0)]
            yield batch
            at, position = at + len(batch), position + len(batch)
        begun += chunk[at:]
    if position != size:
        raise BatchCorruptError(f"the log has {size} bytes, but its last whole batch ends at byte {position}")


def _count_lacking(head: bytearray | memoryview, position: int, size: int) -> int:
    """Return the minimum number of bytes to add to ``head``, the beginning of a batch; 0 if the batch is complete."""
    if len(head) < FRAME_SIZE:
        return FRAME_SIZE - len(head)
    length = first_batch_size(head)
    # Check the length before collecting that many bytes, because a damaged length may be as large as 2 GiB.
    if length is None or length > size - position:
        raise BatchCorruptError(f"the record batch at byte {position} of {size} has an impossible length")
    return max(0, length - len(head))


def _view_of(batch: memoryview, _: int) -> memoryview:
    return batch[:]


def _draft(path: Path) -> Path:
    """Return the path of a file's draft. Brokers ignore drafts."""
    return path.with_name(f"{path.name}{DRAFT}")


def sync(file: BinaryIO) -> None:
    """Flush the file to the disk."""
    file.flush()
    os.fsync(file.fileno())
