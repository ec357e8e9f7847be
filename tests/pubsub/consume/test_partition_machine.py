"""A consumer's partition takes random steps. A model of its records checks each step."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.support.pubsub.pubsub_topics import fresh_topics, notified, publish
from tieredstore.errors import DataLossError
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.consume.partition_state import Fetching, OpenBatch
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.queue.queues import Position

FETCHES = 3


@dataclass
class Stored:
    """A published batch, and the values that must be read from it."""

    key: str
    values: list[bytes]
    is_whole: bool = True


class Machine:
    """Random steps, each followed by a check of the invariants."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.topics = fresh_topics(message_bytes="1024", compression="none", fetches=str(FETCHES))
        self.consumer = BatchConsumer(self.topics, "orders")
        self.state = self.consumer._partitions[0]
        self.batches: list[Stored] = []
        self.at = self.taken = 0  # the next batch, and how many of its records were taken
        self.was = Position(0)

    def step(self) -> None:
        steps = (self.publish, self.look, self.look, self.take, self.take, self.take_rest, self.spoil)
        self.source.choice(steps)()
        self.check()

    def publish(self) -> None:
        values = [b"%d.%d" % (len(self.batches), number) + bytes(400) for number in range(self.source.randrange(1, 6))]
        publish(self.topics, values)
        key = notified(self.topics)[-1].key
        assert key is not None
        self.batches.append(Stored(key, values))

    def spoil(self) -> None:
        """Damage or delete an object that was not fetched yet."""
        first = self.at + len(self.state._ahead)
        if first < len(self.batches) and self.source.random() < 0.3:
            batch = self.batches[self.source.randrange(first, len(self.batches))]
            batch.is_whole = False
            if self.source.random() < 0.5:
                self.topics.store.delete([batch.key])
            else:
                self.topics.store.put(batch.key, bytes(len(batch.values) * 500))

    def look(self) -> None:
        self.state.lookout.next_look_s = 0.0
        self.state.look()

    def fill(self) -> bool:
        """Return True if there are rows to take. If the next batch is lost or damaged, try once or twice, with the same
        error each time, and then skip the batch.
        """
        for _ in range(self.source.randrange(1, 3)):
            try:
                return self.state.fill()
            except (DataLossError, MessageCorruptError):
                self.go_on()
                assert not self.batches[self.at].is_whole
                assert self.state.position.offset <= 256 * self.at
        self.state.pass_over()
        self.at, self.taken = self.at + 1, 0
        return False

    def take(self) -> None:
        if self.fill():
            self.go_on()
            assert self.state.take().value == self.batches[self.at].values[self.taken]
            self.taken += 1

    def take_rest(self) -> None:
        if self.fill():
            self.go_on()
            values = self.state.take_rest().column("value").to_pylist()
            assert values == self.batches[self.at].values[self.taken :]
            self.taken += len(values)

    def go_on(self) -> None:
        """Advance the model to the next batch if all records of the current one were taken."""
        if self.at < len(self.batches) and self.taken == len(self.batches[self.at].values):
            self.at, self.taken = self.at + 1, 0

    def check(self) -> None:
        state, fetches = self.state, self.consumer._shared.fetches
        assert state.position >= self.was
        self.was = state.position
        kinds = [type(each) for each in state._ahead]
        assert set(kinds[1:]) <= {Fetching}
        assert kinds[:1] in ([], [Fetching], [OpenBatch])
        assert state.at_hand is None or kinds[0] is OpenBatch
        offsets = [each.batch.offset for each in state._ahead] + [entry.offset for entry in state._queued]
        assert offsets == sorted(set(offsets))
        assert not offsets or offsets[0] >= state.position.offset
        assert fetches._objects == FETCHES - len(state._ahead) >= 0
        if not state._ahead:
            assert fetches._bytes == self.topics.batches.fetch_bytes

    def end(self) -> None:
        while self.at < len(self.batches) and not (self.at == len(self.batches) - 1 and self.taken):
            self.look()
            self.take_rest()
            self.check()
        self.consumer.close()
        assert self.consumer._shared.fetches._objects == FETCHES


@pytest.mark.usefixtures("inline_threads")
@pytest.mark.parametrize("seed", range(20))
def test_a_partition_keeps_its_table_of_transitions(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(150):
        machine.step()
    machine.end()
