"""Batches of very many producers, and producers of very many threads: what is acknowledged can be read."""

from __future__ import annotations

import threading

import pytest

from tests.support.pubsub.pubsub_topics import fresh_topics, topics_on, values_of
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import Consumer
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.produce.producer import Producer
from tieredstore.testing.notification_queue_tests import read_all

LONG_S = 120.0


def sealed(request: ProducerRequest) -> SealedMessage:
    body = BodyWriter(1 << 10)
    assert body.append(b"v", None, None, None, 0)
    return SealedMessage(seal_message(body, 1, request, Compression.NONE), request, 1, 0, 0)


@pytest.mark.parametrize(("of", "count"), [("producers", 9_000), ("runs", 26_000)])
def test_a_batch_whose_producers_no_notification_holds_is_read_all_the_same(of: str, count: int) -> None:
    topics = fresh_topics()
    topic = topics.get("orders")
    requests = [
        ProducerRequest(number.to_bytes(16, "big"), 1_700_000_000_000, 7)
        if of == "producers"
        else ProducerRequest(b"\x7f\0\0\1", 1_700_000_000_000, 1_000_000_000 + 2 * number)
        for number in range(count)
    ]
    writer = BatchWriter(topics, topic, topics.queue(topic))
    writer.write([sealed(request) for request in requests], Deadline.after(LONG_S))
    writer.write([sealed(requests[0])], Deadline.after(LONG_S))  # sent again
    writer.close()
    first, second = (parse_notification(entry.raw, "queue").facts for entry in read_all(topics.queue(topic), 0))
    assert first is not None
    assert second is not None
    assert (first.records, first.producers, len(second.producers)) == (count, (), 1)
    with Consumer(topics, "orders", delivery="effectively-once") as consumer:
        assert len(values_of(consumer, at_least=count)) == count
        assert consumer.doubles == 1


def test_threads_share_a_producer() -> None:
    topics = topics_on(None, message_bytes="1024", batch_messages="5", compression="none")
    topics.create("orders", 2)
    threads, each = 8, 100
    with Producer(topics, "orders") as producer:

        def send(thread: int) -> None:
            for number in range(each):
                producer.send(b"%d/%d" % (thread, number) + bytes(100))

        senders = [threading.Thread(target=send, args=(thread,)) for thread in range(threads)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(LONG_S)
        producer.flush()
    with Consumer(topics, "orders") as consumer:
        values = [value.rstrip(b"\0") for value in values_of(consumer, at_least=threads * each)]
    assert sorted(values) == sorted(b"%d/%d" % (thread, number) for thread in range(threads) for number in range(each))
    ids: list[int] = []
    for partition in range(2):
        for entry in read_all(topics.queue(topics.get("orders")), partition):
            facts = parse_notification(entry.raw, "queue").facts
            assert facts is not None
            for _, _, runs in facts.producers:
                ids += [
                    one for first, last in zip(runs[::2], runs[1::2], strict=True) for one in range(first, last + 1)
                ]
    assert sorted(ids) == list(range(len(ids)))
