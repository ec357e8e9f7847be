"""A parser has misfiled messages for a while: all of them are filed again, while new messages arrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.kafka.kafka_topics import delete_records
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.mended_parser import Mended
from tests.support.waiting import wait_until
from tieredstore.errors import DataLossError
from tieredstore.pipelines.upkeep.record_sources import Selected
from tieredstore.spark import start_pipelines

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
