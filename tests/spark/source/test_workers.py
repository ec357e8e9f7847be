"""Behaviour of Spark's Python workers apart from reading."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tieredstore.spark.source import workers
from tieredstore.spark.source.tasks import read_task

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tieredstore.spark.source.options import SourceOptions


TASKS = 4
"""Number of tasks: on two cores, one process runs at least two."""


class FrozenSource(DataSource):
    """Source with a row per task: how many objects gc has frozen in the planner's and in the task's process."""

    @classmethod
    def name(cls) -> str:
        return "frozen"

    def schema(self) -> str:
        return "planner long, worker long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FrozenReader()


class FrozenReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        for _ in range(2):
            workers.spare_modules()
        return [InputPartition(gc.get_freeze_count())] * TASKS

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        assert list(read_task(InputPartition(None), cast("SourceOptions", None))) == []
        yield partition.value, gc.get_freeze_count()


def test_the_collector_passes_over_what_a_worker_keeps_from_one_turn_to_the_next(spark: SparkSession) -> None:
    spark.dataSource.register(FrozenSource)
    rows = spark.read.format("frozen").load().collect()
    assert len(rows) == TASKS
    assert max(row["worker"] for row in rows) > 10_000
    assert max(row["planner"] for row in rows) > 10_000


def test_it_is_told_once_when_all_has_been_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, turns = list[str](), itertools.count(1)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    workers.spare_modules(turns)
    monkeypatch.setattr(TaskContext, "get", object)
    calls_after_each: list[int] = []
    for _ in range(4):
        workers.spare_modules(turns)
        calls_after_each.append(len(calls))
    assert calls_after_each == [0, 1, 1, 1]


def test_a_process_that_runs_no_task_is_left_alone() -> None:
    before = gc.get_freeze_count()  # conftest.py freezes what pytest has collected
    for _ in range(3):
        workers.spare_modules()
    assert gc.get_freeze_count() <= before
