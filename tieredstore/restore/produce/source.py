"""The committed records of the source (a bucket or a backup) in the form that a producer takes. A few partitions are
read at a time.

This module is separate from ``producing``, because this module uses buckets and backups, but no cluster.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import ConfigError, DataLossError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import Earliest, TopicPartition, name_of
from tieredstore.ops.offsets import without as offsets_without
from tieredstore.partitions.selections import Subscribe
from tieredstore.process.closing import Closing
from tieredstore.reading.losses import losses_between
from tieredstore.reading.omitted_records import describe_undecided
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings
from tieredstore.restore.produce.runs import ProduceOptions, SourceRange
from tieredstore.restore.produce.time_cut import find_cut

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.model import OffsetSpan, Places
    from tieredstore.reading.topic_backup import TopicBackup
    from tieredstore.reading.windows import Windows
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.restore.produce.time_cut import TimeCut
    from tieredstore.restore.produce.transactions import Headers, Row

_logger: Final = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Number of partitions to read in turns, so that several brokers have work. Each partition takes a few batches of 4 MiB
in memory."""

_CONVERTED: Final = 500
COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
"""The columns of a source's records."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Records of a source partition. ``next`` is the source offset from which to continue after these records."""

    where: TopicPartition
    next: int
    records: pa.RecordBatch | None
    """The next records; None at the end of the partition's range."""

    @property
    def size(self) -> int:
        """The bytes of keys, values and headers."""
        return 0 if self.records is None else int(self.records.nbytes)

    def __len__(self) -> int:
        return 0 if self.records is None else self.records.num_rows

    def rows(self) -> Iterator[Row]:
        """Yield the records in the form that a producer takes. To save memory, convert only a few records at a time to
        Python objects."""
        records = self.records
        slices = () if records is None else (records.slice(at, _CONVERTED) for at in range(0, len(self), _CONVERTED))
        return chain.from_iterable(map(_rows, slices))

    def offsets(self) -> Sequence[int]:
        """Return the records' offsets."""
        return [] if self.records is None else int64_values(self.records, "offset")


class SourceTopics(Closing, ABC):
    """The topics that a run of ``restore produce`` restores, in their state at the run's start. The run, its checks,
    and the search for the cut (where a restore to a time stops) share this state.

    The run reads records from ``bucket`` or from a backup. The offset map is always in ``bucket``. ``cut`` is the end
    of a restore to a time; None to restore all records.
    """

    is_backup: ClassVar[bool] = False
    cut: TimeCut | None = None

    def __init__(self, bucket: RemoteStorageManager, options: ProduceOptions) -> None:
        self.bucket = bucket
        self.options = options

    @property
    def lacks(self) -> Sequence[str]:
        """Sentences for users about data that the restore leaves out, because the source lacks it."""
        return ()

    @property
    @abstractmethod
    def topic_ids(self) -> Mapping[str, str]:
        """The id of each topic. In a backup, this id also identifies the backup."""

    @abstractmethod
    def ranges(self) -> dict[TopicPartition, SourceRange]:
        """Return the offsets that a new run of ``restore produce`` restores in each partition."""

    @abstractmethod
    def spans(self, ranges: Mapping[TopicPartition, SourceRange]) -> dict[TopicPartition, tuple[Span, ...]]:
        """Return the parts of segments that contain the ranges. A backup has no segments, so its tuples are empty."""

    def check(self, ranges: Mapping[TopicPartition, SourceRange]) -> None:
        """Check, before any record is produced, that the source has all offsets to restore. If offsets are missing,
        raise DataLossError, or log them if the options accept losses.
        """
        place = "backup" if self.is_backup else "bucket"
        for where, (start, stop) in self.losses_in(ranges):
            sentence = f"offsets {start} to {stop - 1} of {name_of(where)} are missing in the {place}"
            if self.options.on_data_loss != "report":
                raise DataLossError(f"{sentence}: bring them back, or use --on-loss report to leave them out")
            _logger.warning("%s, and are left out", sentence)

    @abstractmethod
    def losses(self, where: TopicPartition, start: int, stop: int) -> Sequence[OffsetSpan]:
        """Return the spans of ``[start, stop)`` that the source has lost, in ascending order and with exclusive
        ends."""

    def losses_in(self, ranges: Mapping[TopicPartition, SourceRange]) -> list[tuple[TopicPartition, OffsetSpan]]:
        """Return the spans of the remaining offsets that the source has lost, by partition, with exclusive ends."""
        return [
            (where, span)
            for where, left in sorted(ranges.items())
            if left.next < left.stop
            for span in self.losses(where, left.next, left.stop)
        ]

    @abstractmethod
    def read(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records of ``[start, stop)`` in offset order, with the columns ``COLUMNS``."""

    def batches(self, ranges: Mapping[TopicPartition, SourceRange], turn: int = 1) -> Generator[SourceBatch]:
        """Yield the remaining records of the ranges, from a few partitions in turns. Each partition's records come in
        offset order.

        A partition's turn ends at the end of a batch, once the partition has yielded at least ``turn`` records.
        """
        waiting = deque(sorted(where for where, left in ranges.items() if left.next < left.stop))
        turns: deque[Generator[SourceBatch]] = deque()
        try:
            while waiting or turns:
                while waiting and len(turns) < _AT_ONCE:
                    turns.append(self._partition(waiting[0], ranges[waiting.popleft()]))
                reader, count, is_over = turns[0], 0, False
                while count < turn and not is_over:
                    batch = next(reader)
                    yield batch
                    count, is_over = count + len(batch), batch.records is None
                turns.rotate(-1)
                if is_over:
                    turns.pop()
        finally:
            for reader in turns:
                reader.close()

    def _partition(self, where: TopicPartition, left: SourceRange) -> Generator[SourceBatch]:
        with closing(self.read(where, left.next, left.stop)) as batches:
            for records in batches:
                following = int64_values(records, "offset")[-1] + 1
                kept = without(records, left.left_out)
                if kept.num_rows:
                    _refuse_nul(where, kept)
                    yield SourceBatch(where, following, kept)
        yield SourceBatch(where, left.stop, None)


class BucketTopics(SourceTopics):
    """Topics of a bucket.

    A new run restores the records before ``cut``, or all records if ``cut`` is None. A continued run keeps the cut with
    which it began.
    """

    def __init__(self, source: RemoteStorageManager, options: ProduceOptions) -> None:
        super().__init__(source, options)
        words = QueryWords(accept_loss="use --on-loss report", topic_ids="--topic-id", choose_topic_id="--topic-id")
        topics = Subscribe(tuple(sorted(options.topics)))
        self._query = LogQuery(topics, topic_ids=options.topic_ids, on_data_loss=options.on_data_loss, words=words)
        self._reader = TopicReader(lambda: source, self._query, ReadSettings(columns=COLUMNS))
        self._snapshot = self._reader.snapshot()

    def find_cut(self, time_ms: int) -> TimeCut:
        """Find the cut for a time: the offsets where a restore to that time stops (see ``time_cut``)."""
        return find_cut(self.bucket, self._query, time_ms, self._snapshot)

    def end_at(self, cut: TimeCut | None) -> None:
        """Let a new run end at this cut."""
        self.cut = cut

    @property
    def lacks(self) -> Sequence[str]:
        """Sentences about records at the ends of logs, if a transaction before them has no end in the bucket."""
        cuts = {} if self.cut is None else {(cut.topic, cut.partition): cut.stop for cut in self.cut.partitions}
        return [
            f"left out: {describe_undecided(where, log.end, log.lineage.end_offset)}"
            for where, log in sorted(self._snapshot.logs.items())
            if log.lineage is not None and log.end < log.lineage.end_offset and cuts.get(where, log.end) >= log.end
        ]

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The id of each topic in the bucket."""
        return {topic: str(log.topic_id) for (topic, _), log in self._snapshot.logs.items()}

    def ranges(self) -> dict[TopicPartition, SourceRange]:
        """Return the offsets that a new run of ``restore produce`` restores in each partition.

        Raise ConfigError if the cut was made for other topics, or lacks one of the partitions.
        """
        cuts = {} if self.cut is None else self.cut.of_topics(self.topic_ids, self._snapshot.logs)
        stops = {where: cut.stop for where, cut in cuts.items()}
        windows = self.windows(Earliest(), stops)
        self._reader.lookup(self._snapshot).check_readable(windows, Earliest(), stops)
        return {
            where: SourceRange(start, start, stop, cuts[where].left_out if where in cuts else ())
            for where, (start, stop) in windows.items()
        }

    def windows(self, start: Places, stop: Places) -> Windows:
        """Return the offsets of each partition from ``start`` up to ``stop``."""
        return self._reader.lookup(self._snapshot).clamp(start, stop)

    def spans(self, ranges: Mapping[TopicPartition, SourceRange]) -> dict[TopicPartition, tuple[Span, ...]]:
        """Return for each partition the parts of its segments that cover its range."""
        lineages = {where: self._snapshot.logs[where].lineage for where in ranges}
        return {
            where: tuple(lineage.spans_between(ranges[where].start, ranges[where].stop))
            for where, lineage in lineages.items()
            if lineage is not None
        }

    def losses(self, where: TopicPartition, start: int, stop: int) -> Sequence[OffsetSpan]:
        """Return the offsets that are in no segment, or in an unreadable segment."""
        if where not in self._snapshot.logs:
            return [(start, stop)]
        return [(loss.start, loss.stop) for loss in losses_between(self._snapshot.logs[where], start, stop)]

    def read(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Read segments. A partition without segments has no records: see :meth:`check`."""
        if where in self._snapshot.logs:
            yield from self._reader.read(self._snapshot.logs[where], start, stop)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class BackupTopics(SourceTopics):
    """Topics of a backup. The caller closes the backup."""

    is_backup: ClassVar[bool] = True

    def __init__(self, bucket: RemoteStorageManager, options: ProduceOptions, backup: TopicBackup) -> None:
        super().__init__(bucket, options)
        self._backup = backup

    @property
    def lacks(self) -> Sequence[str]:
        """The backup's own sentences about missing data."""
        return self._backup.lacks

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The identity of each topic."""
        return self._backup.identities

    def ranges(self) -> dict[TopicPartition, SourceRange]:
        """Return all offsets of the backup."""
        return {where: SourceRange(start, start, stop) for where, (start, stop) in self._backup.spans().items()}

    def spans(self, ranges: Mapping[TopicPartition, SourceRange]) -> dict[TopicPartition, tuple[Span, ...]]:
        """Return an empty tuple for each partition, because a backup has no segments."""
        return dict.fromkeys(ranges, ())

    def losses(self, where: TopicPartition, start: int, stop: int) -> Sequence[OffsetSpan]:
        """Return the spans that are missing in the backup."""
        return self._backup.holes(where, start, stop)

    def read(self, where: TopicPartition, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """Yield the records from ``start`` to ``stop``, except in the offset spans that the backup has lost."""
        for first, end in offsets_without(self.losses(where, start, stop), (start, stop)):
            for batch in self._backup.records(where, first, end):
                yield batch.select(COLUMNS)

    def close(self) -> None:
        """Do nothing, because the caller opened the backup and closes it."""


def without(records: pa.RecordBatch, spans: Sequence[OffsetSpan]) -> pa.RecordBatch:
    """Return the records whose offsets are in none of the ``spans``. The spans must be in ascending order."""
    offsets = int64_values(records, "offset")
    kept, begin = list[pa.RecordBatch](), 0
    for start, stop in spans:
        if stop > offsets[0] and start <= offsets[-1]:
            first = bisect_left(offsets, start)
            kept.append(records.slice(begin, first - begin))
            begin = bisect_left(offsets, stop)
    if not begin and not kept:
        return records
    parts = pa.Table.from_batches([*kept, records.slice(begin)])
    return parts.combine_chunks().to_batches()[0] if parts.num_rows else records.slice(0, 0)


def _rows(records: pa.RecordBatch) -> Iterator[Row]:
    times = list(int64_values(records, "timestamp"))
    # librdkafka replaces the time 0 by the current time. So write 1, the closest time that librdkafka accepts.
    for row, time in enumerate(times) if 0 in times else ():
        times[row] = time or 1
    keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
    return zip(keys, values, times, header_lists(records.column("headers")), strict=True)


def _refuse_nul(where: TopicPartition, records: pa.RecordBatch) -> None:
    """Raise ConfigError for a header name with a NUL character, because librdkafka would cut the name there."""
    headers = records.column("headers")
    names = pc.struct_field(pc.list_flatten(headers), 0)
    found: list[int] = pc.indices_nonzero(pc.greater_equal(pc.find_substring(names, "\0"), 0)).to_pylist()
    if not found:
        return
    rows: list[int] = pc.list_parent_indices(headers).to_pylist()
    row = rows[found[0]]
    raise ConfigError(
        f"the record at offset {int64_values(records, 'offset')[row]} of {name_of(where)} has a header name with a NUL "
        "character, which Kafka's client cannot write: use tieredstore restore logdir"
    )


def header_lists(column: pa.Array) -> Sequence[Headers | None]:
    """Return the headers of each record in their order, or None for a record without headers. Names may repeat, and
    values may be None."""
    assert isinstance(column, pa.ListArray)
    every = column.flatten()
    assert isinstance(every, pa.StructArray)
    if not len(every):
        return [None] * len(column)
    pairs: Headers = list(zip(every.field(0).to_pylist(), every.field(1).to_pylist(), strict=True))
    ends: list[int] = column.offsets.to_pylist()
    return [pairs[start - ends[0] : stop - ends[0]] or None for start, stop in pairwise(ends)]


def consecutive(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Group ascending offsets into sequences of consecutive offsets. Return the first offset and the length of each
    sequence."""
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return [(first, len(offsets))]
    runs: list[tuple[int, int]] = []
    start = last = first
    for offset in offsets[1:]:
        if offset != last + 1:
            runs.append((start, last + 1 - start))
            start = offset
        last = offset
    return [*runs, (start, last + 1 - start)]
