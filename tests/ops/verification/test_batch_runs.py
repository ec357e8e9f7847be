"""Tests that verification finds the same faults whether it checks batches one by one or in compiled runs."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.damage.planted_bucket import PlantedBucket
from tests.support.damage.planted_faults import PLANTED_FAULTS, PlantedFault
from tests.support.ops.tools import findings_of
from tests.support.records.small_segments import memory_settings
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import BatchCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, read_batch_headers
from tieredstore.model import IndexType, Uuid
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.log_data import BatchChecks, LogWalk
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import verify
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

Damage = Callable[[PlantedBucket, random.Random], None]


def one_by_one(planted: PlantedBucket) -> list[Finding]:
    def nothing(_: BatchChecks, __: LogWalk, position: int, last_offset: int) -> tuple[int, int]:
        return position, last_offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchChecks, "take_run", nothing)
        return findings_of(planted.bucket)


def plain_bucket() -> PlantedBucket:
    """Return a bucket in which the segment to damage is one chunk, so that no run ends at the end of a chunk."""
    planted = PlantedBucket.of("plain")
    size = len(planted.get(Suffix.LOG))
    fields = dict.fromkeys(("originalChunkSize", "transformedChunkSize", "finalTransformedChunkSize"), size)
    planted.edit_manifest(lambda document: document["chunkIndex"].update(fields))
    return planted


def change_header(planted: PlantedBucket, source: random.Random) -> None:
    """Change a field of a batch's header (offsets, timestamps, epoch, attributes or producer), and correct its CRC."""
    at, layout = source.choice(((0, ">q"), (12, ">i"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q")))
    which = source.randrange(len(planted.headers()))

    def change(batch: bytearray) -> None:
        (value,) = struct.unpack_from(layout, batch, at)
        value = source.choice((value + 1, value - 1, value ^ 16, value ^ 32, value + 3, 7, 8, 0, -1))
        struct.pack_into(layout, batch, at, max(value, -1))

    planted.rebatch(which, change)


def change_byte(planted: PlantedBucket, source: random.Random) -> None:
    planted.flip(Suffix.LOG, source.randrange(len(planted.get(Suffix.LOG))))


def change_frame(planted: PlantedBucket, source: random.Random) -> None:
    header = source.choice(planted.headers())
    planted.flip(Suffix.LOG, header.position + source.randrange(HEADER_SIZE))


def swap_batches(planted: PlantedBucket, source: random.Random) -> None:
    first, second = sorted(source.sample(planted.headers(), 2), key=lambda header: header.position)
    log = planted.get(Suffix.LOG)
    one = log[first.position : first.position + first.size_in_bytes]
    between = log[first.position + first.size_in_bytes : second.position]
    two = log[second.position : second.position + second.size_in_bytes]
    planted.put(Suffix.LOG, log[: first.position] + two + between + one + log[second.position + second.size_in_bytes :])


DAMAGES: tuple[Damage, ...] = (change_header, change_byte, change_frame, swap_batches)


@pytest.mark.parametrize(
    "fault", [fault for fault in PLANTED_FAULTS if fault.level is Level.DATA], ids=lambda fault: fault.name
)
def test_planted_faults(fault: PlantedFault) -> None:
    planted = fault.planted()
    assert findings_of(planted.bucket) == one_by_one(planted)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_at_random(damage: Damage) -> None:
    kinds: set[FindingKind] = set()
    for seed in range(12):
        source, planted = random.Random(seed), plain_bucket()
        for _ in range(source.choice((1, 1, 2))):
            try:
                damage(planted, source)
            except (ValueError, BatchCorruptError):  # after the first change no batch is left to choose
                break
        findings = findings_of(planted.bucket)
        assert findings == one_by_one(planted), f"seed {seed}"
        kinds |= {finding.kind for finding in findings}
    assert kinds


@pytest.mark.slow
@pytest.mark.parametrize("kind", [IndexType.OFFSET, IndexType.TIMESTAMP])
def test_every_number_of_the_indexes(kind: IndexType) -> None:
    entry = plain_bucket().manifest().segment_indexes.entry(kind)
    assert entry is not None
    kinds: set[FindingKind] = set()
    for place in range(3, entry.size, 4):
        for change in (1, -1):
            planted = plain_bucket()
            byte = planted.get(Suffix.INDEXES)[entry.position + place]
            planted.patch_index(kind, place, bytes([(byte + change) % 256]))
            findings = findings_of(planted.bucket)
            assert findings == one_by_one(planted)
            kinds |= {finding.kind for finding in findings}
    assert kinds & {FindingKind.OFFSET_INDEX, FindingKind.TIME_INDEX}


def test_only_what_lies_on_a_border_of_chunks_is_taken_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store, taken = memory_settings(100_000), MemoryObjectStore(), list[BatchHeader]()
    segment = build_segment(tmp_path, 1_000_000)
    with RemoteStorageManager(settings, store=store) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
    closely = BatchChecks.take

    def count(checks: BatchChecks, header: BatchHeader, log: LogWalk) -> None:
        taken.append(header)
        closely(checks, header, log)

    monkeypatch.setattr(BatchChecks, "take", count)
    (checked,) = verify(Bucket(settings, store), selection=Selection(Level.DATA))
    assert checked.findings == ()
    batches = len(list(read_batch_headers(segment.files.log_segment.read_bytes())))
    # Only the log's first two batches, and each batch that begins in one chunk and ends in the next, are checked one
    # by one.
    assert len(taken) <= 12 < batches / 3
