"""The decoder against the Java consumer's records of the same logs."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.support.golden.segments import CASES, GoldenSegment, segments
from tests.support.paths import GOLDEN
from tests.support.records.record_batches import Row, rows
from tieredstore.kafka.indexes import AbortedTransaction, read_txn_index
from tieredstore.kafka.records import COLUMNS, RecordDecoder

PARTITIONS = sorted({(case, segment.partition) for case in CASES for segment in segments(case)})
TIMESTAMP_TYPES = {"CreateTime": 0, "LogAppendTime": 1}
IDS = [f"{case}-{partition}" for case, partition in PARTITIONS]


def decoded(data: str | None) -> bytes | None:
    return None if data is None else base64.b64decode(data)


def row(line: dict[str, Any]) -> Row:
    headers = [{"key": base64.b64decode(key).decode(), "value": decoded(value)} for key, value in line["headers"]]
    return {
        "key": decoded(line["key"]),
        "value": decoded(line["value"]),
        "headers": headers or None,
        "offset": line["offset"],
        "timestamp": line["timestamp"],
        "timestampType": TIMESTAMP_TYPES[line["timestamp_type"]],
        "leaderEpoch": line["leader_epoch"],
    }


@cache
def consumed(case: str, partition: int, isolation: str = "") -> list[Row]:
    with gzip.open(GOLDEN / case / f"records-{partition}{isolation}.jsonl.gz", "rt") as lines:
        return [row(json.loads(line)) for line in lines]


def logs(case: str, partition: int) -> list[GoldenSegment]:
    return [segment for segment in segments(case) if segment.partition == partition]


def cut(log: bytes, size: int) -> Iterator[bytes]:
    return (log[at : at + size] for at in range(0, len(log), size))


@pytest.mark.parametrize(("case", "partition"), PARTITIONS, ids=IDS)
def test_all_records_are_what_the_java_consumer_read(case: str, partition: int) -> None:
    decoded = [row for log in logs(case, partition) for row in rows(log.original("log").read_bytes())]
    assert decoded == consumed(case, partition)


@pytest.mark.parametrize(("case", "partition"), PARTITIONS, ids=IDS)
def test_pieces_of_any_size_give_the_same_records(case: str, partition: int) -> None:
    source = random.Random(case)
    for size in (61, source.randrange(100, 5_000), source.randrange(10_000, 200_000), 1 << 30):
        decoded: list[Row] = []
        for log in logs(case, partition):
            decoded += rows(
                list(cut(log.original("log").read_bytes(), size)), target_bytes=source.randrange(1, 300_000)
            )
        assert decoded == consumed(case, partition), size


@pytest.mark.parametrize(("case", "partition"), PARTITIONS, ids=IDS)
def test_an_offset_window_gives_exactly_its_records(case: str, partition: int) -> None:
    source = random.Random(case)
    expected = consumed(case, partition)
    for log in logs(case, partition):
        data = log.original("log").read_bytes()
        start = source.randrange(log.base_offset, log.end_offset + 1)
        stop = source.randrange(start, log.end_offset + 2)
        decoded = rows(data, start_offset=start, stop_offset=stop)
        assert decoded == [row for row in expected if start <= row["offset"] < stop]


@pytest.mark.parametrize(
    "case", [case for case in CASES if (GOLDEN / case / "records-0.read_committed.jsonl.gz").exists()]
)
def test_without_aborted_transactions_it_is_what_a_read_committed_consumer_read(case: str) -> None:
    aborted: list[AbortedTransaction] = []
    for log in logs(case, 0):
        if log.original("txnindex").exists():
            aborted += read_txn_index(log.original("txnindex").read_bytes(), log.base_offset)
    decoded = [row for log in logs(case, 0) for row in rows(log.original("log").read_bytes(), aborted=aborted)]
    assert aborted
    assert decoded == consumed(case, 0, ".read_committed")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_alone_is_the_same_as_among_all(column: str) -> None:
    log = logs("06-codec-zstd-createtime", 0)[0].original("log").read_bytes()
    decoder = RecordDecoder([column])
    values = [value for batch in decoder.decode([log]) for value in batch.column(column).to_pylist()]
    assert decoder.schema.names == [column]
    assert values == [row[column] for row in consumed("06-codec-zstd-createtime", 0)[: len(values)]]
    assert len(values) > 100
