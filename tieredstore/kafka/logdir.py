"""The segments in Kafka's log directories, and the description of a segment for a copy.

:func:`discover` lists directories and opens no file. :func:`describe` reads one segment's small files and the headers
of its batches. A log directory has one directory ``<topic>-<partition>`` per partition. That directory holds, for each
segment, files named by the base offset::

    00000000000000002225.log  .index  .timeindex  [.txnindex]
    00000000000000004433.snapshot     the producers as of offset 4433: it belongs to the segment that ends before it
    leader-epoch-checkpoint  partition.metadata

Before the broker deletes a segment, it renames its files: ``.log.deleted`` and so on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError, InvalidSegmentError
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    format_leader_epochs,
    parse_leader_epochs,
    parse_partition_metadata,
    segment_leader_epochs,
    truncate_from_end,
)
from tieredstore.kafka.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, is_trimmed
from tieredstore.kafka.log_scan import explain_failure, scan_log
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import LogSegmentData, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

# Kafka's own rule for topic names. The partition follows the last dash, and has no leading zeros.
_DIRECTORY: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})", re.ASCII)
_SNAPSHOT: Final = re.compile(r"(\d{20})\.snapshot", re.ASCII)
_LOG: Final = re.compile(r"(\d{20})\.log", re.ASCII)
_DELETED_LOG: Final = re.compile(r"(\d{20})\.log\.deleted", re.ASCII)
# Directories that the broker is about to delete, is moving between disks, or no longer owns.
_DOOMED_DIRECTORY: Final = re.compile(r".+-(delete|future|stray)")
_DOOMED_FILE: Final = re.compile(r".+\.(deleted|cleaned|swap)")
# Topics such as __consumer_offsets: compacted, and useful only to the broker that wrote them.
_INTERNAL: Final = "__"
_MOST_RELISTINGS: Final = 2
DELETED: Final = ".deleted"
"""Suffix that the broker appends to the names of a segment's files before it deletes them."""


class RecordsDeletedError(InvalidSegmentError):
    """The broker has deleted all records of the segment. The files remain, but the checkpoint no longer has their
    epochs.

    A segment is in this state after ``kafka-delete-records``, until retention removes its files.
    """


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A ``.log`` file, not opened yet. ``next_base_offset`` is None for the last segment of its partition.

    With ``is_deleted``, the names of its files end in ``.deleted``, or soon will. The broker renames one file after the
    other.
    """

    directory: Path
    topic: str
    partition: int
    base_offset: int
    next_base_offset: int | None
    is_deleted: bool = False

    def path(self, suffix: str) -> Path:
        """Return the segment's file ``<base offset>.<suffix>``."""
        return self.directory / f"{self.base_offset:020d}.{suffix}{DELETED if self.is_deleted else ''}"

    def snapshot_path(self, end_offset: int) -> Path:
        """Return the path of the producer snapshot taken after the segment's last offset, ``end_offset``."""
        return self.directory / f"{end_offset + 1:020d}.snapshot{DELETED if self.is_deleted else ''}"

    def end_before_next(self, last_offset: int) -> int:
        """Return the offset before the next segment. Without a next segment, return ``last_offset``, the last offset in
        the log. Raise InvalidSegmentError if the log reaches into the next segment.
        """
        if self.next_base_offset is None:
            return last_offset
        if last_offset >= self.next_base_offset:
            raise InvalidSegmentError(
                f"segment {self} ends at offset {last_offset}, but the next segment begins at {self.next_base_offset}"
            )
        return self.next_base_offset - 1

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.base_offset}"


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A file or directory that is not a segment of a partition, and the reason as one clause."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """The segments found, ordered by topic, partition and base offset, and the folder entries that were skipped."""

    segments: tuple[FoundSegment, ...]
    left_alone: tuple[LeftAlone, ...]


@dataclass(frozen=True, slots=True)
class LogSegment:
    """One segment, with all values that Kafka passes to a remote storage manager to copy it.

    ``end_offset`` is inclusive. ``max_timestamp_ms`` is the greatest timestamp in the batch headers, -1 if there is
    none.

    If ``closed_files`` is None, the segment is active and cannot be copied yet. Its log was not read: ``end_offset``
    and ``max_timestamp_ms`` are -1, and there are no epochs.
    """

    topic_id: Uuid
    topic: str
    partition: int
    base_offset: int
    end_offset: int
    size_in_bytes: int
    max_timestamp_ms: int
    segment_leader_epochs: LeaderEpochs
    closed_files: LogSegmentData | None
    txn_idx_empty: bool

    @property
    def active(self) -> bool:
        """True while the broker may still append to the segment."""
        return self.closed_files is None

    @property
    def files(self) -> LogSegmentData:
        """The files to copy. Raises InvalidSegmentError for an active segment."""
        if self.closed_files is None:
            name = f"{self.topic}-{self.partition} at offset {self.base_offset}"
            raise InvalidSegmentError(f"segment {name} is active: it can be copied once the broker has closed it")
        return self.closed_files

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition of the segment."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    def to_metadata(
        self, segment_id: Uuid, broker_id: int = -1, event_timestamp_ms: int = -1
    ) -> RemoteLogSegmentMetadata:
        """Return Kafka's metadata for one attempt to copy the segment under the id ``segment_id``."""
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(self.topic_id_partition, segment_id),
            start_offset=self.base_offset,
            end_offset=self.end_offset,
            segment_size_in_bytes=self.size_in_bytes,
            max_timestamp_ms=self.max_timestamp_ms,
            broker_id=broker_id,
            event_timestamp_ms=event_timestamp_ms,
            segment_leader_epochs=self.segment_leader_epochs,
            txn_idx_empty=self.txn_idx_empty,
        )


def discover(path: Path) -> Discovery:
    """Find the segments under ``path``: a log directory, one ``<topic>-<partition>`` directory, or one ``.log`` file.

    This lists directories and opens no file. In a log directory, partitions of Kafka's internal topics (``__…``) are
    left out.

    Raise ConfigError if ``path`` is not a log directory, a partition's directory, or a ``.log`` file.
    """
    if path.is_file():
        return _discover_file(path)
    if not path.is_dir():
        raise ConfigError(f"{path} is not a directory or a .log file")
    # The contents decide, not the name, because a log directory may be named data-0, like a partition.
    if any(_LOG.fullmatch(entry.name) or entry.name == PARTITION_METADATA for entry in _list(path)):
        return _discover_partition(path)
    return _discover_log_dir(path)


def discover_deleted(directory: Path) -> tuple[FoundSegment, ...]:
    """Find the segments of one ``<topic>-<partition>`` directory, including those that the broker is about to delete.

    Retention deletes only the first segments of a log. If an earlier segment still exists, a segment marked deleted was
    truncated from the log's end, or replaced by compaction. Leave such a segment out, because its records are no longer
    part of the log.

    All names must come from one listing, because a segment may be closed and marked deleted within the same
    millisecond.
    """
    topic, partition = partition_of(directory)
    live, marked = _live_and_marked(directory)
    for _ in range(_MOST_RELISTINGS):
        if not live or not marked or marked[-1] < live[0]:
            break
        # A listing is not a snapshot. While retention renames one log after the other, a listing may see the first log
        # before its renaming and the second log after it. The second log then looks truncated, so list again.
        live, marked = _live_and_marked(directory)
    bases = [*(base for base in marked if not live or base < live[0]), *live]
    return tuple(
        FoundSegment(directory, topic, partition, base, next_base, is_deleted=not live or base < live[0])
        for base, next_base in zip(bases, [*bases[1:], None], strict=False)
    )


def _live_and_marked(directory: Path) -> tuple[list[int], list[int]]:
    """Return the base offsets of the live logs and of the logs marked deleted, from one listing."""
    names = _names(directory)
    return _base_offsets(directory, _LOG, names), _base_offsets(directory, _DELETED_LOG, names)


def partition_of(directory: Path) -> tuple[str, int]:
    """Return topic and partition from a directory's name. Raise ConfigError if the directory is not a partition's."""
    match = _DIRECTORY.fullmatch(directory.absolute().name)
    if not match:
        raise ConfigError(f"{directory} holds segments, but its name is not <topic>-<partition>")
    return match[1], int(match[2])


def describe(segment: FoundSegment, topic_id: Uuid | None = None) -> LogSegment:
    """Describe a segment for a copy. This reads its small files and, if the segment is closed, all its batch headers.

    A segment is closed if another segment follows it. The last segment counts as closed if the producer snapshot after
    it exists and its indexes are trimmed. This is the case in a copy of a partition without the active segment. After
    an orderly shutdown, a broker's active segment looks the same, and is complete.

    As in Kafka, a segment ends just before the base offset of the next segment, even if compaction has removed its last
    batches. The last segment ends with its last batch. An empty last segment is active.

    Without ``topic_id``, the topic id is read from ``partition.metadata``.

    Raise InvalidSegmentError for files that are missing or contradict each other. Raise RecordsDeletedError if the
    broker has deleted the records and only the files remain. Raise BatchCorruptError for damage.
    """
    if topic_id is None:
        topic_id = parse_partition_metadata(_read_of_partition(PARTITION_METADATA, segment))
    epochs = parse_leader_epochs(_read_of_partition(LEADER_EPOCH_CHECKPOINT, segment))
    size = _size(segment.path("log"), segment)
    txn_index = segment.path("txnindex")
    # Read the file's size before the batches. Bytes that the broker appends later may be an incomplete batch.
    extent = _closed_extent(segment, size)
    end_offset, max_timestamp = extent or (-1, -1)
    return LogSegment(
        topic_id=topic_id,
        topic=segment.topic,
        partition=segment.partition,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size_in_bytes=size,
        max_timestamp_ms=max_timestamp,
        segment_leader_epochs=_epochs_of(segment, epochs, end_offset) if extent else (),
        closed_files=_files(segment, epochs, end_offset) if extent else None,
        txn_idx_empty=not txn_index.exists() or _size(txn_index, segment) == 0,
    )


def _discover_file(path: Path) -> Discovery:
    match = _LOG.fullmatch(path.name)
    if not match:
        raise ConfigError(f"{path} is not a segment: its name should be 20 digits and .log")
    inside = _discover_partition(path.absolute().parent)
    return Discovery(tuple(s for s in inside.segments if s.base_offset == int(match[1])), ())


def _discover_log_dir(path: Path) -> Discovery:
    segments: list[FoundSegment] = []
    left: list[LeftAlone] = []
    for directory in (entry for entry in _list(path) if entry.is_dir()):
        reason = _reason_to_leave(directory.name)
        if reason:
            left.append(LeftAlone(directory, reason))
            continue
        inside = _discover_partition(directory)
        segments += inside.segments
        left += inside.left_alone
    segments.sort(key=lambda segment: (segment.topic, segment.partition, segment.base_offset))
    return Discovery(tuple(segments), tuple(left))


def _reason_to_leave(name: str) -> str | None:
    match = _DIRECTORY.fullmatch(name)
    doomed = _DOOMED_DIRECTORY.fullmatch(name)
    if not match:
        return f"a partition that Kafka marked {doomed[1]}" if doomed else "not named <topic>-<partition>"
    return "an internal topic: to copy it, name its folder" if match[1].startswith(_INTERNAL) else None


def _discover_partition(directory: Path) -> Discovery:
    topic, partition = partition_of(directory)
    entries = _list(directory)
    bases = _base_offsets(directory, _LOG, [entry.name for entry in entries])
    following = [*bases[1:], None]
    return Discovery(
        tuple(FoundSegment(directory, topic, partition, *pair) for pair in zip(bases, following, strict=False)),
        tuple(_doomed_files(entries)),
    )


def _base_offsets(directory: Path, pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    bases = sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
    # Twenty digits can be a number beyond 63 bits, which is no offset.
    if bases and bases[-1] > MAX_OFFSET:
        raise InvalidSegmentError(
            f"{directory} has a .log file for offset {bases[-1]}, but an offset has at most 63 bits"
        )
    return bases


def _doomed_files(entries: list[Path]) -> Iterator[LeftAlone]:
    for entry in entries:
        match = _DOOMED_FILE.fullmatch(entry.name)
        if match:
            yield LeftAlone(entry, f"a file that Kafka marked {match[1]}")


def _closed_extent(segment: FoundSegment, size: int) -> tuple[int, int] | None:
    """Return the end offset and greatest timestamp of a closed segment. Return None for an active one."""
    if segment.next_base_offset is not None:
        last, max_timestamp = _scan(segment, size)
        return segment.end_before_next(last), max_timestamp
    # The cheap checks come first, because reading all headers is expensive.
    if size == 0 or not _indexes_are_trimmed(segment) or not _has_later_snapshot(segment):
        return None
    last, max_timestamp = _scan(segment, size)
    return (last, max_timestamp) if segment.snapshot_path(last).exists() else None


def _scan(segment: FoundSegment, size: int) -> tuple[int, int]:
    """Return the last offset and greatest timestamp in the batch headers."""
    path = segment.path("log")
    with explain_failure(path, str(segment)), path.open("rb") as log:
        extent = scan_log(log.fileno(), size, segment.base_offset, str(segment))
    return extent.last_offset, extent.max_timestamp_ms


def _indexes_are_trimmed(segment: FoundSegment) -> bool:
    sizes = {"index": OFFSET_ENTRY_SIZE, "timeindex": TIME_ENTRY_SIZE}
    return all(is_trimmed(_read(segment.path(suffix), segment), size) for suffix, size in sizes.items())


def _has_later_snapshot(segment: FoundSegment) -> bool:
    snapshots = (_SNAPSHOT.fullmatch(entry.name) for entry in _list(segment.directory))
    return any(int(snapshot[1]) > segment.base_offset for snapshot in snapshots if snapshot)


def _epochs_of(segment: FoundSegment, epochs: LeaderEpochs, end_offset: int) -> LeaderEpochs:
    own = segment_leader_epochs(epochs, segment.base_offset, end_offset)
    if own:
        return own
    if epochs:
        # The checkpoint no longer has this segment's epochs. The broker removes epochs before its log start, so the
        # records are deleted.
        raise RecordsDeletedError(
            f"the broker has deleted the records of segment {segment}: its log begins at {epochs[0][1]}"
        )
    raise InvalidSegmentError(
        f"{LEADER_EPOCH_CHECKPOINT} has no epoch for segment {segment}, which ends at {end_offset}"
    )


def _files(segment: FoundSegment, epochs: LeaderEpochs, end_offset: int) -> LogSegmentData:
    txn_index = segment.path("txnindex")
    return LogSegmentData(
        log_segment=segment.path("log"),
        offset_index=_present(segment.path("index"), segment),
        time_index=_present(segment.path("timeindex"), segment),
        transaction_index=txn_index if txn_index.exists() else None,
        producer_snapshot_index=_present(segment.snapshot_path(end_offset), segment),
        leader_epoch_index=format_leader_epochs(truncate_from_end(epochs, end_offset)),
    )


def _read(path: Path, segment: FoundSegment) -> bytes:
    with explain_failure(path, str(segment)):
        return path.read_bytes()


def _read_of_partition(name: str, segment: FoundSegment) -> bytes:
    path = segment.directory / name
    try:
        return path.read_bytes()
    except FileNotFoundError:
        problem = f"{path} is missing, and no segment of {segment.topic}-{segment.partition} can be copied without it"
        if name == PARTITION_METADATA:
            problem += (
                f"; brokers before Kafka 2.8 did not write this file: upload {segment.directory} by itself with its "
                "topic id (--topic-id, which kafka-topics --describe shows)"
            )
        raise InvalidSegmentError(problem) from None
    except OSError as error:
        raise InvalidSegmentError(f"{path} cannot be read: {error.strerror}") from error


def _size(path: Path, segment: FoundSegment) -> int:
    with explain_failure(path, str(segment)):
        return path.stat().st_size


def _present(path: Path, segment: FoundSegment) -> Path:
    _size(path, segment)
    return path


def _list(directory: Path) -> list[Path]:
    return [directory / name for name in sorted(_names(directory))]


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208  names are enough, of perhaps tens of thousands of files
    except FileNotFoundError:
        return []  # the broker has deleted the partition since it was listed
    except OSError as error:
        raise ConfigError(f"{directory} cannot be listed: {error.strerror}") from error
