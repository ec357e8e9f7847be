"""Golden segments as our own values: settings, metadata and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.golden.segments import GoldenSegment, settings_text
from tieredstore.config import Settings, settings_from
from tieredstore.format.manifest import SegmentManifest
from tieredstore.model import IndexType, LogSegmentData, RemoteLogSegmentMetadata

INDEX_FILES = {
    IndexType.OFFSET: "index",
    IndexType.TIMESTAMP: "timeindex",
    IndexType.PRODUCER_SNAPSHOT: "snapshot",
    IndexType.TRANSACTION: "txnindex",
}


def settings_of(case: str, overrides: Mapping[str, str] | None = None, *, root: Path | None = None) -> Settings:
    """Return the plugin's settings of a case, optionally on another store root."""
    texts = settings_text(case) | dict(overrides or {})
    if root is not None:
        texts["storage.root"] = str(root)
    return settings_from(texts)


def manifest_of(segment: GoldenSegment) -> SegmentManifest:
    return SegmentManifest.from_bytes(segment.stored("rsm-manifest").read_bytes())


def metadata_of(segment: GoldenSegment) -> RemoteLogSegmentMetadata:
    """Return the metadata that the plugin recorded."""
    recorded = manifest_of(segment).metadata
    assert recorded is not None
    return recorded


def leader_epochs_of(segment: GoldenSegment) -> bytes:
    """Return the checkpoint cut at the segment's end by Kafka's rule, computed here from its text."""
    lines = (segment.directory / "leader-epoch-checkpoint").read_text().splitlines()
    kept = [line for line in lines[2:] if int(line.split()[1]) <= segment.end_offset]
    return "".join(f"{line}\n" for line in ["0", str(len(kept)), *kept]).encode()


def files_of(segment: GoldenSegment) -> LogSegmentData:
    """Return the broker's own files."""
    transactions = segment.original("txnindex")
    return LogSegmentData(
        log_segment=segment.original("log"),
        offset_index=segment.original("index"),
        time_index=segment.original("timeindex"),
        transaction_index=transactions if transactions.exists() else None,
        producer_snapshot_index=segment.snapshot_path,
        leader_epoch_index=leader_epochs_of(segment),
    )


def original_indexes(segment: GoldenSegment) -> dict[IndexType, bytes]:
    """Return the bytes of every index of the segment."""
    indexes = {IndexType.LEADER_EPOCH: leader_epochs_of(segment)}
    for kind, suffix in INDEX_FILES.items():
        path = segment.snapshot_path if kind is IndexType.PRODUCER_SNAPSHOT else segment.original(suffix)
        if path.exists():
            indexes[kind] = path.read_bytes()
    return indexes
