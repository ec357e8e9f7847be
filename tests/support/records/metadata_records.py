"""Metadata topic records written field by field, independently of the parser."""

from __future__ import annotations

import struct

from tieredstore.catalog.metadata_topic import PartitionDelete, SegmentRecord, SegmentState, SegmentUpdate
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition


def segment_record(
    metadata: RemoteLogSegmentMetadata, state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
) -> bytes:
    epochs = [struct.pack(">iq", *entry) + b"\0" for entry in metadata.segment_leader_epochs]
    return b"".join(
        (
            b"\x01\x00\x00",
            _segment_id(metadata.remote_log_segment_id),
            struct.pack(">qqi", metadata.start_offset, metadata.end_offset, metadata.broker_id),
            struct.pack(">qq", metadata.max_timestamp_ms, metadata.event_timestamp_ms),
            uvarint(len(epochs) + 1),
            *epochs,
            struct.pack(">i", metadata.segment_size_in_bytes),
            _nullable(metadata.custom_metadata),
            bytes([state.value]),
            b"\x01\x00\x01\x01" if metadata.txn_idx_empty else b"\0",
        )
    )


def update_record(update: SegmentUpdate) -> bytes:
    return b"".join(
        (
            b"\x01\x01\x00",
            _segment_id(update.segment_id),
            struct.pack(">iq", update.broker_id, update.event_timestamp_ms),
            _nullable(update.custom_metadata),
            bytes([update.state.value]),
            b"\0",
        )
    )


def delete_record(delete: PartitionDelete) -> bytes:
    times = struct.pack(">iq", delete.broker_id, delete.event_timestamp_ms)
    return b"\x01\x02\x00" + _partition(delete.partition) + times + bytes([delete.state.value]) + b"\0"


def encode(record: SegmentRecord | SegmentUpdate | PartitionDelete) -> bytes:
    if isinstance(record, SegmentRecord):
        return segment_record(record.metadata, record.state)
    return update_record(record) if isinstance(record, SegmentUpdate) else delete_record(record)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _partition(where: TopicIdPartition) -> bytes:
    topic = where.topic.encode()
    return uvarint(len(topic) + 1) + topic + where.topic_id.bytes + struct.pack(">i", where.partition) + b"\0"


def _segment_id(segment_id: RemoteLogSegmentId) -> bytes:
    return _partition(segment_id.topic_id_partition) + segment_id.id.bytes + b"\0"


def _nullable(value: bytes | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value) + 1) + value
