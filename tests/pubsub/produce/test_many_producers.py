"""Batches of very many producers, and producers of very many threads: what is acknowledged can be read."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.pubsub.pubsub_topics import (
    facts_of,
    fresh_topics,
    orders_on,
    read_values,
    request_ids,
    run_together,
    sealed_message,
    values_of,
)
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import Consumer
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.produce.producer import Producer

LONG_S = 120.0


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
    writer.write([sealed_message(request, b"v") for request in requests], Deadline.after(LONG_S))
    writer.write([sealed_message(requests[0], b"v")], Deadline.after(LONG_S))  # sent again
    writer.close()
    first, second = facts_of(topics)
    assert (first.records, first.producers, len(second.producers)) == (count, (), 1)
    with Consumer(topics, "orders", delivery="effectively-once") as consumer:
        assert len(values_of(consumer, at_least=count)) == count
        assert consumer.doubles == 1


def test_threads_share_a_producer() -> None:
    topics = orders_on(None, 2, message_bytes="1024", batch_messages="5", compression="none")
    threads, each = 8, 100
    with Producer(topics, "orders") as producer:

        def send(thread: int) -> None:
            for number in range(each):
                producer.send(b"%d/%d" % (thread, number) + bytes(100))

        run_together(*(partial(send, thread) for thread in range(threads)))
        producer.flush()
    values = [value.rstrip(b"\0") for value in read_values(topics, threads * each)]
    assert sorted(values) == sorted(b"%d/%d" % (thread, number) for thread in range(threads) for number in range(each))
    ids = request_ids(topics, 2)
    assert ids == list(range(len(ids)))
