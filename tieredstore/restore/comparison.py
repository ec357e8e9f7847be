"""Comparison of a source's committed records with the records that a restore has put into a cluster, record by record.

The comparison reads both sides as columns, and compares them in batches. ``restore logdir`` keeps offsets, and
``restore produce`` writes an offset map.

If keys were hashed again, the map has offset runs: sequences of a source partition's records that are consecutive in
one target partition. Each side is then read once, and a digest is computed for each offset run. The first offset run
with different digests is read again, to find the first different record.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import ConfigError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.live import LiveReader
from tieredstore.model import Earliest, Latest, TopicPartition, Uuid
from tieredstore.ops.offsets import without as offsets_without
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.restore.pairs import Pair, RecordDifference, Rows, Side
from tieredstore.restore.produce.runs import CONTROL_TOPIC, ControlTopic, OffsetRun, Partitioning, ProduceOptions
from tieredstore.restore.produce.source import COLUMNS, BackupTopics, BucketTopics, without

if TYPE_CHECKING:
    from tieredstore.model import AtTime, OffsetSpan
    from tieredstore.reading.topic_backup import TopicBackup
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.restore.produce.offset_map import OffsetMap
    from tieredstore.restore.produce.runs import RunPosition, SourceRange
    from tieredstore.restore.produce.source import SourceTopics

_logger: Final = logging.getLogger(__name__)


_AT_ONCE: Final = 4
"""Number of partitions to compare in parallel. Each partition takes a few batches of 4 MiB in memory."""

_SETTLES_S: Final = 60.0
"""The longest time to wait for the transaction of a running restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPartition:
    """A source partition and its target. ``first_offset`` and ``last_offset`` are the limits of the comparison in the
    source. ``target_partition`` is None if keys were hashed again, because the records may be in any partition.

    ``records`` and ``target_records`` count committed records. The digests (SHA-256, hexadecimal) cover the records'
    offsets in the target, timestamps, keys, values and headers. ``not_restored`` counts source records that are not in
    the run's map. No digest covers these records.

    Two kinds of offsets are not compared, and are listed as inclusive spans. ``lost`` has the offsets that the source
    has lost. ``left_out`` has the offsets that a restore to a time did not restore.
    """

    topic: str
    partition: int
    target_topic: str
    target_partition: int | None
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


class MappedOffsets:
    """The target offsets that the records of a source partition should have, as ascending offset runs. Within an offset
    run, the difference between target and source offsets is constant.

    A restore of log directories keeps all offsets, so ``runs`` has a single offset run. It also covers offsets that
    have no record on either side.
    """

    def __init__(self, runs: Iterable[OffsetRun]) -> None:
        self.runs = list(runs)
        self._ends = [run.end for run in self.runs]

    def pieces(self, offsets: Sequence[int]) -> Iterator[tuple[int, int, OffsetRun | None]]:
        """Split ascending offsets at the limits of the offset runs. Yield row ranges ``[first, stop)``, each with its
        offset run, or with None for rows between two offset runs."""
        row = 0
        for run in islice(self.runs, bisect_right(self._ends, offsets[0]), None):
            first = bisect_left(offsets, run.start, row)
            stop = bisect_left(offsets, run.end, first)
            if row < first:
                yield row, first, None
            if first < stop:
                yield first, stop, run
            row = stop
            if row == len(offsets):
                return
        yield row, len(offsets), None

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range ``[first, stop)`` of target offsets to which the source offsets from ``start`` to ``stop``
        are mapped."""
        first = bisect_right(self._ends, start)
        within = [run for run in self.runs[first:] if run.start < stop]
        if not within:
            return 0, 0
        begin, end = within[0], within[-1]
        return (
            begin.target_start + max(0, start - begin.start),
            end.target_start + min(stop, end.end) - end.start,
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """A source partition to compare. It has the offsets ``[start, stop)``, and rules that decide the target partition
    of each record.

    The source partition usually has a single target partition. If keys were hashed again, ``partitioning`` computes
    each record's partition.
    """

    where: TopicPartition
    start: int
    stop: int
    topic: str
    rules: Mapping[int, MappedOffsets]
    lost: Sequence[OffsetSpan]
    """The spans that the source has lost; the ends are exclusive."""
    left_out: Sequence[OffsetSpan] = ()
    moves_zero_times: bool = False
    partitioning: Partitioning | None = None

    @property
    def target(self) -> TopicPartition:
        """The only target partition. If keys were hashed again, there are several, and this property raises an
        error."""
        (number,) = self.rules
        return self.topic, number

    def select(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records that a run restores, with the content that they should have in the target, and with their
        source offsets."""
        for batch in batches:
            records = without(batch, self.left_out)
            if self.moves_zero_times:
                # restore produce writes the time 0 as 1, because librdkafka replaces 0 by the current time.
                times = records.column("timestamp")
                times = pc.if_else(pc.equal(times, 0), pa.scalar(1, pa.int64()), times)
                records = records.set_column(1, records.schema.field("timestamp"), times)
            if records.num_rows:
                yield records

    def report(self, pair: Pair, digests: tuple[str, str]) -> ComparedPartition:
        """Return the result for the partition."""
        is_empty = self.start == self.stop
        return ComparedPartition(
            topic=self.where[0],
            partition=self.where[1],
            target_topic=self.topic,
            target_partition=self.target[1] if self.partitioning is None else None,
            first_offset=None if is_empty else self.start,
            last_offset=None if is_empty else self.stop - 1,
            records=pair.ours.records,
            target_records=pair.theirs.records,
            not_restored=pair.not_restored,
            digest=digests[0],
            target_digest=digests[1],
            lost=[(start, stop - 1) for start, stop in self.lost],
            left_out=[(start, stop - 1) for start, stop in self.left_out],
            difference=pair.difference,
        )


class Comparison:
    """Comparison of a bucket's topics with a cluster's topics. ``properties`` configure the Kafka client for the
    cluster."""

    def __init__(self, bucket: RemoteStorageManager, properties: Mapping[str, str]) -> None:
        self._bucket = bucket
        self._properties = properties

    def same_offsets(
        self, topics: Mapping[str, str], start: int | AtTime | None = None, stop: int | AtTime | None = None
    ) -> Generator[ComparedPartition]:
        """Compare source topics with target topics in which each record has its old offset.

        ``start`` (inclusive) and ``stop`` (exclusive) are source offsets. Raise ResourceNotFoundError for a topic that
        does not exist on one side, and the errors of reads.
        """
        with BucketTopics(self._bucket, ProduceOptions(topics=topics, name="verify", on_data_loss="report")) as source:
            windows = source.windows(Earliest() if start is None else start, Latest() if stop is None else stop)
            work: list[_Work] = []
            for where, (first, end) in windows.items():
                rules = {where[1]: MappedOffsets([OffsetRun(*where, first, where[1], first, end - first)])}
                work.append(_Work(where, first, end, topics[where[0]], rules, source.losses(where, first, end)))
            yield from self._compare(source, topics, work)

    def run(self, offset_map: OffsetMap, backup: TopicBackup | None = None) -> Generator[ComparedPartition]:
        """Compare the records that a run of ``restore produce`` has restored with their source. The source is
        ``backup``, or the bucket if ``backup`` is None. ``offset_map`` is the run's map.

        The run has stored its position in the cluster. The position also shows which offsets a restore to a time left
        out. If the run is not finished, log a warning, and compare only the records in its offset map.

        Raise ConfigError if the position names another source. Also raise ConfigError if the run hashed keys again and
        its position is missing, because only the position names the partitioner.
        """
        topics = {topic: there.target for topic, there in offset_map.topics.items()}
        position = self._position(offset_map.run)
        if position is None and any(there.is_rehashed for there in offset_map.topics.values()):
            raise ConfigError(
                f"the run {offset_map.run} hashed keys again, but {CONTROL_TOPIC} of this cluster does not say how: "
                "name the cluster that the run restored into"
            )
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
            _logger.warning(
                "the run %s is not finished: only the offsets in its offset map are compared", offset_map.run
            )

        with self._source(offset_map.run, topics, position, backup) as source:
            work: list[_Work] = []
            for where, restored in sorted(ranges.items()):
                target, runs = topics[where[0]], list(offset_map.mapped_runs(where))
                rules = {
                    number: MappedOffsets(each) for number, each in groupby(runs, lambda run: run.target_partition)
                }
                partitioning = None
                if position is not None and position.partitioner != "keep":
                    partitioning = Partitioning(
                        position.partitioner, sum(topic == target for topic, _ in position.ends)
                    )
                elif not rules:
                    rules = {where[1]: MappedOffsets(())}
                work.append(
                    _Work(
                        where, restored.start, restored.stop, target, rules,
                        lost=source.losses(where, restored.start, restored.stop),
                        left_out=sources[where].left_out if where in sources else (),
                        moves_zero_times=True, partitioning=partitioning,
                    )
                )  # fmt: skip
            yield from self._compare(source, topics, work)

    def _source(
        self, run: str, topics: Mapping[str, str], position: RunPosition | None, backup: TopicBackup | None
    ) -> SourceTopics:
        """Return the source of a run. Raise ConfigError if the run's position names another source."""
        began: Mapping[str, str] = {} if position is None else position.topic_ids
        there = "; ".join(f"{topic} of {text}" for topic, text in sorted(began.items()))
        if backup is not None:
            if began and began != backup.identities:
                raise ConfigError(f"the run {run} did not restore this backup (--backup), but {there}")
            return BackupTopics(self._bucket, ProduceOptions(topics=topics, name=run), backup)
        topic_ids: dict[str, Uuid] = {}
        for topic, text in began.items():
            if (topic_id := Uuid.parse_canonical(text)) is None:
                raise ConfigError(f"the run {run} restored {there}: name the settings of this backup (--backup)")
            topic_ids[topic] = topic_id
        # Losses are reported in the result, so they must not raise an error.
        options = ProduceOptions(topics=topics, topic_ids=topic_ids, name=run, on_data_loss="report")
        return BucketTopics(self._bucket, options)

    def _position(self, run: str) -> RunPosition | None:
        with LiveReader(self._properties, isolation="read_committed") as reader:
            if CONTROL_TOPIC not in reader.cluster.describe([CONTROL_TOPIC]):
                return None
            return ControlTopic(reader, run, settles_s=_SETTLES_S).newest_position()

    def _compare(
        self, source: SourceTopics, topics: Mapping[str, str], work: Sequence[_Work]
    ) -> Generator[ComparedPartition]:
        with (
            LiveReader(self._properties, isolation="read_committed") as target,
            ThreadPool(_AT_ONCE, "tieredstore-compare") as pool,
        ):
            for topic in topics.values():
                target.cluster.existing_topic(topic)
            there = _Target(target, {(one.topic, number) for one in work for number in one.rules})
            by_run = _RunDigests()
            for digests in in_parallel(
                pool, partial(_digest_target, there), _runs_by_target(work).items(), at_once=_AT_ONCE
            ):
                by_run.add_all(digests)

            def compare(one: _Work) -> ComparedPartition:
                if one.partitioning is None:
                    return _compare_partition(source, there, one)
                return _compare_rehashed(source, there, by_run, one, one.partitioning)

            # A backup is not thread-safe, so read it on one thread.
            with closing(in_parallel(pool, compare, work, at_once=1 if source.is_backup else _AT_ONCE)) as done:
                yield from done


class _Target:
    """The target partitions of a comparison."""

    def __init__(self, reader: LiveReader, partitions: Collection[TopicPartition]) -> None:
        self._reader = reader
        self._starts = reader.cluster.earliest_offsets(partitions)
        self._ends = reader.cluster.end_offsets(partitions, "read_committed")

    def read(self, where: TopicPartition, span: OffsetSpan) -> Generator[pa.RecordBatch]:
        """Read the records that the target has in the range ``span``. The comparison finds that all other records are
        missing."""
        start, stop = max(span[0], self._starts[where]), min(span[1], self._ends[where])
        return self._reader.read(*where, start, max(start, stop), columns=COLUMNS)


def _compare_partition(source: SourceTopics, target: _Target, work: _Work) -> ComparedPartition:
    pair, rule = Pair(), work.rules[work.target[1]]
    for start, stop in offsets_without(work.lost, (work.start, work.stop)):
        with (
            closing(source.read(work.where, start, stop)) as ours,
            closing(target.read(work.target, rule.span(start, stop))) as theirs,
        ):
            pair.compare(_expect(ours, work, rule, pair), (Rows(batch.column("offset"), batch) for batch in theirs))
    return work.report(pair, (pair.ours.hexdigest(), pair.theirs.hexdigest()))


def _expect(batches: Iterable[pa.RecordBatch], work: _Work, rule: MappedOffsets, pair: Pair) -> Iterator[Rows]:
    """Yield the source's records with the offsets that they should have in the target."""
    for records in work.select(batches):
        for first, stop, run in rule.pieces(int64_values(records, "offset")):
            piece = records.slice(first, stop - first)
            if run is None:
                pair.note_not_restored(piece.column("offset"))
                continue
            delta = pa.scalar(run.target_start - run.start, pa.int64())
            yield Rows.from_source(piece, pc.add(piece.column("offset"), delta))


def _expect_by_key(
    batches: Iterable[pa.RecordBatch], work: _Work, partitioning: Partitioning, pair: Pair
) -> Iterator[tuple[OffsetRun, Rows]]:
    """Yield the source's records by offset run, each record with the offset that it should have in the target."""
    nowhere, counts = MappedOffsets(()), Counter[OffsetRun]()
    for records in work.select(batches):
        keys = records.column("key").to_pylist()
        for partition, places in partitioning.shares(keys, work.where[1]).items():
            share = records.take(pa.array(places, pa.int64()))
            for first, stop, run in work.rules.get(partition, nowhere).pieces(int64_values(share, "offset")):
                piece, count = share.slice(first, stop - first), stop - first
                if run is None:
                    pair.note_not_restored(piece.column("offset"))
                    continue
                begin = run.target_start + counts[run]
                counts[run] += count
                yield run, Rows.from_source(piece, pa.array(range(begin, begin + count), pa.int64()))


class _RunDigests:
    """Digests of offset runs on one side. Records between two offset runs belong to neither. For each offset run,
    ``extra`` has the number of such records just before it, and their first offset.
    """

    def __init__(self) -> None:
        self.extra: dict[OffsetRun, tuple[int, int]] = {}
        self._whole: dict[OffsetRun, str] = {}
        self._parts: dict[OffsetRun, Side] = {}

    def add(self, run: OffsetRun, records: pa.RecordBatch) -> None:
        """Add records of an offset run to its digest."""
        side = self._parts.setdefault(run, Side())
        side.add(records)
        # A Side has many hash objects, which take memory. After the last record of an offset run, keep only their joint
        # digest.
        if side.records == run.length and run not in self._whole:
            self._whole[run] = self._parts.pop(run).hexdigest()

    def add_all(self, other: _RunDigests) -> None:
        """Add the offset runs of another target partition."""
        self.extra |= other.extra
        self._whole |= other._whole
        self._parts |= other._parts

    def of(self, run: OffsetRun) -> tuple[int, str]:
        """Return the number of records that were added for an offset run, and their digest."""
        part = self._parts.get(run, Side())
        return part.records + run.length * (run in self._whole), self._whole.get(run, "") + part.hexdigest()


def _runs_by_target(works: Iterable[_Work]) -> dict[TopicPartition, list[OffsetRun]]:
    """Return the offset runs of each target partition, in the order of target offsets. Leave out topics whose keys were
    not hashed again."""
    runs: dict[TopicPartition, list[OffsetRun]] = {}
    for work in works:
        for number, rule in work.rules.items() if work.partitioning is not None else ():
            runs.setdefault((work.topic, number), []).extend(rule.runs)
    return {where: sorted(each, key=lambda run: run.target_start) for where, each in runs.items()}


def _digest_target(target: _Target, item: tuple[TopicPartition, Sequence[OffsetRun]]) -> _RunDigests:
    """Read a target partition, and return the digests of its offset runs."""
    where, runs = item
    made, ends = _RunDigests(), [run.target_end for run in runs]
    with closing(target.read(where, (runs[0].target_start, ends[-1]))) as batches:
        for batch in batches:
            offsets, row = int64_values(batch, "offset"), 0
            for run in islice(runs, bisect_right(ends, offsets[0]), None):
                first = bisect_left(offsets, run.target_start, row)
                stop = bisect_left(offsets, run.target_end, first)
                if row < first:
                    count, begin = made.extra.get(run, (0, offsets[row]))
                    made.extra[run] = count + first - row, begin
                if first < stop:
                    made.add(run, batch.slice(first, stop - first))
                row = stop
                if row == len(offsets):
                    break
    return made


def _compare_rehashed(
    source: SourceTopics, target: _Target, theirs: _RunDigests, work: _Work, partitioning: Partitioning
) -> ComparedPartition:
    pair, ours = Pair(), _RunDigests()
    for start, stop in offsets_without(work.lost, (work.start, work.stop)):
        with closing(source.read(work.where, start, stop)) as batches:
            for run, rows in _expect_by_key(batches, work, partitioning, pair):
                ours.add(run, rows.records)
    digests = hashlib.sha256(), hashlib.sha256()
    for run in sorted(run for rule in work.rules.values() for run in rule.runs):
        here, there = ours.of(run), theirs.of(run)
        # The bucket has lost records of this offset run since the restore. Different digests therefore prove nothing.
        if here != there and any(start < run.end and run.start < stop for start, stop in work.lost):
            continue
        pair.ours.records += here[0]
        pair.theirs.records += there[0]
        for digest, (_, text) in zip(digests, (here, there), strict=True):
            digest.update(text.encode())
        if here != there and pair.difference is None:
            pair.difference = _first_of_run(source, target, work, partitioning, run)
        if (extra := theirs.extra.get(run)) is not None:
            pair.theirs.records += extra[0]
            pair.difference = pair.difference or RecordDifference("extra", None, extra[1], run.target_partition)
    return work.report(pair, (digests[0].hexdigest(), digests[1].hexdigest()))


def _first_of_run(
    source: SourceTopics, target: _Target, work: _Work, partitioning: Partitioning, run: OffsetRun
) -> RecordDifference | None:
    """Return the first difference in an offset run."""
    pair, where = Pair(), (work.topic, run.target_partition)
    with (
        closing(source.read(work.where, run.start, run.end)) as ours,
        closing(target.read(where, (run.target_start, run.target_end))) as theirs,
    ):
        expected = (rows for of, rows in _expect_by_key(ours, work, partitioning, pair) if of == run)
        pair.compare(expected, (Rows(batch.column("offset"), batch) for batch in theirs))
    return pair.difference and replace(pair.difference, target_partition=run.target_partition)
