"""Tests of each flipped bit of plain indexes: verification finds it, or no reader's result changes."""

from __future__ import annotations

import random
from typing import Final

import pytest

from tests.support.damage.planted_bucket import EVENTS, OFFSETS, SEGMENTS, PlantedBucket
from tests.support.ops.tools import kinds_of
from tests.support.records.record_reader import RecordReader
from tests.support.records.small_segments import memory_settings
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.timestamps import OffsetAndTimestamp, offset_for_time
from tieredstore.errors import TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.model import IndexType
from tieredstore.ops.verification.findings import FindingKind
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import verify
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import find_decided_end
from tieredstore.remote import RemoteStorageManager

COMMITTED: Final = ReadSettings(columns=["offset", "value"], isolation="read_committed")
END: Final = SEGMENTS * OFFSETS
TIMES: Final = range(1_700_000_000_000 + OFFSETS - 2, 1_700_000_000_000 + 2 * OFFSETS + 2)
Reading = tuple[list[object], list[OffsetAndTimestamp | None], int]


def read(planted: PlantedBucket) -> Reading:
    """Read all committed records, one window per offset of the segment, and the offsets of its times."""
    with RemoteStorageManager(memory_settings(), store=planted.store) as manager:
        catalog = load_catalog(manager)
        lineage, reader = catalog.lineage(EVENTS.topic, 0), RecordReader(manager, catalog, COMMITTED)
        windows = [(0, END), *((at, at + 1) for at in range(OFFSETS - 1, 2 * OFFSETS + 1))]
        rows: list[object] = [
            batch.to_pylist() for window in windows for batch in reader.read(EVENTS.topic, 0, *window)
        ]
        times = [offset_for_time(manager, lineage, time) for time in TIMES]
        return rows, times, find_decided_end(manager, lineage, OFFSETS, END)


def outcome(planted: PlantedBucket) -> Reading | str:
    try:
        return read(planted)
    except TieredStoreError as error:
        return str(error)


def check(bits: list[int]) -> set[FindingKind]:
    planted = PlantedBucket.of("plain")
    whole, indexes, kinds = read(planted), planted.get(Suffix.INDEXES), set[FindingKind]()
    for bit in bits:
        damaged = bytearray(indexes)
        damaged[bit // 8] ^= 1 << bit % 8
        planted.put(Suffix.INDEXES, bytes(damaged))
        findings = kinds_of(verify(planted.bucket, selection=Selection(Level.DATA), parallel=1))
        kinds.update(findings)
        assert findings or outcome(planted) == whole, f"bit {bit}"
    return kinds


def all_bits() -> list[int]:
    return list(range(8 * len(PlantedBucket.of("plain").get(Suffix.INDEXES))))


def bits_of(kind: IndexType) -> list[int]:
    entry = PlantedBucket.of("plain").manifest().segment_indexes.entry(kind)
    assert entry is not None
    return list(range(8 * entry.position, 8 * (entry.position + entry.size)))


@pytest.mark.slow
def test_every_bit_of_a_transaction_index() -> None:
    assert check(bits_of(IndexType.TRANSACTION)) == {FindingKind.TRANSACTION_INDEX}


@pytest.mark.slow
def test_some_bits_of_all_indexes() -> None:
    assert len(check(random.Random(7).sample(all_bits(), 90))) >= 4


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_bit_of_all_indexes() -> None:
    check(all_bits())
