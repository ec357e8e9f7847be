"""What a pipeline has to write: it looks at bucket and broker again and again, and cuts what is due into windows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tieredstore.errors import DataLoss
from tieredstore.limits import MAX_INT64
from tieredstore.partitions.snapshots import LogSnapshots
from tieredstore.partitions.split_plan import SplitLimits, plan_windows
from tieredstore.partitions.unreadable import check_readable
from tieredstore.pipelines.commit_log import Progress
from tieredstore.pipelines.selection import query_of
from tieredstore.pipelines.starting import Starts, chosen, mark
from tieredstore.pipelines.window_writing import Window
from tieredstore.pipelines.windows import Policy, Waiting, due_windows

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log_snapshot import LogSnapshot
    from tieredstore.partitions.partition_log import PartitionLog
    from tieredstore.partitions.split_plan import WindowSplit
    from tieredstore.pipelines.settings import Pipeline, PipelineSettings
    from tieredstore.remote.source import SegmentSource

_SHORTEST_LOOK_S: Final = 1.0
_LONGEST_LOOK_S: Final = 30.0


class Planner:
    """Plans the windows of one pipeline. For one thread; to be closed.

    ``clock`` gives seconds that only ever go up, ``wall_clock`` the time of day, for the minute mark alone.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: SegmentSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        own = pipeline.own
        self.query = query_of(pipeline)
        self.starting = "chosen" if chosen(own) else "earliest"
        """Where partitions begin of which nothing is committed."""
        self._starts, self._clock, self._wall_clock = Starts(pipeline), clock, wall_clock
        self._skipped = re.compile(own.topic_blacklist) if own.topic_blacklist else None
        self._policy = Policy(
            own.max_file_bytes, own.max_file_records, own.max_file_age_s, own.minute_mark, own.minute_mark_filter
        )
        self._waiting = Waiting()
        self._logs = LogSnapshots(lambda: source, self.query, fresh_s=look_s(own), clock=clock)

    def close(self) -> None:
        """Close the connection to the broker; the source is its owner's."""
        self._logs.close()

    def snapshot(self) -> LogSnapshot:
        """The logs that the pipeline reads, as of now or a moment ago."""
        snapshot = self._logs.current()
        if self._skipped is None:
            return snapshot
        logs = {where: log for where, log in snapshot.logs.items() if not self._skipped.fullmatch(where[0])}
        return replace(snapshot, logs=logs)

    def due(
        self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress], *, is_last: bool
    ) -> list[Window]:
        """The windows to be written now, a batch at the most; all that there is if ``is_last``.

        An error for what is there and cannot be read. Where partitions begin elsewhere than with their first record,
        that comes first, in windows of no offsets.
        """
        if marks := self._marks(snapshot, positions):
            return marks
        windows = due_windows(
            snapshot, positions, self._policy, self._waiting, self._clock(),
            starting=self.starting, is_last=is_last, wall_s=self._wall_clock(),
        )  # fmt: skip
        reach: dict[Any, tuple[int, int]] = {}
        for window in windows:
            where = window.topic, window.partition
            reach[where] = reach.get(where, (window.start, 0))[0], window.stop
        if reach:
            check_readable(snapshot, self.query, reach, starts_there=reach, stops_there=())
        return windows

    def splits(self, source: SegmentSource, snapshot: LogSnapshot, window: Window) -> tuple[WindowSplit, ...]:
        """What a window is read from, for another process; DataLoss if its log has it no more."""
        log_of(snapshot, window)
        if window.is_mark:
            return ()
        where = {(window.topic, window.partition): (window.start, window.stop)}
        return tuple(plan_windows(source, snapshot, where, self.query, SplitLimits(max_bytes=MAX_INT64)))

    def _marks(self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress]) -> list[Window]:
        if self.starting == "earliest":
            return []
        new = [log for where, log in snapshot.logs.items() if where not in positions]
        begins = self._starts.of(new, is_new=not positions) if new else {}
        return [mark(log, begins[log.where]) for log in new if log.where in begins]


def log_of(snapshot: LogSnapshot, window: Window) -> PartitionLog:
    """The log that has a window; DataLoss if none has it any more."""
    log = snapshot.logs.get((window.topic, window.partition))
    if log is None or str(log.topic_id) != window.topic_id or window.start < log.earliest:
        raise DataLoss(
            f"offsets {window.start} to {window.stop - 1} of {window.topic}-{window.partition} are in neither "
            "bucket nor broker any more"
        )
    return log


def look_s(own: PipelineSettings) -> float:
    """How often the bucket is listed: each time costs requests, and nothing is due before its age."""
    return min(_LONGEST_LOOK_S, max(_SHORTEST_LOOK_S, own.max_file_age_s / 10))
