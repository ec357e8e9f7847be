"""The manifest: the plugin's text, byte for byte, and the leniency of its reader."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.manifest import IndexEntry, KnownSegment, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

TOPIC_ID = Uuid.parse("lZ6vvmajTWKDBUTV6SQAtQ")
METADATA = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(TopicIdPartition(TOPIC_ID, "topic1", 7), Uuid.parse("adh9f8BMS4anaUnD8KWfWg")),
    start_offset=23,
    end_offset=2000,
    segment_size_in_bytes=417802,
    max_timestamp_ms=1700000000123,
    broker_id=3,
    event_timestamp_ms=1700000001456,
    segment_leader_epochs=((0, 23), (5, 100)),
)
METADATA_TEXT = (
    '{"remoteLogSegmentId":{"topicIdPartition":{"topicId":"lZ6vvmajTWKDBUTV6SQAtQ","topicPartition":{"topic":"topic1",'
    '"partition":7}},"id":"adh9f8BMS4anaUnD8KWfWg"},"startOffset":23,"endOffset":2000,"maxTimestampMs":1700000000123,'
    '"brokerId":3,"eventTimestampMs":1700000001456,"segmentLeaderEpochs":{"0":23,"5":100}}'
)
ENCRYPTED = SegmentManifest(
    VariableChunkIndex.from_sizes(65536, 417802, [9026, 9016, 9018, 9000, 18190, 65574, 24624]),
    SegmentIndexes(
        IndexEntry(0, 108), IndexEntry(108, 148), IndexEntry(256, 78), IndexEntry(334, 43), IndexEntry(377, 62)
    ),
    compression=True,
    encryption=WrappedDataKey("k1", b"\x56\xd8\xfc\xd6", bytes(32)),
    metadata=METADATA,
)
ENCRYPTED_TEXT = (
    '{"version":"1","chunkIndex":{"type":"variable","originalChunkSize":65536,"originalFileSize":417802,'
    '"transformedChunks":"KLUv/SAZyQAAAAAABwAAIygCABoAEAASAAAj5tz+AABgMA=="},"segmentIndexes":{"offset":{"position":0,'
    '"size":108},"timestamp":{"position":108,"size":148},"producerSnapshot":{"position":256,"size":78},"leaderEpoch":'
    '{"position":334,"size":43},"transaction":{"position":377,"size":62}},"compression":true,"encryption":{"dataKey":'
    '"k1:Vtj81g==","aad":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="},"remoteLogSegmentMetadata":'
    + METADATA_TEXT
    + "}"
)
PLAIN = SegmentManifest(
    FixedChunkIndex(65536, 417802, 65536, 24586),
    SegmentIndexes(IndexEntry(0, 0), IndexEntry(0, 120), IndexEntry(120, 50), IndexEntry(170, 15), None),
    compression=False,
    metadata=METADATA,
)
PLAIN_TEXT = (
    '{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":65536,"originalFileSize":417802,'
    '"transformedChunkSize":65536,"finalTransformedChunkSize":24586},"segmentIndexes":{"offset":{"position":0,"size":0},'
    '"timestamp":{"position":0,"size":120},"producerSnapshot":{"position":120,"size":50},"leaderEpoch":{"position":170,'
    '"size":15},"transaction":null},"compression":false,"remoteLogSegmentMetadata":' + METADATA_TEXT + "}"
)
BOTH = pytest.mark.parametrize("manifest", [ENCRYPTED, PLAIN], ids=["encrypted", "plain"])


@pytest.mark.parametrize(
    ("manifest", "text"), [(ENCRYPTED, ENCRYPTED_TEXT), (PLAIN, PLAIN_TEXT)], ids=["encrypted", "plain"]
)
def test_the_text_is_the_plugins(manifest: SegmentManifest, text: str) -> None:
    assert manifest.to_bytes().decode() == text
    assert SegmentManifest.from_bytes(text.encode()) == manifest


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_a_manifest_of_the_plugin_is_read_and_written_back_alike(segment: GoldenSegment) -> None:
    raw = segment.stored("rsm-manifest").read_bytes()
    manifest = SegmentManifest.from_bytes(raw)
    assert manifest.to_bytes() == raw
    assert manifest.chunk_index.original_file_size == segment.original("log").stat().st_size
    assert manifest.chunk_index.stored_size == segment.stored("log").stat().st_size
    assert manifest.segment_indexes.total_size == segment.stored("indexes").stat().st_size
    assert manifest.metadata is not None
    assert manifest.metadata.start_offset == segment.base_offset
    assert manifest.metadata.end_offset == segment.end_offset
    assert manifest.metadata.segment_size_in_bytes == manifest.chunk_index.original_file_size
    assert str(manifest.metadata.remote_log_segment_id.id) == segment.segment_id


def test_entries_are_found_by_index_type() -> None:
    assert [ENCRYPTED.segment_indexes.entry(kind) for kind in IndexType] == [
        IndexEntry(0, 108),
        IndexEntry(108, 148),
        IndexEntry(256, 78),
        IndexEntry(334, 43),
        IndexEntry(377, 62),
    ]
    assert ENCRYPTED.segment_indexes.total_size == 439
    assert PLAIN.segment_indexes.entry(IndexType.TRANSACTION) is None
    assert PLAIN.segment_indexes.entry(IndexType.OFFSET) == IndexEntry(0, 0)


def test_an_empty_transaction_index_is_not_an_absent_one() -> None:
    empty = replace(PLAIN, segment_indexes=replace(PLAIN.segment_indexes, transaction=IndexEntry(185, 0)))
    assert b'"transaction":{"position":185,"size":0}' in empty.to_bytes()
    assert SegmentManifest.from_bytes(empty.to_bytes()) == empty


def test_absent_fields_are_not_written() -> None:
    bare = json.loads(replace(PLAIN, metadata=None).to_bytes())
    assert list(bare) == ["version", "chunkIndex", "segmentIndexes", "compression"]


@pytest.mark.parametrize("empty", [True, False])
def test_txn_idx_empty_is_written_last_where_it_is_known(empty: bool) -> None:
    manifest = replace(PLAIN, metadata=replace(METADATA, txn_idx_empty=empty))
    assert manifest.to_bytes().endswith(f',"txnIdxEmpty":{str(empty).lower()}}}}}'.encode())
    assert SegmentManifest.from_bytes(manifest.to_bytes()) == manifest


def test_leader_epochs_are_written_in_ascending_order_of_numbers() -> None:
    manifest = replace(PLAIN, metadata=replace(METADATA, segment_leader_epochs=((10, 99), (9, 50), (2, 23))))
    assert b'"segmentLeaderEpochs":{"2":23,"9":50,"10":99}' in manifest.to_bytes()
    metadata = SegmentManifest.from_bytes(manifest.to_bytes()).metadata
    assert metadata is not None
    assert metadata.segment_leader_epochs == ((2, 23), (9, 50), (10, 99))


@pytest.mark.parametrize(
    ("key_id", "written"),
    [
        ("ключ-ü-𝄞", "ключ-ü-𝄞"),
        ('a"b\\c/d', 'a\\"b\\\\c/d'),
        ("\b\t\n\f\r.", "\\b\\t\\n\\f\\r."),
        ("\x00\x0b\x1f\x7f\u2028", "\\u0000\\u000B\\u001F\x7f\u2028"),
        ("\\u001f", "\\\\u001f"),
    ],
)
def test_text_is_escaped_as_jackson_does(key_id: str, written: str) -> None:
    manifest = replace(ENCRYPTED, encryption=WrappedDataKey(key_id, b"k", b""))
    assert f'"dataKey":"{written}:aw=="'.encode() in manifest.to_bytes()
    assert SegmentManifest.from_bytes(manifest.to_bytes()) == manifest


@given(st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"])).filter(str.strip), st.binary())
def test_any_key_id_and_aad_come_back(key_id: str, aad: bytes) -> None:
    manifest = replace(ENCRYPTED, encryption=WrappedDataKey(key_id, b"key", aad))
    assert SegmentManifest.from_bytes(manifest.to_bytes()) == manifest


@BOTH
def test_a_manifest_is_a_value(manifest: SegmentManifest) -> None:
    assert pickle.loads(pickle.dumps(manifest)) == manifest
    assert hash(manifest) == hash(SegmentManifest.from_bytes(manifest.to_bytes()))


class _UnknownChunkIndex(ChunkIndex):
    """A kind of index that the format does not have."""

    def positions(self) -> Sequence[int]:
        return [0, 1]


def test_a_kind_of_chunk_index_that_the_format_lacks_is_not_written() -> None:
    with pytest.raises(TypeError, match="_UnknownChunkIndex has no place"):
        replace(PLAIN, chunk_index=_UnknownChunkIndex(1, 1)).to_bytes()


def document(manifest: SegmentManifest) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(manifest.to_bytes())
    return fields


def turned_around(value: Any) -> Any:
    """Return the same JSON with the fields of every object in the opposite order."""
    return {key: turned_around(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


@BOTH
def test_order_and_white_space_carry_no_meaning(manifest: SegmentManifest) -> None:
    raw = json.dumps(turned_around(document(manifest)), indent=3).encode()
    assert SegmentManifest.from_bytes(b"\r\n\t " + raw) == manifest
    assert SegmentManifest.from_bytes(memoryview(raw)) == manifest


@BOTH
@pytest.mark.parametrize("tail", [b"\n", b" }", b"{}", b"junk", b"\xff\xfe\x00", b'{"compression":null}'])
def test_bytes_after_the_object_are_ignored(manifest: SegmentManifest, tail: bytes) -> None:
    assert SegmentManifest.from_bytes(manifest.to_bytes() + tail) == manifest


@BOTH
def test_of_two_equal_names_the_last_wins(manifest: SegmentManifest) -> None:
    raw = manifest.to_bytes().replace(b'{"version"', b'{"compression":"nonsense","chunkIndex":7,"version"')
    assert SegmentManifest.from_bytes(raw) == manifest


@BOTH
def test_unknown_fields_are_tolerated_everywhere(manifest: SegmentManifest) -> None:
    def with_more(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {"aFieldOfTheFuture": [{"x": 1}], **{key: with_more(value[key]) for key in value}, "": None}

    fields = document(manifest)
    for part in ("chunkIndex", "segmentIndexes", "encryption"):
        fields[part] = with_more(fields.get(part))
    fields["remoteLogSegmentMetadata"]["aFieldOfTheFuture"] = 1
    assert SegmentManifest.from_bytes(json.dumps({**fields, "aFieldOfTheFuture": 1}).encode()) == manifest


@pytest.mark.parametrize("garbage", [None, 7, "x", [], {}, {"startOffset": 0}, [{}] * 3])
def test_unusable_segment_metadata_is_none_and_nothing_else_is_lost(garbage: object) -> None:
    fields = {**document(PLAIN), "remoteLogSegmentMetadata": garbage}
    assert SegmentManifest.from_bytes(json.dumps(fields).encode()) == replace(PLAIN, metadata=None)


def test_absent_segment_metadata_is_none() -> None:
    fields = document(PLAIN)
    del fields["remoteLogSegmentMetadata"]
    assert SegmentManifest.from_bytes(json.dumps(fields).encode()) == replace(PLAIN, metadata=None)


def test_a_known_segments_id_is_one_value_for_all_who_hold_it() -> None:
    known = KnownSegment(replace(METADATA.remote_log_segment_id), METADATA.start_offset)
    metadata = SegmentManifest.from_bytes(PLAIN.to_bytes(), known).metadata
    assert metadata == METADATA
    assert metadata is not None
    assert metadata.remote_log_segment_id is known.segment_id
