"""What the brokers believe is in the bucket, by their metadata topic, held against what is: in both directions."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tieredstore.catalog.listing import Scope
from tieredstore.catalog.metadata_records import (
    SegmentRecord,
    SegmentState,
    SegmentUpdate,
    parse_metadata_record,
)
from tieredstore.errors import CorruptData, ObjectNotFound
from tieredstore.format.keys import Suffix, main_path, object_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid
from tieredstore.ops.verification.findings import Finding, FindingKind

if TYPE_CHECKING:
    from tieredstore.live import LiveReader
    from tieredstore.ops.bucket import Bucket
    from tieredstore.ops.verification.verification import CheckedSegment

METADATA_TOPIC: Final = "__remote_log_metadata"

_NO_ID: Final = Uuid(bytes(16))
_STARTED, _FINISHED = SegmentState.COPY_SEGMENT_STARTED.value, SegmentState.COPY_SEGMENT_FINISHED.value
_DELETED: Final = SegmentState.DELETE_SEGMENT_FINISHED.value
_TABLES: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE segment (
    topic TEXT, topic_id BLOB, part INTEGER, id BLOB, start INTEGER, end INTEGER, size INTEGER, state INTEGER,
    seen INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, topic_id, part, id)
) WITHOUT ROWID;
CREATE TABLE doubtful (topic TEXT, topic_id BLOB, part INTEGER, id BLOB, start INTEGER);
"""
_SELECT: Final = "SELECT state, start, end, size FROM segment WHERE topic = ? AND topic_id = ? AND part = ? AND id = ?"
_SEE: Final = "UPDATE segment SET seen = 1 WHERE topic = ? AND topic_id = ? AND part = ? AND id = ?"
_MOVE_ALL_ON: Final = "UPDATE segment SET state = ?1 WHERE topic = ?2 AND topic_id = ?3 AND part = ?4"
_MOVE_ON: Final = f"{_MOVE_ALL_ON} AND id = ?5 AND state < ?1"
_UNSEEN: Final = "SELECT topic, topic_id, part, id, start, end FROM segment WHERE state = ? AND seen = 0"
_WORDS: Final = {
    None: "the brokers do not know it",
    _STARTED: "the brokers take its copy for unfinished",
    SegmentState.DELETE_SEGMENT_STARTED.value: "the brokers have begun to delete it",
    _DELETED: "the brokers have deleted it",
}


class MetadataTopic:
    """Reads the brokers' metadata topic, all of it and then what has come since. Close it."""

    def __init__(self, reader: LiveReader, topic: str = METADATA_TOPIC) -> None:
        self._reader = reader
        self._topic = topic
        self._read_up_to: dict[tuple[str, int], int] | None = None

    def read_on(self) -> Iterator[tuple[int, int, bytes]]:
        """Partition, offset and value of each record that was not read before, up to the ends as they are now.

        ResourceNotFound where there is no such topic: the brokers have no tiered storage, or keep its metadata
        elsewhere.
        """
        cluster = self._reader.cluster
        places = [(self._topic, number) for number in cluster.topic(self._topic).partitions]
        starts = cluster.earliest_offsets(places) if self._read_up_to is None else self._read_up_to
        ends = cluster.end_offsets(places)
        for place in places:
            start = starts.get(place, 0)
            for batch in self._reader.read(*place, start, max(start, ends[place]), columns=("offset", "value")):
                rows: list[dict[str, object]] = batch.to_pylist()
                for row in rows:
                    offset, value = row["offset"], row["value"]
                    if isinstance(offset, int) and isinstance(value, bytes):
                        yield place[1], offset, value
        self._read_up_to = ends


class BrokersBelief:
    """What the records of the metadata topic come to. Kept in a file of its own, which goes with :meth:`close`: there
    may be millions of segments. For one thread.

    Take all records, :meth:`compare` each segment of a run, take the records that came meanwhile, then ask for the
    :meth:`rest`: what was copied or deleted during the run is then no finding.
    """

    def __init__(self, topic: str = METADATA_TOPIC) -> None:
        self._topic = topic
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="tieredstore-verify-"))
            self._database = opened.enter_context(contextlib.closing(sqlite3.connect(Path(folder) / "belief")))
            self._database.executescript(_TABLES)
            self._opened = opened.pop_all()

    def take(self, records: Iterable[tuple[int, int, bytes]]) -> Iterator[Finding]:
        """Take records by their partition, offset and value; those that are none of Kafka's are findings."""
        for partition, offset, value in records:
            try:
                self._apply(value)
            except CorruptData as error:
                where = TopicIdPartition(_NO_ID, self._topic, partition)
                yield Finding(FindingKind.BROKERS_RECORD, where, str(error), offsets=(offset, offset))

    def compare(self, checked: CheckedSegment) -> Iterator[Finding]:
        """What the brokers believe otherwise of one segment; what may be of the moment is left to :meth:`rest`."""
        objects = checked.objects
        if objects.find(Suffix.MANIFEST) is None:
            return
        key = _key_of(objects.segment_id)
        row = self._database.execute(
            _SELECT,
            key,
        ).fetchone()
        if row is None or row[0] != _FINISHED:
            self._database.execute("INSERT INTO doubtful VALUES (?, ?, ?, ?, ?)", (*key, objects.start_offset))
        if row is None:
            return
        self._database.execute(_SEE, key)
        if row[0] == _FINISHED and (difference := _difference(checked, *row[1:])) is not None:
            yield _finding(FindingKind.BROKERS_DIFFER, objects.segment_id, objects.start_offset, difference)

    def rest(self, bucket: Bucket, scope: Scope) -> Iterator[Finding]:
        """What is in the bucket alone, and what only the brokers have; the manifests of the latter are looked for."""
        for *ids, start in self._database.execute("SELECT * FROM doubtful"):
            row = self._database.execute(
                _SELECT,
                ids,
            ).fetchone()
            state = None if row is None else row[0]
            segment_id = _segment_id(*ids)
            if state != _FINISHED and _exists(bucket, segment_id, start):
                yield _finding(FindingKind.UNKNOWN_TO_BROKERS, segment_id, start, _WORDS[state])
        for *ids, start, end in self._database.execute(_UNSEEN, (_FINISHED,)):
            segment_id = _segment_id(*ids)
            if _is_in(scope, segment_id.topic_id_partition) and not _exists(bucket, segment_id, start):
                detail = f"the brokers list offsets {start} to {end}, and there is no manifest"
                yield _finding(FindingKind.NOT_IN_BUCKET, segment_id, start, detail, (start, end))

    def close(self) -> None:
        """Forget all."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _apply(self, value: bytes) -> None:
        record = parse_metadata_record(value)
        if isinstance(record, SegmentRecord):
            metadata = record.metadata
            values = metadata.start_offset, metadata.end_offset, metadata.segment_size_in_bytes, record.state.value
            # Records may come twice.
            self._database.execute(
                "INSERT OR IGNORE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (*_key_of(metadata.remote_log_segment_id), *values),
            )
        elif isinstance(record, SegmentUpdate):
            # States only go forward.
            self._database.execute(
                _MOVE_ON,
                (record.state.value, *_key_of(record.segment_id)),
            )
        else:
            # From the mark on nothing of the partition is to be read, and its topic's id does not come again.
            where = record.partition
            self._database.execute(
                _MOVE_ALL_ON,
                (_DELETED, where.topic, where.topic_id.bytes, where.partition),
            )


def _key_of(segment_id: RemoteLogSegmentId) -> tuple[str, bytes, int, bytes]:
    where = segment_id.topic_id_partition
    return where.topic, where.topic_id.bytes, where.partition, segment_id.id.bytes


def _segment_id(topic: str, topic_id: bytes, partition: int, segment_id: bytes) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(TopicIdPartition(Uuid(topic_id), topic, partition), Uuid(segment_id))


def _difference(checked: CheckedSegment, start: int, end: int, size: int) -> str | None:
    """What manifest and brokers say otherwise; None where they agree, or nothing is known of the manifest."""
    if checked.extent is None:
        return None
    said: Mapping[str, tuple[int, int]] = {
        "start offset": (checked.objects.start_offset, start),
        "end offset": (checked.extent.end if checked.extent.end >= 0 else end, end),
        "size": (checked.log_size, size),
    }
    differing = [f"{name} {ours} and {theirs}" for name, (ours, theirs) in said.items() if ours != theirs]
    return f"manifest and brokers say: {', '.join(differing)}" if differing else None


def _is_in(scope: Scope, where: TopicIdPartition) -> bool:
    return (
        scope.topic in (None, where.topic)
        and scope.topic_id in (None, where.topic_id)
        and scope.partition in (None, where.partition)
    )


def _exists(bucket: Bucket, segment_id: RemoteLogSegmentId, start: int) -> bool:
    key = object_key(bucket.prefix, main_path(segment_id, start), Suffix.MANIFEST)
    try:
        bucket.store.head(key)
    except ObjectNotFound:
        return False
    return True


def _finding(
    kind: FindingKind,
    segment_id: RemoteLogSegmentId,
    start: int,
    detail: str,
    offsets: tuple[int, int] | None = None,
) -> Finding:
    return Finding(kind, segment_id.topic_id_partition, detail, start, segment_id.id, offsets=offsets)
