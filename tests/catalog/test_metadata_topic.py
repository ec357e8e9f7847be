"""The broker's records of remote segments: parsed, and compared with the listed catalog."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import CASES, case_path, segments
from tests.support.golden.stored import metadata_of, settings_of
from tests.support.records.metadata_records import encode, segment_record, uvarint
from tests.support.stores.catalog_stores import MadeSegment, partition_of
from tieredstore.catalog.metadata_topic import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentRecord,
    SegmentState,
    SegmentUpdate,
    parse_metadata_record,
)
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import CorruptDataError
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager

EVENTS = partition_of()


@cache
def lines_of(case: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (case_path(case) / "rlmm.jsonl").read_text().splitlines()]


def values_of(case: str) -> list[bytes]:
    return [base64.b64decode(line["value"]) for line in lines_of(case)]


def recorded_segments(case: str) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
    """Return the metadata in the segments' first records."""
    records = map(parse_metadata_record, values_of(case))
    recorded = [record.metadata for record in records if isinstance(record, SegmentRecord)]
    return {metadata.remote_log_segment_id: metadata for metadata in recorded}


def told(text: str, name: str) -> str:
    """Return a field of a record as Kafka printed it."""
    match = re.search(rf"\b{name}=([^,}}]+)", text)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("case", CASES)
def test_golden_records_are_what_kafka_says_they_are(case: str) -> None:
    for line, value in zip(lines_of(case), values_of(case), strict=True):
        text, record = line["decoded"], parse_metadata_record(value)
        assert told(text, "state") == record.state.name
        assert encode(record) == value
        if isinstance(record, SegmentRecord):
            metadata = record.metadata
            assert f"id={metadata.remote_log_segment_id.id}}}" in text
            assert f"{metadata.topic_id_partition.topic_id}:{metadata.topic_id_partition.topic}-" in text
            for name, value_read in (
                ("startOffset", metadata.start_offset),
                ("endOffset", metadata.end_offset),
                ("brokerId", metadata.broker_id),
                ("maxTimestampMs", metadata.max_timestamp_ms),
                ("eventTimestampMs", metadata.event_timestamp_ms),
                ("segmentSizeInBytes", metadata.segment_size_in_bytes),
                ("txnIdxEmpty", str(metadata.txn_idx_empty).lower()),
            ):
                assert told(text, name) == str(value_read)
            epochs = ", ".join(f"{epoch}={start}" for epoch, start in metadata.segment_leader_epochs)
            assert f"segmentLeaderEpochs={{{epochs}}}" in text


@pytest.mark.parametrize("case", CASES)
def test_the_metadata_topic_has_the_segments_that_the_listing_has(case: str) -> None:
    recorded = recorded_segments(case)
    with RemoteStorageManager(settings_of(case)) as manager:
        listed = load_catalog(manager)
    spans = [span for where in listed.segments for span in listed.lineage(where.topic, where.partition).spans]
    assert {span.segment.remote_log_segment_id for span in spans} <= recorded.keys()
    for span in spans:
        # The manifest lacks the custom metadata, which Kafka gets after the copy.
        of_broker = recorded[span.segment.remote_log_segment_id]
        assert dataclasses.replace(of_broker, event_timestamp_ms=span.segment.event_timestamp_ms) == span.segment


def test_custom_metadata_comes_with_the_update() -> None:
    case = "10-prefix-masked-custommeta"
    updates = [record for value in values_of(case) if isinstance(record := parse_metadata_record(value), SegmentUpdate)]
    custom = {update.segment_id: update.custom_metadata for update in updates if update.custom_metadata is not None}
    assert custom
    with RemoteStorageManager(settings_of(case)) as manager:
        for segment_id, metadata in recorded_segments(case).items():
            known = dataclasses.replace(metadata, custom_metadata=custom[segment_id])
            with manager.fetch_log_segment(known, 0) as stream:
                original = next(s for s in segments(case) if s.base_offset == known.start_offset).original("log")
                assert stream.read() == original.read_bytes()


_int32s = st.integers(0, 2**31 - 1)
_int64s = st.integers(0, 2**63 - 1)
_uuids = st.binary(min_size=16, max_size=16).map(Uuid)
_partitions = st.builds(
    TopicIdPartition,
    _uuids,
    st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=60),
    _int32s,
)
_segment_ids = st.builds(RemoteLogSegmentId, _partitions, _uuids)
_custom = st.one_of(st.none(), st.binary(max_size=200))
_records = st.one_of(
    st.builds(SegmentUpdate, _segment_ids, _int32s, _int64s, _custom, st.sampled_from(SegmentState)),
    st.builds(PartitionDelete, _partitions, _int32s, _int64s, st.sampled_from(PartitionDeleteState)),
    st.builds(
        SegmentRecord,
        st.builds(
            lambda segment_id, start, length, custom, epochs, empty: dataclasses.replace(
                MadeSegment(EVENTS, start, start + length).metadata,
                remote_log_segment_id=segment_id,
                segment_leader_epochs=tuple((epoch, start) for epoch in sorted(epochs)),
                custom_metadata=custom,
                txn_idx_empty=empty,
            ),
            _segment_ids,
            st.integers(0, 2**62),
            st.integers(0, 2**40),
            _custom,
            st.sets(_int32s, max_size=5),
            st.booleans(),
        ),
        st.sampled_from(SegmentState),
    ),
)


@given(_records)
def test_a_record_is_read_as_it_was_written(record: SegmentRecord | SegmentUpdate | PartitionDelete) -> None:
    assert parse_metadata_record(encode(record)) == record


@given(_records, st.data())
def test_a_record_cut_short_or_with_bytes_after_it_is_corrupt(record: SegmentRecord, data: st.DataObject) -> None:
    value = encode(record)
    with pytest.raises(CorruptDataError):
        parse_metadata_record(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(CorruptDataError):
        parse_metadata_record(value + b"\0")


@given(st.sampled_from([value for case in CASES for value in values_of(case)]), st.data())
def test_a_changed_record_is_read_or_corrupt_and_nothing_else(value: bytes, data: st.DataObject) -> None:
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptDataError):
        parsed = parse_metadata_record(bytes(damaged))
        assert parse_metadata_record(encode(parsed)) == parsed


METADATA = MadeSegment(EVENTS, 0, 9).metadata
GOOD = segment_record(METADATA)
AT_TOPIC = 3
AT_EPOCHS = GOOD.index(b"\x02\0\0\0\0\0\0\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "next field has 1 bytes, but only 0 are left"),
        (b"\x00" + GOOD[1:], "frame version 0"),
        (b"\x01\x03" + GOOD[2:], "kind 3"),
        (b"\x01\x00\x01" + GOOD[3:], "version 1"),
        (GOOD[:AT_TOPIC] + uvarint(2**31 - 1) + GOOD[AT_TOPIC + 1 :], "next field has 2147483646 bytes"),
        (GOOD[:AT_TOPIC] + b"\xff" * 5 + GOOD[AT_TOPIC:], "more than 5 bytes"),
        (GOOD[:AT_TOPIC] + b"\x80" * 6 + GOOD[AT_TOPIC:], "more than 5 bytes"),
        (GOOD[:AT_TOPIC] + b"\x00" + GOOD[AT_TOPIC + 7 :], "names the invalid topic ''"),
        (GOOD.replace(b"events", b"even/s"), "names the invalid topic 'even/s'"),
        (GOOD.replace(b"events", b"even\xffs"), "not UTF-8"),
        (GOOD[:AT_EPOCHS] + uvarint(2**30) + GOOD[AT_EPOCHS + 1 :], "states 1073741823 entries"),
        (GOOD[:AT_EPOCHS] + b"\0" + GOOD[AT_EPOCHS + 1 :], "states -1 entries"),
        (GOOD[:-4] + b"\x02\x00\x01\x01\x00\x01\x01", "two fields with the tag 0"),
        (GOOD[:-4] + b"\x01\x00\x02\x01\x01", "txnIdxEmpty of 2 bytes"),
        (GOOD[:-5] + b"\x09" + GOOD[-4:], "the state 9"),
        (
            segment_record(dataclasses.replace(METADATA, start_offset=-1)),
            "holds the number -1, but it must be at least 0",
        ),
        (
            segment_record(dataclasses.replace(METADATA, end_offset=-1)),
            "holds the number -1, but it must be at least 0",
        ),
        (segment_record(dataclasses.replace(METADATA, start_offset=10)), "which is before its start"),
        (
            segment_record(dataclasses.replace(METADATA, segment_size_in_bytes=-1)),
            "holds the number -1, but it must be at least 0",
        ),
        (
            segment_record(dataclasses.replace(METADATA, broker_id=-2)),
            "holds the number -2, but it must be at least -1",
        ),
        (
            segment_record(dataclasses.replace(METADATA, segment_leader_epochs=((-1, 0),))),
            "holds the number -1, but it must be at least 0",
        ),
        (segment_record(dataclasses.replace(METADATA, segment_leader_epochs=((0, 0), (0, 1)))), "lists leader epoch 0"),
    ],
)
def test_each_field_is_bounded(value: bytes, message: str) -> None:
    assert parse_metadata_record(GOOD) == SegmentRecord(METADATA, SegmentState.COPY_SEGMENT_STARTED)
    with pytest.raises(CorruptDataError, match=re.escape(message)):
        parse_metadata_record(value)


def test_tagged_fields_that_are_not_known_are_passed_over() -> None:
    assert parse_metadata_record(GOOD[:-4] + b"\x02\x00\x01\x01\x07\x03abc") == parse_metadata_record(GOOD)


def test_a_golden_manifest_and_record_agree() -> None:
    """The other golden tests of this file rely on this: the plugin's manifest has the values that Kafka passed to the
    plugin.
    """
    recorded = recorded_segments("08-keyring")
    for segment in segments("08-keyring"):
        assert recorded[metadata_of(segment).remote_log_segment_id] == metadata_of(segment)
