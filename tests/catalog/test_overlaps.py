"""Manifests are compared with their segments before they cover or cut other segments."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.records.record_reader import read_records
from tests.support.records.split_reads import plan_splits
from tests.support.records.stored_records import StoredTopic
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.planning import ValidSegment, load_catalog
from tieredstore.catalog.problems import ProblemKind
from tieredstore.errors import DataLossError
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records.columns import int64_values
from tieredstore.records.partition import PartitionRead
from tieredstore.records.report import LostOffsets
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import read_split
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Producer
from tieredstore.testing.segments import PARTITION, Record, build_batch, build_end_marker


def alter(topic: StoredTopic, number: int, **fields: object) -> None:
    """Change segment metadata in one manifest of a topic, as damage or an older writer might."""
    key = topic.keys(".rsm-manifest")[number]
    document = json.loads(topic.store.get(key))
    document["remoteLogSegmentMetadata"].update(fields)
    topic.store.put(key, json.dumps(document, separators=(",", ":")).encode())


def extents(lineage: Lineage) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in lineage.spans]


def lineage_of(topic: StoredTopic) -> Lineage:
    return topic.catalog().lineage(PARTITION.topic, PARTITION.partition)


def offsets_of(topic: StoredTopic, stop: int | None = None) -> list[int]:
    with read_records(topic.manager, "events", 0, None, stop, columns=["offset"]) as read:
        return [offset for batch in read for offset in int64_values(batch, "offset")]


def three_segments(topic: StoredTopic) -> None:
    for base in (0, 100, 200):
        topic.copy_plain(base, 100, size=10)


@pytest.mark.parametrize("claimed", [199, 205, 299, 399, 899, 2**62])
def test_a_segment_covers_no_more_than_its_log_holds(topic: StoredTopic, claimed: int) -> None:
    three_segments(topic)
    alter(topic, 0, endOffset=claimed)
    lineage = lineage_of(topic)
    assert extents(lineage) == [(0, 100), (100, 200), (200, 300)]
    assert offsets_of(topic) == list(range(300))


def test_what_was_held_against_its_log_is_known_afterwards(topic: StoredTopic) -> None:
    three_segments(topic)
    alter(topic, 0, endOffset=899)
    known: dict[str, ValidSegment] = {}
    first = load_catalog(topic.manager, known=known)
    topic.store.reset()
    with RemoteStorageManager(topic.manager.settings, store=topic.store) as another:
        assert load_catalog(another, known=known) == first
    assert topic.store.requests == {"list": 1}


def test_a_claim_costs_requests_only_where_it_reaches_into_another(topic: StoredTopic) -> None:
    three_segments(topic)
    topic.store.reset()
    assert extents(lineage_of(topic)) == [(0, 100), (100, 200), (200, 300)]
    load_catalog(topic.manager)
    assert topic.store.requests == {"list": 1, "get": 3}


def test_two_copies_of_one_extent_agree_and_cost_no_requests(topic: StoredTopic) -> None:
    three_segments(topic)
    topic.copy_plain(100, 100, size=10)
    topic.catalog()
    load_catalog(topic.manager)
    assert topic.store.requests == {"list": 1, "get": 4}


def test_copies_that_overlap_rightly_stay_as_they_are(topic: StoredTopic) -> None:
    topic.copy_plain(0, 100, size=10)
    topic.copy_plain(50, 100, size=10)
    topic.copy_plain(60, 140, size=10)
    lineage = lineage_of(topic)
    assert extents(lineage) == [(0, 100), (100, 200)]
    assert len(lineage.covered) == 1


def test_a_claim_whose_log_cannot_be_walked_is_a_problem(topic: StoredTopic) -> None:
    three_segments(topic)
    alter(topic, 1, endOffset=899)
    key = topic.keys(".rsm-manifest")[1].replace(".rsm-manifest", ".log")
    topic.store.put(key, b"x" * len(topic.store.get(key)))
    catalog = topic.catalog()
    assert [(problem.kind, problem.start_offset) for problem in catalog.problems] == [(ProblemKind.DAMAGED, 100)]
    assert "events-0 at offset 100" in str(catalog.problems[0])
    assert [(gap.start, gap.stop) for gap in catalog.lineage("events", 0).gaps] == [(100, 200)]


def test_a_damaged_offset_index_keeps_no_claim_from_being_checked(topic: StoredTopic) -> None:
    topic.copy_plain(0, 100, size=1000)
    topic.copy_plain(100, 100, size=1000)
    alter(topic, 0, endOffset=899)
    key = topic.keys(".rsm-manifest")[0].replace(".rsm-manifest", ".indexes")
    indexes = bytearray(topic.store.get(key))
    indexes[:8] = b"\x7f" * 8
    topic.store.put(key, bytes(indexes))
    assert extents(lineage_of(topic)) == [(0, 100), (100, 200)]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "epochs",
    [{}, {"4": 0}, {"1": 0}, {"0": 2**40}, {"0": 1000, "1": 5}, {"3": 250}],
    ids=["none", "later", "next", "behind the end", "descending", "within"],
)
def test_epochs_that_are_not_the_segments_own_cut_nothing(
    topic: StoredTopic, number: int, epochs: dict[str, int]
) -> None:
    history = ((0, 0), (2, 150), (3, 180))
    for base in (0, 100, 200):
        batches = [
            build_batch([Record(b"v")] * 10, at, leader_epoch=max(epoch for epoch, start in history if start <= at))
            for at in range(base, base + 100, 10)
        ]
        topic.copy(base, batches, leader_epochs=history)
    alter(topic, number, segmentLeaderEpochs=epochs)
    lineage = lineage_of(topic)
    assert extents(lineage) == [(0, 100), (100, 200), (200, 300)]
    assert (lineage.superseded, lineage.covered) == ((), ())


def test_an_end_that_java_cannot_count_beyond_is_taken_from_the_log(topic: StoredTopic) -> None:
    three_segments(topic)
    alter(topic, 2, endOffset=2**63 - 1)
    assert extents(lineage_of(topic)) == [(0, 100), (100, 200), (200, 300)]
    assert offsets_of(topic) == list(range(300))


def test_the_manifests_own_entries_say_whether_there_are_aborted_transactions(topic: StoredTopic) -> None:
    producer = Producer(7, 0, 0, transactional=True)
    batches = [
        build_batch([Record(b"aborted")], 0, producer=producer),
        build_end_marker(1, producer, commit=False),
        build_batch([Record(b"kept")], 2),
    ]
    topic.copy(0, batches, aborted=[AbortedTransaction(7, 0, 1, 2)])
    alter(topic, 0, txnIdxEmpty=True)
    topic.catalog()
    with read_records(topic.manager, "events", 0, columns=["value"], isolation="read_committed") as read:
        assert [value for batch in read for value in batch.column("value").to_pylist()] == [b"kept"]


@pytest.mark.parametrize("claimed", [100, 150, 899])
def test_the_last_segment_is_believed_up_to_the_end_of_its_log(
    topic: StoredTopic, claimed: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic.copy_plain(0, 100, size=10)
    alter(topic, 0, endOffset=claimed)
    lineage = lineage_of(topic)
    chosen = ReadSettings(columns=["offset"], on_data_loss="report")
    for stop in (claimed + 1, 101):
        with pytest.raises(DataLossError, match=r"events-0 at offset 0 .* ends at offset 99: .*on_data_loss"):
            offsets_of(topic, stop)
        with PartitionRead(topic.manager, lineage, 0, stop, chosen) as read:
            assert [offset for batch in read for offset in int64_values(batch, "offset")] == list(range(100))
            assert (read.report.next_offset, read.report.lost) == (100, (LostOffsets(lineage.partition, 100, stop),))
    plan = plan_splits(topic.manager, lineage, 0, claimed + 1, chosen, max_split_bytes=1 << 20)
    with pytest.raises(DataLossError, match="ends at offset 99"):
        list(read_split(topic.manager, plan.splits[0], replace(chosen, on_data_loss="fail")))
    assert sum(batch.num_rows for batch in read_split(topic.manager, plan.splits[0], chosen)) == 100
    assert any("ends at offset 99" in message for message in caplog.messages)
    assert offsets_of(topic, 90) == list(range(90))
