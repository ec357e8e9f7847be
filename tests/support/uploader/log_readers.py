"""Readers of every kind, each of which reads a single-partition topic from its first record on."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition

from tests.support.cli.cli_process import tieredstore
from tests.support.pipelines.pipeline_runs import listed, rows_of
from tests.support.records.topic_reads import read_topic
from tests.support.uploader.log_truth import LONG_S, Rows
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.model import Uuid
from tieredstore.partitions import Subscribe
from tieredstore.reading.query import LogQuery
from tieredstore.reading.tail import LogTail
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager

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
