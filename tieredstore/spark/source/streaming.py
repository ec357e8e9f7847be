"""The stream reader: what there is at each trigger, how much of it is read, and what is done about data loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tieredstore.errors import ConfigError, ResourceNotFound
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicPartition
from tieredstore.partitions.selections import Assign, Selection, Subscribe
from tieredstore.reading.losses import Losses
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.windows import with_offsets
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.store_source import manager_of
from tieredstore.spark.source.stream_offsets import StreamOffsets, Windows
from tieredstore.spark.source.tasks import plan_tasks, query_of, read_task
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.reading.log_snapshot import LogSnapshot

_logger: Final = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
"""Without a trigger interval Spark asks a hundred times a second for what is new, and a listing costs money."""

Json = dict[str, object]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the selected partitions from trigger to trigger.

    One process beside the driver plans; tasks get this object as well, and only read with it. The bucket is listed
    once a second at the most. ``clock`` gives seconds that only ever go up.
    """

    def __init__(self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._limits = TriggerLimits.of_options(options)
        self._query = query_of(options)
        self._logs = LogSnapshots(partial(manager_of, options.store), self._query, fresh_s=_FRESH_S, clock=clock)
        self._delay = TriggerDelay(clock)
        self._losses = Losses(self._query)
        self._target: StreamOffsets | None = None
        self._has_looked = False

    def __reduce__(self) -> tuple[type[StreamReader], tuple[SourceOptions]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Where a new stream begins, by ``startingOffsets`` and its kin."""
        with one_sentence():
            snapshot = self._logs.current()
            if self._target is not None:
                snapshot.check_selected(self._query, manager_of(self._options.store))
            starting, too_late = self._options.starting, self._options.timestamp_strategy
            begins = self._logs.lookup(snapshot).starting(starting, if_too_late=too_late)
            self._losses.check_readable(
                snapshot, {where: (begin, begin) for where, begin in begins.items()},
                starts_there=with_offsets(starting, begins), stops_there=begins,
            )  # fmt: skip
            return StreamOffsets.at(begins, snapshot.logs).as_initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What stands for the limits of the options; the engine hands it back with each trigger that has limits."""
        return self._limits.as_read_limit()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Where the batch that begins at ``start`` ends; ``start`` itself if there is nothing (yet) to read."""
        with one_sentence():
            return self._latest(start, limit)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """The ends of all logs as they were last seen, for the query's progress; asks nobody."""
        last = self._logs.last
        return None if last is None else _ends(last).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the ends up to which this run reads."""
        with one_sentence():
            snapshot = self._logs.current()
            ends = {where: (log.end, log.end) for where, log in snapshot.logs.items()}
            self._losses.check_readable(snapshot, ends, starts_there=ends)
            self._target = _ends(snapshot)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a batch: of one that :meth:`latestOffset` has just found, or one to be read again."""
        with one_sentence():
            # That by which the batch's end was chosen: a newer one costs a listing and tells nothing more of it.
            snapshot = self._logs.last or self._logs.current()
            first, last = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            windows = first.windows_to(last, snapshot.logs, self._losses.accept, self._logs.epoch_ends(first.positions))
            return plan_tasks(manager_of(self._options.store), snapshot, windows, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def commit(self, end: Json) -> None:
        """Nothing to do: what was read is in Spark's checkpoint and nowhere else."""

    def stop(self) -> None:
        """Close the connection to the broker, and forget what was seen."""
        self._logs.close()

    def _latest(self, start: Json, limit: ReadLimit) -> Json:
        read = StreamOffsets.from_json(start)
        snapshot = self._logs.current()
        self._look_for_absent(snapshot, read, ends=self._target is not None or is_once(limit))
        answers, stale = self._logs.epoch_ends(read.positions), self._logs.stale(read.positions)
        begins = read.begins(snapshot.logs, self._losses.accept, answers, stale)
        windows = self._within_reach(snapshot, begins)
        limits = self._limits.under(limit)
        waiting = sum(stop - first for first, stop in windows.values())
        # A run up to a target reads what there is, and nobody brings more.
        if self._target is None and self._delay.has_to_wait(limits, waiting):
            return start
        reached = read.with_ends(limits.admit(windows, snapshot.bytes_between), snapshot.logs)
        return start if reached.is_at(read) else reached.to_json()

    def _look_for_absent(self, snapshot: LogSnapshot, read: StreamOffsets, *, ends: bool) -> None:
        """At the start, judge what is named and neither there nor in the checkpoint: perhaps a misspelt name.

        A run that ends would end well, without any of its rows; one that goes on waits: topics may be made later. What
        the checkpoint has and is not there any more is a loss, and judged as one.
        """
        if self._has_looked:
            return
        query = replace(self._query, selection=_but(self._query.selection, read.offsets))
        try:
            snapshot.check_selected(query, manager_of(self._options.store))
        except ResourceNotFound as error:
            if ends:
                raise
            _logger.warning("%s; the stream waits until it is there", error)
        self._has_looked = True

    def _within_reach(self, snapshot: LogSnapshot, begins: Mapping[TopicPartition, int]) -> Windows:
        """From where to where there is something to read, of the partitions that this run reads."""
        target, windows = self._target, Windows()
        for where, begin in begins.items():
            log = snapshot.logs[where]
            end = log.end_from(begin)
            if target is None:
                windows[where] = begin, end
            elif where in target.offsets and log.is_of(target.topic_ids[log.topic]):
                windows[where] = begin, max(begin, min(end, target.offsets[where]))
        return windows


def _but(selection: Selection, known: Collection[TopicPartition]) -> Selection:
    """What ``selection`` names beside the ``known``."""
    match selection:
        case Subscribe(topics=topics):
            known_topics = {topic for topic, _ in known}
            return Subscribe(tuple(topic for topic in topics if topic not in known_topics))
        case Assign(partitions=partitions):
            return Assign(tuple(where for where in partitions if where not in known))
        case _:
            return selection


def _ends(snapshot: LogSnapshot) -> StreamOffsets:
    return StreamOffsets.at({where: log.end for where, log in snapshot.logs.items()}, snapshot.logs)


DEFAULT_DELAY_MS: Final = 15 * 60 * 1000
"""The ``maxTriggerDelay`` of a limit that comes without one."""

BytesBetween = Callable[[TopicPartition, int, int], int]
"""The size of a partition's offsets (half-open), about; it never falls when the range grows."""


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of one trigger; None where there is none. Offsets count, also those that hold no record."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_DELAY_MS

    @classmethod
    def of_options(cls, options: SourceOptions) -> TriggerLimits:
        """What the user asked for."""
        return cls(
            options.max_offsets_per_trigger,
            options.max_bytes_per_trigger,
            options.min_offsets_per_trigger,
            DEFAULT_DELAY_MS if options.max_trigger_delay_ms is None else options.max_trigger_delay_ms,
        )

    def as_read_limit(self) -> ReadLimit:
        """The engine's word for these limits; it has none for several at once, and the first one stands for all.

        No limit is as many rows as there can be: ``ReadAllAvailable`` is left to ``Trigger.Once``, see :func:`is_once`.
        """
        if self.max_offsets is not None:
            return ReadMaxRows(self.max_offsets)
        if self.max_bytes is not None:
            return ReadMaxBytes(self.max_bytes)
        if self.min_offsets is not None:
            return ReadMinRows(self.min_offsets)
        return ReadMaxRows(MAX_OFFSET)

    def under(self, limit: ReadLimit) -> TriggerLimits:
        """The limits of a trigger for which the engine says ``limit``: these where it hands back their own word.

        ConfigError for a limit that means nothing to logs.
        """
        if limit == self.as_read_limit():
            return self
        match limit:
            case ReadAllAvailable():
                return TriggerLimits()
            case ReadMaxRows(max_rows=count):
                return TriggerLimits(max_offsets=count)
            case ReadMaxBytes(max_bytes=count):
                return TriggerLimits(max_bytes=count)
            case ReadMinRows(min_rows=count):
                return TriggerLimits(min_offsets=count, max_delay_ms=self.max_delay_ms)
            case _:
                raise ConfigError(f"a topic cannot be read by {type(limit).__name__}: it has offsets and bytes")

    def admit(self, windows: Windows, bytes_between: BytesBetween) -> dict[TopicPartition, int]:
        """Where reading each of ``windows`` ends this time.

        Each gets a share of the limit in proportion to what it has, and one offset at least: a small partition waits
        for no great one, and the stream always gets on. So more is read than the limit only if it is less than that.
        """
        ends = {where: stop for where, (_, stop) in windows.items()}
        if self.max_offsets is not None:
            waiting = {where: stop - start for where, (start, stop) in windows.items() if stop > start}
            for where, share in shares(waiting, self.max_offsets).items():
                ends[where] = windows[where][0] + share
        if self.max_bytes is not None:
            # Within what the limit of offsets has left: both hold at once.
            ends = _within_bytes(
                {where: (windows[where][0], ends[where]) for where in ends}, self.max_bytes, bytes_between
            )
        return ends


def is_once(limit: ReadLimit) -> bool:
    """Whether the trigger of ``limit`` is ``Trigger.Once``, for which the engine says its own limit and not ours.

    It tells a source nothing else of that trigger.
    """
    return isinstance(limit, ReadAllAvailable)


def shares(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """``limit``, or all there is, split in proportion to what is ``waiting``: at least 1, and at least 1 is given."""
    if sum(waiting.values()) <= limit:
        return dict(waiting)
    rest = dict(waiting)
    # What these get beyond their share is taken from the others, of which more may fall below one by that.
    while small := _below_one(rest, limit):
        limit -= len(small)
        for where in small:
            del rest[where]
    return dict.fromkeys(waiting, 1) | _in_proportion(rest, limit)


def _below_one(waiting: Mapping[TopicPartition, int], limit: int) -> list[TopicPartition]:
    """Those whose share of the limit is less than one offset."""
    total = sum(waiting.values())
    return [where for where, size in waiting.items() if size * limit < total]


def _in_proportion(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """All of ``limit``; what the division leaves over goes to those that lose most by it."""
    total = sum(waiting.values())
    parts = {where: divmod(limit * size, total) for where, size in waiting.items()}
    left = limit - sum(whole for whole, _ in parts.values())
    # By name where they are equal, so that the same windows always get the same ends.
    favoured = set(sorted(parts, key=lambda where: (-parts[where][1], where))[:left])
    return {where: whole + (where in favoured) for where, (whole, _) in parts.items()}


class TriggerDelay:
    """Lets a trigger wait for ``min_offsets``, and not for longer than ``max_delay_ms`` after the one before.

    The first trigger with something to read does not wait. ``clock`` gives seconds that only ever go up. Not
    thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def has_to_wait(self, limits: TriggerLimits, waiting: int) -> bool:
        """Whether ``waiting`` offsets are too few yet; if they are not, this is the trigger to wait after.

        Nothing is no trigger: what comes once the delay has passed is read at once.
        """
        if not waiting:
            return False
        now = self._clock()
        too_few = limits.min_offsets is not None and waiting < limits.min_offsets
        if too_few and self._last is not None and (now - self._last) * 1000 < limits.max_delay_ms:
            return True
        self._last = now
        return False


def _within_bytes(windows: Windows, limit: int, bytes_between: BytesBetween) -> dict[TopicPartition, int]:
    sizes = {where: bytes_between(where, start, stop) for where, (start, stop) in windows.items()}
    total = sum(sizes.values())
    if total <= limit:
        return {where: stop for where, (_, stop) in windows.items()}
    return {
        where: _last_within(where, window, limit * sizes[where] // total, bytes_between)
        for where, window in windows.items()
    }


def _last_within(where: TopicPartition, window: tuple[int, int], limit: int, bytes_between: BytesBetween) -> int:
    """The greatest end in ``window`` with at most ``limit`` bytes before it, one offset on at least."""
    start, stop = window
    # By halves: a size is arithmetic on segments that are known, and does not fall as the range grows.
    fits, ahead = min(start + 1, stop), stop
    while fits < ahead:
        middle = (fits + ahead + 1) // 2
        if bytes_between(where, start, middle) <= limit:
            fits = middle
        else:
            ahead = middle - 1
    return fits
