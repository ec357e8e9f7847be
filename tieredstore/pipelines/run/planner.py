"""The planner of a pipeline. It lists the bucket and queries the broker. Then it divides due records into offset
windows (ranges that one task writes).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from tieredstore.errors import DataLossError, TieredStoreError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.source import PAST_A_LOSS, query_of
from tieredstore.pipelines.run.window_writing import UNREADABLE
from tieredstore.pipelines.run.windows import Policy, Starts, Waiting, begins_elsewhere, is_of, mark, position_of
from tieredstore.process.log_once import LogOnce
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.plan import plan_windows
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.records.splits import SplitLimits

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.chapters import LimitSettings
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.plan import WindowSplit
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_SHORTEST_LOOK_S: Final = 1.0
_LONGEST_LOOK_S: Final = 30.0
_BATCH_WINDOWS: Final = 64


@dataclass(frozen=True, slots=True)
class Lag:
    """The unwritten offsets of all partitions. ``oldest_s`` is the time since this process first saw the oldest
    unwritten record. ``due_in_s`` is the time until the first record must be written because of its age (infinite if
    there are no records).
    """

    offsets: int
    oldest_s: float
    due_in_s: float


@dataclass(frozen=True, slots=True)
class WindowTask:
    """An offset window, and the splits of bucket and broker that contain its records. Picklable."""

    window: BatchWindow
    splits: tuple[WindowSplit, ...]

    def between(self, start: int, stop: int) -> WindowTask:
        """Return the task for the offsets ``start`` to ``stop`` (exclusive) of the window. Reading skips the other
        records of the splits."""
        return WindowTask(replace(self.window, start=start, stop=stop), self.splits)


class Planner:
    """Planner of one pipeline's offset windows. Not thread-safe; close it after use.

    ``clock`` returns monotonic seconds. ``wall_clock`` returns seconds since the epoch, and is used only for
    ``secor.upload.minute_mark``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: RemoteStorageManager,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        own, self._source = pipeline.own, source
        self.query = query_of(pipeline)
        self.begins_elsewhere: bool = begins_elsewhere(own)
        """True if the settings may begin a partition at another offset than its first."""
        self._starts, self._clock, self._wall_clock = Starts(pipeline), clock, wall_clock
        self.policy: Policy = policy_of(own.limits)
        self._waiting, self._measured = Waiting(), Waiting()
        self._log = LogOnce(_logger)
        self._logs = LogSnapshots(lambda: source, self.query, fresh_s=look_s(own.limits), clock=clock)

    def close(self) -> None:
        """Close the connection to the broker, but not the source, which the caller owns."""
        self._logs.close()

    def snapshot(self) -> LogSnapshot:
        """Return the logs that the pipeline reads. The result is at most one listing interval old."""
        return self._logs.current()

    def snapshot_reaching(self, ends: Mapping[TopicPartition, int]) -> LogSnapshot:
        """Return a snapshot of the logs that reaches the offsets ``ends``. The latest snapshot may end before offsets
        that another process has read and written since."""
        snapshot = self.snapshot()
        if any(where in snapshot.logs and snapshot.logs[where].end < end for where, end in ends.items()):
            self.renew()
            snapshot = self.snapshot()
        return snapshot

    def renew(self) -> None:
        """Make the next snapshot list the bucket again."""
        self._logs.last = None

    def find_due(
        self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress], *, is_last: bool
    ) -> list[BatchWindow]:
        """Return a batch of offset windows to write now. With ``is_last``, it includes all available records.

        If there are new partitions, return only their marks (empty windows), because their first offsets must be
        committed before anything is read. Raises an error if records are missing or unreadable.
        """
        if marks := self._marks(snapshot, positions):
            for one in marks:
                # Call ``age_s`` only to record when this process first saw records of the partition. Their age counts
                # from then on.
                self._waiting.age_s(one.where, one.start, self._clock())
            return marks
        windows, failures = self._select_windows(snapshot, positions, is_last=is_last)
        failures |= self._find_unreadable(snapshot, positions, windows)
        readable = [window for window in windows if window.where not in failures]
        self.tell(failures.values(), readable)
        return readable

    def _find_unreadable(
        self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress], windows: Sequence[BatchWindow]
    ) -> dict[TopicPartition, DataLossError]:
        """Return the error of each partition that an unreadable segment stops."""
        failures: dict[TopicPartition, DataLossError] = {}
        spans: dict[TopicPartition, tuple[int, int]] = {}
        for window in windows:
            spans[window.where] = spans.get(window.where, (window.start, 0))[0], window.stop
        for where in sorted({one.where for one in snapshot.unreadable}):
            own = replace(snapshot, unreadable=tuple(one for one in snapshot.unreadable if one.where == where))
            log, progress, reach = snapshot.logs.get(where), positions.get(where), {where} & spans.keys()
            # A task that reads an offset window checks that no records are missing before the window. No task runs for
            # a partition without a new window, so check that partition here.
            if log is not None and not reach and progress is not None and progress.next_offset >= log.end:
                spans[where] = log.end, log.end
            checked = {where: spans[where]} if where in spans else {}
            try:
                Losses(self.query).check_readable(own, checked, starts_there=checked, stops_there=reach)
            except DataLossError as error:
                failures[where] = error
        return failures

    def _select_windows(
        self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress], *, is_last: bool
    ) -> tuple[list[BatchWindow], dict[TopicPartition, DataLossError]]:
        """Return a batch of offset windows to write now, and the error of each partition whose next offset is lost.

        - In stale partitions, the unwritten records have an older leader epoch than the last written record. Nothing
          is due there until newer segments appear.
        - The windows of a partition follow each other without gaps. Partitions take turns.
        - An offset range without records gets a window too, so that it is not read again after the commit.
        - A window ends before missing offsets, so that the records before them are written. Reading the next window
          then raises DataLossError.
        """
        now_s, wall_s = self._clock(), self._wall_clock()
        at = {where: one.position for where, one in positions.items()}
        answers, stale = self._logs.epoch_ends(at), self._logs.stale(at)
        failures: dict[TopicPartition, DataLossError] = {}
        waits: list[tuple[float, TopicPartition, Iterator[BatchWindow]]] = []
        for where, log in snapshot.logs.items():
            if (progress := positions.get(where)) is None:  # its start must be committed first
                continue
            try:
                start = position_of(log, progress, answers.get(where))
            except DataLossError as error:
                failures[where] = error
                continue
            end = log.end_from(start)
            if end <= start or where in stale:
                self._waiting.clear(where)
                continue
            end = next((loss.start for loss in losses_between(log, start, end) if loss.start > start), end)
            age_s = self._waiting.age_s(where, start, now_s)
            is_old = is_last or age_s >= self.policy.age_of(log.topic, wall_s)
            waits.append((age_s, where, self.policy.divide(log, progress, start, end, with_rest=is_old)))
        # The partition that has waited longest comes first, because one large backlog could otherwise fill every batch.
        waits.sort(key=lambda one: (-one[0], one[1]))
        batch = islice(_take_turns([windows for _, _, windows in waits]), _BATCH_WINDOWS)
        return sorted(batch, key=lambda window: (*window.where, window.start)), failures

    def find_lag(self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress]) -> Lag:
        """Return the current lag. A partition without commits has no lag if ``begins_elsewhere``. Otherwise it is
        unwritten from its first offset on."""
        offsets, longest_s, due_in_s = 0, 0.0, math.inf
        now_s, wall_s = self._clock(), self._wall_clock()
        for where, log in snapshot.logs.items():
            progress, first = positions.get(where), log.end if self.begins_elsewhere else log.earliest
            start = first if progress is None else progress.next_offset
            if log.end <= start:
                self._measured.clear(where)
                continue
            offsets += log.end - start
            age_s = self._measured.age_s(where, start, now_s)
            longest_s = max(longest_s, age_s)
            due_in_s = min(due_in_s, self.policy.due_in_s(log.topic, age_s, wall_s))
        return Lag(offsets, longest_s, due_in_s)

    def tasks(self, snapshot: LogSnapshot, windows: Sequence[BatchWindow]) -> list[WindowTask]:
        """Return a task for each offset window. Leave out a partition's windows from the first unreadable one on. If no
        window is left, raise the error.
        """
        tasks: list[WindowTask] = []
        failures: dict[TopicPartition, TieredStoreError] = {}
        for window in windows:
            try:
                if window.where not in failures:
                    tasks.append(WindowTask(window, self._splits(snapshot, window)))
            except UNREADABLE as error:
                failures[window.where] = error
        self.tell(failures.values(), tasks)
        return tasks

    def tell(self, failures: Iterable[TieredStoreError], rest: Sequence[object]) -> None:
        """If ``rest`` is empty, raise the error. Otherwise log it, and write the rest first: a later call raises it."""
        for error in failures:
            if not rest:
                raise error
            self._log.warn(str(error))

    def _splits(self, snapshot: LogSnapshot, window: BatchWindow) -> tuple[WindowSplit, ...]:
        log_of(snapshot, window)
        where = {window.where: (window.start, window.stop)}
        return tuple(plan_windows(self._source, snapshot, where, self.query, SplitLimits(max_bytes=MAX_INT64)))

    def mark_firsts(self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress]) -> list[BatchWindow]:
        """Return marks (empty windows) for partitions that have records but no commits. Return no marks if
        ``begins_elsewhere``."""
        if self.begins_elsewhere:
            return []
        new = (log for where, log in snapshot.logs.items() if where not in positions)
        return [mark(log, log.earliest) for log in new if log.end_from(log.earliest) > log.earliest]

    def _marks(self, snapshot: LogSnapshot, positions: Mapping[TopicPartition, Progress]) -> list[BatchWindow]:
        if not self.begins_elsewhere:
            return self.mark_firsts(snapshot, positions)
        new = [log for where, log in snapshot.logs.items() if where not in positions]
        begins = self._starts.of(new, is_new=not positions) if new else {}
        return [mark(log, begins[log.where]) for log in new if log.where in begins]


def _take_turns(rows: Sequence[Iterator[BatchWindow]]) -> Iterator[BatchWindow]:
    while rows:
        going: list[Iterator[BatchWindow]] = []
        for windows in rows:
            if (window := next(windows, None)) is not None:
                going.append(windows)
                yield window
        rows = going


def policy_of(limits: LimitSettings) -> Policy:
    """Return the policy that decides where offset windows end, from the settings.

    With deterministic uploads, files end at Secor's limits of bytes and timestamps. The limits of size and age for
    offset windows are then raised, so that the files can reach Secor's limits. As in Secor, the minute mark is ignored.
    """
    window_bytes, age_s, marked = limits.max_file_bytes, float(limits.max_file_age_s), limits.minute_mark_filter
    if limits.is_deterministic:
        window_bytes, marked = max(window_bytes, limits.max_payload_bytes), ""
        age_s = max(age_s, limits.max_range_ms / 1000)
    return Policy(window_bytes, limits.max_file_records, age_s, limits.minute_mark, marked)


def log_of(snapshot: LogSnapshot, window: BatchWindow) -> PartitionLog:
    """Return the log of an offset window. Raise DataLossError if the log, or the beginning of the window, no longer
    exists.
    """
    log, lost = snapshot.logs.get(window.where), window
    if log is not None and is_of(log, window.topic_id):
        if window.start >= log.earliest:
            return log
        lost = replace(window, stop=min(window.stop, log.earliest))
    raise DataLossError(f"{lost} are neither in the bucket nor on the broker any more; {PAST_A_LOSS} to go on")


def look_s(limits: LimitSettings) -> float:
    """Return the seconds between bucket listings. A listing costs requests, so a longer maximum age of unwritten
    records gives a longer interval.
    """
    return min(_LONGEST_LOOK_S, max(_SHORTEST_LOOK_S, limits.max_file_age_s / 10))
