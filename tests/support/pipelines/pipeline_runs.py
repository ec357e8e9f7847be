"""Pipelines over topics in memory, and what whoever lists their output sees."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.pipelines import Entry, Parts, Pipeline, Runner, pipeline_from
from tieredstore.testing.segments import PARTITION

TOPIC = PARTITION.topic
NUMBER = PARTITION.partition


def pipeline_of(**changes: str) -> Pipeline:
    """One named ``kept``; ``changes`` have ``__`` for the dots of names."""
    given = {name.replace("__", "."): text for name, text in changes.items()}
    return pipeline_from(
        {
            "pipeline.name": "kept",
            "storage.backend.class": "memory",
            "output.storage.backend.class": "memory",
            "output.key.prefix": "out/",
            **given,
        }
    )


def run_once(topic: StoredTopic, store: ObjectStore, pipeline: Pipeline) -> list[Entry]:
    """A whole run of its own, on one thread so that its operations come in one order."""
    with Runner(pipeline, Parts(store, topic.manager), threads=1) as runner:
        return list(runner.run_once())


def listed(store: ObjectStore, root: str = "out/") -> list[str]:
    """What is seen of the output: all but what the pipeline keeps for itself."""
    return [info.key for info in store.list(root) if not info.key.startswith(f"{root}_tieredstore/")]


def offsets_of(store: ObjectStore, key: str) -> list[int]:
    """The offsets in a file of Parquet."""
    read: Any = pq
    table: Any = read.read_table(io.BytesIO(store.get(key)))
    offsets: list[int] = table.column("offset").to_pylist()
    return offsets


def rows_of(store: ObjectStore, key: str) -> list[dict[str, Any]]:
    """The rows in a file of Parquet."""
    read: Any = pq
    rows: list[dict[str, Any]] = read.read_table(io.BytesIO(store.get(key))).to_pylist()
    return rows


def listed_offsets(store: ObjectStore) -> list[int]:
    """The offsets of all files that are seen, as often as they are there."""
    keys = [key for key in listed(store) if not key.rpartition("/")[2].startswith(".")]
    return sorted(offset for key in keys for offset in offsets_of(store, key))


def topics(tmp_path: Path, count: int = 300) -> Iterator[StoredTopic]:
    """A topic of so many records in three segments."""
    topic = StoredTopic(tmp_path / "logs")
    for start in range(0, count, count // 3):
        topic.copy_plain(start, count // 3, size=100)
    yield topic
    topic.close()


def texts(changes: Mapping[str, str]) -> dict[str, str]:
    """Names of properties as :func:`pipeline_of` takes them."""
    return {name.replace(".", "__"): text for name, text in changes.items()}
