"""Copy of a span (a range of offsets) of a stored segment to the files of a broker's segment.

A batch stays unchanged, except that its leader epoch becomes 0. The CRC does not cover the leader epoch.

A restored partition is new in its cluster. Its leader epochs therefore begin at 0. With the old cluster's epochs, the
log would be ahead of its leader. Followers would then truncate it (KIP-101). Batches of magic 0 and 1 have no epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.transactions import parse_aborted
from tieredstore.errors import BatchCorruptError, IndexesCorruptError
from tieredstore.kafka.batches import FRAME_SIZE, BatchHeader, check_batch_crc, first_batch_size, next_batch_header
from tieredstore.kafka.end_markers import TransactionStep, transaction_steps
from tieredstore.kafka.indexes import AbortedTransaction, IndexBuilder, format_txn_index
from tieredstore.model import IndexType
from tieredstore.restore.logdir.producers import marker_of

if TYPE_CHECKING:
    from tieredstore.model import RemoteLogSegmentMetadata
    from tieredstore.remote.source import SegmentSource

DRAFT: Final = ".restore"
_EPOCH: Final = slice(12, 16)
_WRITE_SIZE: Final = 1 << 20


def copy_span(source: SegmentSource, span: Span, folder: Path, snapshot: bytes) -> dict[Path, Path]:
    """Write the files of the span's segment as drafts (unfinished files), and sync them. Return each draft with its
    final name; the log comes last.

    A broker ignores a segment until the segment's log exists. The indexes of offsets and times are built from the
    batches. Stored indexes have no checksum, and with a wrong index a broker would skip records. ``snapshot`` is the
    snapshot of producers at the span's end. Memory holds at most the largest batch, one chunk and the indexes.

    Raise BatchCorruptError for a damaged batch, and for a batch that crosses the span's start or end. Raise
    IndexesCorruptError for a transaction index that does not match the batches.
    """
    path, indexes, aborted = folder / f"{span.start:020d}.log", IndexBuilder(span.start), _find_aborted(source, span)
    batch = memoryview(b"")

    def copy_batches(log: BinaryIO) -> Iterator[BatchHeader]:
        nonlocal batch
        position = 0
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
            indexes.add(position, len(batch), header.last_offset, header.max_timestamp)
            position += len(batch)
            yield header

    with _draft(path).open("wb", buffering=_WRITE_SIZE) as log:
        stable = _check_aborted(span, aborted, transaction_steps(copy_batches(log), lambda _: marker_of(batch)))
        sync(log)
    contents = {"index": bytes(indexes.offset_index), "timeindex": indexes.close(), "snapshot": snapshot}
    if aborted:
        # A broker creates this file only with its first entry.
        contents["txnindex"] = format_txn_index(
            replace(entry, last_stable_offset=min(entry.last_stable_offset, stable)) for entry in aborted
        )
    return {**draft_files(folder, span.start, span.stop, contents), _draft(path): path}


def _find_aborted(source: SegmentSource, span: Span) -> Sequence[AbortedTransaction]:
    stored = source.fetch_indexes(span.segment, (IndexType.TRANSACTION,))
    aborted = parse_aborted(stored[IndexType.TRANSACTION].read(), span.segment) if stored else ()
    # An entry belongs to the segment that contains the transaction's abort marker. The marker is at the entry's
    # ``last_offset``.
    return [entry for entry in aborted if span.start <= entry.last_offset < span.stop]


def _check_aborted(span: Span, aborted: Iterable[AbortedTransaction], steps: Iterable[TransactionStep]) -> int:
    """Return the last stable offset at the span's end, as far as its batches tell.

    Raise IndexesCorruptError unless the aborted transactions are those of the span's batches. With a wrong index, a
    broker would return aborted records to ``read_committed`` consumers, or hide committed records.
    """
    known = {(entry.producer_id, entry.last_offset): entry for entry in aborted}
    stable = max((entry.last_stable_offset for entry in aborted), default=-1)
    opened, ended = dict[int, int](), dict[int, int]()
    for step in steps:
        producer = step.producer_id
        if step.aborts is None:
            opened[producer] = step.offset
            continue
        entry, first = known.pop((producer, step.offset), None), opened.pop(producer, None)
        before, ended[producer] = ended.get(producer, -1), step.offset
        if entry is None:
            # Kafka does not index a marker without records before it.
            is_right = not step.aborts or first is None
        else:
            # If the transaction's records are in an earlier segment, these batches do not tell where it began.
            is_right = step.aborts and before < entry.first_offset <= (step.offset if first is None else first)
        if not is_right:
            raise _mismatch(span, producer, step.offset)
    for producer, offset in known:
        raise _mismatch(span, producer, offset)
    if stable > span.segment.end_offset + 1:
        raise IndexesCorruptError(
            f"the transaction index of {span.segment} has a wrong last stable offset, {stable}: {_way_out(span)}"
        )
    # A broker does not look for aborted transactions beyond an entry's last stable offset. But a follower that appends
    # several batches at once writes the beginning of another producer's later transaction there. The span may end
    # before that offset, or the same producer's next transaction may begin before it.
    return min(opened.values(), default=span.stop)


def _mismatch(span: Span, producer: int, offset: int) -> IndexesCorruptError:
    return IndexesCorruptError(
        f"the transaction index of {span.segment} does not match the log, where a transaction of producer {producer} "
        f"ends at offset {offset}: {_way_out(span)}"
    )


def _way_out(span: Span) -> str:
    return f"end the restore before this segment (--to {span.start}), or begin after it (--from {span.stop})"


def check_log(span: Span, path: Path) -> IndexBuilder:
    """Read the copy of the span's log, and return the indexes that belong to it.

    A failing disk may have changed a file without changing its size.

    Raise BatchCorruptError if the file has a damaged batch, or a batch that is not the span's.
    """
    indexes = IndexBuilder(span.start)
    with path.open("rb", buffering=0) as log:
        chunks = (memoryview(chunk) for chunk in iter(partial(log.read, _WRITE_SIZE), b""))
        for header, batch in whole_batches(chunks, path.stat().st_size):
            if header.base_offset < span.start or header.last_offset >= span.stop:
                raise BatchCorruptError(
                    f"the record batch at byte {header.position} has the offsets {header.base_offset} to "
                    f"{header.last_offset}, outside of the segment"
                )
            indexes.add(header.position, len(batch), header.last_offset, header.max_timestamp)
    return indexes


def is_intact(span: Span, folder: Path, snapshot: bytes) -> bool:
    """Return True if the folder has an undamaged copy of the span's log, the indexes that belong to it, and the
    ``snapshot`` of producers."""
    path = folder / f"{span.start:020d}.log"
    paths = path.with_suffix(".index"), path.with_suffix(".timeindex"), folder / f"{span.stop:020d}.snapshot"
    try:
        indexes = check_log(span, path)
        stored = [each.read_bytes() for each in paths]
    except (BatchCorruptError, FileNotFoundError):
        return False
    return stored == [bytes(indexes.offset_index), indexes.close(), snapshot]


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


def batches_in(source: SegmentSource, span: Span) -> Iterator[tuple[BatchHeader, memoryview]]:
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
            lacking = _lacking(begun, position, size)
            begun += chunk[at : at + lacking]
            at += lacking
            if not _lacking(begun, position, size):
                yield memoryview(begun)
                begun, position = bytearray(), position + len(begun)
        while at < len(chunk) and not _lacking(chunk[at:], position, size):
            batch = chunk[at : at + (first_batch_size(chunk[at:]) or 0)]
            yield batch
            at, position = at + len(batch), position + len(batch)
        begun += chunk[at:]
    if position != size:
        raise BatchCorruptError(f"the log has {size} bytes, but its last whole batch ends at byte {position}")


def _lacking(head: bytearray | memoryview, position: int, size: int) -> int:
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
