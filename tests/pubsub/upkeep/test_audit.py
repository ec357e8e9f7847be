"""The audit finds each planted fault with its producer, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.damage.planted_messages import store_messages
from tests.support.pubsub.memq_batches import golden_batches
from tests.support.pubsub.pubsub_brokers import message_of
from tests.support.pubsub.pubsub_topics import entries_of, orders_on, topics_in, topics_on
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.format.notifications import BatchKey, Notification, parse_notification
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding, TopicAudit

NOW_MS = 1_700_001_000_000
A, B, C = (b"\xfd" + bytes(14) + bytes([number]) for number in range(3))
FOREIGN = b"\x7f\0\0\1"
"""An address like those of MemQ's own producers."""


def sent(producer: bytes, *request_ids: int, value: bytes = b"v") -> list[bytes]:
    return [message_of([value] * 2, number, address=producer) for number in request_ids]


def audited(topics: Topics, *, settle_ms: int = 0, bodies: bool = False) -> tuple[list[AuditFinding], TopicAudit]:
    audit = TopicAudit(BatchLog(topics, topics.get("orders")), NOW_MS, settle_ms, bodies=bodies)
    return list(audit.run()), audit


def facts(findings: Sequence[AuditFinding]) -> Counter[tuple[str, bytes | None, int | None, int | None]]:
    return Counter(
        (each.fault.value, None if each.producer is None else each.producer[0], each.first, each.last)
        for each in findings
    )


def key_of(topics: Topics, partition: int, offset: int) -> str:
    (entry,) = (entry for entry in entries_of(topics, partition) if entry.offset == offset)
    return str(parse_notification(entry.raw, "a test's").key)


class Clock:
    """Clock by which the store dates queue entries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS - 900_000
        monkeypatch.setattr("tieredstore.pubsub.queue.store_queue.time.time_ns", lambda: self.now_ms * 1_000_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def plant_faults(topics: Topics, clock: Clock) -> None:
    """Plant twelve faults, three of each kind, among good Messages."""
    store = topics.store
    store_messages(topics, "orders", [*sent(A, 0, 1, 2), *sent(B, 0), *sent(C, 0, 1)], 0)
    # Lost: one request, several in a row, and an object with only its notification left.
    store_messages(topics, "orders", [*sent(A, 4), *sent(B, 1, 2), *sent(C, 2)], 1)  # A has no 3
    store_messages(topics, "orders", [*sent(A, 5, 6), *sent(B, 6), *sent(C, 3, 4)], 0)  # B has not sent 3 to 5
    gone = store_messages(topics, "orders", sent(C, 5), 1)
    store.delete([key_of(topics, 1, gone)])
    # Doubled: in the same batch, in another batch, in another partition.
    store_messages(topics, "orders", [*sent(A, 7, 7), *sent(B, 7)], 0)
    store_messages(topics, "orders", [*sent(B, 7, 8), *sent(C, 6)], 0)
    store_messages(topics, "orders", [*sent(C, 6, 7), *sent(A, 8)], 1)
    # Altered: another Message with the same request, damaged headers, an object that replaced another.
    store_messages(topics, "orders", [*sent(A, 9), *sent(A, 8, value=b"another")], 0)
    damaged = store_messages(topics, "orders", [*sent(B, 9), message_of([b"x"], 0)], 1)
    key = key_of(topics, 1, damaged)
    body = bytearray(store.get(key))
    body[len(body) - len(message_of([b"x"], 0)) + 2] ^= 1  # the version of the second Message
    store.put(key, bytes(body))
    swapped = store_messages(topics, "orders", sent(C, 8), 0)
    store.put(key_of(topics, 0, swapped), store.get(key_of(topics, 0, swapped)).replace(
        (8).to_bytes(8, "big"), (9).to_bytes(8, "big")
    ))  # fmt: skip
    store_messages(topics, "orders", sent(C, 8), 0)
    # Late: stored more than a minute after a later request of its producer.
    store_messages(topics, "orders", [*sent(A, 11, 13), *sent(B, 11), *sent(C, 11)], 1)
    clock.now_ms += 59_000
    store_messages(topics, "orders", sent(A, 12), 0)  # in time
    clock.now_ms += 2_000
    store_messages(topics, "orders", [*sent(A, 10), *sent(B, 10), *sent(C, 10)], 0)
    store_messages(topics, "orders", sent(A, 14), 1)


def test_the_audit_finds_twelve_planted_faults_and_no_other(clock: Clock) -> None:
    topics = orders_on(None, 2, compression="none")
    plant_faults(topics, clock)
    findings, audit = audited(topics)
    assert facts(findings) == Counter({
        ("lost", A, 3, 3): 1, ("lost", B, 3, 5): 1, ("lost", C, 5, 5): 1,
        ("doubled", A, 7, 7): 1, ("doubled", B, 7, 7): 1, ("doubled", C, 6, 6): 1,
        ("altered", A, 8, 8): 1, ("altered", None, None, None): 1, ("altered", C, 9, 9): 1,
        ("late", A, 10, 10): 1, ("late", B, 10, 10): 1, ("late", C, 10, 10): 1,
    })  # fmt: skip
    assert dict(audit.requests) == {
        AuditFault.LOST: 5, AuditFault.DOUBLED: 3, AuditFault.ALTERED: 3, AuditFault.LATE: 3,
    }  # fmt: skip
    assert audit.producers == 3
    whys = {each.why for each in findings if each.fault is AuditFault.LATE}
    assert whys == {"stored 61.0 s after request 11", "stored 61.0 s after request 13"}


@pytest.mark.parametrize("large", [False, True])
def test_where_nothing_is_wrong_it_finds_nothing(*, large: bool) -> None:
    topics = orders_on(None, 3, batch_ms="5", message_bytes="200000" if large else "4096", compression="none")
    for _ in range(2):
        with BatchProducer(topics, "orders") as producer:
            for _ in range(9):
                producer.send(bytes(90_000 if large else 900))
    for bodies in (False, True):
        findings, audit = audited(topics, bodies=bodies)
        assert findings == []
        assert (audit.producers, audit.records) == (2, 18)
    assert audit.messages > 4


def test_young_requests_may_still_come_and_freed_ones_are_no_loss(clock: Clock) -> None:
    topics = orders_on()
    first = store_messages(topics, "orders", sent(A, 0, 1))
    store_messages(topics, "orders", sent(A, 4))
    assert facts(audited(topics, settle_ms=900_001)[0]) == Counter({("pending", A, 2, 3): 1})
    assert facts(audited(topics, settle_ms=900_000)[0]) == Counter({("lost", A, 2, 3): 1})
    store_messages(topics, "orders", sent(A, 5))
    topics.queue(topics.get("orders")).free(0, first + 256)
    assert audited(topics)[0] == []
    del clock


def test_a_hole_of_a_foreign_producer_is_lost_or_empty_and_what_a_broker_of_ours_tells_of_is_none(
    tmp_path: Path, clock: Clock
) -> None:
    topics = topics_in(tmp_path)
    topic = topics.create("orders")
    store_messages(topics, "orders", [*sent(FOREIGN, 1, 9), *sent(A, 1)])
    assert facts(audited(topics)[0]) == Counter({
        ("lost_or_empty", FOREIGN, 0, 0): 1, ("lost_or_empty", FOREIGN, 2, 8): 1, ("lost", A, 0, 0): 1
    })  # fmt: skip
    writer = BatchWriter(BatchLog(topics, topic))
    empty = [ProducerRequest(FOREIGN, 1_700_000_000_000, number) for number in (0, 2, 3, 6, 8, 11, 12)]
    message = message_of([b"v"], 13, address=FOREIGN)
    sealed = SealedMessage(message, ProducerRequest(FOREIGN, 1_700_000_000_000, 13), 1, 0, 0)
    writer.write([sealed], Deadline.after(60), empty=empty)
    assert facts(audited(topics)[0]) == Counter({
        ("lost_or_empty", FOREIGN, 4, 5): 1, ("lost_or_empty", FOREIGN, 7, 7): 1,
        ("lost_or_empty", FOREIGN, 10, 10): 1, ("lost", A, 0, 0): 1,
    })  # fmt: skip
    done = tieredstore("pubsub", "verify", "orders", "--store", tmp_path, "--settle", "0s")
    assert (done.code, "1 lost, 4 lost or empty;" in done.text) == (4, True)
    store_messages(topics, "orders", sent(A, 0))
    done = tieredstore("pubsub", "verify", "orders", "--store", tmp_path, "--settle", "0s")
    assert (done.code, "4 lost or empty;" in done.text) == (0, True)
    del clock


def test_bodies_are_looked_at_where_that_is_asked_for() -> None:
    topics = orders_on(compression="none")
    offset = store_messages(topics, "orders", [message_of([b"a value"], 0), message_of([b"another"], 1)])
    key = key_of(topics, 0, offset)
    body = topics.store.get(key)
    topics.store.put(key, body.replace(b"another", b"an0ther"))
    assert audited(topics)[0] == []
    (finding,) = audited(topics, bodies=True)[0]
    assert (finding.fault, finding.offset) == (AuditFault.ALTERED, offset)
    assert "Message 1, byte" in finding.why
    # These Messages are valid, but are not the ones that were written.
    other = message_of([b"a value"], 0), message_of([b"ANOTHER"], 1)
    head = body[: len(body) - sum(map(len, other))]
    topics.store.put(key, head + b"".join(other))
    (finding,) = audited(topics, bodies=True)[0]
    assert "CRC-32 differs" in finding.why


def test_memqs_notifications_tell_no_requests_and_its_objects_do() -> None:
    topics = topics_on()
    topic = topics.create("orders")
    queue = topics.queue(topic)
    for number, (vector, batch) in enumerate(golden_batches().items()):
        key = str(BatchKey(topic.path, number, 1, 1, 0, "host", is_hashed=topic.is_hashed))
        count = int.from_bytes(batch[4:8], "big")
        notification = Notification("orders", len(batch) - 8 - 12 * count, count, key=key, bucket="")
        if "v05" not in vector:  # its object is missing
            topics.store.put(key, batch)
        queue.append(0, [notification.to_json()], Deadline.after(60))
    queue.append(0, [b"{}"], Deadline.after(60))
    findings, audit = audited(topics)
    assert sorted(each.fault.value for each in findings) == ["altered", "lost"]
    assert audit.messages == 4


def test_the_command_says_it_and_its_exit_code(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.create("orders")
    store_messages(topics, "orders", sent(A, 0, 1))
    audit = ("pubsub", "verify", "orders", "--store", tmp_path)
    done = tieredstore(*audit)
    assert done.code == 0
    seen = "2 Messages of 1 producer in topic orders: each request is stored once"
    assert done.text == f"{seen}; only headers of 1 object (224 B) read (see --bodies)\n"
    assert tieredstore(*audit, "--bodies").text == f"{seen}; 1 object (224 B) read in full\n"
    store_messages(topics, "orders", sent(A, 3, 5))
    assert (tieredstore(*audit).code, "2 pending" in tieredstore(*audit).text) == (0, True)
    done = tieredstore(*audit, "--settle", "0s")
    assert done.code == 4
    assert done.text.splitlines() == [
        f"lost: request 2 of producer {A.hex()}, started 2023-11-14T22:13:20.000Z: request 3 is stored, but not 2",
        f"lost: request 4 of producer {A.hex()}, started 2023-11-14T22:13:20.000Z: request 5 is stored, but not 4",
        "4 Messages of 1 producer in topic orders: 2 lost; only headers of 2 objects (448 B) read (see --bodies)",
    ]
    rows = [json.loads(line) for line in tieredstore(*audit, "--settle", "0s", "--json").text.splitlines()]
    assert [row.get("request_id") for row in rows] == [2, 4, None]
    summary = rows[-1]["summary"]
    assert [summary[name] for name in ("lost", "batches", "batch_bytes", "bodies_read")] == [2, 2, 448, False]
    assert tieredstore("pubsub", "verify", "nothing", "--store", tmp_path).code == 3
