"""Single planted faults, and the finding that verification must report for each."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.support.damage.planted_bucket import OFFSETS, PlantedBucket
from tieredstore.backends.base import ObjectStore
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE
from tieredstore.kafka.checkpoints import ProducerState, format_producer_snapshot
from tieredstore.model import IndexType
from tieredstore.ops.verification.findings import FindingKind
from tieredstore.ops.verification.selection import Level
from tieredstore.testing.batches import build_batch

LOG, INDEXES, MANIFEST = Suffix.LOG, Suffix.INDEXES, Suffix.MANIFEST
K: Final = FindingKind
Plant = Callable[[PlantedBucket], object]


@dataclass(frozen=True)
class PlantedFault:
    """Fault for which ``verify`` at ``level`` must report one finding of ``kind``, with object and byte if given."""

    name: str
    level: Level
    kind: FindingKind
    plant: Plant
    mode: str = "plain"
    suffix: Suffix | None = None
    byte: int | None = None
    offsets: tuple[int, int] | None = None

    def planted(self, store: ObjectStore | None = None) -> PlantedBucket:
        """Return a bucket with this fault."""
        bucket = PlantedBucket.of(self.mode, store)
        self.plant(bucket)
        return bucket


def _listing(name: str, kind: FindingKind, plant: Plant, suffix: Suffix | None = None, **more: Any) -> PlantedFault:
    return PlantedFault(name, Level.LISTING, kind, plant, suffix=suffix, **more)


def _index(name: str, kind: FindingKind, plant: Plant, **more: Any) -> PlantedFault:
    return PlantedFault(name, Level.INDEX, kind, plant, suffix=more.pop("suffix", INDEXES), **more)


def _data(name: str, kind: FindingKind, plant: Plant, **more: Any) -> PlantedFault:
    return PlantedFault(name, Level.DATA, kind, plant, suffix=more.pop("suffix", LOG), **more)


def _chunk_index(**fields: object) -> Plant:
    return lambda bucket: bucket.edit_manifest(lambda document: document["chunkIndex"].update(fields))


def _index_entry(name: str, **fields: object) -> Plant:
    return lambda bucket: bucket.edit_manifest(lambda document: document["segmentIndexes"][name].update(fields))


def _without(name: str) -> Plant:
    return lambda bucket: bucket.edit_manifest(lambda document: document.pop(name))


def _grow(suffix: Suffix) -> Plant:
    return lambda bucket: bucket.put(suffix, bucket.get(suffix) + b"\0")


def _shrink(suffix: Suffix) -> Plant:
    return lambda bucket: bucket.put(suffix, bucket.get(suffix)[:-1])


def _topic_id_of_another(bucket: PlantedBucket) -> None:
    def change(document: dict[str, Any]) -> None:
        where = document["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["topicIdPartition"]
        where["topicId"] = "AAAAAAAAAAAAAAAAAAAAAQ"

    bucket.edit_manifest(change)


def _move(bucket: PlantedBucket, old: str, new: str) -> None:
    """Copy the three objects of segment 1 to other keys, with a manifest that matches the new keys."""
    for suffix in Suffix:
        key, content = bucket.key(suffix, 1), bucket.get(suffix, 1)
        bucket.store.put(key.replace(old, new), content.replace(old.encode(), new.encode()))


def _copied_twice(bucket: PlantedBucket) -> None:
    _move(bucket, str(bucket.segments[1].remote_log_segment_id.id), "AAAAAAAAAAAAAAAAAAAAAQ")


def _recreated(bucket: PlantedBucket) -> None:
    _move(bucket, str(bucket.segments[1].topic_id_partition.topic_id), "AAAAAAAAAAAAAAAAAAAAAQ")


def _arabic_digits(bucket: PlantedBucket) -> None:
    """Write the last segment as the plugin does under a locale with Arabic digits."""
    arabic = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    digits = f"{bucket.segments[3].start_offset:020}"
    for suffix in Suffix:
        key, content = bucket.key(suffix, 3), bucket.get(suffix, 3)
        bucket.store.put(key.replace(digits, digits.translate(arabic)), content)
        bucket.store.delete([key])


def _older_epoch(bucket: PlantedBucket, number: int) -> None:
    start = bucket.segments[number].start_offset
    bucket.edit_metadata(number, segmentLeaderEpochs={"0": start})


def _key_of(name: str) -> Plant:
    def change(document: dict[str, Any]) -> None:
        wrapped = document["encryption"]["dataKey"].partition(":")[2]
        document["encryption"]["dataKey"] = f"{name}:{wrapped}"

    return lambda bucket: bucket.edit_manifest(change)


def _wrapped_by_another(bucket: PlantedBucket) -> None:
    """Change one byte of the data key."""

    def change(document: dict[str, Any]) -> None:
        text = document["encryption"]["dataKey"]
        document["encryption"]["dataKey"] = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]

    bucket.edit_manifest(change)


def _swap_entries(kind: IndexType, size: int) -> Plant:
    def plant(bucket: PlantedBucket) -> None:
        entry = bucket.manifest().segment_indexes.entry(kind)
        assert entry is not None
        raw = bucket.get(INDEXES)[entry.position :]
        bucket.patch_index(kind, 0, raw[size : 2 * size] + raw[:size])

    return plant


def _snapshot(bucket: PlantedBucket) -> None:
    """Write a producer snapshot with a correct CRC, where a producer's last batch is after the segment."""
    bucket.patch_index(
        IndexType.PRODUCER_SNAPSHOT, 0, format_producer_snapshot([ProducerState(7, 0, 2, 5000, 2, 0, 0, -1)])
    )


def _with_log(bucket: PlantedBucket, log: bytes, number: int = 1) -> None:
    """Give a plain segment another log, with a matching manifest."""
    size, chunk = len(log), bucket.manifest().chunk_index.original_chunk_size
    last = size - (-(-size // chunk) - 1) * chunk
    bucket.put(LOG, log, number)
    bucket.edit_manifest(
        lambda document: document["chunkIndex"].update(originalFileSize=size, finalTransformedChunkSize=last), number
    )


def _cut_batch(bucket: PlantedBucket) -> None:
    _with_log(bucket, bucket.get(LOG)[:-10])


def _zeros_at_the_end(bucket: PlantedBucket) -> None:
    _with_log(bucket, bucket.get(LOG) + bytes(100))


def _set(start: int, content: bytes) -> Callable[[bytearray], object]:
    def change(batch: bytearray) -> None:
        batch[start : start + len(content)] = content

    return change


def _flip_in_batch(which: int, at: int) -> Plant:
    return lambda bucket: bucket.flip(LOG, bucket.headers()[which].position + at)


def _base_offset(which: int, offset: int) -> Plant:
    return lambda bucket: bucket.rebatch(which, _set(0, offset.to_bytes(8, "big")))


def _abort_of_the_committed(bucket: PlantedBucket) -> None:
    """Turn the committed transaction's marker into an abort, which the transaction index lacks."""

    def change(batch: bytearray) -> None:
        batch[batch.index(b"\x08\0\0\0\x01") + 4] = 0

    bucket.rebatch(11, change)


def _commit_of_the_aborted(bucket: PlantedBucket) -> None:
    """Turn the aborted transaction's marker into a commit."""

    def change(batch: bytearray) -> None:
        batch[batch.index(b"\x08\0\0\0\0") + 4] = 1

    bucket.rebatch(10, change)


def _empty_batch(bucket: PlantedBucket) -> None:
    """Append a batch after the last offset of the manifest."""
    last = bucket.headers(3)[-1].last_offset
    _with_log(bucket, bucket.get(LOG, 3) + build_batch([], last + 1, leader_epoch=1), 3)


_END = 2 * OFFSETS - 1  # end of the second segment, where faults are planted
_NEXT = 3 * OFFSETS - 1

LISTING_FAULTS: Final = (
    _listing("manifest is not JSON", K.MANIFEST_DAMAGED, lambda b: b.put(MANIFEST, b"<html>"), MANIFEST),
    _listing("manifest is empty", K.MANIFEST_DAMAGED, lambda b: b.put(MANIFEST, b""), MANIFEST),
    _listing("manifest ends early", K.MANIFEST_DAMAGED, lambda b: b.put(MANIFEST, b.get(MANIFEST)[:300]), MANIFEST),
    _listing(
        "manifest is too large",
        K.MANIFEST_DAMAGED,
        lambda b: b.put(MANIFEST, b.get(MANIFEST) + bytes(MAX_MANIFEST_SIZE)),
        MANIFEST,
    ),
    _listing(
        "manifest of another version",
        K.MANIFEST_DAMAGED,
        lambda b: b.edit_manifest(lambda document: document.update(version="2")),
        MANIFEST,
    ),
    _listing("unknown type of chunk index", K.MANIFEST_DAMAGED, _chunk_index(type="fluid"), MANIFEST),
    _listing("last chunk of a wrong size", K.MANIFEST_DAMAGED, _chunk_index(finalTransformedChunkSize=7), MANIFEST),
    _listing("chunks of no size", K.MANIFEST_DAMAGED, _chunk_index(originalChunkSize=0), MANIFEST),
    _listing("field is gone", K.MANIFEST_DAMAGED, _without("segmentIndexes"), MANIFEST),
    _listing("index at a wrong position", K.MANIFEST_DAMAGED, _index_entry("timestamp", position=4), MANIFEST),
    _listing(
        "manifest says that it is not compressed",
        K.MANIFEST_DAMAGED,
        lambda b: b.edit_manifest(lambda document: document.update(compression=False)),
        MANIFEST,
        mode="zstd",
    ),
    _listing("encryption is forgotten", K.MANIFEST_DAMAGED, _without("encryption"), MANIFEST, mode="enc"),
    _listing(
        "manifest of the next segment",
        K.MANIFEST_REFUSED,
        lambda b: b.put(MANIFEST, b.get(MANIFEST, 2)),
        MANIFEST,
    ),
    _listing("manifest of another topic id", K.MANIFEST_REFUSED, _topic_id_of_another, MANIFEST),
    _listing("end before the start", K.METADATA_UNUSABLE, lambda b: b.edit_metadata(3, endOffset=5), MANIFEST),
    _listing("no segment metadata", K.METADATA_ABSENT, _without("remoteLogSegmentMetadata"), MANIFEST),
    _listing(
        "leader epochs that go back",
        K.EPOCHS_CONTRADICT,
        lambda b: b.edit_metadata(segmentLeaderEpochs={"0": 50, "1": 40}),
        MANIFEST,
    ),
    _listing(
        "leader epoch behind the end",
        K.EPOCHS_CONTRADICT,
        lambda b: b.edit_metadata(segmentLeaderEpochs={"0": 32, "1": 500}),
        MANIFEST,
    ),
    _listing("no leader epoch", K.EPOCHS_CONTRADICT, lambda b: b.edit_metadata(segmentLeaderEpochs={}), MANIFEST),
    _listing(
        "aborted transactions denied", K.NUMBERS_CONTRADICT, lambda b: b.edit_metadata(txnIdxEmpty=True), MANIFEST
    ),
    _listing("log is gone", K.LOG_MISSING, lambda b: b.delete(LOG), LOG),
    _listing("indexes are gone", K.INDEXES_MISSING, lambda b: b.delete(INDEXES), INDEXES),
    _listing("log is a byte short", K.LOG_SIZE, _shrink(LOG), LOG),
    _listing("log is a byte long", K.LOG_SIZE, _grow(LOG), LOG),
    _listing("log is empty", K.LOG_SIZE, lambda b: b.put(LOG, b""), LOG, mode="zstd"),
    _listing("indexes are a byte short", K.INDEXES_SIZE, _shrink(INDEXES), INDEXES),
    _listing("indexes are a byte long", K.INDEXES_SIZE, _grow(INDEXES), INDEXES, mode="enc"),
    _listing("encrypted log is short", K.LOG_SIZE, _shrink(LOG), LOG, mode="zstd+enc"),
    _listing("key in Arabic digits", K.FOREIGN_DIGITS, _arabic_digits),
    _listing("segment is gone", K.GAP, lambda b: b.delete(*Suffix), offsets=(OFFSETS, 2 * OFFSETS - 1)),
    _listing("end offset is too early", K.GAP, lambda b: b.edit_metadata(endOffset=_END - 3), offsets=(_END - 2, _END)),
    _listing("segment is stored twice", K.COPIED_TWICE, _copied_twice, offsets=(OFFSETS, _END)),
    _listing(
        "segments overlap", K.OVERLAP, lambda b: b.edit_metadata(endOffset=_END + 5), offsets=(_END + 1, _END + 5)
    ),
    _listing("older epoch behind a newer one", K.LEFT_BEHIND, lambda b: _older_epoch(b, 3), offsets=(96, 127)),
    _listing("topic created again", K.RECREATED_TOPIC, _recreated),
)

INDEX_FAULTS: Final = (
    _index("pair that is not on the ring", K.UNKNOWN_KEY, _key_of("gone"), mode="enc", suffix=MANIFEST),
    _index("damaged data key", K.WRONG_KEY, _wrapped_by_another, mode="enc", suffix=MANIFEST),
    _index("bit of an encrypted index", K.INDEXES_DAMAGED, lambda b: b.flip(INDEXES, 30), mode="enc", byte=30),
    _index(
        "bit of the last encrypted index",
        K.INDEXES_DAMAGED,
        lambda b: b.flip(INDEXES, len(b.get(INDEXES)) - 1),
        mode="zstd+enc",
    ),
    _index("offset index out of order", K.OFFSET_INDEX, _swap_entries(IndexType.OFFSET, 8), byte=0),
    _index(
        "offset index points behind the log",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, -4, struct.pack(">i", 1_000_000)),
    ),
    _index(
        "offset index has an offset behind the end",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, -8, struct.pack(">i", 1_000)),
    ),
    _index(
        "offset index points into a batch",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, 4, struct.pack(">i", b.headers()[1].position + 1)),
    ),
    _index(
        "last entry of the offset index points into a batch",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, -4, struct.pack(">i", b.headers()[-3].position + 100)),
    ),
    _index(
        "offset index leads too far",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, 0, struct.pack(">i", 1)),
    ),
    _index("time index out of order", K.TIME_INDEX, _swap_entries(IndexType.TIMESTAMP, 12)),
    _index(
        "time index has an offset behind the end",
        K.TIME_INDEX,
        lambda b: b.patch_index(IndexType.TIMESTAMP, -4, struct.pack(">i", 1_000)),
    ),
    _index(
        "unknown version of the transaction index",
        K.TRANSACTION_INDEX,
        lambda b: b.patch_index(IndexType.TRANSACTION, 0, b"\0\1"),
    ),
    _index(
        "transaction that ends before it begins",
        K.TRANSACTION_INDEX,
        lambda b: b.patch_index(IndexType.TRANSACTION, 10, struct.pack(">q", _END + 1)),
    ),
    _index(
        "marker behind the segment",
        K.TRANSACTION_INDEX,
        lambda b: b.patch_index(IndexType.TRANSACTION, 18, struct.pack(">q", _END + 100)),
    ),
    _index(
        "bit of the producer snapshot",
        K.PRODUCER_SNAPSHOT,
        lambda b: b.patch_index(IndexType.PRODUCER_SNAPSHOT, 20, b"\xff"),
    ),
    _index("producer behind the segment", K.PRODUCER_SNAPSHOT, _snapshot),
    _index(
        "leader epochs are no text",
        K.LEADER_EPOCH_INDEX,
        lambda b: b.patch_index(IndexType.LEADER_EPOCH, 0, b"\xff"),
    ),
    _index(
        "leader-epoch index has another start",
        K.LEADER_EPOCH_INDEX,
        lambda b: b.patch_index(IndexType.LEADER_EPOCH, -3, b"46"),
    ),
    _index("records behind the end of the manifest", K.END_OFFSET, _empty_batch, suffix=MANIFEST),
    _index(
        "end offset reaches over the next segment",
        K.END_OFFSET,
        lambda b: b.edit_metadata(endOffset=_NEXT),
        suffix=MANIFEST,
        offsets=(_END + 1, _NEXT),
    ),
    _index(
        "length of the last batch",
        K.BATCH_STRUCTURE,
        lambda b: b.patch(LOG, b.headers()[-1].position + 8, b"\0\0\0\1"),
        suffix=LOG,
    ),
)

DATA_FAULTS: Final = (
    _data("bit of an encrypted chunk", K.CHUNK_DAMAGED, lambda b: b.flip(LOG, 9_000), mode="enc", byte=9_000),
    _data("bit of an initialization vector", K.CHUNK_DAMAGED, lambda b: b.flip(LOG, 0), mode="enc", byte=0),
    _data("bit of a zstd frame's header", K.CHUNK_DAMAGED, lambda b: b.flip(LOG, 0), mode="zstd", byte=0),
    _data(
        "bit of a compressed and encrypted chunk",
        K.CHUNK_DAMAGED,
        lambda b: b.flip(LOG, len(b.get(LOG)) - 1),
        mode="zstd+enc",
    ),
    _data("bit of a record", K.BATCH_CRC, _flip_in_batch(5, 200)),
    _data("bit of the first record", K.BATCH_CRC, _flip_in_batch(0, 70), byte=0),
    _data("bit of the last batch", K.BATCH_CRC, _flip_in_batch(9, 1500)),
    _data("bit of a CRC", K.BATCH_CRC, _flip_in_batch(3, 18)),
    _data("bit of a timestamp", K.BATCH_CRC, _flip_in_batch(3, 38)),
    _data("bit of a batch's last offset", K.BATCH_CRC, _flip_in_batch(3, 24)),
    _data("magic that nobody knows", K.BATCH_STRUCTURE, lambda b: b.patch(LOG, b.headers()[3].position + 16, b"\x09")),
    _data(
        "length that nobody writes",
        K.BATCH_STRUCTURE,
        lambda b: b.patch(LOG, b.headers()[3].position + 8, b"\xff\xff\xff\xff"),
    ),
    _data(
        "zeros amid the log",
        K.BATCH_STRUCTURE,
        lambda b: b.patch(LOG, b.headers()[5].position, bytes(b.headers()[5].size_in_bytes)),
    ),
    _data("log ends within a batch", K.BATCH_STRUCTURE, _cut_batch),
    _data("batch that begins before the segment", K.BATCH_OFFSETS, _base_offset(0, 3)),
    _data("batch that begins too early", K.BATCH_OFFSETS, _base_offset(4, OFFSETS + 2)),
    _data("batch that begins behind the segment", K.BATCH_OFFSETS, _base_offset(4, 1 << 40)),
    _data("batch that begins too late", K.BATCH_OFFSETS, _base_offset(4, OFFSETS + 20)),
    _data(
        "batch of another leader epoch",
        K.BATCH_EPOCH,
        lambda b: b.patch(LOG, b.headers()[7].position + 12, b"\0\0\0\5"),
    ),
    _data(
        "greatest timestamp of the manifest",
        K.MAX_TIMESTAMP,
        lambda b: b.edit_metadata(maxTimestampMs=1_700_000_000_003),
        suffix=MANIFEST,
    ),
    _data("zeros at the end", K.TRAILING_ZEROS, _zeros_at_the_end),
    _data(
        "entry of the offset index at no batch's end",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, 8, struct.pack(">i", 13)),
        suffix=INDEXES,
    ),
    _data(
        "entry of the offset index within a batch",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, 12, struct.pack(">i", b.headers()[5].position - 7)),
        suffix=INDEXES,
    ),
    _data(
        "timestamp in the time index",
        K.TIME_INDEX,
        lambda b: b.patch_index(IndexType.TIMESTAMP, -12, struct.pack(">q", 1_700_000_999_999)),
        suffix=INDEXES,
    ),
    _data(
        "offset in the time index",
        K.TIME_INDEX,
        lambda b: b.patch_index(IndexType.TIMESTAMP, 8, struct.pack(">i", 2)),
        suffix=INDEXES,
    ),
    _data(
        "marker that the transaction index does not know",
        K.TRANSACTION_INDEX,
        _abort_of_the_committed,
        suffix=INDEXES,
    ),
    _data(
        "transaction that nothing ends",
        K.TRANSACTION_INDEX,
        lambda b: b.patch_index(IndexType.TRANSACTION, 2, struct.pack(">q", 99)),
        suffix=INDEXES,
    ),
    _data(
        "transaction that begins behind its records",
        K.TRANSACTION_INDEX,
        lambda b: b.patch_index(IndexType.TRANSACTION, 10, struct.pack(">q", OFFSETS + 13)),
        suffix=INDEXES,
    ),
    _data(
        "last stable offset behind the segment",
        K.TRANSACTION_INDEX,
        lambda b: b.patch_index(IndexType.TRANSACTION, 26, struct.pack(">q", 1 << 40)),
        suffix=INDEXES,
    ),
    _data("committed transaction in the index", K.TRANSACTION_INDEX, _commit_of_the_aborted, suffix=INDEXES),
    _data(
        "entry of the offset index within the batch of the one before",
        K.OFFSET_INDEX,
        lambda b: b.patch_index(IndexType.OFFSET, 20, struct.pack(">i", b.headers()[6].position + 7)),
        suffix=INDEXES,
    ),
)

PLANTED_FAULTS: Final = (*LISTING_FAULTS, *INDEX_FAULTS, *DATA_FAULTS)


def fault_named(name: str) -> PlantedFault:
    """Return the fault with this name."""
    (fault,) = (fault for fault in PLANTED_FAULTS if fault.name == name)
    return fault
