"""Small made-up segments for tests that need unusual sizes, and settings for them."""

from __future__ import annotations

from pathlib import Path

from tests.support.paths import GOLDEN
from tieredstore.config import Settings, settings_from
from tieredstore.model import (
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    Uuid,
)

PARTITION = TopicIdPartition(Uuid(bytes(range(16))), "a-topic.with_all-3", 7)
KEYS = GOLDEN / "08-keyring" / "keys"

PLAIN: dict[str, str] = {}
ZSTD = {"compression.enabled": "true"}
ENC = {
    "encryption.enabled": "true",
    "encryption.key.pair.id": "key1",
    "encryption.key.pairs": "key1",
    "encryption.key.pairs.key1.public.key.file": str(KEYS / "key1.public.pem"),
    "encryption.key.pairs.key1.private.key.file": str(KEYS / "key1.private.pem"),
}
MODES = {"none": PLAIN, "zstd": ZSTD, "enc": ENC, "zstd+enc": ZSTD | ENC}


def memory_settings(chunk_size: int = 100, **groups: dict[str, str]) -> Settings:
    """Return settings for a store provided by the test; ``groups`` are further settings, such as MODES entries."""
    texts = {"storage.backend.class": "memory", "chunk.size": str(chunk_size)}
    for group in groups.values():
        texts |= group
    return settings_from(texts)


def new_metadata(size: int, *, start: int = 1234) -> RemoteLogSegmentMetadata:
    """Return metadata with a new segment id."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, Uuid.random()),
        start_offset=start,
        end_offset=start + 99,
        segment_size_in_bytes=size,
        max_timestamp_ms=1_700_000_000_000,
        broker_id=3,
        event_timestamp_ms=1_700_000_001_000,
        segment_leader_epochs=((0, start), (5, start + 50)),
        txn_idx_empty=True,
    )


def write_segment(folder: Path, log: bytes, *, transactions: bytes | None = b"t" * 34) -> LogSegmentData:
    """Write a segment's files with this log; the storage core does not interpret the index bytes."""
    files = {"log": log, "index": b"i" * 16, "timeindex": b"", "snapshot": b"s" * 56}
    if transactions is not None:
        files["txnindex"] = transactions
    for suffix, content in files.items():
        (folder / f"seg.{suffix}").write_bytes(content)
    return LogSegmentData(
        log_segment=folder / "seg.log",
        offset_index=folder / "seg.index",
        time_index=folder / "seg.timeindex",
        transaction_index=None if transactions is None else folder / "seg.txnindex",
        producer_snapshot_index=folder / "seg.snapshot",
        leader_epoch_index=b"0\n2\n0 1234\n5 1284\n",
    )
