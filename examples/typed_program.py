"""A typed program over a bucket, which mypy and pyright check strictly: ``typed_program.py STORE LOG_DIR TOPIC``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import tieredstore as ts
from tieredstore.types import Record, Table, Totals


def show(outcome: ts.Outcome) -> None:
    """Print the result for one segment."""
    print(outcome.action, outcome.status, outcome.topic, outcome.base_offset)


def main(store: str, log_dir: str, topic: str) -> None:
    """Upload a topic, look at it, and report what a removal would delete."""
    with ts.open(store, chunk_size=1 << 20) as bucket:
        totals: Totals = bucket.upload(log_dir, topic, on_outcome=show)
        segments: Table[ts.Segment] = bucket.segments(topic, 0)
        with segments[-1].open() as log:
            log.seek(-100, 2)
            tail: bytes = log.read()
        read: ts.Read = bucket.read(topic, start=datetime(2020, 1, 1, tzinfo=UTC))
        record: Record = next(iter(read))
        count: int = bucket.query(f'SELECT count(*) AS n FROM "{topic}"').to_arrow().column("n")[0].as_py()
        plan: ts.Plan = bucket.remove(topic, partitions=0, stop=segments[1].base_offset)
        offsets = [outcome.base_offset for outcome in plan]
    print(totals.done + totals.kept, "segments,", count, "records from", record.offset, "on;", len(tail), "bytes")
    print("a removal would delete", offsets)


if __name__ == "__main__":
    main(*sys.argv[1:4])
