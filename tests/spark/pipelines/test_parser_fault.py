"""A parser has misfiled messages for a while: all of them are filed again, while new messages arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.kafka.kafka_topics import Produced, delete_records, producer_of, send
from tests.support.kafka.live_topics import TieredTopic
from tests.support.pipelines.pipeline_runs import listed, rows_of, verify_output
from tests.support.servers.kafka import KafkaServer
from tests.support.waiting import wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import DataLossError
from tieredstore.pipelines import Entry, Runner, load_pipeline, with_generation
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import open_parts, query_of
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.output_files import Origin, origins_of
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, LogSource, Selected
from tieredstore.reading.survey import survey_logs
from tieredstore.spark import start_pipelines

PARTITIONS = 2
FIRST_MS = 1_700_000_000_000
WRONG, RIGHT = "created", "timestamp"
"""Names of each message's two time fields. The time in the wrong one is a year off."""

_YEAR_MS = 365 * 86_400_000


class Mended:
    """``events`` files messages by the day of a field; ``backup`` keeps them unchanged."""

    def __init__(self, kafka: KafkaServer, folder: Path) -> None:
        self.topic = TieredTopic(kafka, folder, partitions=PARTITIONS)
        # Use one producer for all messages, because a new producer waits half a second for its producer id.
        self._producer = producer_of(kafka)
        self._folder, self.written = folder, 0
        (folder / "output").mkdir()
        self.store = FilesystemObjectStore(folder / "output")
        self.backup = self._file("backup", "backup/", 1, {})
        self.wrong = self.events(1, WRONG)
        self.right = self.events(2, RIGHT)

    def events(self, generation: int, field: str) -> Path:
        """Return this generation's pipeline file, with this field."""
        parsed = {"secor.message.parser.class": "json", "message.timestamp.name": field}
        return self._file("events", "events/", generation, parsed)

    def _file(self, name: str, root: str, generation: int, more: dict[str, str]) -> Path:
        properties = {
            "pipeline.name": name, "secor.generation": str(generation),
            "kafka.new.consumer.topic.list": self.topic.topic,
            **self.topic.store,
            "kafka.bootstrap.servers": self.topic.server.bootstrap_servers,
            "output.storage.backend.class": "filesystem", "output.storage.root": str(self._folder / "output"),
            "output.key.prefix": root, "secor.max.file.age.seconds": "0", "secor.max.file.size.bytes": "8000", **more,
        }  # fmt: skip
        path = self._folder / f"{name}-{generation}.properties"
        path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        return path

    def write(self, count: int) -> None:
        """Write this many messages to each partition, an hour apart; copy closed segments to the bucket."""
        numbers = range(self.written, self.written + count)
        messages = [message(number) for number in numbers]
        for partition in range(PARTITIONS):
            # Send few messages at a time, because a batch must fit into a segment.
            for at in range(0, count, 50):
                send(self._producer, self.topic.topic, messages[at : at + 50], partition=partition)
        self.written = numbers.stop
        self.topic.tier()

    def stored(self) -> dict[int, int]:
        """Return the end offset of each partition in the bucket."""
        return {
            partition: max(one.end_offset for (number, _), one in self.topic.copied.items() if number == partition) + 1
            for partition in range(PARTITIONS)
        }

    def delete_copied(self, stop: int) -> None:
        """Delete the bucket's segments that end before an offset, as retention would."""
        for metadata in self.topic.copied.values():
            if metadata.end_offset < stop:
                self.topic.manager.delete_log_segment_data(metadata)

    def run(self, file: Path, *, take_over: int | None = None) -> None:
        """Process all records, in this process."""
        pipeline = load_pipeline(file)
        with open_parts(pipeline) as parts, Runner(pipeline, parts, take_over=take_over) as runner:
            list(runner.run_once())

    def committed(self, file: Path) -> int:
        """Return the offset up to which every partition is committed."""
        positions = commit_log_of(load_pipeline(file), self.store).read().positions
        return min(one.next_offset for one in positions.values()) if len(positions) == PARTITIONS else 0

    def backfill(self, generation: int, selected: Selected, *, replaces: int = -1, kept: bool = False) -> list[Entry]:
        """Backfill with the right parser, from bucket and broker, or, if ``kept``, from the backup's files."""
        pipeline = with_generation(load_pipeline(self.right), generation)
        backup = load_pipeline(self.backup)
        with open_parts(pipeline) as parts, ExitStack() as stack:
            source = (
                KeptFiles(backup, self.store, self.topic.topic, pipeline.own.limits.max_file_bytes)
                if kept
                else stack.enter_context(closing(LogSource(pipeline, parts.source, self.topic.topic)))
            )
            return list(Backfill(pipeline, parts.store, source, replaces=replaces).run(selected))

    def origin(self, key: str) -> Origin:
        """Return the origin of a file of ``events``."""
        pipeline = load_pipeline(self.wrong)
        with open_parts(pipeline) as parts:
            snapshot = survey_logs(parts.source, query_of(pipeline))
            backup = Committed.of(commit_log_of(load_pipeline(self.backup), self.store))
            (origin,) = origins_of(pipeline, self.store, [key], snapshot=snapshot, backups=[backup])
        return origin

    def keys(self, *generations: int) -> list[str]:
        """Return the listed files of ``events`` in these generations."""
        names = tuple(f"{generation}_" for generation in generations)
        return [key for key in listed(self.store, "events/") if key.rpartition("/")[2].startswith(names)]

    def check(self, start: int, stop: int, *generations: int) -> None:
        """Assert that these generations have the offsets from ``start`` up to ``stop`` of each partition once, each in
        the right day's directory.
        """
        shown: list[tuple[int, int]] = []
        for key in self.keys(*generations):
            for row in rows_of(self.store, key):
                value = json.loads(row["value"])
                assert value["n"] == row["offset"]
                day = datetime.fromtimestamp(value[RIGHT] / 1000, UTC).date()
                assert key.split("/")[2] == f"dt={day}"
                shown.append((row["partition"], row["offset"]))
        assert sorted(shown) == [(partition, one) for partition in range(PARTITIONS) for one in range(start, stop)]
        for generation in generations:
            assert list(verify_output(with_generation(load_pipeline(self.right), generation), self.store)) == []

    def close(self) -> None:
        self.topic.close()


def message(number: int) -> Produced:
    """Return a message one hour after the previous one."""
    time_ms = FIRST_MS + number * 3_600_000
    return Produced(
        None, json.dumps({"n": number, RIGHT: time_ms, WRONG: time_ms - _YEAR_MS, "more": "." * 150}).encode()
    )


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CAUGHT_UP_S = 300


@pytest.fixture
def mended(kafka: KafkaServer, tmp_path: Path) -> Iterator[Mended]:
    with closing(Mended(kafka, tmp_path)) as mended:
        yield mended


class Live:
    """Running pipelines: streaming queries of a session, or without Spark a run at each :meth:`catch_up`."""

    def __init__(self, mended: Mended, spark: SparkSession | None, *files: Path) -> None:
        self._mended, self._files = mended, files
        self._queries: list[StreamingQuery] = [] if spark is None else start_pipelines(spark, *files)

    def catch_up(self) -> None:
        """Wait until everything is written."""
        if not self._queries:
            for file in self._files:
                self._mended.run(file)

        def check() -> None:
            assert all(query.isActive for query in self._queries), [query.exception() for query in self._queries]

        wait_until(
            lambda: all(self._mended.committed(file) >= self._mended.written for file in self._files),
            CAUGHT_UP_S, every_s=0.1, meanwhile=check,
        )  # fmt: skip

    def close(self) -> None:
        for query in self._queries:
            query.stop()


def test_all_that_a_faulty_parser_filed_is_filed_once_more(mended: Mended) -> None:
    check_story(mended, None)


@pytest.mark.soak
def test_all_that_a_faulty_parser_filed_is_filed_once_more_beside_queries(mended: Mended, spark: SparkSession) -> None:
    check_story(mended, spark)


def check_story(mended: Mended, spark: SparkSession | None) -> None:
    topic = mended.topic.topic
    mended.write(200)
    with closing(Live(mended, spark, mended.backup, mended.wrong)) as live:
        live.catch_up()
        mended.write(50)
        live.catch_up()
    # Start from one wrong file: find its offsets, and the other places that have its records.
    first = mended.origin(mended.keys(1)[0])
    assert first.committed
    assert first.backups
    assert first.segments
    mended.run(mended.right, take_over=1)
    with closing(Live(mended, spark, mended.backup, mended.right)) as live:
        mended.write(50)
        live.catch_up()
        mended.check(250, 300, 2)
        # Backfill from bucket and broker, while messages arrive; the old files are replaced.
        mended.write(20)
        mended.backfill(3, Selected(topic, 0, 250), replaces=1)
        live.catch_up()
        assert mended.keys(1) == []
        mended.check(0, 320, 2, 3)
        # The broker has only the last offsets. The bucket has all earlier ones.
        for partition, end in mended.stored().items():
            assert end > 200
            delete_records(mended.topic.server, topic, end, partition=partition)
        mended.backfill(4, Selected(topic, 10, 320))
        mended.check(10, 320, 4)
        # Now the bucket has lost the earlier offsets, but the backup still has them.
        mended.delete_copied(200)
        with pytest.raises(DataLossError, match=rf"offsets 10 to \d+ of {topic}-0"):
            mended.backfill(5, Selected(topic, 10, 320))
        mended.backfill(5, Selected(topic, 10, 320), kept=True)
        mended.check(10, 320, 5)
        mended.write(30)
        live.catch_up()
    mended.check(0, 350, 2, 3)
