"""Tests of a walk over a log: its findings do not depend on where chunks end, and it always ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self, cast

import pytest

from tests.support.damage.planted_bucket import EVENTS
from tests.support.records.record_batches import compressed_batch, message
from tests.support.records.small_segments import memory_settings
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import StoredSegment
from tieredstore.format.keys import main_path
from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import Uuid
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.indexes import CheckedIndexes
from tieredstore.ops.verification.log_data import BatchChecks, check_data
from tieredstore.ops.verification.selection import Level, Subject
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment

WHO = Producer(7, 0, 0, transactional=True)
RECORDS = [Record(b"v" * 30, timestamp_ms=1000 + number) for number in range(2)]
KINDS = {
    "message of magic 0": message(0, 0, b"v" * 20),
    "message of magic 1": message(1, 1, b"v" * 20, timestamp=5),
    "batch": build_batch(RECORDS, 2),
    "compressed batch": compressed_batch(RECORDS, 4, CompressionType.ZSTD),
    "transactional batch": build_batch(RECORDS, 6, producer=WHO),
    "commit marker": build_end_marker(8, WHO, commit=True),
    "batch that is aborted": build_batch(RECORDS, 9, producer=WHO),
    "abort marker": build_end_marker(11, WHO, commit=False),
    "batch of a transaction that no index names": build_batch(RECORDS, 12, producer=WHO),
    "abort marker that no index names": build_end_marker(14, WHO, commit=False),
    "batch without records": build_batch([], 15),
}
LOG = b"".join(KINDS.values())


class Stream:
    """A log in chunks of equal size, as the manager streams it."""

    def __init__(self, size: int) -> None:
        self.size, self.position = size, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def seek(self, position: int) -> None:
        self.position = position

    def chunks(self) -> Iterator[memoryview]:
        while self.position < len(LOG):
            stop = min((self.position // self.size + 1) * self.size, len(LOG))
            chunk = memoryview(bytearray(LOG[self.position : stop]))
            self.position = stop
            yield chunk
            chunk[:] = bytes(len(chunk))  # a chunk is valid only until the next one is requested


class Logs:
    """A manager with one log."""

    def __init__(self, size: int) -> None:
        self.size = size

    def open(self, _: object) -> Stream:
        return Stream(self.size)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredSegment:
    segment = write_segment(tmp_path_factory.mktemp("log"), list(KINDS.values()), partition=EVENTS)
    metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=0)
    with RemoteStorageManager(memory_settings(4096), store=MemoryObjectStore()) as manager:
        manager.copy_log_segment_data(metadata, segment.files)
        manifest = manager.fetch_manifest(metadata)
    path = main_path(metadata.remote_log_segment_id, 0)
    return StoredSegment(SegmentObjects(metadata.remote_log_segment_id, 0, (), path), manifest)


def findings_of(stored: StoredSegment, size: int) -> list[Finding]:
    subject = Subject(stored.objects, Level.DATA, Bucket(memory_settings(4096), MemoryObjectStore()))
    indexes = CheckedIndexes(aborted=(AbortedTransaction(7, 9, 11, 12),))
    return check_data(cast("RemoteStorageManager", Logs(size)), subject, stored, indexes).findings


def none(_: object, __: object, position: int, last_offset: int) -> tuple[int, int]:
    return position, last_offset


@pytest.mark.timeout(30)
@pytest.mark.parametrize("by_runs", [True, False])
def test_a_border_of_chunks_at_every_offset(
    stored: StoredSegment, by_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = findings_of(stored, len(LOG))
    assert [finding.kind for finding in whole] == [FindingKind.TRANSACTION_INDEX]
    if not by_runs:
        monkeypatch.setattr(BatchChecks, "take_run", none)
    for size in range(1, len(LOG)):
        assert findings_of(stored, size) == whole, f"chunks of {size} bytes"
