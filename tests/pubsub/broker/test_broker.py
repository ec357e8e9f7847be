"""A broker and its packets: MemQ's own packets byte for byte, refusals, and when the broker stores or copies bytes."""

from __future__ import annotations

import struct
import threading
from functools import partial
from zlib import crc32

import pytest

from tests.support.pubsub.memq_batches import GOLDEN
from tests.support.pubsub.pubsub_brokers import (
    LONG_S,
    PacketClient,
    RunningBroker,
    message_of,
    running_broker,
    write_of,
)
from tests.support.pubsub.pubsub_topics import (
    batch_keys,
    entries_of,
    facts_of,
    fresh_topics,
    orders_on,
    read_values,
    topics_on,
)
from tests.support.records.counted_checksums import counted_checksums
from tests.support.stores.doubles import FaultyStore, Operation, ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pubsub.broker.authorization import Authorizer, Client
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.messages import Compression, MessageHeader, ProducerRequest
from tieredstore.pubsub.format.notifications import RequestRuns, parse_notification
from tieredstore.pubsub.format.packets import (
    Code,
    MetadataAnswer,
    MetadataRequest,
    PacketType,
    ReadAnswer,
    ReadRequest,
    Response,
    WriteAnswer,
    WriteRequest,
)
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.audit import TopicAudit
from tieredstore.testing.notification_queue_tests import read_all

HEADER = MessageHeader(ProducerRequest(b"\x7f\0\0\1", 1, 2), 0, Compression.NONE, 0, 0).to_bytes()


fresh = partial(orders_on, batch_ms="20")


LIMITS_MS = ("1000", "10000", "60000")
"""Delivery timeouts that a test tries in turn. The test waits until a delivery times out, so it begins with a short
timeout. On a busy machine, a good delivery may exceed this timeout too. The test then tries the next one.
"""


def is_batch(operation: Operation) -> bool:
    """Return True for a put of a batch."""
    return operation.name == "put" and not operation.keys[0].startswith("!tieredstore")


def held_until(may: threading.Event) -> ScriptedStore:
    """Return a store that holds puts of batches until the test permits them."""
    return ScriptedStore(MemoryObjectStore()).on("put", do=lambda put: is_batch(put) and may.wait(LONG_S))


def test_memqs_own_packets_are_answered_byte_for_byte_in_its_own_form() -> None:
    topics = fresh()
    written = (GOLDEN / "wire/write-request-v5.bin").read_bytes()
    assert written[15:18] == b"\0\0\6"
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.socket.sendall((GOLDEN / "wire/metadata-request-v5.bin").read_bytes())
        address = running.broker.address
        metadata = client.raw_answer()
        assert metadata[4:19] == b"\0\5" + (1).to_bytes(8, "big") + b"\1\0\xc8\0\0"
        assert metadata[19:27] == b"\0\6orders"
        assert metadata[27:42] == b"\0\1\0\0\0\x09127.0.0.1"[:15]
        assert struct.pack(">h", address.port) in metadata
        # MemQ's sample request is refused, because its payload is not a Message. The refusal has the request's version
        # and id.
        client.socket.sendall(written)
        refused = client.raw_answer()
        assert refused[4:17] == b"\0\5" + (42).to_bytes(8, "big") + b"\0" + struct.pack(">h", 400)
        # With a Message in the same request, the answer is that of MemQ's broker, byte for byte.
        data = message_of([b"v"])
        packet = written[: written.index(b"a payload") - 4] + len(data).to_bytes(4, "big") + data
        packet = packet[:24] + crc32(data).to_bytes(4, "big") + packet[28:]
        client.socket.sendall((len(packet) - 4).to_bytes(4, "big") + packet[4:])
        assert client.raw_answer() == (GOLDEN / "wire/write-response-ok-v5.bin").read_bytes()
    assert read_values(topics, 1) == [b"v"]


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_each_version_is_answered_in_itself_once_the_message_stands(version: int) -> None:
    topics = fresh()
    with running_broker(topics) as running, PacketClient(running.place) as client:
        answer = client.ask(write_of(message_of([b"a", b"b"])), -7, version)
        payload = WriteAnswer() if version >= 4 else None
        assert answer == Response(version, -7, PacketType.WRITE, Code.OK, payload=payload)
        assert len(entries_of(topics)) == 1
        metadata = client.ask(MetadataRequest(()), 3, version)
        assert isinstance(metadata.payload, MetadataAnswer)
        (topic,) = metadata.payload.topics
        assert (topic.topic, topic.write_brokers) == ("orders", (running.broker.address,))
        assert dict(topic.properties)["path"] == "default/topics/orders"
    assert read_values(topics, 2) == [b"a", b"b"]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_messages_of_many_clients_go_into_one_batch(compression: str) -> None:
    topics = fresh(batch_ms="60000", batch_messages="6")
    with running_broker(topics) as running:
        clients = [PacketClient(running.place) for _ in range(3)]
        for number, client in enumerate(clients):
            for request in range(2):
                data = message_of(
                    [b"%d/%d" % (number, request)], request, address=bytes([number]), compression=compression
                )
                client.send(write_of(data), request)
        for client in clients:
            assert {client.answer().request_id, client.answer().request_id} == {0, 1}
            client.socket.close()
    assert len(entries_of(topics)) == 1
    assert sorted(read_values(topics, 6)) == sorted(b"%d/%d" % (a, b) for a in range(3) for b in range(2))


@pytest.mark.parametrize(
    ("write", "code", "why"),
    [
        (WriteRequest("orders", 1, message_of([b"v"])), Code.BAD_REQUEST, "CRC-32"),
        (write_of(message_of([b"v"])[:-1] + b"x"), Code.BAD_REQUEST, "its body has CRC-32"),
        (write_of(message_of([b"v"]) + b"x"), Code.BAD_REQUEST, "its header says that the body has"),
        (write_of(b"no Message"), Code.BAD_REQUEST, "are too few for a Message"),
        (write_of(message_of([bytes(5000)])), Code.BAD_REQUEST, "does not fit a batch, which holds at most 4076 bytes"),
        (write_of(message_of([b"v"]), "others"), Code.NOT_FOUND, "no topic others"),
        (write_of(message_of([b"v"]), "../x"), Code.NOT_FOUND, "no topic"),
    ],
    ids=["crc", "body", "tail", "noise", "large", "topic", "name"],
)
@pytest.mark.parametrize("no_acks", [False, True])
def test_a_refused_message_is_answered_once_and_not_stored(
    write: WriteRequest, code: Code, why: str, *, no_acks: bool
) -> None:
    topics = fresh(batch_bytes="4096", message_bytes="1024")
    refused = WriteRequest(write.topic, write.crc, write.data, no_acks)
    with running_broker(topics) as running, PacketClient(running.place) as client:
        answer = client.ask(refused, 1)
        assert (answer.code, answer.payload, answer.request_id) == (code, None, 1)
        assert why in answer.error
        assert client.ask(write_of(message_of([b"good"])), 2).request_id == 2  # no second answer to request 1
        assert running.broker.room.taken == 0
    assert read_values(topics, 1) == [b"good"]


def test_a_message_without_records_is_acknowledged_and_not_stored_and_none_hides_its_records() -> None:
    topics = fresh()
    lying = bytearray(message_of([b"v"]))
    lying[32:36] = bytes(4)
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for compression in ("none", "gzip", "zstd"):
            data = message_of([], compression=compression)
            assert client.ask(write_of(data)).code is Code.OK
        answer = client.ask(write_of(bytes(lying)))
        assert answer.code is Code.BAD_REQUEST
        assert "a record count of 0 has records" in answer.error
        assert running.broker.counts.empty_messages == 3
    assert len(entries_of(topics)) == 0


def test_the_numbers_of_messages_without_records_are_told_with_the_next_batch_and_are_no_loss() -> None:
    """MemQ's own producer also numbers Messages without records."""
    topics = fresh(batch_ms="1")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number, values in enumerate(([], [], [b"a"], [], [b"b"], [])):
            assert client.ask(write_of(message_of(values, number)), number).code is Code.OK
        assert running.broker.counts.empty_messages == 4
    told = [facts.empty for facts in facts_of(topics)]
    producer = ("7f000001", 1_700_000_000_000)
    assert told == [(RequestRuns(*producer, (0, 1)),), (RequestRuns(*producer, (3, 3)),)]
    assert list(TopicAudit(BatchLog(topics, topics.get("orders")), 1 << 60, 0).run()) == []


def test_numbers_of_messages_without_records_are_told_again_when_their_batch_fails() -> None:
    for delivery_timeout_ms in LIMITS_MS:
        store = FaultyStore(MemoryObjectStore(), is_batch)
        topics = orders_on(store, batch_ms="1", delivery_timeout_ms=delivery_timeout_ms)
        with running_broker(topics) as running, PacketClient(running.place) as client:
            assert client.ask(write_of(message_of([], 0))).code is Code.OK
            assert client.ask(write_of(message_of([b"a"], 1))).code is Code.REQUEST_FAILED
            store.fail_at = None
            if client.ask(write_of(message_of([b"a"], 1))).code is Code.OK:
                break
    else:
        pytest.fail("the message is not accepted")
    (facts,) = facts_of(topics)
    assert facts.empty == (RequestRuns("7f000001", 1_700_000_000_000, (0, 0)),)


def test_a_message_that_comes_again_is_acknowledged_and_stored_once() -> None:
    may = threading.Event()
    topics = orders_on(held_until(may), batch_ms="1")
    data = message_of([b"once"])
    with running_broker(topics) as running:
        first, second = PacketClient(running.place), PacketClient(running.place)
        first.send(write_of(data), 5)
        second.send(write_of(data), 5)
        may.set()
        assert first.answer().code is second.answer().code is Code.OK
        assert second.ask(write_of(data), 5).code is Code.OK  # long afterwards
        first.socket.close()
        second.socket.close()
        assert running.broker.counts.repeated == 2
    assert read_values(topics, 1) == [b"once"]


def test_messages_without_a_producer_are_never_the_same() -> None:
    topics = fresh()
    bare = (GOLDEN / "handmade/h01-no-producer").read_bytes()[20:]
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number in range(2):
            assert client.ask(write_of(bare), number).code is Code.OK
    assert [(facts.producers, facts.min_timestamp) for facts in facts_of(topics)] == [((), None)] * 2


def test_without_acknowledgement_the_answer_comes_on_receipt() -> None:
    may = threading.Event()
    topics = orders_on(held_until(may), batch_ms="1")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        assert client.ask(write_of(message_of([b"v"]), no_acks=True)).code is Code.OK
        assert len(entries_of(topics)) == 0
        may.set()
        running.drain()
    assert read_values(topics, 1) == [b"v"]


@pytest.mark.slow
def test_a_store_that_fails_is_told_to_who_waits_and_a_repetition_is_stored() -> None:
    data = message_of([b"v"])
    for delivery_timeout_ms in LIMITS_MS:
        store = FaultyStore(MemoryObjectStore(), is_batch)
        topics = orders_on(store, batch_ms="1", delivery_timeout_ms=delivery_timeout_ms)
        with running_broker(topics) as running, PacketClient(running.place) as client:
            answer = client.ask(write_of(data))
            assert answer.code is Code.REQUEST_FAILED
            assert running.broker.room.taken == 0
            store.fail_at = None
            if "told to fail" in answer.error and client.ask(write_of(data)).code is Code.OK:
                break
    else:
        pytest.fail("the message is not accepted")
    assert read_values(topics, 1) == [b"v"]


def test_a_full_buffer_stops_reading_and_drops_nothing() -> None:
    may = threading.Event()
    topics = orders_on(held_until(may), batch_ms="1", compression="none", broker_buffer_bytes=str(16 << 20))
    size, count = 1 << 20, 40  # send 40 MiB through a buffer of 16 MiB
    with running_broker(topics) as running:
        client = PacketClient(running.place)
        client.socket.settimeout(LONG_S)

        def send_all() -> None:
            for number in range(count):
                client.send(write_of(message_of([b"%02d" % number + bytes(size)], number)), number)

        sender = threading.Thread(target=send_all)
        sender.start()
        room = running.broker.room
        running.until(lambda: room.waiting == 1)
        assert room.taken <= 16 << 20
        with PacketClient(running.place) as other:  # metadata requests need no room
            assert other.ask(MetadataRequest(("orders",))).code is Code.OK
        may.set()
        assert sorted(client.answer().request_id for _ in range(count)) == list(range(count))
        sender.join()
        client.socket.close()
    assert sorted(value[:2] for value in read_values(topics, count)) == [b"%02d" % number for number in range(count)]


def test_a_drain_stores_and_answers_what_is_held() -> None:
    topics = fresh(batch_ms="600000")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.send(write_of(message_of([b"v"])), 9)
        running.until(lambda: running.broker.counts.message_bytes)
        running.drain()
        assert client.answer() == Response(5, 9, PacketType.WRITE, Code.OK, payload=WriteAnswer())
        assert client.ended()
    assert read_values(topics, 1) == [b"v"]


class OnlyReaders(Authorizer):
    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:
        return client.address == "127.0.0.1" and operation is PacketType.READ and topic == "orders"


def test_the_authorizer_decides_over_writes_and_reads() -> None:
    topics = fresh()
    with running_broker(topics, authorizer=OnlyReaders()) as running, PacketClient(running.place) as client:
        answer = client.ask(write_of(message_of([b"v"])))
        assert (answer.code, answer.error) == (Code.UNAUTHORIZED, "127.0.0.1 has no access to topic orders")
        assert client.ask(MetadataRequest(("orders",))).code is Code.OK
        assert running.broker.room.taken == 0
    assert len(entries_of(topics)) == 0


def test_reads_give_an_object_its_index_or_a_range_and_of_the_topic_alone() -> None:
    topics = fresh(broker_serve_reads="true")
    topics.create("secret")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        client.ask(write_of(message_of([b"v" * 100])))
        client.ask(write_of(message_of([b"s"]), "secret"))
        (entry,) = entries_of(topics)
        (secret,) = read_all(topics.queue(topics.get("secret")), 0)
        notification = parse_notification(entry.raw, "queue")
        body = topics.store.get(notification.key)
        text = entry.raw.decode()
        for version in (2, 5):
            whole = client.ask(ReadRequest("orders", text), 1, version)
            assert whole == Response(5, 1, PacketType.READ, Code.OK, payload=ReadAnswer(body))
        assert client.ask(ReadRequest("orders", text, True)).payload == ReadAnswer(body[:20])
        assert client.ask(ReadRequest("orders", text, False, 20, 30)).payload == ReadAnswer(body[20:50])
        for request, why in (
            (ReadRequest("orders", secret.raw.decode()), "is of topic"),
            (ReadRequest("orders", text.replace("default/topics", "other/topics")), "which is not a key under"),
            (ReadRequest("orders", "{}"), "notification"),
            (ReadRequest("orders", text, False, 0, len(body) + 1), "bytes 0 to"),
            (ReadRequest("orders", text, False, -2, 1), "bytes -2"),
        ):
            refused = client.ask(request)
            assert (refused.code, why in refused.error) == (Code.BAD_REQUEST, True), refused
        assert client.ask(ReadRequest("nothing", text)).code is Code.NOT_FOUND
        topics.store.delete([notification.key])
        assert client.ask(ReadRequest("orders", text)) == Response(
            5, 0, PacketType.READ, Code.NO_DATA, payload=ReadAnswer(b"")
        )
    with (
        running_broker(topics_on(topics.store)) as running,
        PacketClient(running.place) as client,
    ):
        assert client.ask(ReadRequest("orders", text)).code is Code.BAD_REQUEST


def test_an_unforeseen_error_of_the_store_ends_a_read_and_keeps_no_client_waiting() -> None:
    store = ScriptedStore(MemoryObjectStore())
    topics = orders_on(store, batch_ms="600000", batch_messages="2", broker_serve_reads="true")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for request in range(2):  # together more than the 4 MiB that the broker reads at once
            client.send(write_of(message_of([bytes(3 << 20)], request)), request)
        for _ in range(2):
            assert client.answer().code is Code.OK
        (entry,) = entries_of(topics)
        store.on("get", "*/topics/orders/*", KeyError("size"), times=1)
        answer = client.ask(ReadRequest("orders", entry.raw.decode()))
        assert (answer.code, answer.error) == (Code.REQUEST_FAILED, "internal error of the broker: KeyError")
        store.on("get", "*/topics/orders/*", KeyError("size"), skip=1)  # the answer has begun
        with pytest.raises((ConnectionError, AssertionError), match=r"ended the connection|reset"):
            client.ask(ReadRequest("orders", entry.raw.decode()))


def test_reads_of_large_objects_come_whole_beside_acknowledgements() -> None:
    topics = fresh(batch_ms="50", compression="none", broker_serve_reads="true")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number in range(3):
            client.send(write_of(message_of([bytes([number]) * (3 << 20)], number)), number)
        for _ in range(3):
            client.answer()
        entries = entries_of(topics)
        for entry in entries:
            client.send(ReadRequest("orders", entry.raw.decode()), 50)
            client.send(write_of(message_of([b"x"], 9)), 60)
        answers = [client.answer() for _ in range(2 * len(entries))]
        sizes = [len(answer.payload.data) for answer in answers if isinstance(answer.payload, ReadAnswer)]
        assert sorted(sizes) == sorted(parse_notification(entry.raw, "").total_size for entry in entries)


def test_a_producers_messages_stay_in_one_partition_if_batches_are_by_producer() -> None:
    topics = orders_on(None, 4, batch_ms="20", batch_by="producer")
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for request in range(3):
            for producer in range(6):
                client.ask(write_of(message_of([b"%d" % producer], request, address=bytes([producer]))), request)
    partitions: dict[bytes, set[int]] = {}
    with BatchConsumer(topics, "orders") as consumer:
        for _ in range(100):
            for record in consumer.records(0.2):
                partitions.setdefault(record.value, set()).add(record.partition)
            if len(partitions) == 6:
                break
    assert all(len(places) == 1 for places in partitions.values())
    assert len({partition for places in partitions.values() for partition in places}) > 1


def test_a_broker_that_is_no_server_says_so() -> None:
    topics = fresh()
    with running_broker(topics) as running:
        own = running.broker.own
        again = Topics(topics.store, topics.settings.with_section(own))
        other = RunningBroker(Broker(again))
        with pytest.raises(Exception, match="cannot listen on"):
            other.begin()
        other.kill()


# Small frames, of which several arrive in one read of the socket, and large frames, each with its own buffer.
@pytest.mark.parametrize(("size", "count"), [(20_000, 30), (300_000, 8)])
def test_messages_are_read_once_and_are_not_copied_together(size: int, count: int) -> None:
    topics = fresh_topics(batch_ms="60000", batch_messages=str(count))
    sent = [message_of([bytes([number]) * size], number) for number in range(count)]
    writes = [write_of(message) for message in sent]
    with (
        running_broker(topics) as running,
        PacketClient(running.place) as client,
        counted_checksums(copies=False) as read,
    ):
        for number, write in enumerate(writes):
            client.send(write, number)
        assert {client.answer().code for _ in writes} == {Code.OK}
    (key,) = batch_keys(topics)
    stored = topics.store.get(key)
    assert [bytes(message) for _, message in BatchIndex(stored, key, len(stored)).messages(stored)] == sent
    headers = sum(len(message) - size for message in sent)
    assert sum(map(len, sent)) <= sum(read) <= len(stored) + headers


def test_batches_grow_to_what_comes_and_begin_as_large_as_the_last() -> None:
    topics = fresh_topics(batch_ms="60000", batch_messages="40")
    sent = [message_of([bytes([number]) * 50_000], number) for number in range(80)]
    with running_broker(topics) as running, PacketClient(running.place) as client:
        for number, message in enumerate(sent):
            client.send(write_of(message), number)
        assert {client.answer().code for _ in sent} == {Code.OK}
    read: list[bytes] = []
    for key in batch_keys(topics):
        stored = topics.store.get(key)
        read += [bytes(message) for _, message in BatchIndex(stored, key, len(stored)).messages(stored)]
    assert sorted(read) == sorted(sent)


def test_a_topic_that_was_just_missing_is_served_once_it_is_known() -> None:
    topics = fresh()
    with running_broker(topics) as running, PacketClient(running.place) as client:
        assert client.ask(write_of(message_of([b"v"]), "others")).code is Code.NOT_FOUND
        topics.create("others")
        running.broker.directory.refresh()
        assert client.ask(write_of(message_of([b"v"]), "others")).code is Code.OK
