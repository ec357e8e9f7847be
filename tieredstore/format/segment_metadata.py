"""``remoteLogSegmentMetadata`` of a manifest: which segment it is, for readers that do not ask Kafka.

The plugin writes it and never reads it, and nothing of it locates or transforms data. It tells whose manifest it is,
though: one that was copied over another segment's is known by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.errors import SegmentCorrupt, TieredStoreError, quoted
from tieredstore.format.json_object import Json, has_lone_surrogates
from tieredstore.format.manifest_rules import KnownSegment
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid


def metadata_fields(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    """The JSON fields in the plugin's order; ``txnIdxEmpty`` only where it is known, as brokers before 4.0 do."""
    partition = metadata.topic_id_partition
    fields: dict[str, object] = {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": str(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": str(metadata.remote_log_segment_id.id),
        },
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "brokerId": metadata.broker_id,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": {str(epoch): start for epoch, start in sorted(metadata.segment_leader_epochs)},
    }
    if metadata.txn_idx_empty is not None:
        fields["txnIdxEmpty"] = metadata.txn_idx_empty
    return fields


def read_metadata(
    fields: Json, segment_size_in_bytes: int, known: KnownSegment | None
) -> RemoteLogSegmentMetadata | None:
    """Return the segment that the fields describe; None if any of them is absent or cannot be right.

    The size is not among the fields: it is the manifest's ``originalFileSize``. Call :func:`check_recorded` first where
    the segment is ``known``: its own id is then used, one value for all who hold it.
    """
    try:
        return _read(_object(fields), segment_size_in_bytes, known)
    except (_UnusableError, TieredStoreError):  # the model's own checks raise the latter
        return None


def check_recorded(fields: Json, known: KnownSegment) -> None:
    """SegmentCorrupt if topic, topic id, partition, segment id or start offset are recorded and are not the key's.

    Each is compared by itself, wherever it is recorded: in metadata that is of no use otherwise too.
    """
    where = known.segment_id.topic_id_partition
    recorded = _mapping(fields)
    segment_id = _mapping(recorded.get("remoteLogSegmentId"))
    partition = _mapping(segment_id.get("topicIdPartition"))
    inner = _mapping(partition.get("topicPartition"))
    for name, value, expected in (
        ("topic", inner.get("topic"), where.topic),
        ("topicId", partition.get("topicId"), str(where.topic_id)),
        ("partition", inner.get("partition"), where.partition),
        ("segment id", segment_id.get("id"), str(known.segment_id.id)),
        ("startOffset", recorded.get("startOffset"), known.start_offset),
    ):
        # A value of another type was written by nobody: it records nothing.
        if type(value) is type(expected) and value != expected:
            raise SegmentCorrupt(
                f"it is the manifest of another segment: it records the {name} {quoted(value)}, and its key says "
                f"{quoted(expected)}"
            )


# Of its own and private: no caller should see why, and ValueError would also catch mistakes of this module.
class _UnusableError(Exception):
    """A field is absent or cannot be right; informational data is not worth a sentence about which."""


def _read(fields: Mapping[str, Json], size: int, known: KnownSegment | None) -> RemoteLogSegmentMetadata:
    start_offset = _integer(fields.get("startOffset"))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=_segment_id(_object(fields.get("remoteLogSegmentId")), known),
        start_offset=start_offset,
        # What is held ends one behind it, which has to be a number of Java's too.
        end_offset=_integer(fields.get("endOffset"), at_least=start_offset, at_most=MAX_INT64 - 1),
        segment_size_in_bytes=size,
        max_timestamp_ms=_integer(fields.get("maxTimestampMs"), at_least=-1),
        broker_id=_integer(fields.get("brokerId"), at_least=-1, at_most=MAX_INT32),
        event_timestamp_ms=_integer(fields.get("eventTimestampMs"), at_least=-1),
        segment_leader_epochs=_epochs(_object(fields.get("segmentLeaderEpochs"))),
        txn_idx_empty=_truth(fields.get("txnIdxEmpty")),
    )


def _segment_id(fields: Mapping[str, Json], known: KnownSegment | None) -> RemoteLogSegmentId:
    where = _object(fields.get("topicIdPartition"))
    inner = _object(where.get("topicPartition"))
    topic, partition = _text(inner.get("topic")), _integer(inner.get("partition"), at_most=MAX_INT32)
    topic_id, own_id = _text(where.get("topicId")), _text(fields.get("id"))
    if known is not None:  # what is recorded in the right type is the same
        return known.segment_id
    return RemoteLogSegmentId(TopicIdPartition(_uuid(topic_id), topic, partition), _uuid(own_id))


def _epochs(fields: Mapping[str, Json]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted([(_epoch(name), _integer(start)) for name, start in fields.items()]))


def _epoch(name: str) -> int:
    # JSON names are texts: an epoch with leading zeros could stand there twice.
    if not (name.isascii() and name.isdecimal() and len(name) <= 10) or str(int(name)) != name:
        raise _UnusableError
    return _integer(int(name), at_most=MAX_INT32)


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise _UnusableError
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str) or not value or has_lone_surrogates(value):
        raise _UnusableError
    return value


def _uuid(text: str) -> Uuid:
    uuid = Uuid.spelled(text)
    if uuid is None:
        raise _UnusableError
    return uuid


def _integer(value: Json, *, at_least: int = 0, at_most: int = MAX_INT64) -> int:
    # Stricter than the manifest's other numbers: a text or a fraction here was written by neither the plugin nor us.
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        raise _UnusableError
    return value


def _truth(value: Json) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _UnusableError
    return value
