"""Loss and damage in a bucket, mostly without a broker: no hole goes unreported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError

from tests.consumer.buckets import (
    DEADLINE_S,
    ORDERS,
    OTHERS,
    PLACE,
    Fetches,
    at,
    offsets_of,
    raised,
    read,
    reader_of,
    until,
)
from tests.support.kafka.scripted_member import SELDOM, ScriptedBroker, ScriptedLog, parts_of
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket, value_of
from tieredstore.config import settings_from
from tieredstore.consumer.partition import Bucket as InBucket
from tieredstore.errors import (
    CorruptDataError,
    DataLossError,
    ResourceNotFoundError,
    SegmentCorruptError,
    UnknownKeyError,
)
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch

_FRAME: Final = b"\x28\xb5\x2f\xfd"
"""The first bytes of a zstd frame, and so of a compressed chunk."""

POLICIES = pytest.mark.parametrize("policy", ["fail", "report"])


def test_a_hole_fails_until_a_seek(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    with reader_of(bucket, PLACE) as consumer:
        read(consumer, 20)
        for _ in range(2):
            error = raised(consumer, DataLossError)
            assert "offsets 20 to 29 of orders-0 are neither in the bucket" in str(error)
            assert "tiered.storage.on.data.loss=report" in str(error)
        consumer.seek(at(30))
        assert offsets_of(read(consumer, 20)) == list(range(30, 50))


def test_a_hole_is_told_of_where_losses_are_reported(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(20)
    bucket.write(20, skip=10)
    lost: list[Any] = []
    reporting = {"tiered_storage_on_data_loss": "report", "loss_cb": lost.append}
    with caplog.at_level(logging.WARNING), reader_of(bucket, PLACE, **reporting) as consumer:
        assert offsets_of(read(consumer, 40)) == [*range(20), *range(30, 50)]
    assert [(extent.partition.topic, extent.start, extent.stop) for extent in lost] == [("orders", 20, 30)]
    assert caplog.text.count("offsets 20 to 29 of orders-0") == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_has_lost_its_log_is_named(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """At the log's beginning, it is no loss, because retention may be deleting it. At the log's end, it is a loss once
    a later segment shows where it ended.
    """
    segments = [bucket.write(20) for _ in range(3)]
    next(path for path, _ in _objects(bucket, segments[number]) if path.suffix == ".log").unlink()
    lost: list[Any] = []
    reporting = {"tiered_storage_on_data_loss": "report", "loss_cb": lost.append}
    with caplog.at_level(logging.WARNING), reader_of(bucket, PLACE, **reporting) as consumer:
        offsets = offsets_of(read(consumer, 40))
        bucket.write(20)
        offsets += offsets_of(read(consumer, 20))
    gone = range(20 * number, 20 * number + 20)
    assert offsets == sorted({*range(80)} - {*gone})
    assert [(extent.start, extent.stop) for extent in lost] == ([(gone.start, gone.stop)] if number else [])
    assert f"at offset {gone.start} is ignored: it has no .log" in caplog.text


@POLICIES
@pytest.mark.parametrize("first", [0, 5])
def test_a_damaged_manifest_of_the_first_segment_is_a_loss(bucket: Bucket, policy: str, first: int) -> None:
    _damage_manifest(bucket, bucket.write(20))
    bucket.write(20)
    lost: list[Any] = []
    place = at(first) if first else PLACE
    with reader_of(bucket, place, tiered_storage_on_data_loss=policy, loss_cb=lost.append) as consumer:
        if policy == "fail":
            assert f"offsets {first} to 19 of orders-0 are neither" in str(raised(consumer, DataLossError))
            consumer.seek(at(20))
        assert offsets_of(read(consumer, 20)) == list(range(20, 40))
    assert [(one.start, one.stop) for one in lost] == ([(first, 20)] if policy == "report" else [])


@POLICIES
@pytest.mark.parametrize("place", [PLACE, at(5)])
def test_a_partition_of_which_no_segment_is_readable_is_named(
    bucket: Bucket, policy: str, place: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _damage_manifest(bucket, bucket.write(20))
    bucket.write(20, partition=1)
    with caplog.at_level(logging.WARNING), reader_of(bucket, place, tiered_storage_on_data_loss=policy) as consumer:
        if policy == "fail":
            assert "at offset 0 is ignored" in str(raised(consumer, CorruptDataError))
        else:
            until(consumer, lambda _: consumer.tiered_stats()[ORDERS]["phase"] == "waiting")
            assert "cannot read the next records: segment" in caplog.text
            bucket.write(20)
            until(consumer, lambda given: offsets_of(given) == list(range(20, 40)))


def _damage_manifest(bucket: Bucket, segment: Any) -> None:
    next(path for path, _ in _objects(bucket, segment) if path.suffix == ".rsm-manifest").write_bytes(b"{}")


def test_a_copy_that_comes_late_fills_a_hole(bucket: Bucket) -> None:
    late = bucket.write(20)
    bucket.write(20)
    files = dict(_objects(bucket, late))
    for path in files:
        path.unlink()
    with reader_of(bucket, at(20)) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(20, 40))
        for path, content in files.items():
            path.write_bytes(content)
        consumer.seek(at(0))
        assert offsets_of(read(consumer, 40)) == list(range(40))


def _objects(bucket: Bucket, segment: Any) -> Iterator[tuple[Path, bytes]]:
    prefix = f"{segment.start_offset:020d}-"
    for path in sorted(bucket.root.rglob(f"{prefix}*"), key=lambda path: path.suffix != ".rsm-manifest", reverse=True):
        yield path, path.read_bytes()


def test_a_position_that_retention_has_passed_is_a_reset(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.write(20, skip=100)
    with reader_of(bucket, at(5)) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(100, 120))
    assert "offset 5 of orders-0 is neither in the bucket nor on the broker" in caplog.text


def test_a_reset_of_error_is_the_librarys_message(bucket: Bucket) -> None:
    bucket.write(20, skip=100)
    with reader_of(bucket, at(5), auto_offset_reset="error") as consumer:
        (message,) = until(consumer, bool, count=1)
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert (message.topic(), message.partition()) == ("orders", 0)
        consumer.seek(at(110))
        assert offsets_of(read(consumer, 10)) == list(range(110, 120))


def test_damage_fails_until_a_seek_and_is_left_out_where_losses_are_reported(bucket: Bucket) -> None:
    bucket.write(200)
    damaged = bucket.write(200)
    bucket.write(200)
    path = next(path for path, _ in _objects(bucket, damaged) if path.suffix == ".log")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with reader_of(bucket, PLACE) as consumer:
        given = until(consumer, lambda given: len(given) >= 200)
        first = raised(consumer, Exception)
        assert str(raised(consumer, type(first))) == str(first)
        assert consumer.tiered_stats()["orders", 0]["phase"] == "failed"
        consumer.seek(at(400))
        assert offsets_of(read(consumer, 200)) == list(range(400, 600))
    assert offsets_of(given) == list(range(len(given)))
    lost: list[Any] = []
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        offsets = offsets_of(until(consumer, lambda given: bool(given) and given[-1].offset() == 599))
    assert len(lost) == 1
    assert 200 <= lost[0].start < 400
    assert len(offsets) == 590
    assert offsets == sorted({*range(600)} - {*range(lost[0].start, lost[0].stop)})


@pytest.mark.parametrize("policy", ["fail", "report"])
def test_damage_that_a_second_read_does_not_meet_is_no_loss(bucket: Bucket, fetches: Fetches, policy: str) -> None:
    """A byte was changed on the way from the store."""
    bucket.write(20)
    failures = [SegmentCorruptError("chunk 0 is damaged: its checksum does not match")]
    lost: list[Any] = []

    def fail_once(_: object) -> None:
        if failures:
            raise failures.pop()

    fetches.before = fail_once
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss=policy, loss_cb=lost.append) as consumer:
        assert offsets_of(read(consumer, 20)) == list(range(20))
    assert not failures
    assert lost == []


def test_damage_counts_anew_after_a_good_read(bucket: Bucket, fetches: Fetches) -> None:
    bucket.write(20)
    failures: list[Exception] = []

    def fail_once(_: object) -> None:
        if failures:
            raise failures.pop()

    fetches.before = fail_once
    with reader_of(bucket, PLACE) as consumer:
        for _ in range(3):
            failures.append(SegmentCorruptError("chunk 0 is damaged: its checksum does not match"))
            consumer.seek(at(0))
            assert offsets_of(read(consumer, 20)) == list(range(20))
            assert not failures


def test_a_second_read_reports_a_skipped_batch_once(bucket: Bucket, fetches: Fetches) -> None:
    """The second read meets the same batch, because no record after the batch was returned before."""
    path = next(path for path, _ in _objects(bucket, bucket.write(20)) if path.suffix == ".log")
    content = bytearray(path.read_bytes())
    content[-2] ^= 0xFF
    path.write_bytes(bytes(content))
    bucket.write(20)
    failures: list[Exception | None] = [None, SegmentCorruptError("chunk 0 is damaged: its checksum does not match")]
    lost: list[Any] = []

    def fail_once(_: object) -> None:
        if failures and (failure := failures.pop(0)) is not None:
            raise failure

    fetches.before = fail_once
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        assert offsets_of(read(consumer, 30)) == [*range(10), *range(20, 40)]
    assert not failures
    assert [(one.start, one.stop) for one in lost] == [(10, 20)]


def test_a_callback_of_a_loss_commits_only_what_was_returned(bucket: Bucket) -> None:
    """The call has taken records of another partition, but not returned them. If the callback also ends the process,
    the next member must return them.
    """
    path = next(path for path, _ in _objects(bucket, bucket.write(20)) if path.suffix == ".log")
    content = bytearray(path.read_bytes())
    content[-2] ^= 0xFF
    path.write_bytes(bytes(content))
    bucket.write(20, partition=1)
    consumers: list[Any] = []

    def commit(_: object) -> None:
        consumers[0].commit(asynchronous=False)

    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 30), OTHERS: ScriptedLog(20, 30)})
    own = {"mode": "remote_preferred", "on_data_loss": "report", "loss_cb": commit}
    with broker.consumer(bucket, ORDERS, OTHERS, client=SELDOM, **own) as (consumer, _):
        consumers.append(consumer)
        parts = parts_of(consumer)
        assert consumer.poll(0) is None  # assigns the partitions
        while not all(isinstance(one.phase, InBucket) and one.phase.stream.is_done for one in parts.core.readable) or (
            len(parts.core.readable) < 2
        ):
            assert parts.news.wait(DEADLINE_S)
            parts.news.clear()
            parts.core.tick()
        while parts.core.readable[0].where != OTHERS:
            parts.core.readable.rotate()
        consumer.consume(100, 0)
        assert broker.committed == {OTHERS: 0}


def test_another_life_of_a_topic_is_not_guessed(bucket: Bucket) -> None:
    bucket.write(20)
    bucket.write(20, topic_id=SECOND_ID)
    with reader_of(bucket, PLACE) as consumer:
        # All copies of the second topic are newer than those of the first.
        assert len(read(consumer, 20)) == 20


@pytest.mark.parametrize(("chosen", "count"), [(FIRST_ID, 10), (SECOND_ID, 20)])
def test_an_older_topic_of_the_same_name_is_read_by_its_id(bucket: Bucket, chosen: Uuid, count: int) -> None:
    bucket.write(10)
    bucket.write(20, topic_id=SECOND_ID)
    for given in ({"orders": chosen}, f"payments={FIRST_ID}, orders={chosen}"):
        with reader_of(bucket, PLACE, tiered_storage_topic_ids=given) as consumer:
            assert offsets_of(read(consumer, count)) == list(range(count))
            assert consumer.get_watermark_offsets(PLACE, DEADLINE_S) == (0, count)
            assert consumer.poll(0.2) is None


def test_the_id_of_a_topic_that_the_bucket_does_not_have(bucket: Bucket) -> None:
    bucket.write(10)
    with reader_of(bucket, PLACE, tiered_storage_topic_ids={"orders": SECOND_ID}) as consumer:
        sentence = f"no segment of topic orders with the id {SECOND_ID} was found; there is {FIRST_ID}"
        assert str(raised(consumer, ResourceNotFoundError)) == sentence


@pytest.mark.parametrize("kind", ["length", "neighbours", "chunk"])
def test_records_behind_unreadable_bytes_of_a_segment_are_returned(bucket: Bucket, kind: str) -> None:
    """A batch's length is damaged, or a compressed chunk. The next batches are found by the offset index. With
    ``neighbours``, the records behind the damaged length are damaged too.
    """
    where = TopicIdPartition(FIRST_ID, *ORDERS)
    padding = (("padding", b"." * 1000),)
    batches = [build_batch([Record(value_of(*ORDERS, at), None, headers=padding)], at) for at in range(200)]
    bucket.options["compression.enabled"] = str(kind == "chunk").lower()
    bucket.manager.close()
    bucket.manager = RemoteStorageManager(settings_from(bucket.options | {"chunk.size": "16384"}))
    damaged = bucket.copy(where, batches, range(200))
    bucket.write(10)
    path = next(path for path, _ in _objects(bucket, damaged) if path.suffix == ".log")
    content = path.read_bytes()
    if kind == "chunk":
        frames = content.split(_FRAME)
        path.write_bytes(_FRAME.join(frames[:7]) + bytes(len(_FRAME)) + _FRAME.join(frames[7:]))
    else:
        damaged_at = [sum(map(len, batches[:100])) + 8]  # the length of batch 100
        damaged_at += [sum(map(len, batches[: at + 1])) - 3 for at in range(101, 113) if kind == "neighbours"]
        path.write_bytes(bytes(byte ^ 0x7F if at in damaged_at else byte for at, byte in enumerate(content)))
    lost: list[Any] = []
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        given = offsets_of(until(consumer, lambda given: bool(given) and given[-1].offset() == 209))
    assert [offset for one in lost for offset in range(one.start, one.stop)] == sorted({*range(210)} - {*given})
    assert len(given) >= 180
    assert given == sorted(set(given))


def test_the_rest_of_a_log_that_ends_early_is_not_looked_for(bucket: Bucket, fetches: Fetches) -> None:
    """The object ends in its second chunk. Each look would cost requests."""
    padding = (("padding", b"." * 1000),)
    batches = [build_batch([Record(value_of(*ORDERS, at), None, headers=padding)], at) for at in range(200)]
    damaged = bucket.copy(TopicIdPartition(FIRST_ID, *ORDERS), batches, range(200))
    bucket.write(10)
    path = next(path for path, _ in _objects(bucket, damaged) if path.suffix == ".log")
    path.write_bytes(path.read_bytes()[:20_000])
    lost: list[Any] = []
    opened: list[Any] = []
    fetches.before = opened.append
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        given = offsets_of(until(consumer, lambda given: bool(given) and given[-1].offset() == 209))
    assert [offset for one in lost for offset in range(one.start, one.stop)] == sorted({*range(210)} - {*given})
    assert len(opened) == 3  # the log twice, then the next one


# ---- damage in the bucket, but records at the broker


def write_damaged(bucket: Bucket, batches: int, *damaged: int) -> None:
    """Copy a segment of ten records per batch. The batches ``damaged`` have a changed byte in the last record."""
    where = TopicIdPartition(FIRST_ID, *ORDERS)
    start = bucket.ends["orders", 0, FIRST_ID]
    built: list[bytes] = []
    for first in range(start, start + 10 * batches, 10):
        records = [Record(value_of(*ORDERS, offset)) for offset in range(first, first + 10)]
        batch = bytearray(build_batch(records, first))
        batch[-3] ^= 0xFF * (len(built) in damaged)
        built.append(bytes(batch))
    bucket.copy(where, built, range(start, start + 10 * batches))


@POLICIES
@pytest.mark.parametrize("begins", [0, 20, 27, 30])
@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_a_damaged_batch_that_the_broker_has_is_no_loss(bucket: Bucket, policy: str, begins: int, mode: str) -> None:
    """The broker's log may begin in an earlier batch of the damaged segment, too."""
    bucket.write(20)
    write_damaged(bucket, 4, 1)
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(begins, 100)})
    lost: list[Any] = []
    own: dict[str, Any] = {"mode": mode, "on_data_loss": policy, "loss_cb": lost.append}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        assert offsets_of(read(consumer, 100)) == list(range(100))
    assert lost == []


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_a_damaged_batch_that_the_broker_lacks_is_reported_once(bucket: Bucket, mode: str) -> None:
    """Two batches are damaged, and the broker's log begins between them. The batch before it is read twice."""
    bucket.write(20)
    write_damaged(bucket, 6, 1, 4)
    broker = ScriptedBroker({ORDERS: ScriptedLog(55, 80)})
    lost: list[Any] = []
    own: dict[str, Any] = {"mode": mode, "on_data_loss": "report", "loss_cb": lost.append}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        assert offsets_of(read(consumer, 70)) == [*range(30), *range(40, 80)]
    assert [(one.start, one.stop) for one in lost] == [(30, 40)]


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
@pytest.mark.parametrize("begins", [31, 35, 39, 40, 47, 50])
def test_the_records_of_damaged_batches_that_the_broker_has_are_read_there(
    bucket: Bucket, mode: str, begins: int
) -> None:
    """Two neighbouring batches are damaged, and the broker's log begins in them or directly after them."""
    bucket.write(20)
    write_damaged(bucket, 6, 1, 2)
    broker = ScriptedBroker({ORDERS: ScriptedLog(begins, 80)})
    lost: list[Any] = []
    own: dict[str, Any] = {"mode": mode, "on_data_loss": "report", "loss_cb": lost.append}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        assert offsets_of(read(consumer, 30 + 80 - begins)) == [*range(30), *range(begins, 80)]
        assert consumer.tiered_stats()[ORDERS]["position"] == 80
    assert [offset for one in lost for offset in range(one.start, one.stop)] == list(range(30, begins))


@pytest.mark.parametrize("wrong", [5, 45, 1000])
def test_a_damaged_batch_with_a_damaged_offset_is_a_loss(bucket: Bucket, wrong: int) -> None:
    """No checksum covers the offset. The batch of offset 20 names a wrong one, and its records are damaged too."""
    damaged = bucket.write(60)
    bucket.write(10)
    path = next(path for path, _ in _objects(bucket, damaged) if path.suffix == ".log")
    content = path.read_bytes()
    at = content.index((20).to_bytes(8, "big"))
    behind = content.index((30).to_bytes(8, "big"))
    path.write_bytes(
        content[:at] + wrong.to_bytes(8, "big") + content[at + 8 : behind - 3] + bytes(3) + content[behind:]
    )
    lost: list[Any] = []
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        assert offsets_of(read(consumer, 60)) == [*range(20), *range(30, 70)]
    assert [(one.start, one.stop) for one in lost] == [(20, 30)]


def test_damaged_batches_are_lost_up_to_the_next_record(bucket: Bucket) -> None:
    """Damaged are the first batch, two neighbours, and the last of the segment and of the log."""
    write_damaged(bucket, 7, 0, 2, 3, 6)
    write_damaged(bucket, 2, 1)
    lost: list[Any] = []
    with reader_of(bucket, PLACE, tiered_storage_on_data_loss="report", loss_cb=lost.append) as consumer:
        given = until(consumer, lambda _: len(lost) == 5)
        assert offsets_of(given) == [*range(10, 20), *range(40, 60), *range(70, 80)]
    assert [(one.start, one.stop) for one in lost] == [(0, 10), (20, 30), (30, 40), (60, 70), (80, 90)]


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_only_the_damaged_records_that_the_broker_lacks_are_lost(bucket: Bucket, fetches: Fetches, mode: str) -> None:
    """The whole segment is unreadable, and the broker's log begins in it."""
    bucket.write(20)
    fetches.fail(SegmentCorruptError("chunk 0 is damaged: its checksum does not match"))
    broker = ScriptedBroker({ORDERS: ScriptedLog(12, 30)})
    lost: list[Any] = []
    own: dict[str, Any] = {"mode": mode, "on_data_loss": "report", "loss_cb": lost.append}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        assert offsets_of(read(consumer, 18)) == list(range(12, 30))
    assert [(one.start, one.stop) for one in lost] == [(0, 12)]


def test_damage_before_the_brokers_log_fails_until_a_seek(bucket: Bucket, fetches: Fetches) -> None:
    bucket.write(20)
    fetches.fail(SegmentCorruptError("chunk 0 is damaged: its checksum does not match"))
    broker = ScriptedBroker({ORDERS: ScriptedLog(12, 30)})
    with broker.consumer(bucket, ORDERS, mode="remote_preferred") as (consumer, _):
        for _ in range(2):
            assert "its checksum does not match" in str(raised(consumer, SegmentCorruptError))
        consumer.seek(at(12))
        assert offsets_of(read(consumer, 18)) == list(range(12, 30))


@POLICIES
def test_records_whose_key_is_missing_are_read_from_the_broker(
    bucket: Bucket, fetches: Fetches, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    caplog.set_level(logging.WARNING)
    bucket.write(20)
    fetches.fail(UnknownKeyError("the key 'old' is not in the settings"))
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})
    own: dict[str, Any] = {"mode": "remote_preferred", "on_data_loss": policy}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        assert offsets_of(read(consumer, 30)) == list(range(30))
    assert "the key 'old' is not in the settings; orders-0 is read from the broker from offset 0 on" in caplog.text


def test_a_broker_that_deletes_the_records_meanwhile_is_no_way_out(bucket: Bucket, fetches: Fetches) -> None:
    """Between the look-up and the damage, retention has deleted some of the records."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})

    def fail(_: object) -> None:
        broker.logs[ORDERS].start = 15
        raise SegmentCorruptError("chunk 0 is damaged: its checksum does not match")

    fetches.before = fail
    lost: list[Any] = []
    own: dict[str, Any] = {"mode": "remote_preferred", "on_data_loss": "report", "loss_cb": lost.append}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        assert offsets_of(read(consumer, 15)) == list(range(15, 30))
    assert [(one.start, one.stop) for one in lost] == [(0, 15)]


@POLICIES
@pytest.mark.parametrize(("begins", "lost_before"), [(0, 20), (20, 20), (23, 23)])
def test_a_log_that_ends_before_its_manifest_says_goes_on_at_the_broker(
    bucket: Bucket, policy: str, begins: int, lost_before: int
) -> None:
    where = TopicIdPartition(FIRST_ID, *ORDERS)
    built = [build_batch([Record(value_of(*ORDERS, offset)) for offset in range(at, at + 10)], at) for at in (0, 10)]
    bucket.copy(where, built, range(25))
    broker = ScriptedBroker({ORDERS: ScriptedLog(begins, 40)})
    lost: list[Any] = []
    own: dict[str, Any] = {"mode": "remote_preferred", "on_data_loss": policy, "loss_cb": lost.append}
    with broker.consumer(bucket, ORDERS, **own) as (consumer, _):
        if policy == "fail" and lost_before > 20:
            assert offsets_of(read(consumer, 20)) == list(range(20))
            assert "offsets 20 to 22 of orders-0 are neither" in str(raised(consumer, DataLossError))
        else:
            expected = [*range(20), *range(lost_before, 40)]
            assert offsets_of(read(consumer, len(expected))) == expected
    assert [(one.start, one.stop) for one in lost] == [(20, 23)] * (policy == "report" and lost_before > 20)
