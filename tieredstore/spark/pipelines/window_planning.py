"""Planning of a pipeline's offset windows: which windows to write now, and where to read their records."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.errors import TieredStoreError
from tieredstore.pipelines.config.settings import load_pipeline
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.outage import Outage
from tieredstore.pipelines.run.planner import Planner, WindowTask
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.pipelines.run.windows import find_unwritten
from tieredstore.spark.pipelines.window_source import Json
from tieredstore.spark.pipelines.window_tasks import locate
from tieredstore.versions import PIPELINE_OFFSETS, refuse_newer_offsets

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition

_SIZES_HOLD_S: Final = 60.0
"""Seconds after which the sizes of earlier offset windows are read from the commit log again."""


class Planning:
    """Planner of the next offset windows of a pipeline, from the pipeline's progress."""

    def __init__(
        self,
        planner: Planner,
        outage: Outage,
        read_log: Callable[[], Mapping[TopicPartition, Progress]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planner, self._outage, self._read_log, self._clock = planner, outage, read_log, clock
        self._read_s = -_SIZES_HOLD_S
        self._offset = partial(_offset, plan=uuid.uuid4().hex)
        self._positions: dict[TopicPartition, Progress] | None = None
        self._last: tuple[Json, list[WindowTask]] | None = None
        """The end of the last planned batch, and its tasks."""

    def next(self, start: Json) -> Json:
        """Return the Spark offset that lists the offset windows to write now. Return ``start`` if there are none or the
        source is unavailable.
        """
        try:
            end, tasks = self._find_due(start)
        except TieredStoreError as error:
            self._outage.note_failure(error)
            return start
        self._outage.note_success()
        return end if tasks else start

    def tasks(self, end: Json) -> list[WindowTask]:
        """Return the tasks of the batch that ends at ``end``."""
        if self._last is not None and self._last[0] == end:
            return self._last[1]
        refuse_newer_offsets(PIPELINE_OFFSETS, end)
        # After a restart Spark repeats the last batch. Skip the offset windows that are already committed, because
        # their records may have been deleted since.
        windows = find_unwritten([BatchWindow(*one) for one in end["windows"]], self._read_log())
        return self._planner.tasks(self._planner.snapshot(), windows)

    def _find_due(self, start: Json) -> tuple[Json, list[WindowTask]]:
        positions = self._positions_at(start)
        snapshot = self._planner.snapshot()
        windows = self._planner.find_due(snapshot, positions, is_last=False)
        tasks = self._planner.tasks(snapshot, windows)
        self._last = self._offset([task.window for task in tasks]), tasks
        return self._last

    def _positions_at(self, start: Json) -> dict[TopicPartition, Progress]:
        """Return the progress at the Spark offset ``start``. Spark passes an offset here only when all offset
        windows before it are written.
        """
        if self._positions is None:
            self._positions = dict(self._read_log())
        elif self._last is not None and self._last[0] == start:
            for task in self._last[1]:
                window = task.window
                before = self._positions.get((window.topic, window.partition), Progress(window.topic_id, 0, -1, 0, 0))
                self._positions[window.topic, window.partition] = replace(
                    before, next_offset=window.stop, leader_epoch=window.leader_epoch
                )
            self._learn_sizes(self._positions, self._last[1])
            self._last = None
        return self._positions

    def _learn_sizes(self, positions: dict[TopicPartition, Progress], tasks: Sequence[WindowTask]) -> None:
        """If a backlog must be divided into offset windows by size, read the sizes of earlier windows from the commit
        log.
        """
        counts = Counter((task.window.topic, task.window.partition) for task in tasks)
        behind = [where for where, count in counts.items() if count > 1]
        is_old = self._clock() - self._read_s >= _SIZES_HOLD_S
        if not behind or not (is_old or any(not positions[where].recent_offsets for where in behind)):
            return
        self._read_s = self._clock()
        for where, one in self._read_log().items():
            if where in positions:
                known = positions[where]
                positions[where] = replace(known, recent_bytes=one.recent_bytes, recent_offsets=one.recent_offsets)


def planning_of(file: str, opened: ExitStack, clock: Callable[[], float]) -> Planning:
    """Make the planning for the pipeline of a settings file. The caller closes ``opened``, which holds the open
    resources."""
    pipeline = load_pipeline(locate(file))
    parts = opened.enter_context(open_parts(pipeline))
    planner = Planner(pipeline, parts.source, clock=clock)
    opened.callback(planner.close)
    log = commit_log_of(pipeline, parts.store)
    outage = Outage(pipeline.own.outage_s, clock=clock)
    return Planning(planner, outage, lambda: log.read().positions, clock)


def _offset(windows: Sequence[BatchWindow], plan: str) -> Json:
    """Return the Spark offset that contains these offset windows, each window as a list of its fields.

    ``plan`` is different in each run. Otherwise, if the output was deleted but not the checkpoint, Spark would take a
    new plan of the same windows for a batch that it has finished.
    """
    rows = [[one.topic, one.topic_id, one.partition, one.start, one.stop, one.leader_epoch] for one in windows]
    return {"version": PIPELINE_OFFSETS.version, "windows": rows, "plan": plan}
