"""Tests that a topic of small segments is downloaded once: each segment's reader uses bytes that were read ahead."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.support.records.record_reader import RecordReader, read_records
from tests.support.records.small_segments import MODES
from tests.support.records.split_reads import plan_splits
from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_reads import read_topic
from tieredstore.catalog.planning import load_catalog
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import read_split
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, Record, build_batch

KIB: Final = 1024
SEGMENTS: Final = 12
RECORDS: Final = 96
"""Number of records in a segment. A batch has four records of 2 KiB, so a chunk of 16 KiB may end within a batch."""


@pytest.fixture(params=MODES)
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredTopic]:
    stored, dice = StoredTopic(tmp_path, 16 * KIB, MODES[request.param]), random.Random(11)
    for base in range(0, SEGMENTS * RECORDS, RECORDS):
        stored.copy(
            base,
            [
                build_batch([Record(dice.randbytes(2 * KIB), timestamp_ms=at + more) for more in range(4)], at)
                for at in range(base, base + RECORDS, 4)
            ],
        )
    stored.catalog()
    yield stored
    stored.close()


def _by_a_split(manager: RemoteStorageManager) -> Iterator[pa.RecordBatch]:
    """Yield records the way Spark's tasks do."""
    lineage = load_catalog(manager).lineage(PARTITION.topic, PARTITION.partition)
    settings, stop = ReadSettings(isolation="read_uncommitted"), lineage.end_offset
    for split in plan_splits(manager, lineage, 0, stop, settings, max_split_bytes=1 << 30).splits:
        yield from read_split(manager, split, settings)


READS: Final[dict[str, Callable[[RemoteStorageManager], Iterable[pa.RecordBatch]]]] = {
    "records": lambda manager: read_records(
        manager, PARTITION.topic, PARTITION.partition, isolation="read_uncommitted"
    ),
    "committed": lambda manager: read_records(
        manager, PARTITION.topic, PARTITION.partition, isolation="read_committed"
    ),
    "from the middle": lambda manager: read_records(manager, PARTITION.topic, PARTITION.partition, RECORDS // 2),
    "small pieces": lambda manager: RecordReader(manager, load_catalog(manager), ReadSettings(piece_bytes=1000)).read(
        PARTITION.topic, PARTITION.partition
    ),
    "topic by 1": lambda manager: read_topic(manager, PARTITION.topic, parallelism=1),
    "topic by 2": lambda manager: read_topic(manager, PARTITION.topic, parallelism=2),
    "one split": _by_a_split,
}


@pytest.mark.slow
@pytest.mark.parametrize("read", READS)
def test_each_byte_of_small_segments_is_fetched_once(topic: StoredTopic, read: str) -> None:
    stored = sum(info.size for info in topic.store.list() if info.key.endswith(".log"))
    records = sum(batch.num_rows for batch in READS[read](topic.manager))
    fetched = topic.manager.fetch_stats.bytes_fetched
    if read == "from the middle":
        assert records == SEGMENTS * RECORDS - RECORDS // 2
        assert stored * (SEGMENTS - 1) / SEGMENTS < fetched < stored
    else:
        assert (records, fetched) == (SEGMENTS * RECORDS, stored)
