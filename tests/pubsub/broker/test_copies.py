"""What a broker does with the bytes of a Message, counted: it reads them once, and copies them to their batch."""

from __future__ import annotations

import pytest

from tests.support.pubsub.pubsub_brokers import PacketClient, message_of, running_broker, write_of
from tests.support.pubsub.pubsub_topics import batch_keys, fresh_topics
from tests.support.records.counted_checksums import counted_checksums
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.packets import Code


# Frames that come in one read of the socket, and such as have a buffer of their own.
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
