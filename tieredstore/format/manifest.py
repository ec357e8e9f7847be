"""The manifest: one JSON object that describes how to read a segment. It is not compressed, encrypted or authenticated.

A manifest is written exactly as the plugin writes it: compact, with fields in this order. ``transaction`` is null
without a transaction index; ``encryption`` and ``remoteLogSegmentMetadata`` are left out if absent::

    {"version":"1",
     "chunkIndex":{"type":"fixed","originalChunkSize":N,"originalFileSize":N,
                   "transformedChunkSize":N,"finalTransformedChunkSize":N},
       or         {"type":"variable","originalChunkSize":N,"originalFileSize":N,"transformedChunks":"<base64>"}
     "segmentIndexes":{"offset":{"position":N,"size":N},"timestamp":...,"producerSnapshot":...,
                       "leaderEpoch":...,"transaction":...},
     "compression":true,
     "encryption":{"dataKey":"<key id>:<base64>","aad":"<base64>"},
     "remoteLogSegmentMetadata":{...}}

The reader accepts more forms of JSON than these (see ``json_object``). It refuses a manifest that contradicts itself. A
manifest has no checksum, so contradictions between its numbers are the only sign of damage. It also refuses a manifest
that breaks the :class:`ManifestRules` of the settings.

The plugin writes ``remoteLogSegmentMetadata`` and never reads it, because reading a segment does not need it. This
module compares it with the key, to detect a manifest that was copied over the manifest of another segment.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import ManifestCorruptError, SegmentCorruptError, TieredStoreError, quote
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.json_object import Json, JsonObject, decode_base64, has_lone_surrogates, json_bytes
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

MIN_CHUNK_SIZE: Final = 1024
"""The smallest ``chunk.size`` that is accepted in a log with many chunks, unless the settings change this limit. The
plugin's default is 4 MiB.
"""

MAX_SMALL_CHUNKS: Final = 65_536
"""Up to this number of chunks, any chunk size is accepted, because reading so few chunks costs little."""


@dataclass(frozen=True, slots=True)
class ManifestRules:
    """Rules from the settings ``fetch.chunk.min.size`` and ``encryption.required``."""

    min_chunk_size: int = MIN_CHUNK_SIZE
    encryption_required: bool = False

    def check_chunks(self, chunk_size: int, file_size: int, log_size: int | None) -> None:
        """Raise ManifestCorruptError if there are more chunks than any writer makes, or more than fit into ``log_size``
        bytes.

        Call this before any chunk is examined, because a manifest of a few bytes can declare millions of chunks.
        """
        count = -(-file_size // max(chunk_size, 1))
        if count <= MAX_SMALL_CHUNKS or chunk_size < 1:  # another check refuses a size below 1
            return
        if log_size is not None and count > log_size:  # each stored chunk has at least one byte
            raise ManifestCorruptError(
                f"chunkIndex states {count} chunks, but the .log object has only {log_size} bytes"
            )
        if chunk_size < self.min_chunk_size:
            raise ManifestCorruptError(
                f"originalChunkSize is {chunk_size} for {count} chunks, but so many chunks of less than "
                f"{self.min_chunk_size} bytes are refused; if {chunk_size} was the writer's chunk.size, set "
                f"fetch.chunk.min.size to {chunk_size}"
            )

    def check_encryption(self, is_encrypted: bool) -> None:
        """Raise SegmentCorruptError for an unencrypted segment if encryption is required."""
        if self.encryption_required and not is_encrypted:
            raise SegmentCorruptError("the segment is not encrypted, but encryption.required is true")


DEFAULT_RULES: Final = ManifestRules()
"""The rules without any settings."""


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """The facts about a segment that are known before its manifest is read. They come from the manifest's key, and from
    a listing if there was one.

    ``log_size`` is the listed size of the ``.log`` object; None without a listing.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    log_size: int | None = None


MAX_MANIFEST_SIZE: Final = 16 * 1024 * 1024
"""Size in bytes of the longest manifest that is read. Even the longest list of chunk sizes takes only 13.4 MiB."""

_FIELDS: Final = frozenset(
    {"version", "chunkIndex", "segmentIndexes", "compression", "encryption", "remoteLogSegmentMetadata"}
)
_CHUNK_FIELDS: Final = frozenset({"type", "originalChunkSize", "originalFileSize"})
_FIXED_FIELDS: Final = _CHUNK_FIELDS | {"transformedChunkSize", "finalTransformedChunkSize"}
_VARIABLE_FIELDS: Final = _CHUNK_FIELDS | {"transformedChunks"}
_ENCRYPTION_FIELDS: Final = frozenset({"dataKey", "aad"})
_ENTRY_FIELDS: Final = frozenset({"position", "size"})
_INDEX_NAMES: Final = {
    IndexType.OFFSET: "offset",
    IndexType.TIMESTAMP: "timestamp",
    IndexType.PRODUCER_SNAPSHOT: "producerSnapshot",
    IndexType.LEADER_EPOCH: "leaderEpoch",
    IndexType.TRANSACTION: "transaction",
}
"""Index types in the order in which the indexes are stored."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The place of one index in the ``.indexes`` object: stored position and stored size, in bytes."""

    position: int
    size: int

    def __post_init__(self) -> None:
        if not (0 <= self.position <= MAX_INT32 and 0 <= self.size <= MAX_INT32):
            raise ManifestCorruptError(
                f"an index of {self.size} bytes at {self.position} is outside of the format's 0..{MAX_INT32}"
            )


@dataclass(frozen=True, slots=True)
class SegmentIndexes:
    """The positions of a segment's indexes. The indexes follow each other from position 0, in the order of these
    fields.

    ``transaction`` is None for a segment copied without a transaction index. An empty index has size 0. The constructor
    raises ManifestCorruptError for a gap or an overlap.
    """

    offset: IndexEntry
    timestamp: IndexEntry
    producer_snapshot: IndexEntry
    leader_epoch: IndexEntry
    transaction: IndexEntry | None

    def __post_init__(self) -> None:
        # Each index must begin where the index before it ends. The plugin never leaves a gap, so a gap shows a damaged
        # size or position.
        end = 0
        for entry in (self.offset, self.timestamp, self.producer_snapshot, self.leader_epoch, self.transaction):
            if entry is not None:
                if entry.position != end:
                    raise self._make_misplaced(entry, end)
                end += entry.size

    def _make_misplaced(self, misplaced: IndexEntry, end: int) -> ManifestCorruptError:
        name = next(_INDEX_NAMES[kind] for kind, entry in self.entries() if entry is misplaced)
        return ManifestCorruptError(
            f"segmentIndexes.{name} is at {misplaced.position}, but the index before it ends at {end}"
        )

    def entry(self, index_type: IndexType) -> IndexEntry | None:
        """Return the entry of one index; None only for a transaction index that was not recorded."""
        return dict(self.entries()).get(index_type)

    def entries(self) -> Iterator[tuple[IndexType, IndexEntry]]:
        """Yield the recorded indexes, in the order in which they are stored."""
        yield IndexType.OFFSET, self.offset
        yield IndexType.TIMESTAMP, self.timestamp
        yield IndexType.PRODUCER_SNAPSHOT, self.producer_snapshot
        yield IndexType.LEADER_EPOCH, self.leader_epoch
        if self.transaction is not None:
            yield IndexType.TRANSACTION, self.transaction

    @property
    def total_size(self) -> int:
        """The size of the whole ``.indexes`` object."""
        return sum(entry.size for _, entry in self.entries())


@dataclass(frozen=True, slots=True)
class WrappedDataKey:
    """A manifest's field ``encryption``: a data key and the AAD (additional authenticated data) of the segment. The key
    pair ``key_id`` wraps the data key.
    """

    key_id: str
    wrapped: bytes
    aad: bytes

    def __post_init__(self) -> None:
        # In the manifest, a colon separates id and key, so the id itself must not contain a colon.
        if not self.key_id.strip() or ":" in self.key_id:
            raise ManifestCorruptError(
                f"encryption.dataKey has the key id {self.key_id[:60]!r}, but an id must not be blank or contain "
                "a colon"
            )
        if not self.wrapped:
            raise ManifestCorruptError("encryption.dataKey holds no key after its key id")

    @property
    def text(self) -> str:
        """``dataKey`` as the manifest has it."""
        return f"{self.key_id}:{base64.b64encode(self.wrapped).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """The description of one segment's stored form.

    ``compression`` and ``encryption`` describe the chunks of the ``.log`` object. Indexes are encrypted too, but never
    compressed. ``metadata`` is informational: None if it is absent or damaged. The segment's size in ``metadata`` is
    the chunk index's ``original_file_size``. The constructor raises ManifestCorruptError if the parts contradict each
    other.
    """

    chunk_index: ChunkIndex
    segment_indexes: SegmentIndexes
    compression: bool
    encryption: WrappedDataKey | None = None
    metadata: RemoteLogSegmentMetadata | None = None

    def __post_init__(self) -> None:
        if isinstance(self.chunk_index, FixedChunkIndex):
            self._check_fixed(self.chunk_index)
        elif isinstance(self.chunk_index, VariableChunkIndex):
            self._check_variable(self.chunk_index)
        if self.encryption is not None:
            self._check_encrypted_indexes()

    @classmethod
    def from_bytes(
        cls,
        raw: bytes | bytearray | memoryview,
        known: KnownSegment | None = None,
        rules: ManifestRules = DEFAULT_RULES,
    ) -> SegmentManifest:
        """Read a manifest. Raise ManifestCorruptError, which names the field, if the manifest is damaged.

        Bytes after the object are ignored. Raise SegmentCorruptError if the manifest records a segment other than
        ``known``, or breaks the ``rules``.
        """
        if len(raw) > MAX_MANIFEST_SIZE:
            raise ManifestCorruptError(
                f"the manifest has {len(raw)} bytes, but no writer writes more than {MAX_MANIFEST_SIZE}"
            )
        fields = JsonObject.parse(raw)
        fields.refuse_damaged_names(_FIELDS)
        # The number 1 is accepted too, as by Jackson. In Python True equals 1, but True is no version.
        if (version := fields.raw("version")) != "1" and (version != 1 or type(version) is not int):
            raise ManifestCorruptError("the manifest's version is not 1, the only one that this reader knows")
        metadata = fields.optional("remoteLogSegmentMetadata")
        if known is not None:
            check_recorded(metadata, known)
        rules.check_encryption(fields.optional("encryption") is not None)
        log_size = None if known is None else known.log_size
        chunk_index = _read_chunk_index(fields.child("chunkIndex"), rules, log_size)
        return cls(
            chunk_index=chunk_index,
            segment_indexes=_read_segment_indexes(fields.child("segmentIndexes")),
            compression=fields.boolean("compression"),
            encryption=None if fields.optional("encryption") is None else _read_encryption(fields.child("encryption")),
            metadata=read_metadata(metadata, chunk_index.original_file_size, known),
        )

    def to_bytes(self) -> bytes:
        """Return the manifest's text, byte for byte as the plugin writes it."""
        document: dict[str, object] = {
            "version": "1",
            "chunkIndex": _chunk_index_fields(self.chunk_index),
            "segmentIndexes": _segment_indexes_fields(self.segment_indexes),
            "compression": self.compression,
        }
        if self.encryption is not None:
            aad = base64.b64encode(self.encryption.aad).decode("ascii")
            document["encryption"] = {"dataKey": self.encryption.text, "aad": aad}
        if self.metadata is not None:
            document["remoteLogSegmentMetadata"] = metadata_fields(self.metadata)
        return json_bytes(document)

    @property
    def _overhead(self) -> int:
        return 0 if self.encryption is None else ENCRYPTION_OVERHEAD

    def _check_fixed(self, index: FixedChunkIndex) -> None:
        if self.compression:
            raise ManifestCorruptError(
                "compression is true, but chunkIndex.type is 'fixed'; a compressed segment has the type 'variable'"
            )
        # The chunk sizes and the field ``encryption`` both show if chunks are encrypted, so they must agree. Otherwise,
        # if the field was lost, ciphertext would be read as data.
        if index.overhead != self._overhead:
            raise ManifestCorruptError(
                f"transformedChunkSize is {index.overhead} more than originalChunkSize, which is wrong "
                f"{'without' if self.encryption is None else 'with'} encryption"
            )

    def _check_variable(self, index: VariableChunkIndex) -> None:
        # An uncompressed segment may have a list too. Each stored size then follows from the original size, so check
        # the list.
        if self.encryption is not None and min(index.base_size, index.last_size) <= self._overhead:
            least = min(index.last_size, *(index.bounds_of_most or ()), MAX_INT32)
            if least <= self._overhead:
                raise ManifestCorruptError(f"transformedChunks lists a chunk of {least} bytes, too few to be encrypted")
        if self.compression:
            return
        most = index.bounds_of_most
        whole, last = (index.original_size(chunk) + self._overhead for chunk in (0, index.chunk_count - 1))
        if most not in {None, (whole, whole)} or index.last_size != last:
            sizes = index.stored_sizes()
            chunk = next((chunk for chunk, size in enumerate(sizes) if size != whole), index.chunk_count - 1)
            raise ManifestCorruptError(
                f"compression is false, but chunk {chunk} is stored with {sizes[chunk]} bytes, not with its original "
                "size"
            )

    def _check_encrypted_indexes(self) -> None:
        for kind, entry in self.segment_indexes.entries():
            # An encrypted index has an IV, a tag and at least one byte of content. An empty index has size 0, even with
            # encryption.
            if 0 < entry.size <= ENCRYPTION_OVERHEAD:
                raise ManifestCorruptError(
                    f"segmentIndexes.{_INDEX_NAMES[kind]} has {entry.size} bytes, too few to be encrypted"
                )


def _read_chunk_index(fields: JsonObject, rules: ManifestRules, log_size: int | None) -> ChunkIndex:
    kind = fields.text("type")
    if kind not in {"fixed", "variable"}:
        raise ManifestCorruptError(f"chunkIndex.type is {kind[:20]!r}, neither 'fixed' nor 'variable'")
    fields.refuse_damaged_names(_FIXED_FIELDS if kind == "fixed" else _VARIABLE_FIELDS)
    chunk_size, file_size = fields.integer("originalChunkSize"), fields.integer("originalFileSize")
    rules.check_chunks(chunk_size, file_size, log_size)
    if kind == "variable":
        return VariableChunkIndex.from_text(chunk_size, file_size, fields.text("transformedChunks"))
    return FixedChunkIndex(
        chunk_size, file_size, fields.integer("transformedChunkSize"), fields.integer("finalTransformedChunkSize")
    )


def _chunk_index_fields(index: ChunkIndex) -> dict[str, object]:
    sizes = {"originalChunkSize": index.original_chunk_size, "originalFileSize": index.original_file_size}
    if isinstance(index, VariableChunkIndex):
        return {"type": "variable", **sizes, "transformedChunks": index.text}
    if isinstance(index, FixedChunkIndex):
        return {
            "type": "fixed",
            **sizes,
            "transformedChunkSize": index.transformed_chunk_size,
            "finalTransformedChunkSize": index.final_transformed_chunk_size,
        }
    raise TypeError(f"{type(index).__name__} has no place in a manifest")


def _read_segment_indexes(fields: JsonObject) -> SegmentIndexes:
    fields.refuse_damaged_names(frozenset(_INDEX_NAMES.values()))
    has_transaction = fields.raw("transaction") is not None  # a missing field differs from a null field
    return SegmentIndexes(
        offset=_read_entry(fields.child("offset")),
        timestamp=_read_entry(fields.child("timestamp")),
        producer_snapshot=_read_entry(fields.child("producerSnapshot")),
        leader_epoch=_read_entry(fields.child("leaderEpoch")),
        transaction=_read_entry(fields.child("transaction")) if has_transaction else None,
    )


def _read_entry(fields: JsonObject) -> IndexEntry:
    fields.refuse_damaged_names(_ENTRY_FIELDS)
    return IndexEntry(
        fields.integer("position", null_is_zero=True),
        fields.integer("size", null_is_zero=True),
    )


def _segment_indexes_fields(indexes: SegmentIndexes) -> dict[str, object]:
    entries = dict(indexes.entries())
    return {
        name: {"position": entries[kind].position, "size": entries[kind].size} if kind in entries else None
        for kind, name in _INDEX_NAMES.items()
    }


def _read_encryption(fields: JsonObject) -> WrappedDataKey:
    fields.refuse_damaged_names(_ENCRYPTION_FIELDS)
    key_id, colon, wrapped = fields.text("dataKey").partition(":")
    if not colon or ":" in wrapped:
        raise ManifestCorruptError("encryption.dataKey does not have exactly one colon, between key id and key")
    return WrappedDataKey(
        key_id=key_id,
        wrapped=decode_base64(wrapped, "encryption.dataKey", padded=False),
        aad=decode_base64(fields.text("aad"), "encryption.aad", padded=True),
    )


def metadata_fields(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    """Return the JSON fields in the plugin's order. Leave out ``txnIdxEmpty`` if it is unknown, as brokers before 4.0
    do.
    """
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
    """Return the segment that the fields describe; None if any field is absent or invalid.

    The segment's size is not among the fields: it is the manifest's ``originalFileSize``. If the segment is ``known``,
    call :func:`check_recorded` first. The result then shares the known segment's id.
    """
    try:
        return _read_described(_object(fields), segment_size_in_bytes, known)
    except (_UnusableError, TieredStoreError):  # the model's own checks raise TieredStoreError
        return None


def check_recorded(fields: Json, known: KnownSegment) -> None:
    """Raise SegmentCorruptError if a recorded topic, topic id, partition, segment id or start offset contradicts the
    key.

    Compare each of these fields with the key, even if other fields are unusable.
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
        # A value of another type, which no known writer writes, counts as not recorded.
        if type(value) is type(expected) and value != expected:
            raise SegmentCorruptError(
                f"it is the manifest of another segment: it records the {name} {quote(value)}, but its key says "
                f"{quote(expected)}"
            )


# This class exists because catching ValueError would hide mistakes of this module. It is private, because callers get
# None and need no reason.
class _UnusableError(Exception):
    """Raised for an absent or invalid field. The fields are only informational, so no message names the field."""


def _read_described(fields: Mapping[str, Json], size: int, known: KnownSegment | None) -> RemoteLogSegmentMetadata:
    start_offset = _integer(fields.get("startOffset"))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=_segment_id(_object(fields.get("remoteLogSegmentId")), known),
        start_offset=start_offset,
        # The largest offset is refused, because the offset after the last record must also fit into Java's long.
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
    if known is not None:  # check_recorded has already compared recorded fields of the right type
        return known.segment_id
    return RemoteLogSegmentId(TopicIdPartition(_uuid(topic_id), topic, partition), _uuid(own_id))


def _epochs(fields: Mapping[str, Json]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted([(_epoch(name), _integer(start)) for name, start in fields.items()]))


def _epoch(name: str) -> int:
    # An epoch is a JSON name, so a text. With leading zeros, the same epoch could appear twice.
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
    uuid = Uuid.parse_canonical(text)
    if uuid is None:
        raise _UnusableError
    return uuid


def _integer(value: Json, *, at_least: int = 0, at_most: int = MAX_INT64) -> int:
    # Refuse texts and fractions here, unlike in other fields, because neither the plugin nor tieredstore writes them.
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        raise _UnusableError
    return value


def _truth(value: Json) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _UnusableError
    return value
