"""Topics with records hours apart, pipelines that file them by hour, and their completion markers."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.support.pipelines.pipeline_runs import TOPIC, listed, pipeline_of
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.testing.segments import Record, build_batch

HOUR_MS = 3_600_000
NOON_MS = 1_767_268_800_000
"""2026-01-01 at 12:00 UTC."""
BY_HOUR = {
    "secor__message__parser__class": "kafka-timestamp",
    "partitioner__granularity__hour": "true",
    "pipeline__finalize": "true",
}
HOURLY = pipeline_of(**BY_HOUR, **{f"hive__table__name__{TOPIC}": "logs.events"})


def day(hour: int, topic: str = TOPIC) -> str:
    """Return the directory of an hour."""
    return f"out/{topic}/dt=2026-01-01/hr={hour:02}"


def copy_times(topic: StoredTopic, start: int, times: Sequence[int]) -> None:
    """Append records from the offset ``start`` on, at these numbers of hours after noon."""
    records = [Record(b"v", timestamp_ms=NOON_MS + hours * HOUR_MS) for hours in times]
    topic.copy(start, [build_batch(records, start)])


@contextmanager
def hourly_topic(folder: Path, *segments: Sequence[int]) -> Generator[StoredTopic]:
    """Yield a topic with a segment for each sequence of hours after noon, one record per hour, from offset 0 on."""
    with closing(StoredTopic(folder / "logs")) as topic:
        start = 0
        for times in segments:
            copy_times(topic, start, times)
            start += len(times)
        yield topic


def successes(store: ObjectStore) -> dict[str, tuple[int, int, int]]:
    """Return, for each complete directory, the numbers of its files, its records, and the entry that completed it."""
    said: dict[str, tuple[int, int, int]] = {}
    for key in listed(store):
        path, _, name = key.rpartition("/")
        if name == "_SUCCESS":
            content: dict[str, Any] = json.loads(store.get(key))
            said[path] = content["files"], content["records"], content["commit"]
    return said
