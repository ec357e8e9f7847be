"""Epochs of a streaming query: each is notified once despite kills and repetitions. Orphans are deleted."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.support.pubsub.pubsub_topics import (
    batch_keys,
    orders_on,
    read_values,
    run_together,
    topics_in,
    topics_later,
    topics_on,
)
from tests.support.stores.doubles import FaultyStore, LateStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    CorruptDataError,
    DataLossError,
    FencedError,
    StoreUnavailableError,
)
from tieredstore.ops.steps import Outcome
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.errors import DeliveryFailedError, InvalidRecordError
from tieredstore.pubsub.produce.sink import SinkBatches, SinkCommits, StoredBatch
from tieredstore.pubsub.queue.queues import NotificationQueue
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.garbage import DAY_MS, GarbageCollection

TASKS = 3


def batches_of(topics: Topics, epoch: int, tasks: int = TASKS, query: str = "q") -> list[StoredBatch]:
    """Store the batches of an epoch's tasks, with one record each."""
    stored: list[StoredBatch] = []
    for task in range(tasks):
        with SinkBatches(BatchLog(topics, topics.get("orders")), f"spark-{query}-{epoch}-{task}") as batches:
            batches.add(b"%d/%d" % (epoch, task), None, None, None, 0)
            stored += batches.finish()
    return stored


def commits_of(topics: Topics, query: str = "q") -> SinkCommits:
    return SinkCommits(BatchLog(topics, topics.get("orders")), query)


def run_epoch(topics: Topics, epoch: int) -> None:
    commits_of(topics).commit(epoch, batches_of(topics, epoch))


def sorted_values(topics: Topics) -> list[bytes]:
    return sorted(read_values(topics))


def expected(epochs: Sequence[int]) -> list[bytes]:
    return sorted(b"%d/%d" % (epoch, task) for epoch in epochs for task in range(TASKS))


def orphans_of(topics: Topics) -> set[str]:
    """Return the objects that ``gc`` would delete in ten days."""
    found = GarbageCollection(BatchLog(topics_later(topics, 10), topics.get("orders"))).run()
    return {str(each.name) for each in found if each.code == Outcome.DELETED}


def test_an_epoch_is_notified_once_and_a_second_run_of_it_is_deleted() -> None:
    topics = orders_on(MemoryObjectStore(), 2)
    first, again = batches_of(topics, 0), batches_of(topics, 0)
    assert commits_of(topics).commit(0, first)
    assert not commits_of(topics).commit(0, again)
    assert not commits_of(topics).commit(0, first)  # repeated commits do not delete notified batches
    commits_of(topics).abort(0, first)
    assert sorted_values(topics) == expected([0])
    assert set(batch_keys(topics)) == {batch.key for batch in first}
    run_epoch(topics, 1)
    assert sorted_values(topics) == expected([0, 1])


def test_an_epoch_without_records_leaves_no_trace() -> None:
    topics = orders_on(MemoryObjectStore(), 2)
    with SinkBatches(BatchLog(topics, topics.get("orders")), "spark-q-0-0") as batches:
        assert batches.finish() == ()
    before = {info.key for info in topics.store.list("")}
    assert commits_of(topics).commit(0, [])
    assert {info.key for info in topics.store.list("")} == before


def written(*epochs: int) -> MemoryObjectStore:
    """Return a new store with these epochs of the topic."""
    store = MemoryObjectStore()
    topics = orders_on(store, 2)
    for epoch in epochs:
        run_epoch(topics, epoch)
    return store


def commit(epoch: int, store: ObjectStore) -> None:
    """Commit an epoch on a faulty store. Its batches are stored without faults."""
    assert isinstance(store, FaultyStore)
    commits_of(topics_on(store)).commit(epoch, batches_of(topics_on(store.inner), epoch))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_killed_at_any_operation_notifies_each_epoch_once(moment: Moment) -> None:
    """The next driver repeats the epoch, or completes it from the sink's record."""
    for number, inner, dying in OperationSweep(partial(written, 3), partial(commit, 4)).die(moment):
        with contextlib.suppress(Killed):
            commit(4, dying)
        whole = topics_on(inner)
        run_epoch(whole, 4)
        run_epoch(whole, 5)
        assert sorted_values(whole) == expected([3, 4, 5]), number
        notified = set(batch_keys(whole)) - orphans_of(whole)
        assert len(notified) == 3 * TASKS


@pytest.mark.parametrize("moment", ["before", "after"])
def test_lost_answers_and_failures_change_nothing(moment: Moment) -> None:
    for number, inner, store in OperationSweep(written, partial(commit, 0)).fail(moment):
        whole = topics_on(inner)
        stored = batches_of(whole, 0)
        try:
            commits_of(topics_on(store)).commit(0, stored)
        except Exception:  # noqa: BLE001  Spark aborts after any error
            commits_of(whole).abort(0, stored)
            run_epoch(whole, 0)
        assert sorted_values(whole) == expected([0]), number
        assert len(set(batch_keys(whole))) == TASKS


@pytest.mark.parametrize("begins", [0, 1])
def test_a_record_that_lands_after_the_abort_tells_of_nothing_that_was_deleted(begins: int) -> None:
    inner = MemoryObjectStore()
    whole = orders_on(inner, 2)
    for epoch in range(begins):
        run_epoch(whole, epoch)
    store = LateStore(inner, "*/sinks/*")
    stored = batches_of(whole, begins)
    with pytest.raises(StoreUnavailableError):
        commits_of(topics_on(store)).commit(begins, stored)
    commits_of(whole).abort(begins, stored)
    store.land()
    run_epoch(whole, begins)
    run_epoch(whole, begins + 1)
    assert sorted_values(whole) == expected(range(begins + 2))
    assert len(set(batch_keys(whole))) == (begins + 2) * TASKS


def test_a_driver_that_slept_deletes_nothing_that_was_notified_in_its_name() -> None:
    whole = orders_on(MemoryObjectStore(), 2)
    stored = batches_of(whole, 0)
    commits_of(whole).commit(0, stored)  # recorded by the paused driver, and finished by the next one
    run_epoch(whole, 1)
    commits_of(whole).abort(0, stored)
    with pytest.raises(FencedError, match="because the later epoch 1 has been written"):
        commits_of(whole).commit(0, stored)
    assert sorted_values(whole) == expected([0, 1])
    again = batches_of(whole, 0)
    commits_of(whole).abort(0, again)
    assert orphans_of(whole) == {batch.key for batch in again}


@pytest.mark.parametrize("epoch", range(5))
@pytest.mark.parametrize("tasks", [0, 1, TASKS, TASKS + 1])
def test_an_older_checkpoint_that_was_put_back_is_told(epoch: int, tasks: int) -> None:
    """The checkpoint's next epoch was already notified with other records. Accepting it would lose the new records."""
    topics = orders_on(MemoryObjectStore(), 2)
    for number in range(5):
        run_epoch(topics, number)
    stored = batches_of(topics, epoch, tasks)
    if epoch == 4 and tasks == TASKS:  # the latest commit lost its answer, so the epoch repeats
        assert not commits_of(topics).commit(epoch, stored)
    else:
        why = (
            "because the later epoch 4 has been written"
            if epoch < 4
            else f"written with {TASKS} records before, but has {tasks} records now"
        )
        with pytest.raises(
            FencedError, match=f"epoch {epoch} of query q .*{why}.*new checkpoint.*remove .*/sinks/orders/q"
        ):
            commits_of(topics).commit(epoch, stored)
        commits_of(topics).abort(epoch, stored)
    assert sorted_values(topics) == expected(range(5))
    run_epoch(topics, 5)
    assert sorted_values(topics) == expected(range(6))


def test_two_drivers_of_one_query_at_once(tmp_path: Path) -> None:
    """The first driver to record an epoch owns it; all drivers may append its notifications."""
    topics = topics_in(tmp_path)
    topics.create("orders", 2)
    gate = threading.Barrier(4)

    def drive() -> None:
        mine = topics_in(tmp_path)
        for epoch in range(4):
            stored = batches_of(mine, epoch)
            gate.wait(60)
            commits_of(mine).commit(epoch, stored)

    run_together(*[drive] * 4)
    assert sorted_values(topics) == expected(range(4))
    assert orphans_of(topics) == set()


def test_gc_spares_what_is_recorded_and_not_notified_and_forgets_batch_queries() -> None:
    inner = MemoryObjectStore()
    topics = orders_on(inner, 2)
    stored = batches_of(topics, 0)
    dying = topics_on(FaultyStore(inner, fail_at=_puts_in_queues))
    hurried = dying.batches.model_copy(update={"delivery_timeout_ms": 1})
    dying = Topics(dying.store, dying.settings.with_section(hurried))
    with pytest.raises(Exception, match="not appended"):
        commits_of(dying).commit(0, stored)
    assert orphans_of(topics) == set()
    run_epoch(topics, 1)
    assert sorted_values(topics) == expected([0, 1])
    commits_of(topics, "batch-1").commit(0, batches_of(topics, 2, query="batch-1"))
    records = {info.key for info in inner.list("!tieredstore/pubsub/default/sinks/")}
    assert len(records) == 2
    list(GarbageCollection(BatchLog(topics_later(topics, 10), topics.get("orders")), dry_run=False).run())
    assert {info.key for info in inner.list("!tieredstore/pubsub/default/sinks/")} == {
        key for key in records if "batch-" not in key
    }
    assert sorted_values(topics) == expected([0, 1, 2])


def test_an_epoch_whose_batches_gc_took_for_orphans_is_refused_and_written_again() -> None:
    """A task has stored its batches long before the last task of the epoch ends."""
    topics = orders_on(MemoryObjectStore(), 2)
    run_epoch(topics, 0)
    early = batches_of(topics, 1, 1)
    list(GarbageCollection(BatchLog(topics_later(topics, 10), topics.get("orders")), dry_run=False).run())
    stored = [*early, *batches_of(topics, 1, 2)]
    with pytest.raises(DeliveryFailedError, match="1 of its 3 batches no longer exist, such as ") as raised:
        commits_of(topics).commit(1, stored)
    assert not raised.value.maybe_stored
    commits_of(topics).abort(1, stored)
    assert sorted_values(topics) == expected([0])
    run_epoch(topics, 1)
    assert sorted_values(topics) == expected([0, 1])
    assert orphans_of(topics) == set()


@pytest.mark.parametrize("epochs", [1, 2])
def test_gc_spares_what_a_query_commits_after_gc_has_read_the_queue(epochs: int) -> None:
    inner = MemoryObjectStore()
    stored = [batches_of(orders_on(inner, 2), 0), batches_of(topics_on(inner), 1)][:epochs]

    def commit(_: Operation) -> None:
        for epoch, batches in enumerate(stored):
            commits_of(topics_on(inner)).commit(epoch, batches)

    store = ScriptedStore(inner).change("now_ms", change=lambda now_ms: now_ms and now_ms + 10 * DAY_MS)
    store.on("list", "*/retired/*", commit, times=1)
    topics = topics_on(store)
    list(GarbageCollection(BatchLog(topics, topics.get("orders")), dry_run=False).run())
    assert sorted_values(topics_on(inner)) == expected(range(epochs))


def test_a_commit_reads_no_batch_whole() -> None:
    """A folder computes the etags of ``head`` from all bytes."""
    store = ScriptedStore(MemoryObjectStore())
    topics = orders_on(store, 2)
    stored = batches_of(topics, 0)
    keys = {batch.key for batch in stored}
    store.reset()
    store.on("head", do=lambda operation: keys.difference_update(operation.keys))
    assert commits_of(topics).commit(0, stored)
    assert keys == {batch.key for batch in stored}


def _puts_in_queues(operation: Operation) -> bool:
    return operation.name == "put" and "/queues/" in operation.keys[0]


def test_what_retention_has_freed_meanwhile_is_not_guessed() -> None:
    inner = MemoryObjectStore()
    topics = orders_on(inner)
    stored = batches_of(topics, 0)
    # The driver was killed after it appended all notifications, and before it recorded this.
    dying = ScriptedStore(inner).on("replace", "*/sinks/*", Killed())
    with pytest.raises(Killed):
        commits_of(topics_on(dying)).commit(0, stored)
    queue = topics.queue(topics.get("orders"))
    queue.free(0, queue.end(0))
    with pytest.raises(
        DataLossError, match="it is unknown whether that queue got the batches of epoch 0 of query q: if it did, remove"
    ):
        run_epoch(topics, 0)


def test_a_damaged_record_is_named() -> None:
    topics = orders_on(MemoryObjectStore(), 2)
    run_epoch(topics, 0)
    (record,) = (info.key for info in topics.store.list("!tieredstore/pubsub/default/sinks/"))
    whole = topics.store.get(record)
    for damaged in (b"", b"[]", b"{}", whole.replace(b'"epoch":0', b'"epoch":-1'), whole.replace(b"objectSize", b"o")):
        topics.store.put(record, damaged)
        with pytest.raises(CorruptDataError, match="is not a valid pub/sub sink record"):
            run_epoch(topics, 1)


def test_a_task_that_fails_takes_back_what_it_stored() -> None:
    topics = orders_on(batch_bytes="1024", message_bytes="1024", compression="none")
    with SinkBatches(BatchLog(topics, topics.get("orders")), "spark-q-0-0") as batches:
        for _ in range(20):
            batches.add(random.randbytes(500), None, None, None, 0)
        with pytest.raises(InvalidRecordError, match="does not fit a Message of 1024 bytes"):
            batches.add(bytes(2000), None, None, None, 0)
        batches.discard()
    assert set(batch_keys(topics)) == set()


@pytest.mark.parametrize("is_exact", [True, False])
def test_appending_once(is_exact: bool) -> None:
    """A repeated ``append_once`` finds its entries by their mark, or by their content in queues without marks."""
    queue = topics_on()
    once = (StoreQueue if is_exact else NotificationQueue).append_once
    store_queue = queue.queue(queue.create("orders"))
    deadline = Deadline.after(60)
    (before,) = store_queue.append(0, [b"other"], deadline)
    since = store_queue.end(0)
    offsets = once(store_queue, 0, [b"a", b"b"], "mark", since, deadline)  # type: ignore[arg-type]
    store_queue.append(0, [b"later"], deadline)
    assert once(store_queue, 0, [b"a", b"b"], "mark", since, deadline) == offsets  # type: ignore[arg-type]
    assert before < since <= offsets[0] < offsets[1]
    if not is_exact:
        assert once(store_queue, 0, [b"a", b"c"], "other", since, deadline)[0] == offsets[0]  # type: ignore[arg-type]


def test_a_put_under_way_is_met_where_it_lands() -> None:
    """Sixteen callers append the same entry at once, among other entries. The queue has the entry once."""
    topics = orders_on(MemoryObjectStore())
    queue = topics.queue(topics.get("orders"))
    gate, offsets = threading.Barrier(16), set[int]()

    def append(number: int) -> None:
        gate.wait(60)
        queue.append(0, [b"other %d" % number], Deadline.after(60))
        offsets.update(queue.append_once(0, [b"once"], "mark", 0, Deadline.after(60)))

    run_together(*(partial(append, number) for number in range(16)))
    assert len(offsets) == 1
    assert sum(entry.raw == b"once" for entry in queue.walk(0)) == 1


def test_appending_once_fills_no_lost_entry() -> None:
    topics = orders_on(MemoryObjectStore())
    queue = topics.queue(topics.get("orders"))
    for number in range(3):
        queue.append(0, [b"%d" % number], Deadline.after(60))
    (lost,) = (info.key for info in topics.store.list("") if info.key.endswith(f"/orders/0/{1:020}"))
    topics.store.delete([lost])
    with pytest.raises(DataLossError, match="the entry of offset 256 is missing"):
        queue.append_once(0, [b"once"], "mark", 0, Deadline.after(60))
    assert queue.append_once(0, [b"once"], "mark", 512, Deadline.after(60)) == [768]
