"""The stream reader: what there is at each trigger, how much of it is read, and what is done about data loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tieredstore.errors import ResourceNotFound
from tieredstore.partitions.selections import Assign, Selection, Subscribe
from tieredstore.reading.losses import LossRule
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.unreadable import check_readable, named_partitions
from tieredstore.reading.windows import starting_offsets
from tieredstore.spark.source.admission import TriggerDelay, TriggerLimits, is_once
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.queries import query_of
from tieredstore.spark.source.sentences import each_in_one_sentence, one_sentence
from tieredstore.spark.source.stream_offsets import StreamOffsets, Windows
from tieredstore.spark.source.tasks import plan_tasks, read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition
    from tieredstore.reading.log_snapshot import LogSnapshot

_logger: Final = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
"""Without a trigger interval Spark asks a hundred times a second for what is new, and a listing costs money."""

Json = dict[str, Any]


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
        self._on_loss = LossRule(self._query)
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
            begins = starting_offsets(
                snapshot, self._query, self._options.starting, if_too_late=self._options.timestamp_strategy
            )
            check_readable(
                snapshot, self._query, {where: (begin, begin) for where, begin in begins.items()},
                starts_there=named_partitions(self._options.starting), stops_there=begins,
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
            check_readable(snapshot, self._query, ends, starts_there=ends)
            self._target = _ends(snapshot)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a batch: of one that :meth:`latestOffset` has just found, or one to be read again."""
        with one_sentence():
            # That by which the batch's end was chosen: a newer one costs a listing and tells nothing more of it.
            snapshot = self._logs.last or self._logs.current()
            first, last = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            windows = first.windows_to(last, snapshot.logs, self._on_loss, self._logs.epoch_ends(first.positions))
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
        begins = read.begins(snapshot.logs, self._on_loss, answers, stale)
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
