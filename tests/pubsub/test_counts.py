"""Counts of producers and consumers, as exported to Prometheus."""

from __future__ import annotations

import threading

import pytest

from tests.support.pubsub.pubsub_topics import orders_on, topics_on
from tests.support.stores.doubles import FaultyStore, Operation
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import DataLossError
from tieredstore.metrics import REGISTRY
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.errors import BufferFullError, DeliveryFailedError, InvalidRecordError
from tieredstore.pubsub.produce.producer import BatchProducer


def exported(kind: str) -> dict[str, float]:
    beginning = f"tieredstore_pubsub_{kind}_"
    return {
        sample.name.removeprefix(beginning).removesuffix("_total"): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name.startswith(beginning)
    }


def test_what_clients_count_is_exported_and_stays_when_they_are_closed() -> None:
    before = exported("producer"), exported("consumer")
    topics = orders_on(None, 2, message_bytes="1024", batch_ms="60000")
    with BatchProducer(topics, "orders") as producer:
        for _ in range(3):
            producer.send(b"value", b"k")
        with pytest.raises(InvalidRecordError):
            producer.send(bytes(2000))
        assert exported("producer")["waiting_records"] - before[0].get("waiting_records", 0) == 3
        assert exported("producer")["held_bytes"] > before[0].get("held_bytes", 0)
        producer.flush()
    with BatchConsumer(topics, "orders", group="g") as consumer:
        while consumer.counts.records < 3:
            consumer.poll(5.0)
        consumer.commit()
        assert exported("consumer")["partitions"] - before[1].get("partitions", 0) == 2
    added = {name: value - before[0].get(name, 0) for name, value in exported("producer").items()}
    assert {name: added[name] for name in ("records", "record_bytes", "refused_records", "delivered_records")} == {
        "records": 3, "record_bytes": 18, "refused_records": 1, "delivered_records": 3,
    }  # fmt: skip
    assert added["messages"] == added["delivered_batches"] == 1
    assert added.get("held_bytes", 0) == added.get("waiting_records", 0) == added["failed_records"] == 0
    read = {name: value - before[1].get(name, 0) for name, value in exported("consumer").items()}
    (key,) = (info.key for info in topics.store.list("") if "/topics/orders/" in info.key)
    assert (read["records"], read["batches"], read["commits"], read["losses"]) == (3, 1, 1, 0)
    assert read["stored_bytes"] == topics.store.head(key).size
    assert read["looks"] >= 1


@pytest.mark.slow
def test_failures_and_losses() -> None:
    inner = MemoryObjectStore()
    topics_on(inner).create("orders")

    is_full = threading.Event()

    def is_put_of_batch(operation: Operation) -> bool:
        is_so = operation.name == "put" and "/topics/orders/" in operation.keys[0] and "!" not in operation.keys[0]
        assert not is_so or is_full.wait(60)
        return is_so

    topics = topics_on(
        FaultyStore(inner, fail_at=is_put_of_batch),
        delivery_timeout_ms="3000",
        buffer_bytes="1048576",
        max_block_ms="1",
    )
    with BatchProducer(topics, "orders") as producer:
        failing = producer.send(bytes(1_000_000))
        with pytest.raises(BufferFullError):
            producer.send(bytes(1_000_000))
        is_full.set()
        with pytest.raises(DeliveryFailedError):
            failing.result(60)
    counts = producer.counts
    assert (counts.blocked_sends, counts.full_buffers, counts.failed_records, counts.records) == (1, 1, 1, 1)
    whole = topics_on(inner)
    with BatchProducer(whole, "orders") as producer:
        producer.send(b"v")
    inner.delete([info.key for info in inner.list("") if "/topics/orders/" in info.key and "!" not in info.key])
    with BatchConsumer(whole, "orders") as consumer, pytest.raises(DataLossError):
        list(consumer.records(60.0))
    assert consumer.counts.losses == 1
