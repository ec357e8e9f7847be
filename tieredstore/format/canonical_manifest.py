"""The short way to read a manifest that was written as the plugin writes it: the fields that it has, and no others.

A planning reads tens of thousands, and nearly all of them are so. Here each field is looked at once, and what differs
in anything is left to ``SegmentManifest.from_bytes``, which knows all that may be read and says what is wrong: whatever
this reader takes, that one takes and reads the same.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import zstandard

from tieredstore.errors import CorruptData
from tieredstore.format.base64_text import decode_base64
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.json_object import json_decoder
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.format.manifest_rules import KnownSegment, ManifestRules
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import RemoteLogSegmentMetadata

try:
    from tieredstore.format._written import read_written
except ImportError:  # a checkout whose compiled parts are older than it: all is read by what stands below

    def read_written(_raw: bytes, _known: KnownSegment, _rules: ManifestRules, /) -> SegmentManifest | None:
        """None is read."""
        return None


_MOST: Final = 64 << 10
"""Bytes of a manifest that is read so: one that is refused here is decoded twice."""

_MOST_BESIDES: Final = 1300
"""Letters besides the long texts. The fields alone take more than three hundred of them, so that nothing else is
hidden there which the other reader would refuse, such as a number of a thousand digits in a field that stands twice."""

_DECODE: Final = json_decoder(int).raw_decode


class _OtherwiseError(Exception):
    """Something is not as the plugin writes it."""


def read_canonical(raw: bytes, known: KnownSegment, rules: ManifestRules) -> SegmentManifest | None:
    """The manifest of the ``known`` segment; None if anything in it is unusual, wrong or against the ``rules``."""
    if len(raw) > _MOST or not raw.isascii() or raw[:1] != b"{":
        return None
    # To the byte as the plugin writes it, nearly all are read by compiled code.
    with contextlib.suppress(CorruptData, zstandard.ZstdError):
        if (manifest := read_written(raw, known, rules)) is not None:
            return manifest
    try:
        return _manifest(raw.decode("ascii"), known, rules)
    # A field is absent, is none, or contradicts another one.
    except (_OtherwiseError, CorruptData, KeyError, TypeError, ValueError, RecursionError):
        return None


def _manifest(text: str, known: KnownSegment, rules: ManifestRules) -> SegmentManifest:
    fields: dict[str, Any] = _DECODE(text)[0]
    recorded, wrapped = fields.get("remoteLogSegmentMetadata"), fields.get("encryption")
    rules.check_encryption(wrapped is not None)
    chunks, compression = fields["chunkIndex"], fields["compression"]
    count = 4 + ("remoteLogSegmentMetadata" in fields) + ("encryption" in fields)
    if fields["version"] != "1" or type(compression) is not bool or len(fields) != count:
        raise _OtherwiseError
    encryption, long = None, 0
    if wrapped is not None:
        encryption = _encryption(wrapped)
        long = len(wrapped["dataKey"]) + len(wrapped["aad"])
    if chunks["type"] == "variable":
        long += len(chunks["transformedChunks"])
    if len(text) - long > _MOST_BESIDES:
        raise _OtherwiseError
    chunk_index = _chunk_index(chunks, known, rules)
    metadata = None if recorded is None else _metadata(recorded, known, chunk_index.original_file_size)
    return SegmentManifest(chunk_index, _indexes(fields["segmentIndexes"]), compression, encryption, metadata)


def _chunk_index(fields: dict[str, Any], known: KnownSegment, rules: ManifestRules) -> ChunkIndex:
    chunk_size, file_size = _number(fields["originalChunkSize"]), _number(fields["originalFileSize"])
    rules.check_chunks(chunk_size, file_size, known.log_size)
    if fields["type"] == "variable":
        _check_count(fields, 4)
        return VariableChunkIndex.from_text(chunk_size, file_size, _ascii(fields["transformedChunks"]))
    if fields["type"] != "fixed":
        raise _OtherwiseError
    _check_count(fields, 5)
    stored, last = _number(fields["transformedChunkSize"]), _number(fields["finalTransformedChunkSize"])
    return FixedChunkIndex(chunk_size, file_size, stored, last)


def _indexes(fields: dict[str, Any]) -> SegmentIndexes:
    _check_count(fields, 5)
    transaction = fields["transaction"]
    return SegmentIndexes(
        _entry(fields["offset"]),
        _entry(fields["timestamp"]),
        _entry(fields["producerSnapshot"]),
        _entry(fields["leaderEpoch"]),
        None if transaction is None else _entry(transaction),
    )


def _entry(fields: dict[str, Any]) -> IndexEntry:
    _check_count(fields, 2)
    position, size = fields["position"], fields["size"]
    if type(position) is not int or type(size) is not int:  # True is an int too
        raise _OtherwiseError
    return IndexEntry(position, size)


def _encryption(fields: dict[str, Any]) -> WrappedDataKey:
    _check_count(fields, 2)
    key_id, colon, wrapped = _ascii(fields["dataKey"]).partition(":")
    if not colon or ":" in wrapped:
        raise _OtherwiseError
    aad = decode_base64(_ascii(fields["aad"]), "encryption.aad", padded=True)
    return WrappedDataKey(key_id, decode_base64(wrapped, "encryption.dataKey", padded=False), aad)


def _metadata(fields: dict[str, Any], known: KnownSegment, size: int) -> RemoteLogSegmentMetadata:
    """With the known id in it, which is the recorded one."""
    own = known.segment_id
    recorded = fields["remoteLogSegmentId"]
    partition = recorded["topicIdPartition"]
    where, named = own.topic_id_partition, partition["topicPartition"]
    number, start, end = named["partition"], fields["startOffset"], fields["endOffset"]
    is_known = (
        recorded["id"] == str(own.id)
        and partition["topicId"] == str(where.topic_id)
        and named["topic"] == where.topic
        and _is_within(number, where.partition, where.partition)
        and _is_within(start, known.start_offset, known.start_offset)
    )
    timestamp, broker, copied = fields["maxTimestampMs"], fields["brokerId"], fields["eventTimestampMs"]
    is_possible = (
        where.topic
        and where.topic.isascii()
        and 0 <= where.partition <= MAX_INT32
        and start >= 0
        and _is_within(end, start, MAX_INT64 - 1)
        and _is_within(timestamp, -1, MAX_INT64)
        and _is_within(broker, -1, MAX_INT32)
        and _is_within(copied, -1, MAX_INT64)
    )
    is_empty = fields.get("txnIdxEmpty")
    if not is_known or not is_possible or (is_empty is not None and type(is_empty) is not bool):
        raise _OtherwiseError
    epochs = _epochs(fields["segmentLeaderEpochs"])
    return RemoteLogSegmentMetadata(own, start, end, size, timestamp, broker, copied, epochs, is_empty)


def _epochs(fields: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    epochs: list[tuple[int, int]] = []
    if type(fields) is not dict:
        raise _OtherwiseError
    for name, start in fields.items():
        epoch = int(name)
        if str(epoch) != name or not 0 <= epoch <= MAX_INT32 or not _is_within(start, 0, MAX_INT64):
            raise _OtherwiseError
        epochs.append((epoch, start))
    epochs.sort()
    return tuple(epochs)


def _check_count(fields: dict[str, Any], count: int) -> None:
    """That there are no fields but those that are asked for, each by its name."""
    if len(fields) != count:
        raise _OtherwiseError


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT32:
        raise _OtherwiseError
    return value


def _ascii(value: object) -> str:
    if type(value) is not str or not value.isascii():  # an escape can bring half of a character
        raise _OtherwiseError
    return value


def _is_within(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
