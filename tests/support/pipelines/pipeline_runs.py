"""Runs of pipelines over stored topics, and their output as listings show it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import StoreUnavailableError
from tieredstore.pipelines import Entry, Parts, Pipeline, Runner, pipeline_from
from tieredstore.pipelines.log.entries import OutputFile
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.redrive import Redriven
from tieredstore.pipelines.upkeep.inspection import Verification
from tieredstore.pipelines.upkeep.output_files import OutputProblem
from tieredstore.testing.segments import PARTITION

TOPIC = PARTITION.topic
NUMBER = PARTITION.partition


def pipeline_of(**changes: str) -> Pipeline:
    """Return a pipeline named ``kept``. Names of ``changes`` have ``__`` for dots."""
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


def run_once(
    topic: StoredTopic, store: ObjectStore, pipeline: Pipeline, *, take_over: int | None = None
) -> list[Entry]:
    """Run the pipeline once, on a single thread for a deterministic order of operations."""
    with Runner(pipeline, Parts(store, topic.manager), threads=1, take_over=take_over) as runner:
        return list(runner.run_once())


def last_entry(pipeline: Pipeline, store: ObjectStore) -> Entry:
    """Return the last entry of the commit log that has files."""
    log = commit_log_of(pipeline, store)
    return log.entry(log.read().written)


def commit_unpublished(topic: StoredTopic, store: ObjectStore, pipeline: Pipeline) -> list[OutputFile]:
    """Commit a batch whose files the store fails to publish, and return the files."""
    with pytest.raises(StoreUnavailableError):
        run_once(topic, FaultyStore(store, lambda operation: operation.name == "publish"), pipeline)
    return last_entry(pipeline, store).files


def verify_output(pipeline: Pipeline, store: ObjectStore, *, contents: bool = True) -> Iterator[OutputProblem]:
    """Yield the problems of an output."""
    return Verification(pipeline, store, contents=contents).problems()


def redrive(topic: StoredTopic, store: ObjectStore, pipeline: Pipeline) -> list[Redriven]:
    """Parse quarantined messages again; return the results."""
    with Runner(pipeline, Parts(store, topic.manager), threads=1) as runner:
        return list(runner.redrive())


def listed(store: ObjectStore, root: str = "out/") -> list[str]:
    """Return the visible output: all keys except the pipeline's internal ones."""
    return [info.key for info in store.list(root) if not info.key.startswith(f"{root}_tieredstore/")]


def content_of(store: ObjectStore) -> dict[str, bytes]:
    """Return the visible objects by key."""
    return {key: store.get(key) for key in listed(store)}


def offsets_of(store: ObjectStore, key: str) -> list[int]:
    """Return the offsets in a Parquet file."""
    table: Any = pq.read_table(io.BytesIO(store.get(key)))
    offsets: list[int] = table.column("offset").to_pylist()
    return offsets


def rows_of(store: ObjectStore, key: str) -> list[dict[str, Any]]:
    """Return the rows in a Parquet file."""
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(store.get(key))).to_pylist()
    return rows


def listed_offsets(store: ObjectStore) -> list[int]:
    """Return the offsets of all visible record files, including duplicates."""
    keys = [key for key in listed(store) if key.rpartition("/")[2][0] not in "._"]
    return sorted(offset for key in keys for offset in offsets_of(store, key))


def topics(tmp_path: Path, count: int = 300) -> Iterator[StoredTopic]:
    """Yield a topic with this many records in three segments."""
    topic = StoredTopic(tmp_path / "logs")
    for start in range(0, count, count // 3):
        topic.copy_plain(start, count // 3, size=100)
    yield topic
    topic.close()


def texts(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with names as :func:`pipeline_of` takes them."""
    return {name.replace(".", "__"): text for name, text in changes.items()}
