"""Tests of the bucket alone after an unclean election, before the new leader has copied a segment. A watermark shows
where the new leader's log begins.

Offsets 0 to 59 are stored. A leader of epoch 3 wrote those from 20 on. A leader of epoch 6 continued at 25.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.places.test_raw_readers import written
from tests.support.cli.cli_process import tieredstore
from tests.support.pipelines.pipeline_runs import listed, pipeline_of, rows_of
from tests.support.records.topic_buckets import FIRST_ID, value_of
from tests.support.records.topic_reads import read_topic
from tests.support.spark.spark_stream_topics import Bucket, Query
from tests.support.spark.spark_tasks import rows_in
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import MoveBack, Watermark, watermark_key
from tieredstore.duckdb import attach
from tieredstore.errors import DataLossError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import TopicIdPartition
from tieredstore.partitions.position import Position
from tieredstore.partitions.selections import Subscribe
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.run.planner import Planner
from tieredstore.polars import scan
from tieredstore.reading.query import LogQuery
from tieredstore.reading.tail import LogTail
from tieredstore.spark.source.streaming import StreamOffsets
from tieredstore.values import Binary

EPOCHS: Final[LeaderEpochs] = ((0, 0), (3, 20))
CUT: Final = 25


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    topics.options |= {"chunk.size": "16384"}
    topics.write(60, epochs=EPOCHS)
    yield topics
    topics.close()


def move_back(bucket: Bucket) -> None:
    where = TopicIdPartition(FIRST_ID, "orders", 0)
    mark = Watermark(where, CUT, 6, moved_back=(MoveBack(60, CUT, 6, 0),))
    bucket.manager.store.put(watermark_key("", where), mark.to_bytes())


def by_cat(bucket: Bucket) -> list[bytes]:
    printed = tieredstore("cat", "orders", "-p", "0", "--json", "-c", written(bucket.options, bucket.root.parent))
    assert printed.code == 0, printed.stderr
    assert f"truncated the log at offset {CUT}" in printed.stderr
    return [json.loads(line)["value"].encode() for line in printed.text.splitlines()]


def by_export(bucket: Bucket) -> list[bytes]:
    file = bucket.root.parent / "orders.parquet"
    printed = tieredstore("cat", "orders", "--output", file, "-c", written(bucket.options, bucket.root.parent))
    assert printed.code == 0, printed.stderr
    read: Any = pq
    values: list[bytes] = read.read_table(file).sort_by("offset").column("value").to_pylist()
    return values


def by_duckdb(bucket: Bucket) -> list[bytes]:
    with duckdb.connect() as connection:
        attach(connection, bucket.manager, value=Binary())
        rows: list[tuple[bytes]] = connection.sql('SELECT value FROM orders ORDER BY "offset"').fetchall()
        return [value for (value,) in rows]


def by_polars(bucket: Bucket) -> list[bytes]:
    frame: Any = scan(bucket.options, "orders", value=Binary())
    values: list[bytes] = frame.sort("offset").collect()["value"].to_list()
    return values


def by_stream(bucket: Bucket) -> list[bytes]:
    query = Query(bucket.reader())
    query.run()
    return query.rows


def files_of(bucket: Bucket, store: MemoryObjectStore) -> list[bytes]:
    with Runner(pipeline_of(secor__kafka__topic_filter="orders"), Parts(store, bucket.manager), threads=1) as runner:
        list(runner.run_once())
    rows = sorted((row["offset"], row["value"]) for key in listed(store) for row in rows_of(store, key))
    return [value for _, value in rows]


READERS: Final[Mapping[str, Callable[[Bucket], list[Any]]]] = {
    "cat": by_cat,
    "export": by_export,
    "query": lambda bucket: pa.table(read_topic(bucket.manager, "orders")).column("value").to_pylist(),
    "duckdb": by_duckdb,
    "polars": by_polars,
    "spark": lambda bucket: [bytes(row["value"]) for row in rows_in({**bucket.options, "subscribe": "orders"})],
    "stream": by_stream,
    "pipeline": lambda bucket: files_of(bucket, MemoryObjectStore()),
}


@pytest.mark.parametrize("reader", READERS)
def test_nothing_of_the_log_that_was_left_is_given(bucket: Bucket, reader: str) -> None:
    move_back(bucket)
    assert READERS[reader](bucket) == [value_of("orders", 0, offset) for offset in range(CUT)]


def test_a_stream_that_has_read_it_is_told(bucket: Bucket) -> None:
    query = Query(bucket.reader())
    query.run()
    assert len(query.rows) == 60
    move_back(bucket)
    with pytest.raises(DataLossError, match=f"an election truncated the log at offset {CUT}"):
        query.run()


def test_a_pipeline_that_has_written_it_is_told(bucket: Bucket) -> None:
    store = MemoryObjectStore()
    assert len(files_of(bucket, store)) == 60
    move_back(bucket)
    with pytest.raises(
        DataLossError, match=f"written up to offset 59, but a later leader epoch .* from offset {CUT} on"
    ):
        files_of(bucket, store)


def read_elsewhere(bucket: Bucket) -> int:
    """Copy the later leader's records, which begin at offset 25, to the bucket, and return their end. A reader has
    already read these records from a broker.
    """
    bucket.ends["orders", 0, FIRST_ID] = CUT
    bucket.write(75, epochs=(*EPOCHS, (6, CUT)))
    return 100


def test_a_tail_waits_for_the_log_that_it_has_read(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    query = LogQuery(Subscribe(("orders",)))
    where = "orders", 0
    with LogTail(bucket.manager, query, {where: Position(40, 6)}, look_s=0) as tail:
        assert [tail.poll(0), tail.poll(0), tail.places] == [None, None, {where: Position(40, 6)}]
        assert caplog.text.count("orders-0 (AAECAwQFBgcICQoLDA0ODw) was read up to offset 40, but the bucket") == 1
        end = read_elsewhere(bucket)
        records = tail.poll(0)
        assert records is not None
        assert (records.records.num_rows, records.next_offset) == (end - 40, end)


def test_a_stream_waits_for_the_log_that_it_has_read(bucket: Bucket) -> None:
    query = Query(bucket.reader())
    query.start = StreamOffsets({("orders", 0): 40}, {"orders": FIRST_ID}, epochs={("orders", 0): 6}).to_json()
    assert query.trigger() == []
    end = read_elsewhere(bucket)
    assert query.trigger() == [value_of("orders", 0, offset) for offset in range(40, end)]


def test_a_pipeline_waits_for_the_log_that_it_has_written(bucket: Bucket) -> None:
    own = pipeline_of(secor__kafka__topic_filter="orders")
    positions = {("orders", 0): Progress(str(FIRST_ID), 40, -1, 0, 0, leader_epoch=6)}
    with closing(Planner(own, bucket.manager)) as planner:
        assert planner.find_due(planner.snapshot(), positions, is_last=True) == []
        end = read_elsewhere(bucket)
    with closing(Planner(own, bucket.manager)) as planner:
        (window,) = planner.find_due(planner.snapshot(), positions, is_last=True)
        assert (window.start, window.stop, window.leader_epoch) == (40, end, 6)
