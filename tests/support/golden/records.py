"""Records that a Java consumer read of each golden case, as rows of our columns."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from tests.support.golden.segments import case_path, segments

Row = dict[str, Any]
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


@cache
def expected_rows(case: str, partition: int, isolation: str = "read_uncommitted") -> list[Row]:
    """Return rows by offset. Cases without transactions have one file for both isolation levels."""
    path = case_path(case) / f"records-{partition}.{isolation}.jsonl.gz"
    with gzip.open(path if path.exists() else case_path(case) / f"records-{partition}.jsonl.gz", "rt") as lines:
        return [_row(json.loads(line)) for line in lines]


def partitions_of(case: str) -> list[int]:
    return sorted({segment.partition for segment in segments(case)})


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the decoded rows; missing headers are an empty list, as in the files."""
    rows: list[Row] = []
    for batch in batches:
        assert batch.num_rows
        rows += batch.to_pylist()
    for row in rows:
        row["headers"] = [[header["key"], header["value"]] for header in row["headers"] or []]
    return rows


def _row(record: dict[str, Any]) -> Row:
    return {
        "key": _bytes(record["key"]),
        "value": _bytes(record["value"]),
        "headers": [[base64.b64decode(key).decode(), _bytes(value)] for key, value in record["headers"]],
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        "timestampType": TIMESTAMP_TYPES[record["timestamp_type"]],
        "leaderEpoch": -1 if record["leader_epoch"] is None else record["leader_epoch"],
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
