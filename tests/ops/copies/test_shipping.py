"""Tests of shipping segments from a disk into a store. Each segment is shipped once, whatever fails, and even if
other processes ship it too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from tests.support.records.disk_segments import manager_of, other_partition, stored_keys, write_segments
from tests.support.stores.doubles import CountingStore, FaultyStore, Moment
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore import errors
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.committed import CommittedSegments, SegmentIdentity
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, FoundSegment, LogSegment, describe
from tieredstore.model import Uuid
from tieredstore.ops.copies import shipping
from tieredstore.ops.copies.shipping import Shipper, ShipStep, concerns_one_segment
from tieredstore.ops.steps import Outcome
from tieredstore.remote import RemoteStorageManager

COPIED, THERE, FAILED, NOT_TRIED = Outcome.COPIED, Outcome.THERE, Outcome.FAILED, Outcome.NOT_TRIED


class Process:
    """A shipping process with its manager, its view of the store, and its clock."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.now_s = 0.0
        self.manager = manager_of(store)
        self.committed = CommittedSegments(store, clock=lambda: self.now_s)

    def shipper(self, topic_id: Uuid | None = None, broker_id: int | None = None) -> Shipper:
        return Shipper(self.committed, self.manager, topic_id=topic_id, broker_id=broker_id)

    def ship(self, segment: FoundSegment) -> ShipStep:
        return self.shipper().ship(segment)

    def plan(self, segment: FoundSegment) -> ShipStep:
        return Shipper(self.committed).ship(segment)

    def ship_all(self, segments: list[FoundSegment]) -> list[Outcome]:
        return [step.outcome for step in self.shipper().ship_all(segments)]


@pytest.fixture
def segments(tmp_path: Path) -> list[FoundSegment]:
    return write_segments(tmp_path, 3)


@pytest.fixture
def processes() -> Iterator[Callable[..., Process]]:
    """Yield a function that makes processes. They share one store unless a test passes another."""
    shared = MemoryObjectStore()
    managers: list[RemoteStorageManager] = []

    def make(store: ObjectStore | None = None) -> Process:
        process = Process(shared if store is None else store)
        managers.append(process.manager)
        return process

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def process(processes: Callable[..., Process]) -> Process:
    return processes()


def test_each_segment_is_shipped_once_and_the_outcome_says_all(process: Process, segments: list[FoundSegment]) -> None:
    outcomes = [process.ship(segment) for segment in segments]
    stored = [load_segment(process.store, objects) for objects in list_segments(process.store)]
    for segment, step, copy in zip(segments, outcomes, stored, strict=True):
        assert (step.item, step.outcome, step.error) == (segment, COPIED, None)
        assert (step.partition, step.segment_id) == (
            copy.metadata.topic_id_partition,
            copy.objects.segment_id.id,
        )
        assert (step.end_offset, step.size) == (
            copy.metadata.end_offset,
            copy.metadata.segment_size_in_bytes,
        )
        assert step.stored_size == copy.objects.stored_size
    again = [process.ship(segment) for segment in segments]
    assert [step.outcome for step in again] == [THERE] * 3
    for first, second in zip(outcomes, again, strict=True):
        for name in ("partition", "end_offset", "size", "segment_id"):
            assert getattr(first, name) == getattr(second, name)
    assert len(stored_keys(process.store)) == 9


def test_segments_that_the_broker_has_deleted_are_skipped(process: Process, segments: list[FoundSegment]) -> None:
    """``kafka-delete-records`` moves the start of the log, and the broker at once forgets the epochs before it."""
    (segments[0].directory / LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n0 10\n")
    assert process.plan(segments[0]).outcome is Outcome.GONE
    assert process.ship_all(segments) == [Outcome.GONE, COPIED, COPIED]


def test_a_sweep_again_and_again_costs_no_request_but_a_listing_at_times(
    processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    store = CountingStore(MemoryObjectStore())
    process = processes(store)
    assert process.ship_all(segments) == [COPIED] * 3
    assert store.requests["list"] == 1
    assert process.ship_all(segments) == [THERE] * 3
    store.reset()
    for _ in range(100):
        process.now_s += 1
        assert process.ship_all(segments) == [THERE] * 3
    assert dict(store.requests) == {"list": 10}


def test_a_plan_writes_nothing_and_says_what_is_done_then(
    processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    store = CountingStore(MemoryObjectStore())
    process = processes(store)
    assert process.ship(segments[1]).outcome is COPIED
    segments[2].path("timeindex").unlink()
    store.reset()
    planned = [process.plan(segment) for segment in segments]
    assert not store.requests.keys() & {"put", "delete", "replace"}
    assert [step.outcome for step in planned] == [COPIED, THERE, FAILED]
    shipped = [process.ship(segment) for segment in segments]
    assert [step.outcome for step in shipped] == [COPIED, THERE, FAILED]
    for before, after in zip(planned, shipped, strict=True):
        for name in ("partition", "end_offset", "size"):
            assert getattr(before, name) == getattr(after, name)
        assert str(before.error) == str(after.error)


def test_the_active_segment_is_left_alone(process: Process, segments: list[FoundSegment]) -> None:
    active = FoundSegment(segments[2].directory, segments[2].topic, segments[2].partition, 30, None)
    for suffix, content in (("log", segments[2].path("log").read_bytes()), ("index", bytes(80)), ("timeindex", b"")):
        active.path(suffix).write_bytes(content)
    for step in (process.plan(active), process.ship(active)):
        assert (step.outcome, step.end_offset) == (Outcome.ACTIVE, None)
    assert stored_keys(process.store) == []


def test_segments_that_another_process_committed_before_are_skipped(
    processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    mine, other = processes(), processes()
    assert mine.plan(segments[0]).outcome is COPIED
    assert other.ship_all(segments) == [COPIED] * 3
    mine.now_s += 10
    assert mine.ship_all(segments) == [THERE] * 3


def test_segments_that_another_process_commits_during_the_description_are_skipped(
    processes: Callable[..., Process], segments: list[FoundSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = processes(), processes()

    def describe_for_long(segment: FoundSegment, topic_id: Uuid | None = None) -> LogSegment:
        monkeypatch.setattr(shipping, "describe", describe)
        assert other.ship(segment).outcome is COPIED
        mine.now_s += 10
        return describe(segment, topic_id)

    monkeypatch.setattr(shipping, "describe", describe_for_long)
    assert mine.ship(segments[0]).outcome is THERE
    assert len(stored_keys(mine.store, "manifest")) == 1


def test_segments_that_another_process_deleted_are_shipped_again(
    process: Process, segments: list[FoundSegment]
) -> None:
    assert process.ship_all(segments) == [COPIED] * 3
    process.store.delete(stored_keys(process.store)[3:6])
    assert process.ship_all(segments) == [THERE, COPIED, THERE]


def test_a_lost_answer_to_the_commit_is_no_second_copy(
    processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    """The store wrote the manifest, but its answer was lost. Then the store was unreachable for the clean-up."""
    inner = MemoryObjectStore()
    lost = FaultyStore(
        inner, lambda operation: operation.name == "put" and operation.keys[0].endswith("manifest"), moment="after"
    )
    process = processes(FaultyStore(lost, lambda operation: operation.name == "delete"))
    step = process.ship(segments[0])
    assert (step.outcome, type(step.error)) == (FAILED, errors.StoreUnavailableError)
    assert process.ship(segments[0]).outcome is THERE
    assert len(stored_keys(inner, "manifest")) == 1


@pytest.mark.parametrize("moment", get_args(Moment))
def test_wherever_the_store_fails_the_next_try_completes_it(
    moment: Moment, processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    for _, _, store in OperationSweep(MemoryObjectStore, partial(ship_all, processes, segments)).fail(moment):
        process = processes(store)
        first = process.ship_all(segments)
        # A fault in the middle of an empty listing has no effect. Any other fault stops the run at a segment.
        assert first in ([COPIED] * 3, *([COPIED] * n + [FAILED] + [NOT_TRIED] * (2 - n) for n in range(3)))
        second = process.ship_all(segments)
        assert FAILED not in second
        whole = [objects.start_offset for objects in list_segments(store) if not objects.missing]
        assert whole == [0, 10, 20]
        assert len(stored_keys(store, "manifest")) == 3


def ship_all(processes: Callable[..., Process], segments: list[FoundSegment], store: ObjectStore) -> None:
    assert processes(store).ship_all(segments) == [COPIED] * 3


def test_killed_at_any_operation_the_next_process_completes_it(
    processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    for _, inner, dead in OperationSweep(MemoryObjectStore, partial(ship_all, processes, segments)).die():
        with pytest.raises(Killed):
            processes(dead).ship_all(segments)
        before = len([objects for objects in list_segments(inner) if not objects.missing])
        assert processes(inner).ship_all(segments) == [THERE] * before + [COPIED] * (3 - before)
        assert len(stored_keys(inner, "manifest")) == 3


def test_a_store_that_fails_stops_a_run_and_what_is_left_is_not_tried(
    processes: Callable[..., Process], segments: list[FoundSegment]
) -> None:
    store = FaultyStore(MemoryObjectStore(), lambda operation: operation.name == "put" and operation.number > 6)
    outcomes = list(processes(store).shipper().ship_all(segments))
    assert [step.outcome for step in outcomes] == [COPIED, FAILED, NOT_TRIED]
    assert isinstance(outcomes[1].error, errors.StoreUnavailableError)


def test_a_segment_that_cannot_be_shipped_does_not_stop_a_run(process: Process, segments: list[FoundSegment]) -> None:
    log = segments[1].path("log")
    log.write_bytes(log.read_bytes()[:-7])
    outcomes = list(process.shipper().ship_all(segments))
    assert [step.outcome for step in outcomes] == [COPIED, FAILED, COPIED]
    assert isinstance(outcomes[1].error, errors.TieredStoreError)


def test_a_file_that_cannot_be_read_is_the_segments_error(
    process: Process, segments: list[FoundSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(segment: FoundSegment, topic_id: Uuid | None = None) -> LogSegment:
        raise PermissionError(13, "Permission denied", str(segment.path("log")))

    monkeypatch.setattr(shipping, "describe", unreadable)
    step = process.ship(segments[0])
    assert step.outcome is FAILED
    assert isinstance(step.error, errors.InvalidSegmentError)
    assert str(step.error) == f"{segments[0].path('log')} cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("error", "of_one"),
    [
        (errors.InvalidSegmentError, True),
        (errors.SegmentTooLargeError, True),
        (errors.BatchCorruptError, True),
        (errors.SegmentAlreadyExistsError, True),
        (errors.InvalidKeyError, True),
        (errors.ObjectArchivedError, True),
        (errors.ConfigError, False),
        (errors.KeyRingError, False),
        (errors.AccessDeniedError, False),
        (errors.StoreUnavailableError, False),
        (errors.StoreThrottledError, False),
        (errors.StoreError, False),
        (errors.PreconditionFailedError, False),
    ],
)
def test_an_error_is_of_one_segment_or_of_all(error: type[errors.TieredStoreError], of_one: bool) -> None:
    assert concerns_one_segment(error("a sentence")) == of_one


def test_partitions_side_by_side_in_threads(processes: Callable[..., Process], tmp_path: Path) -> None:
    store = CountingStore(MemoryObjectStore())
    process = processes(store)
    partitions = [write_segments(tmp_path, 4, other_partition(number)) for number in range(6)]
    ready = threading.Barrier(6)

    def run(segments: list[FoundSegment]) -> list[Outcome]:
        ready.wait()
        return process.ship_all(segments)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, partitions)) == [[COPIED] * 4] * 6
    assert store.requests["list"] == 6
    assert len(stored_keys(store, "manifest")) == 24
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, partitions)) == [[THERE] * 4] * 6


def test_progress_counts_the_logs_bytes(process: Process, segments: list[FoundSegment]) -> None:
    steps: list[int] = []
    step = Shipper(process.committed, process.manager, on_progress=steps.append).ship(segments[0])
    assert sum(steps) == step.size
    assert len(steps) > 1


def test_a_given_topic_id_and_broker_id_stand_in_for_those_on_disk(
    process: Process, segments: list[FoundSegment]
) -> None:
    topic_id = Uuid(bytes(range(16)))
    (segments[0].directory / "partition.metadata").unlink()
    (segments[0].directory.parent / "meta.properties").write_text("version=1\nnode.id=6\n")
    for segment, broker_id in zip(segments, (None, 7), strict=False):
        process.shipper(topic_id, broker_id).ship(segment)
    copies = [load_segment(process.store, objects).metadata for objects in list_segments(process.store)]
    assert {copy.topic_id_partition.topic_id for copy in copies} == {topic_id}
    assert [copy.broker_id for copy in copies] == [6, 7]


def test_an_identity_without_the_log_is_the_one_with_it(segments: list[FoundSegment]) -> None:
    for segment in segments[:-1]:
        assert SegmentIdentity.without_log(segment, None) == SegmentIdentity.of(describe(segment))
    assert SegmentIdentity.without_log(segments[-1], None) is None  # only the log shows where the last segment ends
