"""Readers of every kind of a single-partition topic, and its true records: the leader's log and delivery reports."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer, TopicPartition

from tests.support.cli.cli_process import tieredstore
from tests.support.pipelines.pipeline_runs import listed, rows_of
from tests.support.records.topic_reads import read_topic
from tests.support.waiting import BlockThread
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.query import LogQuery
from tieredstore.reading.tail import LogTail
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager

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


PREFERENCES: Final = ("kafka_preferred", "remote_preferred")


class Readers:
    """Readers of a topic; ``store`` has the settings of the bucket, and pipelines write to ``folder``."""

    def __init__(self, topic: str, store: Mapping[str, str], servers: str, folder: Path) -> None:
        self.topic, self.store, self.folder = topic, store, folder
        self.client = {"bootstrap.servers": servers, "log_level": "0"}
        self._runs = itertools.count()
        (folder / "output").mkdir()

    def check_with_broker(self, expected: Rows) -> None:
        """Assert that bucket and broker together have exactly these records, each once."""
        with self._manager() as manager:
            compare("read_topic", columns_of(read_topic(manager, self.topic, client=self.client)), expected)
        compare("the tail", self._tailed(expected[-1][0]), expected)
        for mode in PREFERENCES:
            compare(mode, self._consumed(mode, len(expected)), expected)
        compare("the pipeline", self._piped(), expected)

    def check_bucket(self, lives: Mapping[Uuid, Rows], last: Uuid) -> None:
        """Assert that the bucket has exactly these records of each topic that had the name, each record once. The topic
        ``last`` still exists.
        """
        with self._manager() as manager:
            for topic_id, expected in lives.items():
                given = columns_of(read_topic(manager, self.topic, topic_id=topic_id))
                compare(f"the bucket of {topic_id}", given, expected)
        compare("remote_only", self._consumed("remote_only", len(lives[last])), lives[last])
        settings = self._written("store", self.store)
        verified = tieredstore("verify", self.topic, "-c", settings, "--level", "data")
        assert verified.code == 0, verified.text[-3000:] + verified.stderr

    def _manager(self) -> RemoteStorageManager:
        return RemoteStorageManager(settings_from(self.store))

    def _written(self, name: str, lines: Mapping[str, str]) -> Path:
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        return file

    def _tailed(self, last: int) -> Rows:
        query, place = LogQuery(Subscribe((self.topic,)), client=self.client), (self.topic, 0)
        rows: list[tuple[int, bytes]] = []
        settings = ReadSettings(columns=("offset", "value"))
        end = time.monotonic() + LONG_S
        with self._manager() as manager, LogTail(manager, query, {place: 0}, settings=settings) as tail:
            while tail.positions[place] <= last:
                assert time.monotonic() < end, tail.positions
                given = tail.poll(0.5)
                rows += [] if given is None else columns_of([given.records])
        return rows

    def _consumed(self, mode: str, count: int) -> Rows:
        rows: list[tuple[int, bytes]] = []
        properties = {
            **self.client, "group.id": "readers", "enable.auto.commit": False, "auto.offset.reset": "error",
            "isolation.level": "read_committed", "tiered.storage.mode": mode,
            "tiered.storage.settings": dict(self.store),
        }  # fmt: skip
        end = time.monotonic() + LONG_S
        with Consumer(properties) as consumer:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            while len(rows) < count:
                assert time.monotonic() < end, f"{mode}: {len(rows)} of {count}, the last is {rows[-1:]}"
                for message in consumer.consume(500, 0.5):
                    assert message.error() is None, message.error()
                    rows.append((message.offset(), message.value() or b""))
        return rows

    def _piped(self) -> Rows:
        root = f"out-{next(self._runs)}/"
        lines = {
            **self.store,
            "pipeline.name": "readers",
            "secor.kafka.topic_filter": self.topic,
            "kafka.bootstrap.servers": self.client["bootstrap.servers"],
            "output.storage.backend.class": "filesystem",
            "output.storage.root": str(self.folder / "output"),
            "output.key.prefix": root,
        }
        run = tieredstore("pipeline", "run", self._written("pipeline", lines), "--once")
        assert run.code == 0, run.stderr
        output = FilesystemObjectStore(self.folder / "output")
        rows = (row for key in listed(output, root) for row in rows_of(output, key))
        return sorted((row["offset"], row["value"]) for row in rows)


def columns_of(batches: Iterable[Any]) -> Rows:
    """Return the offset and value of each row."""
    return [
        row
        for batch in batches
        for row in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]


def compare(reader: str, given: Rows, expected: Rows) -> None:
    """Compare the records; a failure names only the extents of missing, duplicate or divergent ones."""
    have, want = Counter(given), Counter(expected)
    missing, more = (
        sorted(offset for offset, _ in rows) for rows in ((want - have).elements(), (have - want).elements())
    )
    assert (missing, more) == ([], []), f"{reader} lacks {_ends(missing)} and has {_ends(more)} too many"
    assert list(given) == list(expected), f"{reader} has them in another order"


def _ends(offsets: list[int]) -> str:
    return f"{len(offsets)} offsets" + (f", {offsets[0]} to {offsets[-1]}" if offsets else "")
