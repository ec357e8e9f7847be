"""Topics of batches as ``restore produce`` reads them: their offsets, and records that the queue no longer has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pubsub.pubsub_topics import batch_keys, orders_on, sealed_message
from tieredstore.errors import ConfigError, DataLossError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.topic_backup import BatchBackup
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.queue.topics import BatchLog, Topics

WHERE = ("orders", 0)
BATCH = 256 << 24
"""Number of offsets that a batch occupies if it is alone in its queue entry."""


@pytest.fixture
def topics() -> Topics:
    return orders_on()


def write(topics: Topics, *messages: SealedMessage) -> None:
    writer = BatchWriter(BatchLog(topics, topics.get("orders")))
    writer.write(messages, Deadline.after(60))
    writer.close()


def message(request_id: int, *values: bytes) -> SealedMessage:
    return sealed_message(ProducerRequest(b"\x7f\0\0\1", 7, request_id), *values, timestamp_ms=5)


@pytest.fixture
def log(topics: Topics) -> Iterator[BatchLog]:
    for number in range(3):
        write(topics, message(2 * number, b"a", b"b"), message(2 * number + 1, b"c"))
    with BatchLog(topics, topics.get("orders")) as opened:
        yield opened


def values(backup: BatchBackup, start: int, stop: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for records in backup.records(WHERE, start, stop):
        found |= dict(zip(int64_values(records, "offset"), records.to_pydict()["value"], strict=True))
    return found


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 2, {0: b"a", 1: b"b"}),
        (2, BATCH + 1, {2: b"c", BATCH: b"a"}),
        (3, BATCH, {}),
        (2 * BATCH + 1, 3 * BATCH, {2 * BATCH + 1: b"b", 2 * BATCH + 2: b"c"}),
        (7, 7, {}),
    ],
)
def test_offsets_begin_and_end_within_batches(
    topics: Topics, log: BatchLog, start: int, stop: int, expected: dict[int, bytes]
) -> None:
    backup = BatchBackup(topics, {"orders": log})
    assert backup.spans() == {WHERE: (0, 3 * BATCH)}
    assert values(backup, start, stop) == expected
    assert backup.holes(WHERE, start, stop) == []


def test_what_retention_frees_during_a_run_is_a_hole(topics: Topics, log: BatchLog) -> None:
    assert not any("retention" in each for each in BatchBackup(topics, {"orders": log}).lacks)
    log.queue.free(0, 256)
    later = BatchBackup(topics, {"orders": log})
    assert "retention has freed queue orders/0 before offset 256" in later.lacks
    assert later.spans() == {WHERE: (BATCH, 3 * BATCH)}
    assert later.holes(WHERE, 2, 4 * BATCH) == [(2, BATCH), (3 * BATCH, 4 * BATCH)]


def test_missing_objects_are_holes_and_are_named(topics: Topics, log: BatchLog) -> None:
    backup = BatchBackup(topics, {"orders": log})
    key, missing = next(log.walk(0, 256)).key, "queue orders/0, offset 256: the object"
    assert backup.holes(WHERE, 0, 3 * BATCH) == []
    topics.store.delete([key])
    # The first backup does not know that the object is missing, as if it disappeared during the run.
    with pytest.raises(DataLossError, match=f"{missing} {key} is missing"):
        values(backup, 0, 3 * BATCH)
    later = BatchBackup(topics, {"orders": log})
    assert later.holes(WHERE, 1, 2 * BATCH) == [(BATCH, BATCH + (1 << 24))]
    assert later.holes(WHERE, BATCH + 2, 2 * BATCH) == [(BATCH + 2, BATCH + (1 << 24))]
    assert later.holes(WHERE, BATCH + (1 << 24), 3 * BATCH) == []
    assert later.lacks[-1] == f"{missing} {key} is missing"


@pytest.mark.parametrize(("entry", "unknown"), [(0, 3), (1, 2), (2, 1)])
def test_lost_entries_are_holes_and_leave_objects_that_are_counted(
    topics: Topics, log: BatchLog, entry: int, unknown: int
) -> None:
    (key,) = (info.key for info in topics.store.list() if info.key.endswith(f"/queues/orders/0/{entry:020}"))
    topics.store.delete([key])
    backup = BatchBackup(topics, {"orders": log})
    lacks, is_last = backup.lacks, entry == 2  # nothing shows that a last entry is missing
    end = 0 if entry == 0 else (256 * (entry - 1) + 1) << 24
    first, stop = backup.spans()[WHERE]
    assert (first, stop) == (0, (2 if is_last else 3) * BATCH)
    assert backup.holes(WHERE, first, stop) == ([] if is_last else [(end, stop)])
    assert (f"the entry of offset {256 * entry} is missing" in lacks[-2]) is not is_last
    assert lacks[-1].startswith(f"{unknown} objects of orders are left out, because no entry of its queue names them (")


def test_repeated_messages_keep_their_numbers(topics: Topics, log: BatchLog) -> None:
    write(topics, message(9, b"x"), message(5, b"c"), message(10, b"y"))
    backup = BatchBackup(topics, {"orders": log})
    for start in (0, 3 * BATCH):
        found = values(backup, start, 4 * BATCH)
        assert {at: value for at, value in found.items() if at >= 3 * BATCH} == {3 * BATCH: b"x", 3 * BATCH + 2: b"y"}
    assert backup.repeats == 2


def test_records_without_fields_have_no_time(topics: Topics, log: BatchLog) -> None:
    body = bytes.fromhex("0000 00000000 00000001 76")
    stored = seal_message(body, 1, None, Compression.NONE)
    write(topics, SealedMessage(stored, None, 1, None, None))
    (records,) = BatchBackup(topics, {"orders": log}).records(WHERE, 3 * BATCH, 4 * BATCH)
    row = {"offset": 3 * BATCH, "timestamp": -1, "key": None, "value": b"v", "headers": None}
    assert records.to_pylist() == [row]


def test_a_batch_with_too_many_records_is_refused(topics: Topics, log: BatchLog) -> None:
    stored = seal_message(b"", 1 << 24, None, Compression.NONE)
    write(topics, SealedMessage(stored, None, 1 << 24, None, None), message(9, b"x"))
    with pytest.raises(
        ConfigError, match="has 16777217 records, but at most 16777216 records of a batch can be restored"
    ):
        values(BatchBackup(topics, {"orders": log}), 3 * BATCH, 4 * BATCH)
    assert len(batch_keys(topics)) == 4
