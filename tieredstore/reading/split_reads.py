"""One side's part of a window: the bucket's segment by segment or by planned splits, the broker's by live splits.

Records that the broker has deleted after they were copied come from the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, DataLoss, ResourceNotFound, SegmentNotFound
from tieredstore.kafka.records import COLUMNS
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.reading.losses import CutWhileRead, Deleted, DeletedOnBroker, Losses
from tieredstore.records.columns import int64_values, leading
from tieredstore.records.partition import PartitionRead
from tieredstore.records.report import LostOffsets
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


class StoredRead:
    """Reads a window of the bucket's offsets; ``position`` is always where to go on. For one thread.

    What was deleted since the lineage was traced is data loss by the query's policy, and so is what no segment that is
    left decides. Gaps are not told of here: the window is read past them.
    """

    def __init__(
        self, source: SegmentSource, lineage: Lineage, window: OffsetWindow, query: LogQuery, settings: ReadSettings
    ) -> None:
        self.position = window[0]
        self.aborted: set[AbortedTransaction] = set()
        """The aborted transactions whose records were left out, and some that lie ahead."""
        self._lost: list[LostOffsets] = []
        self._source = source
        self._lineage = lineage
        self._window = window
        self._losses = Losses(query)
        # The offsets tell how far a read has come; they are left out again where nobody asked for them.
        columns = tuple(dict.fromkeys((*settings.columns, "offset")))
        self._settings = replace(settings, columns=columns, isolation=query.isolation, on_data_loss="report")
        self._schema = replace(self._settings, columns=settings.columns).schema

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The records, in record batches without empty ones; ``position`` is behind a batch when it is given."""
        for first, last in stored_runs(self._lineage, *self._window):
            self.position = max(self.position, first)
            # More than one run only where a segment goes away meanwhile: the next one begins behind it.
            while self.position < last:
                yield from self._run(last)
        # Offsets at the end may have no record: markers take some, and so does what was aborted or lost.
        self.position = max(self.position, self._window[1])

    def take_lost(self) -> list[LostOffsets]:
        """What was lost since the last call, in front of ``position``, where the query puts up with that."""
        lost, self._lost = self._lost, []
        return lost

    def _run(self, stop: int) -> Iterator[pa.RecordBatch]:
        """The records up to ``stop``, or to a segment that is not there any more, behind which the next run begins."""
        try:
            with PartitionRead(self._source, self._lineage, self.position, stop, self._settings) as read:
                read.report.aborted = self.aborted
                for records in read:
                    self.position = int64_values(records, "offset")[-1] + 1
                    yield leading(records, self._schema, records.num_rows)
        except SegmentNotFound as error:
            end = min(stop, self._lineage.span_at(self.position).stop)
            lost = LostOffsets(self._lineage.partition, self.position, end)
            self._losses.accept(Deleted(lost, error), error)
            self._lost.append(lost)
            self.position = end
            return
        if read.report.lost:
            # A run has no holes: the last segment does not hold what it is said to.
            self._losses.accept_missing(read.report.lost)
            self._lost += read.report.lost
        if read.report.undecided is not None:
            # A window ends where all is decided: what decided this was in segments that are missing.
            first = max(self.position, read.report.undecided.first_offset)
            undecided = LostOffsets(self._lineage.partition, first, stop)
            self._losses.accept_missing([undecided])
            self._lost.append(undecided)
        self.position = stop


def read_record_split(
    source: SegmentSource, split: RecordSplit, query: LogQuery, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The records of a split that was planned; by the query's policy without what was deleted since."""
    settings = replace(settings, on_data_loss=query.on_data_loss, accept_loss=query.words.accept_loss)
    losses = Losses(query)
    # One by one where losses may be, so that nothing but the segment that is gone is left out.
    alone = [split] if query.fails_on_loss else [replace(split, sections=(part,)) for part in split.sections]
    for one in alone:
        try:
            yield from read_split(source, one, settings)
        except SegmentNotFound as error:
            losses.accept(Deleted(LostOffsets(one.partition, one.start_offset, one.stop_offset), error), error)


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


def read_live_split(
    split: LiveSplit,
    open_source: Callable[[], SegmentSource],
    query: LogQuery,
    *,
    columns: Sequence[str] = COLUMNS,
    settings: ReadSettings | None = None,
    reader: LiveReader | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The records of a stretch of the broker's log, in record batches without empty ones.

    What the broker has deleted by now is read from the bucket, which is opened for that only, if it was copied there.
    Where neither has it that is DataLoss, or by the query's policy a warning and the read goes on where the broker
    begins. ``settings`` say how the bucket is read, all but the columns. ``reader`` has the clients to read by, one of
    this read's own if it is None. ConfigError for a query without client properties.
    """
    chosen = replace(settings or ReadSettings(), columns=columns)
    with open_reader(query) if reader is None else nullcontext(reader) as live:
        yield from _read(split, live, open_source, query, chosen)


def open_reader(query: LogQuery) -> LiveReader:
    """The clients to read the query's broker by, which connect when they are first used. Whoever opens them closes
    them.

    ConfigError for a query without client properties, and if ``tieredstore[kafka]`` is not installed.
    """
    if query.client is None:
        raise ConfigError("the query has no client properties (client), which name the broker to read from")
    # Needs the extra `kafka`, which a bucket alone does not.
    from tieredstore.live import LiveReader  # noqa: PLC0415

    return LiveReader(query.client, isolation=query.isolation, timeout_s=query.timeout_s)


def _read(
    split: LiveSplit,
    live: LiveReader,
    open_source: Callable[[], SegmentSource],
    query: LogQuery,
    settings: ReadSettings,
) -> Generator[pa.RecordBatch, None, None]:
    partition, position, columns, losses = split.partition, split.start, settings.columns, Losses(query)
    with_offsets = tuple(dict.fromkeys((*columns, "offset")))
    stop = _uncut_stop(split, live, losses)
    while position < stop:
        try:
            for records in live.read(
                partition.topic, partition.partition, position, stop,
                columns=with_offsets, topic_id=partition.topic_id,
            ):  # fmt: skip
                yield _only(records, columns)
                position = int64_values(records, "offset")[-1] + 1
        except DataLoss as error:
            begins = _live_start(live, partition, position, error)
            # The broker deletes what is in the bucket, so that is where the records may be now.
            source = open_source()
            late = late_copies(source, split.stored_partition, position, stop, query, cut=split.cut)
            if late is not None:
                # Nothing is lost then, whatever the policy; behind them the broker goes on.
                lineage, end = late
                yield from StoredRead(source, lineage, (position, end), query, settings).batches()
                position = end
            else:
                # The broker may have deleted more since it told of the error.
                lost = LostOffsets(partition, position, min(begins, stop))
                losses.accept(DeletedOnBroker(lost, error), error)
                position = begins
        else:
            return


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


def _live_start(live: LiveReader, partition: TopicIdPartition, position: int, error: DataLoss) -> int:
    """Where the broker begins now, behind ``position``; the error itself if that is not what it says."""
    where = partition.topic, partition.partition
    if live.cluster.topic(partition.topic).topic_id != partition.topic_id:
        raise error
    begins = live.cluster.earliest_offsets([where])[where]
    if begins <= position:
        raise error
    return begins


def late_copies(
    source: SegmentSource,
    partition: TopicIdPartition,
    start: int,
    stop: int,
    query: LogQuery,
    *,
    cut: Cut | None = None,
) -> tuple[Lineage, int] | None:
    """What has come into the bucket of the offsets ``start`` up to ``stop`` (half-open), and where that ends.

    It ends before the first hole, and under read_committed before what is not decided. None if the bucket does not
    have ``start``, or has it only of a log that was left at ``cut``. Lists the topic.
    """
    lineage: Lineage | None
    try:
        lineage = load_catalog(source, topic=partition.topic).lineage(
            partition.topic, partition.partition, partition.topic_id
        )
    except ResourceNotFound:
        return None
    lineage = lineage if cut is None else cut.applied(lineage)
    if lineage is None:
        return None
    # Up to the first hole only: behind it the broker may have what the bucket has not.
    holes = [gap.start for gap in lineage.gaps_between(start, stop)]
    end = min([stop, lineage.end_offset, *holes])
    if not lineage.earliest_offset <= start < end:
        return None
    if query.isolation == "read_committed":
        end = decided_end(source, lineage, start, end)
    return (lineage, end) if end > start else None
