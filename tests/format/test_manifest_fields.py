"""One wrong or unusual value for each field of the manifest, and its effect.

The two tables are the documentation: ``REFUSED`` gives the reader's reason, ``READ`` the meaning.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.format.test_manifest import ENCRYPTED, METADATA, PLAIN, document
from tieredstore.errors import ManifestCorruptError
from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey

ABSENT = object()
BASES = {"encrypted": ENCRYPTED, "plain": PLAIN}
INT = "a number within 0..2147483647"


def changed(base: str, path: str, value: object) -> bytes:
    """Return the manifest ``base`` with one field set, or removed."""
    fields = document(BASES[base])
    *parents, name = path.split(".")
    target: dict[str, Any] = fields
    for parent in parents:
        target = target[parent]
    if value is ABSENT:
        del target[name]
    else:
        target[name] = value
    return json.dumps(fields).encode()


REFUSED: list[tuple[str, str, object, str]] = [
    # base, field, value, the reason
    ("plain", "version", ABSENT, "no field 'version'"),
    ("plain", "version", None, "version is not 1"),
    ("plain", "version", "2", "version is not 1"),
    ("plain", "version", 2, "version is not 1"),
    ("plain", "version", True, "version is not 1"),
    ("plain", "version", 1.0, "version is not 1"),
    ("plain", "chunkIndex", ABSENT, "no field 'chunkIndex'"),
    ("plain", "chunkIndex", None, "'chunkIndex' is None, not an object"),
    ("plain", "chunkIndex", [], "'chunkIndex' is [], not an object"),
    ("plain", "chunkIndex.type", ABSENT, "no field 'chunkIndex.type'"),
    ("plain", "chunkIndex.type", "Fixed", "chunkIndex.type is 'Fixed', neither"),
    ("plain", "chunkIndex.type", 1, "'chunkIndex.type' is 1, not text"),
    ("plain", "chunkIndex.type", "variable", "no field 'chunkIndex.transformedChunks'"),
    ("encrypted", "chunkIndex.type", "fixed", "no field 'chunkIndex.transformedChunkSize'"),
    ("plain", "chunkIndex.originalChunkSize", ABSENT, "no field 'chunkIndex.originalChunkSize'"),
    ("plain", "chunkIndex.originalChunkSize", None, f"'chunkIndex.originalChunkSize' is None, not {INT}"),
    ("plain", "chunkIndex.originalChunkSize", 0, "originalChunkSize is 0, not within 1..2147483647"),
    ("plain", "chunkIndex.originalChunkSize", -1, INT),
    ("plain", "chunkIndex.originalChunkSize", 2**31, INT),
    (
        "plain",
        "chunkIndex.originalChunkSize",
        65537,
        "transformedChunkSize is 65536; it must equal originalChunkSize (65537)",
    ),
    ("plain", "chunkIndex.originalFileSize", ABSENT, "no field 'chunkIndex.originalFileSize'"),
    ("plain", "chunkIndex.originalFileSize", -1, INT),
    ("plain", "chunkIndex.originalFileSize", 2**31, INT),
    ("plain", "chunkIndex.originalFileSize", 417803, "finalTransformedChunkSize is 24586"),
    ("plain", "chunkIndex.originalFileSize", 0, "finalTransformedChunkSize is 24586"),
    ("plain", "chunkIndex.transformedChunkSize", ABSENT, "no field 'chunkIndex.transformedChunkSize'"),
    ("plain", "chunkIndex.transformedChunkSize", 0, "transformedChunkSize is 0"),
    ("plain", "chunkIndex.transformedChunkSize", 65564, "finalTransformedChunkSize is 24586"),
    ("plain", "chunkIndex.transformedChunkSize", True, INT),
    ("plain", "chunkIndex.transformedChunkSize", [1], INT),
    ("plain", "chunkIndex.finalTransformedChunkSize", ABSENT, "no field 'chunkIndex.finalTransformedChunkSize'"),
    ("plain", "chunkIndex.finalTransformedChunkSize", 24585, "finalTransformedChunkSize is 24585"),
    ("plain", "chunkIndex.finalTransformedChunkSize", float("inf"), "Infinity is not a number"),
    ("plain", "chunkIndex.finalTransformedChunkSize", float("nan"), "NaN is not a number"),
    ("plain", "chunkIndex.finalTransformedChunkSize", 10**1000, "a number in it has 1001 digits"),
    ("plain", "chunkIndex.finalTransformedChunkSize", 10**999, INT),
    ("plain", "chunkIndex.finalTransformedChunkSize", 1e300, INT),
    ("plain", "chunkIndex.finalTransformedChunkSize", "", INT),
    ("plain", "chunkIndex.finalTransformedChunkSize", "12 3", INT),
    ("plain", "chunkIndex.finalTransformedChunkSize", "9" * 30, INT),
    ("plain", "chunkIndex.finalTransformedChunkSize", "٢٤٥٨٦", INT),
    ("encrypted", "chunkIndex.originalChunkSize", 65537 * 2, "lists 7 chunks, but"),
    ("encrypted", "chunkIndex.originalFileSize", 65536 * 6, "lists 7 chunks, but"),
    ("encrypted", "chunkIndex.originalFileSize", 0, "lists 7 chunks, but"),
    ("encrypted", "chunkIndex.transformedChunks", ABSENT, "no field 'chunkIndex.transformedChunks'"),
    ("encrypted", "chunkIndex.transformedChunks", None, "not text"),
    ("encrypted", "chunkIndex.transformedChunks", [9026], "not text"),
    ("encrypted", "chunkIndex.transformedChunks", "", "not exactly one zstd frame"),
    ("encrypted", "chunkIndex.transformedChunks", "KLUv_SAIQQAAAAAAAQAAANU=", "transformedChunks is not standard"),
    ("encrypted", "chunkIndex.transformedChunks", "KLUv/SAIQQAAAAAAAQAAANU=\n", "transformedChunks is not standard"),
    ("encrypted", "chunkIndex.transformedChunks", "KLUv/SAIQQAAAAAAAQAAANU=", "lists 1 chunks, but"),
    ("plain", "segmentIndexes", ABSENT, "no field 'segmentIndexes'"),
    ("plain", "segmentIndexes", None, "'segmentIndexes' is None, not an object"),
    ("plain", "segmentIndexes.offset", ABSENT, "no field 'segmentIndexes.offset'"),
    ("plain", "segmentIndexes.offset", None, "'segmentIndexes.offset' is None, not an object"),
    ("plain", "segmentIndexes.timestamp", None, "'segmentIndexes.timestamp' is None, not an object"),
    ("plain", "segmentIndexes.producerSnapshot", None, "'segmentIndexes.producerSnapshot' is None, not an object"),
    ("plain", "segmentIndexes.leaderEpoch", None, "'segmentIndexes.leaderEpoch' is None, not an object"),
    ("plain", "segmentIndexes.transaction", ABSENT, "no field 'segmentIndexes.transaction'"),
    ("plain", "segmentIndexes.transaction", {}, "no field 'segmentIndexes.transaction.position'"),
    ("plain", "segmentIndexes.transaction", False, "not an object"),
    ("plain", "segmentIndexes.offset.position", ABSENT, "no field 'segmentIndexes.offset.position'"),
    ("plain", "segmentIndexes.offset.position", 1, "offset is at 1, but the index before it ends at 0"),
    ("plain", "segmentIndexes.offset.position", -1, INT),
    ("plain", "segmentIndexes.offset.size", ABSENT, "no field 'segmentIndexes.offset.size'"),
    ("plain", "segmentIndexes.offset.size", 8, "timestamp is at 0, but the index before it ends at 8"),
    ("plain", "segmentIndexes.timestamp.position", 2**31, INT),
    ("plain", "segmentIndexes.timestamp.size", None, "producerSnapshot is at 120, but the index before it ends at 0"),
    ("plain", "segmentIndexes.timestamp.size", 119, "producerSnapshot is at 120, but the index before it ends at 119"),
    ("plain", "segmentIndexes.leaderEpoch.size", -15, INT),
    ("encrypted", "segmentIndexes.transaction.position", 0, "transaction is at 0, but the index before it ends at 377"),
    ("encrypted", "segmentIndexes.transaction.size", 28, "transaction has 28 bytes, too few to be encrypted"),
    ("encrypted", "segmentIndexes.transaction.size", 1, "transaction has 1 bytes, too few to be encrypted"),
    ("plain", "compression", ABSENT, "no field 'compression'"),
    ("plain", "compression", "yes", "'compression' is 'yes', not true or false"),
    ("plain", "compression", 2, "'compression' is 2, not true or false"),
    ("plain", "compression", 0.0, "not true or false"),
    ("plain", "compression", [], "not true or false"),
    ("plain", "compression", True, "compression is true, but"),
    (
        "encrypted",
        "compression",
        False,
        "compression is false, but chunk 0 is stored with 9026 bytes, not with its original size",
    ),
    (
        "encrypted",
        "compression",
        None,
        "compression is false, but chunk 0 is stored with 9026 bytes, not with its original size",
    ),
    ("encrypted", "encryption", [], "'encryption' is [], not an object"),
    ("encrypted", "encryption", "", "'encryption' is '', not an object"),
    ("encrypted", "encryption", {}, "no field 'encryption.dataKey'"),
    ("plain", "encryption", {"dataKey": "k1:AAAA", "aad": ""}, "is 0 more than originalChunkSize, which is wrong with"),
    ("encrypted", "encryption.dataKey", ABSENT, "no field 'encryption.dataKey'"),
    ("encrypted", "encryption.dataKey", None, "not text"),
    ("encrypted", "encryption.dataKey", "AAAA", "exactly one colon"),
    ("encrypted", "encryption.dataKey", "k1:AAAA:AAAA", "exactly one colon"),
    ("encrypted", "encryption.dataKey", ":AAAA", "has the key id ''"),
    ("encrypted", "encryption.dataKey", " \t:AAAA", "blank"),
    ("encrypted", "encryption.dataKey", "k1:", "holds no key"),
    ("encrypted", "encryption.dataKey", "k1:AA-_", "encryption.dataKey is not standard base64"),
    ("encrypted", "encryption.dataKey", "k1:AA AA", "encryption.dataKey is not standard base64"),
    ("encrypted", "encryption.dataKey", "k1:AAA=AAAA", "encryption.dataKey is not standard base64"),
    ("encrypted", "encryption.dataKey", "k1:AA=", "encryption.dataKey is not standard base64"),
    ("encrypted", "encryption.dataKey", "k1:A", "encryption.dataKey is not standard base64"),
    ("encrypted", "encryption.dataKey", "k1:ключ", "encryption.dataKey is not standard base64"),
    ("encrypted", "encryption.dataKey", "k\ud8001:AAAA", "not text"),
    ("encrypted", "encryption.aad", ABSENT, "no field 'encryption.aad'"),
    ("encrypted", "encryption.aad", None, "not text"),
    ("encrypted", "encryption.aad", "AAA", "encryption.aad is not standard base64"),
    ("encrypted", "encryption.aad", "AA-_", "encryption.aad is not standard base64"),
    ("encrypted", "encryption.aad", "AAAA\n", "encryption.aad is not standard base64"),
    ("encrypted", "encryption.aad", "AAA==", "encryption.aad is not standard base64"),
]


@pytest.mark.parametrize(("base", "path", "value", "reason"), REFUSED)
def test_a_wrong_field_is_refused(base: str, path: str, value: object, reason: str) -> None:
    with pytest.raises(ManifestCorruptError) as refusal:
        SegmentManifest.from_bytes(changed(base, path, value))
    assert reason in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_a_number_too_large_for_a_float_is_refused() -> None:
    raw = PLAIN.to_bytes().replace(b"24586", b"1e400")
    with pytest.raises(ManifestCorruptError, match="is inf, not a number"):
        SegmentManifest.from_bytes(raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"version":"\xff"}', "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[1]", "not a JSON object but"),
        (b" " * (16 * 2**20 + 1), "16777217 bytes"),
    ],
)
def test_the_reason_is_said_in_our_words(raw: bytes, reason: str) -> None:
    with pytest.raises(ManifestCorruptError, match=reason):
        SegmentManifest.from_bytes(raw)


READ: list[tuple[str, str, object, SegmentManifest]] = [
    # base, field, value, its meaning
    ("plain", "version", 1, PLAIN),
    ("plain", "chunkIndex.originalChunkSize", "65536", PLAIN),
    ("plain", "chunkIndex.originalChunkSize", " +65536 ", PLAIN),
    ("plain", "chunkIndex.originalFileSize", 417802.9, PLAIN),
    ("plain", "chunkIndex.transformedChunkSize", 65536.0, PLAIN),
    ("plain", "segmentIndexes.offset.position", None, PLAIN),
    ("plain", "segmentIndexes.offset.size", None, PLAIN),
    ("plain", "segmentIndexes.offset.size", -0.5, PLAIN),
    ("plain", "segmentIndexes.timestamp.size", "120", PLAIN),
    ("plain", "compression", None, PLAIN),
    ("plain", "compression", 0, PLAIN),
    ("plain", "compression", "False", PLAIN),
    ("encrypted", "compression", 1, ENCRYPTED),
    ("encrypted", "compression", "true", ENCRYPTED),
    ("plain", "encryption", None, PLAIN),
    ("encrypted", "encryption.dataKey", "k1:Vtj81g", ENCRYPTED),
    (
        "encrypted",
        "chunkIndex.transformedChunks",
        "KLUv/SAZyQAAAAAABwAAIygCABoAEAASAAAj5tz+AABgMA",
        ENCRYPTED,
    ),
    ("encrypted", "encryption.aad", "", replace(ENCRYPTED, encryption=WrappedDataKey("k1", b"\x56\xd8\xfc\xd6", b""))),
]


@pytest.mark.parametrize(("base", "path", "value", "meaning"), READ)
def test_an_unusual_field_is_read(base: str, path: str, value: object, meaning: SegmentManifest) -> None:
    assert SegmentManifest.from_bytes(changed(base, path, value)) == meaning


METADATA_WRONG: list[tuple[str, object]] = [
    ("remoteLogSegmentId", ABSENT),
    ("remoteLogSegmentId.id", "short"),
    ("remoteLogSegmentId.id", "adh9f8BMS4anaUnD8KWfWh"),
    ("remoteLogSegmentId.id", None),
    ("remoteLogSegmentId.topicIdPartition", 1),
    ("remoteLogSegmentId.topicIdPartition.topicId", "lZ6vvmajTWKDBUTV6SQAt+"),
    ("remoteLogSegmentId.topicIdPartition.topicPartition", []),
    ("remoteLogSegmentId.topicIdPartition.topicPartition.topic", ""),
    ("remoteLogSegmentId.topicIdPartition.topicPartition.topic", "\udc00"),
    ("remoteLogSegmentId.topicIdPartition.topicPartition.partition", -1),
    ("remoteLogSegmentId.topicIdPartition.topicPartition.partition", 2**31),
    ("startOffset", -1),
    ("startOffset", 2001),
    ("startOffset", "23"),
    ("startOffset", True),
    ("endOffset", 22),
    ("endOffset", 2**63),
    ("endOffset", 2000.0),
    ("maxTimestampMs", -2),
    ("maxTimestampMs", ABSENT),
    ("brokerId", 2**31),
    ("eventTimestampMs", None),
    ("segmentLeaderEpochs", []),
    ("segmentLeaderEpochs", {"00": 1}),
    ("segmentLeaderEpochs", {"-1": 1}),
    ("segmentLeaderEpochs", {"٢": 1}),
    ("segmentLeaderEpochs", {"9999999999": 1}),
    ("segmentLeaderEpochs", {"1": -1}),
    ("txnIdxEmpty", "true"),
]


@pytest.mark.parametrize(("path", "value"), METADATA_WRONG)
def test_one_wrong_field_makes_the_segment_metadata_none_and_leaves_the_rest(path: str, value: object) -> None:
    read = SegmentManifest.from_bytes(changed("plain", f"remoteLogSegmentMetadata.{path}", value))
    assert read == replace(PLAIN, metadata=None)


def test_unknown_values_of_the_segment_metadata_are_minus_one() -> None:
    unknown = replace(METADATA, max_timestamp_ms=-1, broker_id=-1, event_timestamp_ms=-1, segment_leader_epochs=())
    manifest = replace(PLAIN, metadata=unknown)
    assert SegmentManifest.from_bytes(manifest.to_bytes()) == manifest


KNOWN_NAMES = [
    "version", "chunkIndex", "segmentIndexes", "compression", "encryption", "remoteLogSegmentMetadata",
    "chunkIndex.transformedChunks", "segmentIndexes.transaction", "segmentIndexes.offset.size", "encryption.aad",
]  # fmt: skip


@pytest.mark.parametrize("path", KNOWN_NAMES)
def test_a_name_with_one_wrong_character_is_damage_and_not_an_unknown_field(path: str) -> None:
    fields = document(ENCRYPTED)
    *parents, name = path.split(".")
    target: dict[str, Any] = fields
    for parent in parents:
        target = target[parent]
    target[name[:-1] + "~"] = target.pop(name)
    with pytest.raises(ManifestCorruptError, match=f"looks like a damaged '{name}'"):
        SegmentManifest.from_bytes(json.dumps(fields).encode())


def test_a_similar_name_beside_the_known_one_is_an_unknown_field() -> None:
    raw = json.dumps({**document(ENCRYPTED), "encryptioN": 7, "compressors": 8}).encode()
    assert SegmentManifest.from_bytes(raw) == ENCRYPTED


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"[]",
        b"7",
        b"null",
        b'"text"',
        b"{",
        b"{}",
        b"{'version':1}",
        b'{"version":"1",}',
        b'{"version":NaN}',
        b'{"version":-Infinity}',
        b'{"version":"\x01"}',
        b'{"version":"\xff"}',
        b'{"\xed\xa0\x80":1}',
        b'{"version":' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
        b"[" * 100_000,
        PLAIN.to_bytes().decode().encode("utf-16"),
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_text_that_is_no_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(ManifestCorruptError):
        SegmentManifest.from_bytes(raw)


def test_parts_that_contradict_each_other_make_no_manifest() -> None:
    encrypted_chunks = FixedChunkIndex(65536, 417802, 65564, 24614)
    with pytest.raises(ManifestCorruptError, match="28 more than originalChunkSize, which is wrong without encryption"):
        replace(PLAIN, chunk_index=encrypted_chunks)
    with pytest.raises(ManifestCorruptError, match="of 28 bytes, too few to be encrypted"):
        replace(ENCRYPTED, chunk_index=VariableChunkIndex.from_sizes(10, 25, [29, 28, 29]))
    with pytest.raises(ManifestCorruptError, match="outside of the format"):
        IndexEntry(0, 2**31)
    with pytest.raises(ManifestCorruptError, match="leaderEpoch is at 1"):
        SegmentIndexes(IndexEntry(0, 0), IndexEntry(0, 0), IndexEntry(0, 0), IndexEntry(1, 0), None)


@pytest.mark.parametrize("key_id", ["", " ", "a:b", ":"])
def test_a_key_id_that_could_not_be_read_back_is_not_written(key_id: str) -> None:
    with pytest.raises(ManifestCorruptError, match="blank or contain a colon"):
        WrappedDataKey(key_id, b"key", b"aad")


def test_the_largest_int32_is_read() -> None:
    largest = replace(PLAIN, chunk_index=FixedChunkIndex(*[2**31 - 1] * 4), metadata=None)
    assert SegmentManifest.from_bytes(largest.to_bytes()) == largest


def test_a_list_of_sizes_without_compression_is_read_if_it_agrees() -> None:
    listed = replace(PLAIN, chunk_index=VariableChunkIndex.from_sizes(65536, 417802, [65536] * 6 + [24586]))
    assert SegmentManifest.from_bytes(listed.to_bytes()) == listed
