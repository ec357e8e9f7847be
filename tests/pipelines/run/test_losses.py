"""A pipeline's source with lost or damaged records, or truncated by an election: each run reports this."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    listed,
    listed_offsets,
    pipeline_of,
    run_once,
    verify_output,
)
from tests.support.records.small_segments import ENC, KEYS, memory_settings
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tests.support.stores.doubles import Moment
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore.backends.base import ObjectStore, find_abandoned_writes
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    CorruptDataError,
    DataLossError,
    ObjectArchivedError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.live import EpochEnd
from tieredstore.model import Uuid
from tieredstore.partitions.history import Cut, History
from tieredstore.partitions.log import PartitionLog
from tieredstore.pipelines import Entry, Parts, Runner, with_generation
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import BatchWindow, WrittenWindow
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import query_of
from tieredstore.pipelines.run.windows import mark, position_of
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.inspection import losses_of
from tieredstore.pipelines.upkeep.record_sources import LogSource, Selected
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.survey import survey_logs
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION

SMALL = pipeline_of(secor__max__file__size__bytes="30000")
OTHER = replace(PARTITION, partition=NUMBER + 1)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield three segments of 100 records of 1 KB each, in chunks of 16 KiB; and one of another partition."""
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        for start in (0, 100, 200):
            topic.copy_plain(start, 100)
        topic.copy(0, [plain_batch(range(50))], partition=OTHER)
        yield topic


def objects_of(topic: StoredTopic, segment: int) -> list[str]:
    identity = str(topic.copied[segment].remote_log_segment_id.id)
    return [info.key for info in topic.store.list("") if identity in info.key]


def lose(topic: StoredTopic, segment: int) -> None:
    """Delete a segment, like retention."""
    topic.store.delete(objects_of(topic, segment))


def damage(topic: StoredTopic, segment: int, at: int) -> bytes:
    """Damage one byte of a segment's log; return the original."""
    (key,) = (key for key in objects_of(topic, segment) if key.endswith(".log"))
    data = topic.store.get(key)
    topic.store.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    return data


def mend(topic: StoredTopic, segment: int, data: bytes) -> None:
    (key,) = (key for key in objects_of(topic, segment) if key.endswith(".log"))
    topic.store.put(key, data)


def written(store: ObjectStore, partition: int = NUMBER) -> list[int]:
    """Return the offsets in a partition's files, including duplicates."""
    mine = MemoryObjectStore()
    for key in listed(store):
        if f"_{partition}_" in key.rpartition("/")[2]:
            mine.put(key, store.get(key))
    return listed_offsets(mine)


def told(topic: StoredTopic, store: ObjectStore) -> list[str]:
    """Return the losses reported by ``status``."""
    state = commit_log_of(SMALL, store).read()
    return [*losses_of(survey_logs(topic.manager, query_of(SMALL)), state, SMALL).values()]


def test_a_loss_that_the_first_run_meets_is_met_by_all_that_follow(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as first:
        run = first.run_once()
        first.begin()
        lose(topic, 0)
        with pytest.raises(DataLossError, match=r"offsets 0 to 29 of .* were deleted while they were read"):
            list(run)
    for _ in range(2):
        with pytest.raises(DataLossError, match=rf"offsets 0 to 99 of {TOPIC}-{NUMBER} are"):
            run_once(topic, store, SMALL)
        assert written(store) == []
        (sentence,) = told(topic, store)
        assert f"offsets 0 to 99 of {TOPIC}-{NUMBER} " in sentence
    # A new generation begins with the records that still exist.
    run_once(topic, store, with_generation(SMALL, 2))
    assert written(store) == list(range(100, 300))


def test_a_partition_that_is_gone_before_it_was_written_is_met_by_all_runs_that_follow(
    topic: StoredTopic, store: ObjectStore
) -> None:
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as first:
        run = first.run_once()
        first.begin()
        lose(topic, 3)
        with pytest.raises(DataLossError, match=rf"{TOPIC}-{OTHER.partition}"):
            list(run)
    gone = f"{TOPIC}-{OTHER.partition} is gone, and none of its records from offset 0 on was written; leave the topic"
    for _ in range(2):
        with pytest.raises(DataLossError, match=gone):
            run_once(topic, store, SMALL)
        assert written(store) == list(range(300))
        assert [sentence[: len(gone)] for sentence in told(topic, store)] == [gone]
    # A new generation, or settings without the topic, accept the loss.
    run_once(topic, store, with_generation(SMALL, 2))
    state, without = commit_log_of(SMALL, store).read(), pipeline_of(secor__kafka__topic_blacklist=TOPIC)
    assert losses_of(survey_logs(topic.manager, query_of(without)), state, without) == {}


@pytest.mark.parametrize("failing", ["_snapshot_of_written", "look"])
def test_a_service_meets_a_partition_that_is_gone_after_an_outage_too(
    topic: StoredTopic, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The source is away either when the service begins, or when it has written all other records."""

    def fail(_: Runner) -> LogSnapshot:
        raise StoreUnavailableError("the source is away")

    def write_due(runner: Runner) -> None:
        while runner.step() is not None:
            pass

    with Runner(SMALL, Parts(store, topic.manager)) as first:
        first.begin()
    lose(topic, 3)
    with Runner(SMALL, Parts(store, topic.manager)) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(Runner, failing, fail)
            with pytest.raises(StoreUnavailableError):
                write_due(runner)
        with pytest.raises(DataLossError, match=f"{TOPIC}-{OTHER.partition} is gone"):
            write_due(runner)
    assert written(store) == list(range(300))


def test_a_partition_that_was_written_before_a_take_over_may_be_gone(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    lose(topic, 3)
    assert run_once(topic, store, with_generation(SMALL, 2), take_over=1) == []
    assert run_once(topic, store, with_generation(SMALL, 2)) == []


def test_a_partition_that_cannot_be_read_now_is_not_gone(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(SMALL, Parts(store, topic.manager)) as first:
        first.begin()
    (key,) = (key for key in objects_of(topic, 3) if key.endswith("rsm-manifest"))
    topic.store.on(("get", "get_into"), key, ObjectArchivedError("restore the object from the archive first"))
    with Runner(SMALL, Parts(store, topic.manager)) as runner:
        runner.begin()
        runner.check_gone()
    assert ["restore the object from the archive first" in sentence for sentence in told(topic, store)] == [True]
    with pytest.raises(DataLossError, match="restore the object from the archive first"):
        run_once(topic, store, SMALL)


def test_a_partition_of_which_a_frame_function_drops_all_records_may_be_gone(
    topic: StoredTopic, store: ObjectStore
) -> None:
    pipeline = pipeline_of(frame="of.a.user:function")
    with Runner(pipeline, Parts(store, topic.manager)) as runner:
        runner.begin()
        dropped = runner.driver.log.state.positions[TOPIC, OTHER.partition]
        window = BatchWindow(TOPIC, dropped.topic_id, OTHER.partition, 0, 50)
        runner.driver.commit([(replace(window.without_records(), filtered=50), {})])
    lose(topic, 3)
    with Runner(pipeline, Parts(store, topic.manager)) as runner:
        runner.begin()
        runner.check_gone()
    snapshot, state = survey_logs(topic.manager, query_of(pipeline)), commit_log_of(pipeline, store).read()
    assert (list(snapshot.logs), losses_of(snapshot, state, pipeline)) == ([(TOPIC, NUMBER)], {})


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_whoever_dies_before_a_loss_leaves_a_log_that_knows_of_it(
    topic: StoredTopic, moment: Literal["before", "after"]
) -> None:
    """Stop a run at each of its operations, then delete the first segment, as retention does."""
    sweep = OperationSweep(MemoryObjectStore, lambda store: run_once(topic, store, SMALL))
    lost = objects_of(topic, 0)
    kept = {key: topic.store.get(key) for key in lost}
    outcomes: list[int] = []
    for _, store, dying in sweep.die(moment):
        with pytest.raises(Killed):
            run_once(topic, dying, SMALL)
        state = commit_log_of(SMALL, store).read()
        begun = state.positions[TOPIC, NUMBER].next_offset if state.number >= 0 else 100
        topic.store.delete(lost)
        topic.catalog()
        if begun < 100:
            with pytest.raises(DataLossError, match=f"offsets {begun} to 99"):
                run_once(topic, store, SMALL)
            assert written(store) == list(range(begun))
            assert told(topic, store)
        else:
            run_once(topic, store, SMALL)
            assert written(store) == list(range(0 if state.number >= 0 else 100, 300))
        outcomes.append(begun)
        for key, data in kept.items():
            topic.store.put(key, data)
        topic.catalog()
    assert set(outcomes) == {0, 100, 300}


def test_where_a_partition_begins_that_comes_later_is_committed_when_it_is_first_seen(tmp_path: Path) -> None:
    store, now_s = MemoryObjectStore(), [0.0]
    with closing(StoredTopic(tmp_path / "later")) as topic:
        topic.copy_plain(0, 100)
        with Runner(SMALL, Parts(store, topic.manager), threads=1, clock=lambda: now_s[0]) as runner:
            while runner.step() is not None:
                now_s[0] += 1000
            for start in (0, 50):
                topic.copy(start, [plain_batch(range(start, start + 50))], partition=OTHER)
            now_s[0] += 1000
            entry = runner.step()
            assert entry is not None
            assert [(one.partition, one.start, one.stop) for one in entry.windows] == [(OTHER.partition, 0, 0)]
        lose(topic, 1)
        with pytest.raises(DataLossError, match=rf"offsets 0 to 49 of {TOPIC}-{OTHER.partition}"):
            run_once(topic, store, SMALL)


def test_records_before_a_hole_are_written(topic: StoredTopic, store: ObjectStore) -> None:
    lose(topic, 1)
    for _ in range(2):
        with pytest.raises(DataLossError, match="offsets 100 to 199"):
            run_once(topic, store, SMALL)
        assert (written(store), written(store, OTHER.partition)) == (list(range(100)), list(range(50)))
        (sentence,) = told(topic, store)
        assert "offsets 100 to 199" in sentence
        assert list(verify_output(SMALL, store)) == []


def test_records_before_an_unreadable_manifest_are_written(topic: StoredTopic, store: ObjectStore) -> None:
    (key,) = (key for key in objects_of(topic, 2) if key.endswith(".rsm-manifest"))
    topic.store.put(key, b"{")
    for _ in range(2):
        with pytest.raises(DataLossError, match="manifest"):
            run_once(topic, store, SMALL)
        assert (written(store), written(store, OTHER.partition)) == (list(range(200)), list(range(50)))
        assert len(told(topic, store)) == 1


def test_a_partition_that_ends_before_an_unreadable_manifest_stops_no_other(
    topic: StoredTopic, store: ObjectStore
) -> None:
    (key,) = (key for key in objects_of(topic, 2) if key.endswith(".rsm-manifest"))
    topic.store.put(key, b"{")
    for stop in (50, 100):
        with pytest.raises(DataLossError, match="manifest"):
            run_once(topic, store, SMALL)
        assert (written(store), written(store, OTHER.partition)) == (list(range(200)), list(range(stop)))
        topic.copy(stop, [plain_batch(range(stop, stop + 50))], partition=OTHER)
    # A service does the same, even if nothing is due yet by size or age.
    with Runner(pipeline_of(), Parts(store, topic.manager), clock=lambda: 0.0) as runner:
        assert runner.step() is not None
        with pytest.raises(DataLossError, match="manifest"):
            runner.step()
    assert written(store, OTHER.partition) == list(range(150))


@pytest.mark.parametrize("suffix", ["log", "rsm-manifest"])
def test_records_before_an_archived_object_are_written(topic: StoredTopic, store: ObjectStore, suffix: str) -> None:
    (key,) = (key for key in objects_of(topic, 1) if key.endswith(suffix))
    topic.store.on(("get", "get_into"), key, ObjectArchivedError(f"{key}: restore the object from the archive first"))
    for _ in range(2):
        with pytest.raises(TieredStoreError, match=f"{key}: restore the object from the archive first"):
            run_once(topic, store, SMALL)
        assert (written(store), written(store, OTHER.partition)) == (list(range(100)), list(range(50)))


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("id_of_other", ["key1", "key2"])
def test_records_before_a_segment_of_another_key_are_written(
    tmp_path: Path, store: ObjectStore, id_of_other: str, is_last: bool
) -> None:
    """The segment's key is not on the ring, or the ring has another key of this id."""
    files = {
        f"encryption.key.pairs.{id_of_other}.{kind}.key.file": str(KEYS / f"key2.{kind}.pem")
        for kind in ("public", "private")
    }
    ring = {"encryption.key.pair.id": id_of_other, "encryption.key.pairs": id_of_other, **files}
    with closing(StoredTopic(tmp_path / "logs", mode=ENC)) as topic:
        topic.copy_plain(0, 100)
        topic.copy(0, [plain_batch(range(50))], partition=OTHER)
        mine = topic.manager
        settings = memory_settings(16 * 1024, mode={"encryption.enabled": "true", **ring})
        with closing(RemoteStorageManager(settings, store=topic.store)) as topic.manager:
            topic.copy_plain(100, 100)
        topic.manager = mine
        if not is_last:
            topic.copy_plain(200, 100)
        for _ in range(2):
            with pytest.raises(TieredStoreError, match=id_of_other):
                run_once(topic, store, SMALL)
            assert (written(store), written(store, OTHER.partition)) == (list(range(100)), list(range(50)))


PLACES = [(0, 0), (0, 50_000), (1, 20), (1, 99_000), (2, 40_000)]


@pytest.mark.parametrize(("segment", "at"), PLACES)
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_records_before_a_damaged_chunk_are_written(
    topic: StoredTopic, store: ObjectStore, segment: int, at: int, threads: int
) -> None:
    whole = damage(topic, segment, at)
    reached: list[list[int]] = []
    for _ in range(2):
        with (
            pytest.raises(CorruptDataError),
            Runner(SMALL, Parts(store, topic.manager), threads=threads) as runner,
        ):
            list(runner.run_once())
        reached.append(written(store))
        assert reached[-1] == list(range(len(reached[-1])))
        assert written(store, OTHER.partition) == list(range(50))
        assert list(verify_output(SMALL, store)) == []
        assert list(find_abandoned_writes(store, "out/")) == []
    assert reached[0] == reached[1]
    # The files end before the damaged batch; each batch has ten records.
    assert len(reached[0]) == 100 * segment + at // 10_200 * 10
    mend(topic, segment, whole)
    run_once(topic, store, SMALL)
    assert written(store) == list(range(300))


def test_more_than_a_batch_of_another_partition_is_written_beside_a_damaged_chunk(
    topic: StoredTopic, store: ObjectStore
) -> None:
    damage(topic, 0, 0)
    with pytest.raises(CorruptDataError):
        run_once(topic, store, pipeline_of(max__file__records="1"))
    assert (written(store), written(store, OTHER.partition)) == ([], list(range(50)))


def test_a_service_writes_what_is_not_due_before_a_damaged_chunk_ends_it(
    topic: StoredTopic, store: ObjectStore
) -> None:
    """Only the damaged partition is due, by size. Records that arrive later do not delay the error."""
    damage(topic, 0, 0)
    pipeline = pipeline_of(secor__max__file__size__bytes="90000", secor__max__file__age__seconds="10")
    now_s = [0.0]
    with Runner(pipeline, Parts(store, topic.manager), clock=lambda: now_s[0]) as runner:
        assert runner.step() is not None
        topic.copy(50, [plain_batch(range(50, 100))], partition=OTHER)
        now_s[0] += 1
        with pytest.raises(CorruptDataError):
            runner.step()
    assert (written(store), written(store, OTHER.partition)) == ([], list(range(50)))


def test_a_service_logs_an_error_that_the_next_read_does_not_meet(
    topic: StoredTopic, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    (key,) = (key for key in objects_of(topic, 0) if key.endswith(".log"))
    topic.store.on(("get", "get_into"), key, ObjectArchivedError(f"{key} is archived"), times=1)
    pipeline = pipeline_of(secor__max__file__size__bytes="90000")
    with Runner(pipeline, Parts(store, topic.manager), threads=1) as runner:
        assert runner.step() is not None
    assert f"{key} is archived" in caplog.text
    assert (written(store), written(store, OTHER.partition)) == (list(range(300)), list(range(50)))


def test_records_before_a_chunk_that_cannot_be_decrypted_are_written(tmp_path: Path, store: ObjectStore) -> None:
    """The batches are small, so the next entry of the offset index leads to the damaged chunk."""
    with closing(StoredTopic(tmp_path / "logs", mode=ENC)) as topic:
        topic.copy_plain(0, 100, batch=1)
        damage(topic, 0, 50_000)
        for _ in range(2):
            with pytest.raises(CorruptDataError):
                run_once(topic, store, SMALL)
            assert written(store) == list(range(3 * 16 * 1024 // len(plain_batch(range(1)))))


def backfill(topic: StoredTopic, store: ObjectStore) -> list[Entry]:
    chosen = with_generation(SMALL, 2)
    with closing(LogSource(chosen, topic.manager, TOPIC)) as source:
        return list(Backfill(chosen, store, source, threads=1).run(Selected(TOPIC)))


def test_a_backfill_writes_what_lies_before_a_damaged_chunk(topic: StoredTopic, store: ObjectStore) -> None:
    whole = damage(topic, 1, 50_000)
    for _ in range(2):
        with pytest.raises(CorruptDataError):
            backfill(topic, store)
        assert (written(store), written(store, OTHER.partition)) == (list(range(140)), list(range(50)))
    mend(topic, 1, whole)
    backfill(topic, store)
    assert written(store) == list(range(300))
    assert list(verify_output(with_generation(SMALL, 2), store)) == []


@pytest.mark.parametrize(
    "moment", [pytest.param("before", marks=pytest.mark.soak), pytest.param("during", marks=pytest.mark.soak), "after"]
)
def test_each_operation_of_a_run_that_meets_damage_may_fail(topic: StoredTopic, moment: Moment) -> None:
    whole = damage(topic, 1, 50_000)
    undisturbed = MemoryObjectStore()
    stop_at_damage(topic, undisturbed)
    for _, inner, faulty in OperationSweep(MemoryObjectStore, partial(stop_at_damage, topic)).fail(moment):
        for store in (faulty, inner):
            with pytest.raises(TieredStoreError):
                run_once(topic, store, SMALL)
            check_prefix(written(inner))
        assert listed(inner) == listed(undisturbed)
        assert list(verify_output(SMALL, inner)) == []
    mend(topic, 1, whole)


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_a_run_that_meets_damage_may_die_at_each_operation(
    topic: StoredTopic, moment: Literal["before", "after"]
) -> None:
    whole = damage(topic, 1, 50_000)
    for _, inner, store in OperationSweep(MemoryObjectStore, partial(stop_at_damage, topic)).die(moment):
        with pytest.raises(Killed):
            run_once(topic, store, SMALL)
        check_prefix(written(inner))
        stop_at_damage(topic, inner)
        assert written(inner) == list(range(140))
        assert list(verify_output(SMALL, inner)) == []
    mend(topic, 1, whole)


def stop_at_damage(topic: StoredTopic, store: ObjectStore) -> None:
    with pytest.raises(CorruptDataError):
        run_once(topic, store, SMALL)


def check_prefix(offsets: Sequence[int]) -> None:
    """Assert that there are no duplicates, and no offsets from the damage on."""
    assert len(offsets) == len(set(offsets))
    assert all(offset < 140 for offset in offsets)


ORDERS = ("orders", 0)
PIPELINE = pipeline_of(secor__kafka__topic_filter="orders")
OLD = ((0, 0), (5, 20))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


def run_to_end(bucket: Bucket, store: MemoryObjectStore) -> list[int]:
    with Runner(PIPELINE, Parts(store, bucket.manager), threads=1) as runner:
        list(runner.run_once())
    return listed_offsets(store)


def test_a_later_epoch_below_what_is_written_stops_the_pipeline(bucket: Bucket) -> None:
    """The new log is longer than the old one, so offsets alone do not show that it was truncated."""
    store = MemoryObjectStore()
    bucket.write(60, epochs=OLD)
    assert run_to_end(bucket, store) == list(range(60))
    assert commit_log_of(PIPELINE, store).read().positions[ORDERS].leader_epoch == 5
    bucket.ends["orders", 0, FIRST_ID] = 60
    bucket.write(10, epochs=(*OLD, (6, 60)))
    assert run_to_end(bucket, store) == list(range(70))
    bucket.ends["orders", 0, FIRST_ID] = 25
    bucket.write(90, epochs=((0, 0), (5, 20), (7, 25)))
    bucket.write(10, partition=1)
    with pytest.raises(
        DataLossError,
        match="is written up to offset 69, but a later leader epoch has written other records from offset 25 on",
    ):
        run_to_end(bucket, store)
    assert (written(store, 0), written(store, 1)) == (list(range(70)), list(range(10)))


LOG = PartitionLog("orders", 0, FIRST_ID, None, 0, 0, 900, live_start=0, live_epoch=6)
CUT = PartitionLog(
    "orders", 0, FIRST_ID, None, 0, 0, 900, live_start=0, live_epoch=6,
    history=History(5, 60, 6, Cut(25, 5, "broker")),
)  # fmt: skip


def at(offset: int, epoch: int = -1, topic_id: Uuid = FIRST_ID) -> Progress:
    return Progress(str(topic_id), offset, -1, 0, 0, leader_epoch=epoch)


def test_the_brokers_answer_tells_it_before_anything_is_stored() -> None:
    assert position_of(LOG, at(60, 5), EpochEnd(5, 60)) == 60
    with pytest.raises(DataLossError, match="a later leader epoch has written other records from offset 25 on"):
        position_of(LOG, at(60, 5), EpochEnd(5, 25))


def test_what_was_written_before_there_were_epochs_is_stopped_as_long_as_the_cut_is_seen() -> None:
    assert position_of(LOG, at(60)) == 60
    with pytest.raises(DataLossError, match="a later leader epoch has written other records from offset 25 on"):
        position_of(CUT, at(60))
    assert position_of(CUT, at(60, 6)) == 60


def test_a_pipeline_that_begins_at_the_end_stands_in_the_log_as_it_is() -> None:
    window = mark(CUT, 900)
    assert position_of(CUT, at(window.stop, window.leader_epoch)) == 900


def test_an_entry_without_epochs_is_read_and_written_as_before() -> None:
    window = WrittenWindow("orders", str(FIRST_ID), 0, 0, 10, 10, 0, 0, ())
    entry = Entry(1, "batch", "w", "f", (window,))
    assert "leader_epoch" not in json.loads(entry.to_bytes())["windows"][0]
    assert Entry.from_bytes(entry.to_bytes(), "key") == entry
    known = Entry(1, "batch", "w", "f", (WrittenWindow("orders", str(FIRST_ID), 0, 0, 10, 10, 0, 0, (), 7, 5),))
    assert Entry.from_bytes(known.to_bytes(), "key") == known
