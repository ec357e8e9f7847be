"""Compares the committed records of a bucket with those that a restore has put into a cluster, record by record.

Both sides are read as columns, and compared piece by piece. ``restore logdir`` keeps offsets, and ``restore produce``
has a map of them.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute

from tieredstore.errors import ConfigError
from tieredstore.live import LiveReader
from tieredstore.live.cluster import LiveCluster
from tieredstore.model import Earliest, Latest, TopicPartition, Uuid
from tieredstore.ops.offsets import without as offsets_without
from tieredstore.partitions.selections import Subscribe
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.reading import LogQuery, TopicReader
from tieredstore.reading.losses import losses_between
from tieredstore.records.columns import int64_values
from tieredstore.records.settings import ReadSettings
from tieredstore.restore.produce.control_topic import ControlTopic
from tieredstore.restore.produce.runs import CONTROL_TOPIC
from tieredstore.restore.produce.source import without

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import OffsetSpan
    from tieredstore.model import AtTime
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.remote.source import SegmentSource
    from tieredstore.restore.produce.offset_map import MappedRun, OffsetMap
    from tieredstore.restore.produce.runs import RunPosition, SourceRange

_logger: Final = logging.getLogger(__name__)

_compute: Final[Any] = pyarrow.compute

_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_AT_ONCE: Final = 4
"""Partitions in parallel. Each holds a few batches of 4 MiB."""

What: TypeAlias = Literal["timestamp", "key", "value", "headers", "missing", "extra", "not_restored"]
"""The field that differs; or the target lacks the record, or has another one; or the run's map lacks it."""

_FIELDS: Final[tuple[What, ...]] = ("timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """The first record of a partition that differs. An offset is None if that side has no such record."""

    what: What
    offset: int | None
    target_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """A source partition beside its target. ``first_offset`` and ``last_offset`` limit the comparison in the source.

    ``records`` and ``target_records`` are the committed ones, and the digests (SHA-256, hexadecimal) are over their
    offsets in the target, timestamps, keys, values and headers. ``not_restored`` counts source records that the run's
    map lacks; they are in no digest. Two kinds of offsets are not compared, and are given as inclusive spans: the
    bucket has lost the ``lost`` ones, and the cut of a run left out the ``left_out`` ones.
    """

    topic: str
    partition: int
    target_topic: str
    target_partition: int
    first_offset: int | None
    last_offset: int | None
    records: int
    target_records: int
    not_restored: int
    digest: str
    target_digest: str
    lost: Sequence[tuple[int, int]]
    left_out: Sequence[tuple[int, int]]
    difference: RecordDifference | None


class OffsetRule(Protocol):
    """Where the records of a source partition should be in the target."""

    def pieces(self, offsets: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
        """Yield for ascending offsets the rows ``[first, stop)`` that have one delta, or None if they are nowhere."""
        ...

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the target offsets ``[first, stop)`` that belong to these source offsets."""
        ...


class EqualOffsets:
    """The rule of log directories."""

    def pieces(self, offsets: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
        """Yield all rows with the delta 0."""
        yield 0, len(offsets), 0

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the same offsets."""
        return start, stop


class MappedOffsets:
    """The rule of a run of ``restore produce``: runs with a record at each offset, ascending."""

    def __init__(self, runs: Iterable[MappedRun]) -> None:
        self._runs = list(runs)
        self._ends = [run.source_end for run in self._runs]

    def pieces(self, offsets: Sequence[int]) -> Iterator[tuple[int, int, int | None]]:
        """Yield a piece for each run, and one for the rows between two of them."""
        row = 0
        for run in self._runs[bisect_right(self._ends, offsets[0]) :]:
            first = bisect_left(offsets, run.source, row)
            stop = bisect_left(offsets, run.source_end, first)
            if row < first:
                yield row, first, None
            if first < stop:
                yield first, stop, run.target - run.source
            row = stop
            if row == len(offsets):
                return
        yield row, len(offsets), None

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return from the target offset of the first mapped one to that after the last."""
        first = bisect_right(self._ends, start)
        within = [run for run in self._runs[first:] if run.source < stop]
        if not within:
            return 0, 0
        begin, end = within[0], within[-1]
        return (
            begin.target + max(0, start - begin.source),
            end.target + min(stop, end.source_end) - end.source,
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """A source partition to compare: its offsets ``[start, stop)``, and its target."""

    log: PartitionLog
    start: int
    stop: int
    target: TopicPartition
    rule: OffsetRule
    left_out: Sequence[OffsetSpan] = ()
    moves_zero_times: bool = False


class Comparison:
    """Compares topics of a bucket with the cluster of ``properties``, which have the names of Kafka's clients."""

    def __init__(self, source: SegmentSource, properties: Mapping[str, str], *, timeout_s: float = 60.0) -> None:
        self._source = source
        self._properties = properties
        self._timeout_s = timeout_s

    def same_offsets(
        self, topics: Mapping[str, str], start: int | AtTime | None = None, stop: int | AtTime | None = None
    ) -> Generator[ComparedPartition]:
        """Compare source topics with target topics in which each record has its old offset.

        ``start`` (inclusive) and ``stop`` are in the source. Raise ResourceNotFoundError for a topic that does not
        exist on one side, and the errors of reads.
        """

        def works(reader: TopicReader, snapshot: LogSnapshot) -> Iterator[_Work]:
            windows = reader.lookup(snapshot).clamped(
                Earliest() if start is None else start, Latest() if stop is None else stop
            )
            for where, (first, end) in windows.items():
                target = topics[where[0]], where[1]
                yield _Work(snapshot.logs[where], first, end, target, EqualOffsets())

        return self._compare(topics, works, {})

    def run(self, offset_map: OffsetMap) -> Generator[ComparedPartition]:
        """Compare what a run of ``restore produce`` has restored, by its map.

        The run's position in the cluster tells what its cut left out. Log a warning for a run that is not finished: it
        is compared as far as its map goes. Raise ConfigError for a topic whose keys were hashed anew, because its
        records have no exact offsets.
        """
        for topic, there in offset_map.topics.items():
            if there.is_rehashed:
                raise ConfigError(
                    f"the run {offset_map.run} hashed the keys of {topic} anew: its records have no exact offsets to "
                    "compare"
                )
        topics = {topic: there.target for topic, there in offset_map.topics.items()}
        position = self._position(offset_map.run)
        sources: Mapping[TopicPartition, SourceRange] = {} if position is None else position.sources
        ranges = {
            (topic, number): restored
            for topic in offset_map.topics
            for number, restored in offset_map.partitions(topic).items()
        }
        if position is not None and position.is_finished:
            topics |= position.topics
            ranges |= {where: range(one.start, one.stop) for where, one in sources.items()}
        else:
            _logger.warning("the run %s is not finished: it is compared as far as its map goes", offset_map.run)

        def works(_: TopicReader, snapshot: LogSnapshot) -> Iterator[_Work]:
            for where, restored in sorted(ranges.items()):
                runs = list(offset_map.mapped_runs(where))
                target = topics[where[0]], runs[0][0] if runs else where[1]
                yield _Work(
                    snapshot.logs[where], restored.start, restored.stop, target,
                    MappedOffsets(run for _, run in runs),
                    left_out=sources[where].left_out if where in sources else (), moves_zero_times=True,
                )  # fmt: skip

        topic_ids = {} if position is None else {name: Uuid.parse(text) for name, text in position.topic_ids.items()}
        return self._compare(topics, works, topic_ids)

    def _position(self, run: str) -> RunPosition | None:
        with LiveCluster(self._properties, isolation="read_committed", timeout_s=self._timeout_s) as cluster:
            if CONTROL_TOPIC not in cluster.describe([CONTROL_TOPIC]):
                return None
        with ControlTopic(self._properties, run, timeout_s=self._timeout_s, settles_s=self._timeout_s) as control:
            return control.newest_position()

    def _compare(
        self,
        topics: Mapping[str, str],
        works: Callable[[TopicReader, LogSnapshot], Iterator[_Work]],
        topic_ids: Mapping[str, Uuid],
    ) -> Generator[ComparedPartition]:
        # Losses are in the result, so they need no error.
        query = LogQuery(Subscribe(tuple(sorted(topics))), on_data_loss="report", topic_ids=topic_ids)
        with (
            TopicReader(lambda: self._source, query, ReadSettings(columns=_COLUMNS)) as reader,
            LiveReader(self._properties, isolation="read_committed", timeout_s=self._timeout_s) as target,
            ThreadPool(_AT_ONCE, "tieredstore-compare") as pool,
        ):
            for topic in topics.values():
                target.cluster.existing_topic(topic)
            work = list(works(reader, reader.snapshot()))
            starts = target.cluster.earliest_offsets([one.target for one in work])
            ends = target.cluster.end_offsets([one.target for one in work], "read_committed")
            compare = partial(_compare_partition, reader, target, starts, ends)
            with closing(in_parallel(pool, compare, work, at_once=_AT_ONCE)) as done:
                yield from done


def _compare_partition(
    reader: TopicReader,
    target: LiveReader,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    work: _Work,
) -> ComparedPartition:
    pair = _Pair()
    lost = [(loss.start, loss.stop) for loss in losses_between(work.log, work.start, work.stop)]
    for start, stop in offsets_without(lost, (work.start, work.stop)):
        first, end = work.rule.span(start, stop)
        # The target may have lost records at both ends. They are then missing in the comparison.
        first, end = max(first, starts[work.target]), min(end, ends[work.target])
        with (
            closing(reader.read(work.log, start, stop)) as ours,
            closing(target.read(*work.target, first, max(first, end), columns=_COLUMNS)) as theirs,
        ):
            pair.compare(_expected(ours, work, pair), (_Rows(None, batch) for batch in theirs))
    is_empty = work.start == work.stop
    return ComparedPartition(
        topic=work.log.topic,
        partition=work.log.partition,
        target_topic=work.target[0],
        target_partition=work.target[1],
        first_offset=None if is_empty else work.start,
        last_offset=None if is_empty else work.stop - 1,
        records=pair.ours.records,
        target_records=pair.theirs.records,
        not_restored=pair.not_restored,
        digest=pair.ours.hexdigest(),
        target_digest=pair.theirs.hexdigest(),
        lost=[(start, stop - 1) for start, stop in lost],
        left_out=[(start, stop - 1) for start, stop in work.left_out],
        difference=pair.difference,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Records with the target offsets that they have or should have. ``offsets`` are those in the source, if known."""

    offsets: Any
    records: Any

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def cut(self, first: int, stop: int) -> _Rows:
        """Return some of the rows."""
        offsets = None if self.offsets is None else self.offsets.slice(first, stop - first)
        return _Rows(offsets, self.records.slice(first, stop - first))


def _expected(batches: Iterable[pa.RecordBatch], work: _Work, pair: _Pair) -> Iterator[_Rows]:
    """Yield the source's records with the offsets that they should have in the target."""
    for batch in batches:
        records: Any = without(batch, work.left_out)
        if not records.num_rows:
            continue
        if work.moves_zero_times:
            # restore produce cannot write the time 0, which librdkafka takes for "now".
            times = records.column("timestamp")
            times = _compute.if_else(_compute.equal(times, 0), pa.scalar(1, pa.int64()), times)
            records = records.set_column(1, records.schema.field("timestamp"), times)
        for first, stop, delta in work.rule.pieces(int64_values(records, "offset")):
            piece = records.slice(first, stop - first)
            offsets = piece.column("offset")
            if delta is None:
                pair.note_not_restored(offsets)
                continue
            there = _compute.add(offsets, pa.scalar(delta, pa.int64()))
            yield _Rows(offsets, piece.set_column(0, piece.schema.field("offset"), there))


class _Side:
    """The number of records of one side, and a digest that does not depend on how they were cut into batches.

    Each column is two streams: the lengths of its values, -1 for null, and their bytes.
    """

    def __init__(self) -> None:
        self.records = 0
        self._streams = [hashlib.sha256() for _ in range(11)]

    def seeing(self, pieces: Iterator[_Rows]) -> Iterator[_Rows]:
        """Yield the pieces after adding them."""
        for piece in pieces:
            self._add(piece.records)
            yield piece

    def _add(self, records: Any) -> None:
        self.records += records.num_rows
        headers = records.column("headers")
        pairs = _compute.list_flatten(headers)
        parts = [
            _fixed(records.column("offset")),
            _fixed(records.column("timestamp")),
            *_binary(records.column("key")),
            *_binary(records.column("value")),
            _lengths(_compute.list_value_length(headers)),
            *_binary(_compute.struct_field(pairs, [0])),
            *_binary(_compute.struct_field(pairs, [1])),
        ]
        for stream, part in zip(self._streams, parts, strict=True):
            stream.update(part)

    def hexdigest(self) -> str:
        """Return the digest of all streams."""
        return hashlib.sha256(b"".join(stream.digest() for stream in self._streams)).hexdigest()


@dataclass(slots=True)
class _Pair:
    """What has been seen of both sides of a partition so far."""

    ours: _Side = field(default_factory=_Side)
    theirs: _Side = field(default_factory=_Side)
    not_restored: int = 0
    difference: RecordDifference | None = None

    def note_not_restored(self, offsets: Any) -> None:
        """Count records that are nowhere in the target."""
        self.not_restored += len(offsets)
        self._note("not_restored", offsets[0].as_py(), None)

    def compare(self, ours: Iterator[_Rows], theirs: Iterator[_Rows]) -> None:
        """Compare up to the first difference, and count all records."""
        for one, other in _side_by_side(self.ours.seeing(ours), self.theirs.seeing(theirs)):
            if self.difference is not None:
                continue
            if one is None or other is None:
                self._note_single(one, other)
            elif not one.records.equals(other.records):
                self._note_different(one, other)

    def _note_single(self, one: _Rows | None, other: _Rows | None) -> None:
        if one is not None:
            self._note("missing", one.offsets[0].as_py(), one.records.column("offset")[0].as_py())
        elif other is not None:
            self._note("extra", None, other.records.column("offset")[0].as_py())

    def _note_different(self, one: _Rows, other: _Rows) -> None:
        row = _first_different(one.records, other.records)
        offset, expected = one.offsets[row].as_py(), one.records.column("offset")[row].as_py()
        actual = other.records.column("offset")[row].as_py()
        if actual > expected:
            self._note("missing", offset, expected)
        elif actual < expected:
            self._note("extra", None, actual)
        else:
            for name in _FIELDS:
                if not one.records.column(name)[row].equals(other.records.column(name)[row]):
                    self._note(name, offset, expected)

    def _note(self, what: What, offset: int | None, target_offset: int | None) -> None:
        if self.difference is None:
            self.difference = RecordDifference(what, offset, target_offset)


def _side_by_side(ours: Iterator[_Rows], theirs: Iterator[_Rows]) -> Iterator[tuple[_Rows | None, _Rows | None]]:
    """Yield pieces of both sides with the same number of rows; at the end, None for the shorter side."""
    one, other = next(ours, None), next(theirs, None)
    while one is not None and other is not None:
        rows = min(len(one), len(other))
        yield one.cut(0, rows), other.cut(0, rows)
        one = one.cut(rows, len(one)) if rows < len(one) else next(ours, None)
        other = other.cut(rows, len(other)) if rows < len(other) else next(theirs, None)
    while one is not None or other is not None:
        yield one, other
        one, other = next(ours, None), next(theirs, None)


def _first_different(one: Any, other: Any) -> int:
    """Return the first row that differs, by halving; the tables differ, and have the same number of rows."""
    first, stop = 0, one.num_rows
    while stop - first > 1:
        middle = (first + stop) // 2
        if one.slice(first, middle - first).equals(other.slice(first, middle - first)):
            first = middle
        else:
            stop = middle
    return int(first)


def _fixed(column: Any) -> memoryview:
    """Return the bytes of a column of int64 without nulls."""
    return memoryview(column.buffers()[1])[column.offset * 8 : (column.offset + len(column)) * 8]


def _lengths(lengths: Any) -> memoryview:
    return _fixed(_compute.fill_null(lengths, -1).cast(pa.int64()))


def _binary(column: Any) -> tuple[memoryview, bytes | memoryview]:
    """Return the lengths of the values, and the values themselves one after the other."""
    binary = column.cast(pa.large_binary())
    lengths = _lengths(_compute.binary_length(binary))
    # Null values may have bytes.
    values = _compute.drop_null(binary) if binary.null_count else binary
    if not len(values) or values.buffers()[2] is None:
        return lengths, b""
    ends = memoryview(values.buffers()[1]).cast("q")
    return lengths, memoryview(values.buffers()[2])[ends[values.offset] : ends[values.offset + len(values)]]
