"""The records of ``__remote_log_metadata``, Kafka's topic about all remote segments.

A value is a frame and one message of Kafka's flexible encoding. Integers are big-endian. Lengths and counts are stored
as the number plus one, in unsigned LEB128; 0 means null. Tagged fields are the exception: they store the number
itself::

    uvarint frame version 1 | uvarint kind | uvarint version 0 | the message

    TopicIdPartition   string topic | uuid topic id | int32 partition | tagged fields
    SegmentId          TopicIdPartition | uuid id | tagged fields
    0  segment         SegmentId | int64 start offset | int64 end offset | int32 broker | int64 max timestamp
                       int64 event timestamp | array of (int32 epoch | int64 start offset | tagged fields)
                       int32 size | bytes custom metadata or null | int8 state
                       tagged fields: 0 txnIdxEmpty, bool, left out if false and by brokers before 4.0
    1  update          SegmentId | int32 broker | int64 event timestamp | bytes custom metadata or null | int8 state
                       tagged fields
    2  partition       TopicIdPartition | int32 broker | int64 event timestamp | int8 deletion state | tagged fields
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from tieredstore.catalog.lineage import check_segment
from tieredstore.errors import CorruptDataError, excerpt
from tieredstore.format.custom_metadata import FlexibleReader
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

_EPOCH_SIZE: Final = 13  # minimum size of a leader epoch in bytes
_E = TypeVar("_E", bound=enum.Enum)


class SegmentState(enum.Enum):
    """Kafka's ``RemoteLogSegmentState``."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class PartitionDeleteState(enum.Enum):
    """Kafka's ``RemotePartitionDeleteState``."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment's metadata and state, as the broker writes them at the start of the segment's copy."""

    metadata: RemoteLogSegmentMetadata
    state: SegmentState


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """A change of a segment's state."""

    segment_id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: SegmentState


@dataclass(frozen=True, slots=True)
class PartitionDelete:
    """The progress of deleting a partition whose topic was deleted."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: PartitionDeleteState


MetadataRecord: TypeAlias = SegmentRecord | SegmentUpdate | PartitionDelete


def parse_metadata_record(value: bytes) -> MetadataRecord:
    """Parse a record's value. Raise CorruptDataError if the value is damaged or of an unknown version.

    Unknown tagged fields are ignored, as in Kafka.
    """
    reader = _Reader(value, "a record of the metadata topic")
    frame, kind, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame != 1 or version != 0 or kind not in _PARSERS:
        raise CorruptDataError(
            f"a record of the metadata topic has frame version {frame}, kind {kind} and version {version}; "
            f"known are frame version 1, the kinds {sorted(_PARSERS)} and version 0"
        )
    record = _PARSERS[kind](reader)
    reader.finish()
    return record


class _Reader(FlexibleReader):
    """Reader of the types in the metadata topic."""

    def integer(self, size: int, *, at_least: int = 0) -> int:
        """Return a signed integer of ``size`` bytes. Pass ``at_least=-1`` if Kafka writes -1 for "unknown"."""
        value = int.from_bytes(self.take(size), "big", signed=True)
        if value < at_least:
            raise CorruptDataError(
                f"a record of the metadata topic holds the number {value}, but it must be at least {at_least}"
            )
        return value

    def nullable_bytes(self) -> bytes | None:
        length = self.uvarint()
        return self.take(length - 1) if length else None

    def text(self) -> str:
        raw = self.nullable_bytes()
        try:
            text = (raw or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"a record of the metadata topic names a topic that is not UTF-8: {error}") from None
        if not text or "/" in text:
            raise CorruptDataError(f"a record of the metadata topic names the invalid topic {excerpt(text)!r}")
        return text

    def uuid(self) -> Uuid:
        return Uuid(self.take(16))

    def state(self, kind: type[_E]) -> _E:
        value = self.integer(1)
        if value not in {state.value for state in kind}:
            raise CorruptDataError(f"a record of the metadata topic has the state {value}, which Kafka does not know")
        return kind(value)

    def array_length(self, element_size: int) -> int:
        count = self.uvarint() - 1
        if not 0 <= count <= self.left // element_size:
            raise CorruptDataError(
                f"a record of the metadata topic states {count} entries, which do not fit into its bytes"
            )
        return count


def _segment(reader: _Reader) -> SegmentRecord:
    segment_id = _segment_id(reader)
    start_offset, end_offset = reader.integer(8), reader.integer(8)
    broker_id = reader.integer(4, at_least=-1)
    max_timestamp, event_timestamp = reader.integer(8, at_least=-1), reader.integer(8, at_least=-1)
    epochs = tuple(_epoch(reader) for _ in range(reader.array_length(_EPOCH_SIZE)))
    size, custom, state = reader.integer(4), reader.nullable_bytes(), reader.state(SegmentState)
    metadata = RemoteLogSegmentMetadata(
        remote_log_segment_id=segment_id,
        start_offset=start_offset,
        end_offset=end_offset,
        segment_size_in_bytes=size,
        max_timestamp_ms=max_timestamp,
        broker_id=broker_id,
        event_timestamp_ms=event_timestamp,
        segment_leader_epochs=tuple(sorted(epochs)),
        txn_idx_empty=_txn_index_empty(reader.tagged_fields()),
        custom_metadata=custom,
    )
    check_segment(metadata)
    return SegmentRecord(metadata, state)


def _update(reader: _Reader) -> SegmentUpdate:
    update = SegmentUpdate(
        _segment_id(reader),
        reader.integer(4, at_least=-1),
        reader.integer(8, at_least=-1),
        reader.nullable_bytes(),
        reader.state(SegmentState),
    )
    reader.tagged_fields()
    return update


def _partition_delete(reader: _Reader) -> PartitionDelete:
    delete = PartitionDelete(
        _topic_id_partition(reader),
        reader.integer(4, at_least=-1),
        reader.integer(8, at_least=-1),
        reader.state(PartitionDeleteState),
    )
    reader.tagged_fields()
    return delete


_PARSERS: Final[dict[int, Callable[[_Reader], MetadataRecord]]] = {0: _segment, 1: _update, 2: _partition_delete}


def _segment_id(reader: _Reader) -> RemoteLogSegmentId:
    segment_id = RemoteLogSegmentId(_topic_id_partition(reader), reader.uuid())
    reader.tagged_fields()
    return segment_id


def _topic_id_partition(reader: _Reader) -> TopicIdPartition:
    topic, topic_id = reader.text(), reader.uuid()
    where = TopicIdPartition(topic_id, topic, reader.integer(4))
    reader.tagged_fields()
    return where


def _epoch(reader: _Reader) -> tuple[int, int]:
    entry = reader.integer(4), reader.integer(8)
    reader.tagged_fields()
    return entry


def _txn_index_empty(fields: dict[int, bytes]) -> bool:
    flag = fields.get(0, b"\0")
    if len(flag) != 1:
        raise CorruptDataError(
            f"a record of the metadata topic has a field txnIdxEmpty of {len(flag)} bytes instead of 1"
        )
    return flag != b"\0"
