"""Plans and reads of splits, as if by different processes, with checks that hold for every window."""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.support.golden.records import Row, rows_of
from tests.support.records.stored_records import StoredTopic
from tieredstore.catalog.lineage import Lineage
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.model import Uuid
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, SplitLimits, SplitPlan, SplitPlanner, read_split
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, IndexBuilder, write_segment


def plan_splits(
    source: RemoteStorageManager,
    lineage: Lineage,
    start: int,
    stop: int,
    settings: ReadSettings,
    *,
    max_split_bytes: int,
    max_split_records: int | None = None,
    since_ms: int | None = None,
) -> SplitPlan:
    """Plan splits with these limits."""
    limits = SplitLimits(max_split_bytes, max_split_records, since_ms=since_ms)
    return SplitPlanner(source, lineage, settings, limits).plan(start, stop)


def read_of(manager: RemoteStorageManager, split: RecordSplit, settings: ReadSettings) -> list[Row]:
    """Pickle a split and read it; return the rows, and assert that all are between the split's offsets."""
    arrived: RecordSplit = pickle.loads(pickle.dumps(split))
    assert arrived == split
    rows = rows_of(read_split(manager, arrived, settings))
    assert all(split.start_offset <= row["offset"] < split.stop_offset for row in rows)
    return rows


def read_plan(manager: RemoteStorageManager, plan: SplitPlan, settings: ReadSettings) -> list[Row]:
    """Return the rows of all splits; assert that their sections are in offset order."""
    parts = [part for split in plan.splits for part in split.sections]
    for before, part in itertools.pairwise(parts):
        assert before.start_offset <= part.start_offset
        assert before.stop_offset <= part.stop_offset
    return [row for split in plan.splits for row in read_of(manager, split, settings)]


def check_window(
    manager: RemoteStorageManager,
    lineage: Lineage,
    window: tuple[int, int],
    settings: ReadSettings,
    *,
    max_split_bytes: int,
    max_split_records: int | None = None,
) -> SplitPlan:
    """Plan and read a window; assert that its records and its end are those of one read without splits."""
    plan = plan_splits(
        manager, lineage, *window, settings, max_split_bytes=max_split_bytes, max_split_records=max_split_records
    )
    if max_split_records is None:
        parts = [part for split in plan.splits for part in split.sections]
        neighbours = [(one, other) for one, other in itertools.pairwise(parts) if one.segment == other.segment]
        assert all(one.end == other.begin for one, other in neighbours)
    else:
        assert all(split.stop_offset - split.start_offset <= max_split_records for split in plan.splits)
    whole = PartitionRead(manager, lineage, *window, settings)
    assert read_plan(manager, plan, settings) == rows_of(whole)
    if not lineage.gaps_between(*window) and window[0] >= lineage.earliest_offset:
        assert (plan.stop, plan.undecided) == (whole.report.next_offset, whole.report.undecided)
    return plan


def copy_with_index(
    topic: StoredTopic, batches: Sequence[bytes], entries: Sequence[tuple[int, int]], base: int = 0
) -> None:
    """Copy a segment with these offset index entries (offsets relative to ``base``) instead of the broker's."""
    folder = topic.folder / str(len(topic.copied))
    segment = write_segment(folder, batches, base_offset=base)
    Path(str(segment.files.offset_index)).write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=1000 + len(topic.copied))
    topic.manager.copy_log_segment_data(metadata, segment.files)
    topic.copied.append(metadata)


def broker_index(batches: Sequence[bytes], base: int = 0) -> list[tuple[int, int]]:
    """Return the entries that a broker's offset index of these batches has."""
    indexes, position = IndexBuilder(base), 0
    for batch in batches:
        (header,) = read_batch_headers(batch)
        indexes.add(position, len(batch), header.last_offset, header.max_timestamp)
        position += len(batch)
    return list(struct.iter_unpack(">ii", indexes.offset_index))


def lineage_of(topic: StoredTopic) -> Lineage:
    """Reset counters and caches; return the lineage of the topic's only partition."""
    return topic.catalog().lineage(PARTITION.topic, PARTITION.partition)
