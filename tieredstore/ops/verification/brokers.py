"""Compares the brokers' metadata topic with the bucket, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.listing import Scope
from tieredstore.catalog.metadata_topic import SegmentState
from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.format.keys import Suffix, main_path, object_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid
from tieredstore.ops.brokers import METADATA_TOPIC, BrokersSegments, segment_key
from tieredstore.ops.verification.findings import Finding, FindingKind

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket
    from tieredstore.ops.verification.verification import CheckedSegment

_NO_ID: Final = Uuid(bytes(16))
_STARTED, _FINISHED = SegmentState.COPY_SEGMENT_STARTED.value, SegmentState.COPY_SEGMENT_FINISHED.value
_DELETED: Final = SegmentState.DELETE_SEGMENT_FINISHED.value
_DOUBTFUL: Final = "CREATE TABLE doubtful (topic TEXT, topic_id BLOB, part INTEGER, id BLOB, start INTEGER)"
_SEE: Final = "UPDATE segment SET seen = 1 WHERE topic = ? AND topic_id = ? AND part = ? AND id = ?"
_UNSEEN: Final = "SELECT topic, topic_id, part, id, start, end FROM segment WHERE state = ? AND seen = 0"
_WORDS: Final = {
    None: "the brokers do not know the segment",
    _STARTED: "the brokers never finished the segment's copy",
    SegmentState.DELETE_SEGMENT_STARTED.value: "the brokers have begun to delete the segment",
    _DELETED: "the brokers have deleted the segment",
}


class BrokersBelief(BrokersSegments):
    """The segments that the brokers list, according to their metadata topic. Not thread-safe.

    First :meth:`take` all records. Then :meth:`compare` each segment of a run. At the end, take the new records, and
    ask for the :meth:`rest`. In this order, segments that are copied or deleted during the run cause no findings.
    """

    def __init__(self, topic: str = METADATA_TOPIC) -> None:
        super().__init__()
        self._topic = topic
        self.database.execute(_DOUBTFUL)

    def take(self, records: Iterable[tuple[int, int, bytes]]) -> Iterator[Finding]:
        """Take records (partition, offset, value) of the topic. Yield a finding for each record that Kafka cannot have
        written.
        """
        for partition, offset, value in records:
            try:
                self.apply(value)
            except CorruptDataError as error:
                where = TopicIdPartition(_NO_ID, self._topic, partition)
                yield Finding(FindingKind.BROKERS_RECORD, where, str(error), offsets=(offset, offset))

    def compare(self, checked: CheckedSegment) -> Iterator[Finding]:
        """Yield differences between a segment and the brokers' record of it. Differences that may be temporary are
        reported by :meth:`rest` instead.
        """
        objects = checked.subject.objects
        if objects.find(Suffix.MANIFEST) is None:
            return
        key = segment_key(objects.segment_id)
        row = self.row_of(objects.segment_id)
        if row is None or row[0] != _FINISHED:
            self.database.execute("INSERT INTO doubtful VALUES (?, ?, ?, ?, ?)", (*key, objects.start_offset))
        if row is None:
            return
        self.database.execute(_SEE, key)
        if row[0] == _FINISHED and (difference := _difference(checked, *row[1:])) is not None:
            yield _finding(FindingKind.BROKERS_DIFFER, objects.segment_id, objects.start_offset, difference)

    def rest(
        self, bucket: Bucket, scopes: Collection[Scope], has_offsets: Callable[[int, int], bool] = lambda _, __: True
    ) -> Iterator[Finding]:
        """Yield a finding for each segment that only the bucket or only the brokers have. First look for the segment's
        manifest again.

        Report a segment that only the brokers have if it is in one of the scopes. ``has_offsets`` must also accept its
        first and last offset.
        """
        for *ids, start in self.database.execute("SELECT * FROM doubtful"):
            segment_id = _segment_id(*ids)
            row = self.row_of(segment_id)
            state = None if row is None else row[0]
            if state != _FINISHED and _exists(bucket, segment_id, start):
                yield _finding(FindingKind.UNKNOWN_TO_BROKERS, segment_id, start, _WORDS[state])
        for *ids, start, end in self.database.execute(_UNSEEN, (_FINISHED,)):
            segment_id = _segment_id(*ids)
            is_asked = has_offsets(start, end) and any(one.holds(segment_id, start) for one in scopes)
            if is_asked and not _exists(bucket, segment_id, start):
                detail = f"the brokers list offsets {start} to {end}, but there is no manifest"
                yield _finding(FindingKind.NOT_IN_BUCKET, segment_id, start, detail, (start, end))


def _segment_id(topic: str, topic_id: bytes, partition: int, segment_id: bytes) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(TopicIdPartition(Uuid(topic_id), topic, partition), Uuid(segment_id))


def _difference(checked: CheckedSegment, start: int, end: int, size: int) -> str | None:
    """Describe how manifest and brokers differ; None if they agree, or if the manifest was not read."""
    if checked.claimed is None:
        return None
    said: Mapping[str, tuple[int, int]] = {
        "start offset": (checked.subject.objects.start_offset, start),
        "end offset": (checked.claimed.end if checked.claimed.end >= 0 else end, end),
        "size": (checked.log_size, size),
    }
    differing = [f"{name} {ours} and {theirs}" for name, (ours, theirs) in said.items() if ours != theirs]
    return f"manifest and brokers say: {', '.join(differing)}" if differing else None


def _exists(bucket: Bucket, segment_id: RemoteLogSegmentId, start: int) -> bool:
    key = object_key(bucket.prefix, main_path(segment_id, start), Suffix.MANIFEST)
    try:
        bucket.store.head(key)
    except ObjectNotFoundError:
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
