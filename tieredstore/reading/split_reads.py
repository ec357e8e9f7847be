"""One side's part of a window: the bucket's segment by segment or by planned splits, the broker's by live splits.

Records that the broker has deleted after they were copied come from the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, DataLossError, ResourceNotFoundError, SegmentNotFoundError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.reading.losses import CutWhileRead, Deleted, DeletedOnBroker, Losses
from tieredstore.records.columns import int64_values, leading
from tieredstore.records.partition import RunRead, runs_of_spans
from tieredstore.records.report import LostOffsets, ReadReport
from tieredstore.records.sections import SectionReader
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, decided_end, read_split

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.live import LiveReader
    from tieredstore.partitions.history import Cut
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote.source import SegmentSource


def stored_runs(lineage: Lineage, start: int, stop: int) -> Iterator[OffsetWindow]:
    """What segments hold of the offsets ``start`` up to ``stop`` (half-open): windows without a gap inside."""
    edges = [max(start, lineage.earliest_offset)]
    for gap in lineage.gaps_between(start, stop):
        edges += [gap.start, gap.stop]
    edges.append(min(stop, lineage.end_offset))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first < last:
            yield first, last


@dataclass(frozen=True, slots=True)
class LiveSplit:
    """The offsets ``start`` up to ``stop`` (half-open) of a partition, as the broker had them. Small, and picklable.

    ``derived_id`` stands for the topic in a bucket without topic ids. ``epoch`` is that of the broker's leader then,
    and ``cut`` where the log had left what the bucket holds.
    """

    partition: TopicIdPartition
    start: int
    stop: int
    derived_id: Uuid | None = None
    epoch: int | None = None
    cut: Cut | None = None

    @classmethod
    def of(cls, log: PartitionLog, start: int, stop: int) -> LiveSplit:
        """These offsets of a log."""
        return cls(log.topic_id_partition, start, stop, log.derived_id, log.live_epoch, log.cut)

    @property
    def stored_partition(self) -> TopicIdPartition:
        """The partition as the bucket has it."""
        return replace(self.partition, topic_id=self.derived_id or self.partition.topic_id)


@dataclass(frozen=True, slots=True)
class QuerySources:
    """Where a query's records come from: the bucket, which is opened when it is needed, and the broker's clients.

    ``live`` is None for the bucket alone. ``settings`` say how both are read, but for isolation and loss policy, which
    are the query's.
    """

    open_source: Callable[[], SegmentSource]
    query: LogQuery
    settings: ReadSettings
    live: LiveReader | None = None

    def read_record_split(self, split: RecordSplit) -> Iterator[pa.RecordBatch]:
        """The records of a split that was planned; by the query's policy without what was deleted since."""
        query = self.query
        settings = replace(self.settings, on_data_loss=query.on_data_loss, accept_loss=query.words.accept_loss)
        losses = Losses(query)
        # One by one where losses may be, so that nothing but the segment that is gone is left out.
        alone = [split] if query.fails_on_loss else [replace(split, sections=(one,)) for one in split.sections]
        for one in alone:
            try:
                yield from read_split(self.open_source(), one, settings)
            except SegmentNotFoundError as error:
                losses.accept(Deleted(LostOffsets(one.partition, one.start_offset, one.stop_offset), error), error)

    def read_live_split(self, split: LiveSplit) -> Generator[pa.RecordBatch, None, None]:
        """The records of a window of the broker's log, in record batches without empty ones.

        What the broker has deleted by now is read from the bucket, which is opened for that only, if it was copied
        there. Where neither has it that is DataLossError, or by the query's policy a warning and the read goes on where
        the broker begins. ConfigError for a query without client properties.
        """
        if self.live is None:
            raise no_client()
        partition, position, columns, losses = split.partition, split.start, self.settings.columns, Losses(self.query)
        with_offsets = tuple(dict.fromkeys((*columns, "offset")))
        stop = _uncut_stop(split, self.live, losses)
        while position < stop:
            try:
                for records in self.live.read(
                    partition.topic, partition.partition, position, stop,
                    columns=with_offsets, topic_id=partition.topic_id,
                ):  # fmt: skip
                    yield _only(records, columns)
                    position = int64_values(records, "offset")[-1] + 1
            except DataLossError as error:
                begins = _live_start(self.live, partition, position, error)
                # The broker deletes what is in the bucket, so that is where the records may be now.
                late = self._late_copies(split, position, stop)
                if late is not None:
                    # Nothing is lost then, whatever the policy; behind them the broker goes on.
                    lineage, end = late
                    yield from StoredRead(self, lineage, (position, end)).batches()
                    position = end
                else:
                    # The broker may have deleted more since it told of the error.
                    lost = LostOffsets(partition, position, min(begins, stop))
                    losses.accept(DeletedOnBroker(lost, error), error)
                    position = begins
            else:
                return

    def _late_copies(self, split: LiveSplit, start: int, stop: int) -> tuple[Lineage, int] | None:
        """What has come into the bucket of the offsets ``start`` up to ``stop`` (half-open), and where that ends.

        It ends before the first gap, and under read_committed before what is not decided. None if the bucket does not
        have ``start``, or has it only of a log that was left at the split's cut. Lists the topic.
        """
        source, partition = self.open_source(), split.stored_partition
        lineage: Lineage | None
        try:
            lineage = load_catalog(source, topic=partition.topic).lineage(
                partition.topic, partition.partition, partition.topic_id
            )
        except ResourceNotFoundError:
            return None
        lineage = lineage if split.cut is None else split.cut.applied(lineage)
        if lineage is None:
            return None
        # Up to the first gap only: behind it the broker may have what the bucket has not.
        gaps = [gap.start for gap in lineage.gaps_between(start, stop)]
        end = min([stop, lineage.end_offset, *gaps])
        if not lineage.earliest_offset <= start < end:
            return None
        if self.query.isolation == "read_committed":
            end = decided_end(source, lineage, start, end)
        return (lineage, end) if end > start else None


class StoredRead:
    """Reads a window of the bucket's offsets; ``position`` is always where to go on. For one thread.

    What was deleted since the lineage was traced is data loss by the query's policy, and so is what no segment that is
    left decides. Gaps are not told of here: the window is read past them.
    """

    def __init__(
        self,
        sources: QuerySources,
        lineage: Lineage,
        window: OffsetWindow,
        aborted: set[AbortedTransaction] | None = None,
    ) -> None:
        self.position = window[0]
        self.aborted: set[AbortedTransaction] = set() if aborted is None else aborted
        """The aborted transactions whose records were left out, and some that lie ahead."""
        self._lost: list[LostOffsets] = []
        self._lineage = lineage
        self._window = window
        self._losses = Losses(sources.query)
        # The offsets tell how far a read has come; they are left out again where nobody asked for them.
        settings = sources.settings
        columns = tuple(dict.fromkeys((*settings.columns, "offset")))
        chosen = replace(settings, columns=columns, isolation=sources.query.isolation, on_data_loss="report")
        self._reader = SectionReader(sources.open_source(), chosen)
        self._schema = settings.schema

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The records, in record batches without empty ones; ``position`` is behind a batch when it is given."""
        for first, last in stored_runs(self._lineage, *self._window):
            self.position = max(self.position, first)
            # More than one run only where a segment goes away meanwhile: the next one begins behind it.
            while self.position < last:
                report = ReadReport(self.position, aborted=self.aborted)
                spans = next(runs_of_spans(self._lineage, self.position, last))
                try:
                    with closing(RunRead(self._reader, spans, self.position, last, report).read()) as run:
                        for records in run:
                            self.position = int64_values(records, "offset")[-1] + 1
                            yield leading(records, self._schema, records.num_rows)
                except SegmentNotFoundError as error:
                    self._lose_deleted(last, error)
                else:
                    self._judge(report, last)
        # Offsets at the end may have no record: markers take some, and so does what was aborted or lost.
        self.position = max(self.position, self._window[1])

    def take_lost(self) -> list[LostOffsets]:
        """What was lost since the last call, in front of ``position``, where the query puts up with that."""
        lost, self._lost = self._lost, []
        return lost

    def _lose_deleted(self, stop: int, error: SegmentNotFoundError) -> None:
        """Go on behind a segment that is not there any more."""
        end = min(stop, self._lineage.span_at(self.position).stop)
        lost = LostOffsets(self._lineage.partition, self.position, end)
        self._losses.accept(Deleted(lost, error), error)
        self._lost.append(lost)
        self.position = end

    def _judge(self, report: ReadReport, stop: int) -> None:
        """A run has no holes: the last segment may not hold what it is said to, or not what decides a transaction."""
        lost = [*report.lost]
        if report.undecided is not None:
            # A window ends where all is decided: what decided this was in segments that are missing.
            first = max(self.position, report.undecided.first_offset)
            lost.append(LostOffsets(self._lineage.partition, first, stop))
        for one in lost:
            self._losses.accept_missing([one])
        self._lost += lost
        self.position = stop


def open_reader(query: LogQuery) -> LiveReader:
    """The clients to read the query's broker by, which connect when they are first used. Whoever opens them closes
    them.

    ConfigError for a query without client properties, and if ``tieredstore[kafka]`` is not installed.
    """
    if query.client is None:
        raise no_client()
    # Needs the extra `kafka`, which a bucket alone does not.
    from tieredstore.live import LiveReader  # noqa: PLC0415

    return LiveReader(query.client, isolation=query.isolation, timeout_s=query.timeout_s)


def _uncut_stop(split: LiveSplit, live: LiveReader, losses: Losses) -> int:
    """Where the read ends: an election since the planning may have cut the log below that, which is data loss."""
    if split.epoch is None:
        return split.stop
    where = split.partition.topic, split.partition.partition
    now = live.cluster.ends([where])[where]
    if now.leader_epoch is None or now.leader_epoch <= split.epoch:
        return split.stop
    answer = live.cluster.epoch_ends({where: split.epoch}).get(where)
    if answer is None or answer.end >= split.stop:
        return split.stop
    lost = LostOffsets(split.partition, max(answer.end, split.start), split.stop)
    losses.accept(CutWhileRead(lost, answer.end))
    return min(split.stop, max(split.start, now.offset))


def _only(records: Any, columns: Sequence[str]) -> pa.RecordBatch:
    chosen: pa.RecordBatch = records.select(list(columns))
    return chosen


def _live_start(live: LiveReader, partition: TopicIdPartition, position: int, error: DataLossError) -> int:
    """Where the broker begins now, behind ``position``; the error itself if that is not what it says."""
    where = partition.topic, partition.partition
    if live.cluster.topic(partition.topic).topic_id != partition.topic_id:
        raise error
    begins = live.cluster.earliest_offsets([where])[where]
    if begins <= position:
        raise error
    return begins


def no_client() -> ConfigError:
    """For a query that is to read a broker, and names none."""
    return ConfigError("the query has no client properties (client), which name the broker to read from")
