"""True records of a topic: those of its leader's log, read by a plain client, and the producers' delivery reports."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from tests.support.waiting import BlockThread
from tieredstore.model import TopicIdPartition

Rows = Sequence[tuple[int, bytes]]
"""Offsets and values."""

LONG_S: Final = 300.0
BATCH: Final = 100
"""Number of records of one write, which fill about a segment."""

MOST_BATCHES: Final = 6
"""Maximum number of batches per round, low enough to read and upload records before retention deletes them."""


@dataclass
class Life:
    """One topic from creation to deletion: its producers' delivery reports, and the records of a plain client."""

    where: TopicIdPartition
    truth: dict[int, bytes] = field(default_factory=dict[int, bytes])
    position: int = 0
    """Position of the plain client."""
    acknowledged: dict[int, bytes] = field(default_factory=dict[int, bytes])
    aborted: set[int] = field(default_factory=set[int])
    cuts: int = 0

    def cut(self, at: int) -> None:
        """Forget the records from this offset on, because an unclean election has lost them."""
        self.truth = {offset: value for offset, value in self.truth.items() if offset < at}
        self.acknowledged = {offset: value for offset, value in self.acknowledged.items() if offset < at}
        self.aborted = {offset for offset in self.aborted if offset < at}
        self.position = min(self.position, at)
        self.cuts += 1

    def rows(self, stop: int | None = None) -> Rows:
        return [row for row in sorted(self.truth.items()) if stop is None or row[0] < stop]


class Writer:
    """Writer of unique records, plain and in transactions; an open transaction may enclose plain records."""

    def __init__(self, servers: str, topic: str, source: random.Random) -> None:
        self._servers, self._topic, self._source = servers, topic, source
        self._numbers = itertools.count()
        self.renew()

    def renew(self) -> None:
        """Replace the producers; the new ones do not know the records lost in an unclean election."""
        common = {"bootstrap.servers": self._servers, "log_level": 0, "batch.size": "4000", "acks": "all"}
        common |= {"message.timeout.ms": "300000", "enable.idempotence": "true"}
        self._plain = Producer(common)
        self._transactional = Producer({**common, "transactional.id": "histories", "message.timeout.ms": "60000"})
        self._has_begun = False

    def write(self, life: Life, *, plain: bool = False) -> None:
        """Write about a segment of records. Add them to ``life``, except those of a transaction whose outcome is
        unknown.
        """
        outcome = None if plain else self._source.choice([None, "commit", "abort"])
        if outcome is None:
            self._send(self._plain, BATCH, life.acknowledged)
            return
        given: dict[int, bytes] = {}
        try:
            if not self._has_begun:
                self._transactional.init_transactions(LONG_S)
                self._has_begun = True
            self._transactional.begin_transaction()
            self._send(self._transactional, BATCH // 2, given)
            self._send(self._plain, BATCH // 4, life.acknowledged)
            self._send(self._transactional, BATCH // 4, given)
            (self._transactional.commit_transaction if outcome == "commit" else self._transactional.abort_transaction)(
                LONG_S
            )
        except KafkaException:
            # A coordinator may have died. The next producer with this transactional id ends the transaction.
            self.renew()
            return
        if outcome == "commit":
            life.acknowledged |= given
        else:
            life.aborted |= set(given)

    def _send(self, producer: Producer, count: int, given: dict[int, bytes]) -> None:
        failed: list[Any] = []

        def note(error: Any, message: Any) -> None:
            if error is None:
                given[message.offset()] = message.value()
            else:
                failed.append(error)

        for _ in range(count):
            value = b"%d " % next(self._numbers) + self._source.randbytes(self._source.randrange(400))
            producer.produce(self._topic, value, partition=0, on_delivery=note)
        assert producer.flush(LONG_S) == 0
        if failed:
            raise KafkaException(failed[0])


class Writing(BlockThread):
    """Thread that writes during the block, up to MOST_BATCHES batches."""

    def __init__(self, writer: Writer, life: Life) -> None:
        super().__init__()
        self._writer, self._life = writer, life

    def work(self) -> None:
        """Write at least one batch, without waiting first."""
        for _ in range(MOST_BATCHES):
            self._writer.write(self._life)
            if self.stopped.wait(0.3):
                return
