"""MemQ's audit records: their bytes, the pairing of sent and read records, and their way through Kafka to metrics."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import make_topic
from tests.support.pubsub.pubsub_topics import orders_on, values_of
from tests.support.servers.kafka import KafkaServer
from tests.support.service_process import within
from tests.support.waiting import wait_until
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format.audit_records import AuditRecord, IdsHash, parse_audit_record
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.audit import AuditFinding
from tieredstore.pubsub.upkeep.audit_log import AuditLog, AuditPairs, audit_service

pytestmark = pytest.mark.slow
LONG_S = 120.0
A = bytes([127, 0, 0, 1])
NOW_MS = 1_700_000_000_000


def audit_record(number: int, *, by_producer: bool, ids: bytes = b"12345678", count: int = 3) -> AuditRecord:
    return AuditRecord("test", "orders", ProducerRequest(A, 1_700_000_000_000, number), ids, count, by_producer)


def test_the_bytes_are_those_of_memq() -> None:
    record = AuditRecord("test", "test1", ProducerRequest(A, 1_700_000_000_000, 7), bytes(16), 10, is_producer=False)
    request = A + bytes.fromhex("0000018bcfe56800 0000000000000007")
    assert record.key() == request
    assert record.to_bytes() == (
        b"\0\4test" + b"\0\5test1" + b"\0\4" + request + b"\0\x10" + bytes(16) + b"\0\0\0\x0a" + b"\0"
    )
    assert parse_audit_record(record.to_bytes(), "here") == record


def test_a_truncated_or_changed_record_is_another_record_or_refused() -> None:
    source, raw = random.Random(7), audit_record(1, by_producer=True).to_bytes()
    for size in range(len(raw)):
        with pytest.raises(CorruptDataError, match=r"^here: "):
            parse_audit_record(raw[:size], "here")
    for _ in range(2000):
        mutant = bytearray(raw)
        mutant[source.randrange(len(raw))] ^= source.randrange(1, 256)
        try:
            assert parse_audit_record(bytes(mutant), "here").to_bytes() == mutant
        except CorruptDataError:
            continue


@pytest.mark.parametrize("sizes", [[8] * 1001, [8], [3, 8, 1], [8, 8, 3, 3, 0, 9], []])
def test_ids_are_aligned_at_their_first_bytes(sizes: list[int]) -> None:
    source = random.Random(3)
    ids = [source.randbytes(size) for size in sizes]
    together, one_by_one, expected = IdsHash(), IdsHash(), bytearray(max(sizes, default=0))
    for each in ids:
        one_by_one.add([each])
        for at, byte in enumerate(each):
            expected[at] ^= byte
    together.add(ids)
    assert bytes(together) == bytes(one_by_one) == expected
    assert together.count == one_by_one.count == len(ids)


def paired(*records: tuple[AuditRecord, int], now_ms: int = NOW_MS, begin_ms: int = 0) -> list[tuple[str, int | None]]:
    pairs = AuditPairs(settle_ms=1000, late_ms=500, begin_ms=begin_ms)
    findings: list[AuditFinding] = []
    for offset, (record, ms) in enumerate(records):
        findings += pairs.add(record, ms, 0, offset)
    findings += pairs.overdue(now_ms)
    findings += pairs.pending()
    return [(finding.fault.value, finding.first) for finding in findings]


def test_planted_faults_are_all_that_is_found() -> None:
    sent: dict[int, tuple[AuditRecord, int]] = {}
    read: dict[int, tuple[AuditRecord, int]] = {}
    for number in range(40):
        sent[number] = audit_record(number, by_producer=True), NOW_MS - 5000 + number
        read[number] = audit_record(number, by_producer=False), NOW_MS - 4900 + number
    for lost in (3, 4, 39):
        del read[lost]
    read[5] = audit_record(5, by_producer=False, ids=b"87654321"), NOW_MS - 4800
    read[6] = audit_record(6, by_producer=False, count=2), NOW_MS - 4800
    read[7] = (
        audit_record(7, by_producer=False, count=5),
        NOW_MS - 4800,
    )  # a record three times
    read[8] = audit_record(8, by_producer=False), NOW_MS - 1
    del sent[9]
    sent[40] = audit_record(40, by_producer=True), NOW_MS - 10
    records = [*sent.values(), *read.values(), read[0], read[1], sent[2]]
    random.Random(5).shuffle(records)
    assert sorted(paired(*records)) == sorted(
        [
            *[("lost", number) for number in (3, 4, 39)],
            *[("altered", number) for number in (5, 6, 7)],
            ("late", 8),
            ("unannounced", 9),
            ("pending", 40),
        ]
    )


def test_a_lost_message_that_is_read_after_all_is_late_and_no_longer_lost() -> None:
    pairs = AuditPairs(settle_ms=1000, late_ms=500)
    assert not list(pairs.add(audit_record(1, by_producer=True), NOW_MS, 0, 0))
    (finding,) = pairs.overdue(NOW_MS + 2000)
    assert not list(pairs.overdue(NOW_MS + 2000))
    assert (finding.fault, pairs.counts.unread_records) == ("lost", 3)
    (finding,) = pairs.add(audit_record(1, by_producer=False), NOW_MS + 3000, 0, 1)
    assert (finding.fault, finding.why) == ("late", "read 3.0 s after it was sent")
    assert (pairs.counts.unread, pairs.counts.unread_records, pairs.counts.paired) == (0, 0, 1)


def test_what_was_read_near_the_beginning_may_have_been_sent_before_it() -> None:
    assert paired((audit_record(1, by_producer=False), NOW_MS - 4500), begin_ms=NOW_MS - 5000) == []
    assert paired((audit_record(1, by_producer=False), NOW_MS - 3500), begin_ms=NOW_MS - 5000) == [("unannounced", 1)]


def test_remembered_messages_are_bounded_in_time_and_number() -> None:
    pairs = AuditPairs(settle_ms=1000, most=10)
    for number in range(40):
        list(pairs.add(audit_record(number, by_producer=True), NOW_MS, 0, number))
        list(pairs.overdue(NOW_MS))
    assert (pairs.counts.lost, pairs.counts.unread) == (30, 20)
    list(pairs.overdue(NOW_MS + 4_000_000))
    assert (pairs.counts.lost, pairs.counts.unread, pairs.counts.unread_records) == (40, 0, 0)


def audited(kafka: KafkaServer, folder: Path | None = None, **more: str) -> Topics:
    given = {
        "audit_topic": make_topic(kafka, partitions=2), "kafka_bootstrap_servers": kafka.bootstrap_servers,
        "message_bytes": "1024",
    }  # fmt: skip
    return orders_on(None if folder is None else FilesystemObjectStore(folder), 1, **given, **more)


def read_log(topics: Topics) -> tuple[list[AuditFinding], AuditPairs]:
    pairs = AuditPairs(settle_ms=0)
    with AuditLog(topics, "orders", pairs) as log:
        return list(log.read(lambda: time.time_ns() // 1_000_000 + 10)), pairs


def test_sent_and_read_messages_are_reported_by_both_sides(kafka: KafkaServer) -> None:
    topics = audited(kafka)
    with BatchProducer(topics, "orders") as producer:
        for number in range(50):
            producer.send(b"%04d" % number + bytes(100), message_id=None if number % 2 else b"id %05d" % number)
        producer.send(b"v", message_id=b"abc")  # an id of another length begins a new Message
    # Read with two members, of which the first stops within a Message, and then with a consumer without a group.
    with BatchConsumer(topics, "orders", group="g") as first:
        for number, record in enumerate(first.records(LONG_S)):
            if number == 20:
                assert record.record > 0
                break
        first.commit()
    with BatchConsumer(topics, "orders", group="g") as second:
        assert len(values_of(second, at_least=30)) == 30
    findings, pairs = read_log(topics)
    assert findings == []
    assert pairs.counts.paired == pairs.counts.produced > 5
    assert (pairs.counts.paired_records, pairs.counts.repeated, pairs.counts.unread) == (51, 0, 0)
    with BatchConsumer(topics, "orders") as alone:
        assert len(values_of(alone, at_least=51)) == 51
    findings, pairs = read_log(topics)
    assert (findings, pairs.counts.repeated) == ([], pairs.counts.paired)


def test_messages_that_nobody_has_read_are_lost_and_other_topics_do_not_count(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topics = audited(kafka, tmp_path)
    topics.create("others")
    with BatchProducer(topics, "orders") as producer, BatchProducer(topics, "others") as other:
        producer.send(b"v")
        other.send(b"v")
    (finding,), pairs = read_log(topics)
    assert (finding.fault, finding.first, pairs.counts.unread) == ("lost", 0, 1)
    settings = tmp_path / "s.properties"
    lines = {
        "storage.backend.class": "filesystem", "storage.root": str(tmp_path), "chunk.size": "4194304",
        "pubsub.audit.topic": str(topics.batches.audit_topic),
        "pubsub.kafka.bootstrap.servers": kafka.bootstrap_servers,
    }  # fmt: skip
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    verify = ("pubsub", "verify", "orders", "--audit-records", "-c", settings)
    shown = tieredstore(*verify, "--settle", "0s", "--json")
    row, summary = map(json.loads, shown.stdout.splitlines())
    assert (shown.code, row["fault"], row["request_id"]) == (4, "lost", 0)
    assert summary["summary"]["lost"] == summary["summary"]["message_count"] == 1
    shown = tieredstore(*verify)
    assert (shown.code, "1 Message sent to topic orders by 1 producer: 1 pending" in shown.text) == (0, True)
    with BatchConsumer(topics, "orders") as consumer:
        assert values_of(consumer, at_least=1) == [b"v"]
    assert read_log(topics)[0] == []


def test_a_service_pairs_what_comes_and_ends_when_it_is_told_to(kafka: KafkaServer) -> None:
    topics = audited(kafka)
    pairs, heard_one = AuditPairs(settle_ms=0), threading.Event()
    heard: list[AuditFinding] = []

    def tell(finding: AuditFinding) -> None:
        heard.append(finding)
        heard_one.set()

    with AuditLog(topics, "orders", pairs) as log, within(audit_service(log, tell, look_s=0.05)):
        with BatchProducer(topics, "orders") as producer:
            producer.send(b"v")
        assert heard_one.wait(LONG_S)
        assert [finding.fault for finding in heard] == ["lost"]
        with BatchConsumer(topics, "orders") as consumer:
            assert values_of(consumer, at_least=1) == [b"v"]
        wait_until(lambda: pairs.counts.paired)


def test_an_audit_without_a_broker_fails_nobody() -> None:
    with pytest.raises(ConfigError, match=r"pubsub.audit.topic needs pubsub.kafka.bootstrap.servers"):
        BatchProducer(orders_on(audit_topic="audit"), "orders")
    given = {"kafka_bootstrap_servers": "127.0.0.1:1", "kafka_message_timeout_ms": "50"}
    for kind in (BatchProducer, BatchConsumer):
        with pytest.raises(ConfigError, match="invalid client properties"):
            kind(orders_on(None, 1, audit_topic="audit", **given, kafka_compression_type="pressed"), "orders")
    with BatchProducer(orders_on(None, 1, audit_topic="audit", **given), "orders") as producer:
        producer.send(b"v").result(LONG_S)
        auditor = producer._sending.auditor  # pyright: ignore[reportPrivateUsage]
    assert auditor is not None
    assert (auditor.counts.sent_records, auditor.counts.failed_records) == (0, 1)
