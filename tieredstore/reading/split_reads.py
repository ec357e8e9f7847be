"""Reads the part of a window that is in the bucket, or the part at the broker.

Records that the broker has deleted after copying them to the bucket are read from the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, DataLossError, ResourceNotFoundError, SegmentNotFoundError
from tieredstore.kafka.records.columns import first_rows, int64_values
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.reading.losses import Loss, Losses, loss_of_end, loss_of_request
from tieredstore.records.partition import RunRead, runs_of_spans
from tieredstore.records.report import LostOffsets, ReadReport
from tieredstore.records.sections import SectionReader
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, find_decided_end, read_split

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.live import LiveReader
    from tieredstore.partitions.history import Cut
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager


def find_runs(lineage: Lineage, start: int, stop: int) -> Iterator[OffsetWindow]:
    """Yield the ranges between ``start`` and ``stop`` (exclusive) that segments cover without a gap."""
    edges = [max(start, lineage.earliest_offset)]
    for gap in lineage.gaps_between(start, stop):
        edges += [gap.start, gap.stop]
    edges.append(min(stop, lineage.end_offset))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first < last:
            yield first, last


@dataclass(frozen=True, slots=True)
class LiveSplit:
    """A range of offsets to read from the broker (``stop`` is exclusive). It records the state of the log at planning.
    Small and picklable.

    ``derived_id`` stands for the topic's id in a bucket that stores no topic ids. ``epoch`` is the leader epoch at
    planning. If an election truncated the log, ``cut`` tells where the broker's log diverges from the bucket's.
    """

    partition: TopicIdPartition
    start: int
    stop: int
    derived_id: Uuid | None = None
    epoch: int | None = None
    cut: Cut | None = None

    @classmethod
    def of(cls, log: PartitionLog, start: int, stop: int) -> LiveSplit:
        """Create a split of these offsets of a log."""
        return cls(log.topic_id_partition, start, stop, log.derived_id, log.live_epoch, log.cut)

    @property
    def stored_partition(self) -> TopicIdPartition:
        """The partition with the topic id that the bucket uses."""
        return replace(self.partition, topic_id=self.derived_id or self.partition.topic_id)


@dataclass(frozen=True, slots=True)
class QuerySources:
    """The sources of a query's records: the bucket, opened when needed, and the broker's clients (None for no broker).

    ``settings`` apply to the bucket and the broker, but isolation and loss policy come from the query.
    """

    open_source: Callable[[], RemoteStorageManager]
    query: LogQuery
    settings: ReadSettings
    live: LiveReader | None = None

    def read_record_split(self, split: RecordSplit) -> Iterator[pa.RecordBatch]:
        """Yield the records of a planned split. The query's loss policy applies to segments that were deleted after
        planning."""
        query = self.query
        settings = replace(self.settings, on_data_loss=query.on_data_loss, accept_loss=query.words.accept_loss)
        losses = Losses(query)
        # If losses are accepted, read section by section, so that a deleted segment does not end the whole read.
        alone = [split] if query.fails_on_loss else [replace(split, sections=(one,)) for one in split.sections]
        for one in alone:
            try:
                yield from read_split(self.open_source(), one, settings)
            except SegmentNotFoundError as error:
                _lose_deleted(losses, LostOffsets(one.partition, one.start_offset, one.stop_offset), error)

    def read_live_split(self, split: LiveSplit) -> Generator[pa.RecordBatch, None, None]:
        """Yield the records of a split from the broker. No record batch is empty.

        If the broker has deleted records since planning, open the bucket and read them from there. If the bucket lacks
        them too, raise DataLossError. If the query accepts losses, log a warning instead, and continue at the broker's
        first offset. The split ends early if the broker's log now ends before the next offset, or if the topic was
        re-created before the read.

        Raise ConfigError for a query without client properties.
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
                    yield records.select(list(columns))
                    position = int64_values(records, "offset")[-1] + 1
            except DataLossError as error:
                begins = self._live_start(self.live, split, position, error)
                if isinstance(begins, Loss):
                    losses.accept(begins, error)
                    return
                # The broker deletes records after it has copied them to the bucket, so look for the missing records
                # there.
                late = self._late_copies(split, position, stop)
                if late is not None and late[1] > position:
                    # No record is lost so far. The bucket has the records up to ``end``, and the broker may have the
                    # later records.
                    lineage, end = late
                    yield from StoredRead(self, lineage, (position, end)).batches()
                    position = end
                else:
                    # The bucket may go on before the broker, after a gap.
                    later = None if late is None else late[0].start_after_gap(position)
                    begins = begins if later is None else min(begins, later)
                    lost = f"offsets {position} to {min(begins, stop) - 1} of {partition.topic}-{partition.partition}"
                    losses.accept(Loss(f"{error}", "; {} to continue", (f"{lost} are lost: {error}",)), error)
                    position = begins
            else:
                return

    def _live_start(self, live: LiveReader, split: LiveSplit, position: int, error: DataLossError) -> int | Loss:
        """Return the present first offset of the broker's log, which is after ``position``. If the query accepts
        losses, and the rest of the split no longer exists, return this loss.

        Otherwise raise ``error``, because retention is not the cause.
        """
        where, topic_id = (split.partition.topic, split.partition.partition), split.partition.topic_id
        now_id = live.cluster.topic(split.partition.topic).topic_id
        if now_id != topic_id:
            # Records that were read already may belong to the new topic, so they must not count as read.
            if self.query.fails_on_loss or position > split.start:
                raise error
            return loss_of_request(where, topic_id, position, split.stop, now_id)
        begins = live.cluster.earliest_offsets([where])[where]
        if begins > position:
            return begins
        if self.query.fails_on_loss:
            raise error
        now = live.cluster.ends([where], "read_uncommitted")[where]
        # A deposed leader has an earlier epoch. Its log may end early although no record is lost.
        is_deposed = split.epoch is not None and now.leader_epoch is not None and now.leader_epoch < split.epoch
        if is_deposed or now.offset >= position:
            raise error
        return loss_of_end(where, topic_id, now.offset, split.stop)

    def _late_copies(self, split: LiveSplit, start: int, stop: int) -> tuple[Lineage, int] | None:
        """Return the bucket's log with offsets from ``start`` on, and the offset at which the bucket's part of the
        range ends.

        The bucket's part ends at ``stop``, or earlier at the first gap. Under read_committed, it also ends before the
        first transaction without an outcome. It ends at ``start`` if the bucket lacks ``start``. Return None if the
        bucket has no log, or only records that an election has truncated. Each call lists the topic's keys.
        """
        source, partition = self.open_source(), split.stored_partition
        lineage: Lineage | None
        try:
            lineage = load_catalog(source, topic=partition.topic).lineage(
                partition.topic, partition.partition, partition.topic_id
            )
        except ResourceNotFoundError:
            return None
        lineage = lineage if split.cut is None else split.cut.apply(lineage)
        if lineage is None:
            return None
        # End at the first gap in the bucket, because the broker may have the offsets after the gap.
        end = min(stop, lineage.missing_from(start))
        if self.query.isolation == "read_committed":
            end = find_decided_end(source, lineage, start, end)
        return lineage, end


class StoredRead:
    """Reads a window of the bucket's offsets. ``position`` is always the next offset to read. Not thread-safe.

    The query's loss policy applies to segments that were deleted since the snapshot. It also applies to transactions
    whose outcome was in a deleted segment. Gaps in the window are skipped, because the caller has reported them.
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
        """The aborted transactions whose records were left out. The set may include later transactions of the same
        segment.
        """
        self._lost: list[LostOffsets] = []
        self._lineage = lineage
        self._window = window
        self._losses = Losses(sources.query)
        # The offset column is needed to track the position. Drop the column afterwards if the caller did not ask for
        # it.
        settings = sources.settings
        columns = tuple(dict.fromkeys((*settings.columns, "offset")))
        chosen = replace(settings, columns=columns, isolation=sources.query.isolation, on_data_loss="report")
        self._reader = SectionReader(sources.open_source(), chosen)
        self._schema = settings.schema

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the records. No record batch is empty. When a batch is yielded, ``position`` is already past it."""
        for first, last in find_runs(self._lineage, *self._window):
            self.position = max(self.position, first)
            # The loop has a second pass only if a segment is deleted during the read. That pass begins after the
            # deleted segment.
            while self.position < last:
                report = ReadReport(self.position, aborted=self.aborted)
                spans = next(runs_of_spans(self._lineage, self.position, last))
                try:
                    with closing(RunRead(self._reader, spans, self.position, last, report).read()) as run:
                        for records in run:
                            self.position = int64_values(records, "offset")[-1] + 1
                            yield first_rows(records, self._schema, records.num_rows)
                except SegmentNotFoundError as error:
                    self._lose_deleted(last, error)
                else:
                    self._judge(report, last)
        # Move past the window's last offsets, even if no records came from there. They may be transaction markers, or
        # aborted or lost records.
        self.position = max(self.position, self._window[1])

    def take_lost(self) -> list[LostOffsets]:
        """Return the losses before ``position`` that the query's policy has accepted since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _lose_deleted(self, stop: int, error: SegmentNotFoundError) -> None:
        """Apply the loss policy to a deleted segment, and continue after it."""
        end = min(stop, self._lineage.span_at(self.position).stop)
        lost = LostOffsets(self._lineage.partition, self.position, end)
        _lose_deleted(self._losses, lost, error)
        self._lost.append(lost)
        self.position = end

    def _judge(self, report: ReadReport, stop: int) -> None:
        """Apply the loss policy to offsets that the last segment lacks, and to a transaction without an outcome."""
        lost = [*report.lost]
        if report.undecided is not None:
            # At planning, every transaction in the window had an outcome (commit or abort). If an outcome is missing
            # now, retention has deleted the segment that had it. The rest of the window is then lost.
            first = max(self.position, report.undecided.first_offset)
            lost.append(LostOffsets(self._lineage.partition, first, stop))
        for one in lost:
            self._losses.accept_missing([one])
        self._lost += lost
        self.position = stop


def open_reader(query: LogQuery) -> LiveReader:
    """Create the Kafka clients for the query's broker. The clients connect at the first use. The caller closes them.

    Raise ConfigError for a query without client properties, and if ``tieredstore[kafka]`` is not installed.
    """
    if query.client is None:
        raise no_client()
    # Import the module only now, because it needs the extra `kafka`, and a query without a broker does not.
    from tieredstore.live import LiveReader  # noqa: PLC0415

    return LiveReader(query.client, isolation=query.isolation, timeout_s=query.timeout_s)


def _lose_deleted(losses: Losses, lost: LostOffsets, error: SegmentNotFoundError) -> None:
    """Apply the loss policy to offsets that retention has deleted from the bucket."""
    sentence = f"offsets {lost.start} to {lost.stop - 1} of {lost.partition} were deleted while they were read: {error}"
    losses.accept(Loss(sentence, way_out=""), error)


def _uncut_stop(split: LiveSplit, live: LiveReader, losses: Losses) -> int:
    """Return the offset at which the read must end. If an election since planning truncated the log before
    ``split.stop``, apply the loss policy.
    """
    if split.epoch is None:
        return split.stop
    where = split.partition.topic, split.partition.partition
    now = live.cluster.ends([where])[where]
    if now.leader_epoch is None or now.leader_epoch <= split.epoch:
        return split.stop
    answer = live.cluster.epoch_ends({where: split.epoch}).get(where)
    if answer is None or answer.end >= split.stop:
        return split.stop
    sentence = (
        f"offsets {max(answer.end, split.start)} to {split.stop - 1} of {split.partition} were requested, but an "
        f"election truncated the log at offset {answer.end}"
    )
    losses.accept(Loss(sentence, "; {} to read the current log"))
    return min(split.stop, max(split.start, now.offset))


def no_client() -> ConfigError:
    """Return the error for a query that reads a broker but names none."""
    return ConfigError("the query has no client properties (client), which name the broker to read from")
