"""Tracing of the lineages (the valid segments of each log) of many partitions. Decides what to read besides the
manifests, and reads it.

A manifest has no checksum. One wrong digit could extend a segment over the following ones, or put it into a wrong
leader epoch. Then other segments, or the segment itself, would wrongly be ignored. So before a segment replaces
another one in the log, its manifest is compared with its contents.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.catalog import PartitionSegments
from tieredstore.catalog.completion import last_batch, read_history
from tieredstore.catalog.lineage import (
    Lineage,
    earliest_of_first_epoch,
    last_before,
    needs_history,
    ruling_segment,
    trace_lineage,
    with_earliest_start,
)
from tieredstore.catalog.problems import Problem, ProblemKind
from tieredstore.catalog.watermark import ShippedSegment, find_watermark
from tieredstore.errors import (
    CorruptDataError,
    IndexNotRecordedError,
    ObjectArchivedError,
    SegmentCorruptError,
    SegmentNotFoundError,
    TieredStoreError,
    UnknownKeyError,
    WrongKeyError,
)
from tieredstore.kafka.checkpoints import LeaderEpochs, join_epochs, segment_leader_epochs
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.process.parallel import in_parallel

if TYPE_CHECKING:
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_INDEXES_OF_AN_EPOCH: Final = 3
"""The number of indexes to try per leader epoch. If the indexes of the epoch's earliest segments lack the earlier
epochs, the indexes of later segments lack them too.
"""


_UNREADABLE: Final = (CorruptDataError, UnknownKeyError, WrongKeyError, IndexNotRecordedError, SegmentNotFoundError)
"""Errors of a leader-epoch index that cannot be read, or that contradicts its segment."""


@dataclass(frozen=True, slots=True)
class TracedPartition:
    """Segments of one partition, and the ruling segment. ``history`` is the ruling segment's leader-epoch index, None
    if not needed.

    The end and epochs of the ``proven`` segments were compared with the segments' contents, and corrected if wrong.
    """

    ruler: RemoteLogSegmentMetadata
    history: LeaderEpochs | None
    segments: PartitionSegments
    proven: tuple[RemoteLogSegmentMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownProofs:
    """Results of earlier runs: leader-epoch indexes, and segments whose end and epochs were proven."""

    histories: Mapping[RemoteLogSegmentId, LeaderEpochs] = field(default_factory=dict[RemoteLogSegmentId, LeaderEpochs])
    segments: Collection[RemoteLogSegmentId] = frozenset()


@dataclass(frozen=True, slots=True)
class Traced:
    """The partitions with segments, and the segments that cannot be used."""

    partitions: list[TracedPartition]
    problems: list[Problem]


def trace_partitions(
    source: RemoteStorageManager,
    segments: Iterable[RemoteLogSegmentMetadata],
    known: KnownProofs,
    pool: Executor,
    *,
    at_once: int,
) -> Traced:
    """Trace the lineage (the valid segments of one log) of each partition of ``segments``.

    Reading a leader-epoch index that is not ``known`` takes two requests. If retention had truncated that index, each
    further index that completes it takes two more requests.

    If a manifest says that its segment overlaps others, or that the segment's leader epoch is superseded, the manifest
    is first compared with the segment's log and indexes, by three requests. A partition with superseded segments takes
    one more request, for its watermark, and two if the watermark names a segment that the listing lacks.

    An error in a partition's index is returned in place of the partition's lineage. An error of the store is raised.
    """
    grouped: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
    group: list[RemoteLogSegmentMetadata] = []
    before: TopicIdPartition | None = None
    for segment in segments:
        where = segment.remote_log_segment_id.topic_id_partition
        # Compare partitions by identity, because hashing takes a hundred times as long. Consecutive segments usually
        # share one partition object.
        if where is not before:
            group, before = grouped[where], where
        group.append(segment)
    jobs = in_parallel(pool, lambda group: _Tracing(source, group, known).trace(), grouped.values(), at_once=at_once)
    traced = Traced([], [])
    for partition, problems in jobs:
        traced.problems.extend(problems)
        if partition is not None:
            traced.partitions.append(partition)
    return traced


class _Tracing:
    """Traces one partition, from manifests to a lineage (the valid segments of one log)."""

    def __init__(
        self, source: RemoteStorageManager, segments: Iterable[RemoteLogSegmentMetadata], known: KnownProofs
    ) -> None:
        self._source = source
        self._known = known
        self._segments = {segment.remote_log_segment_id: segment for segment in segments}
        self._asked: set[RemoteLogSegmentId] = set()
        self._proven: set[RemoteLogSegmentId] = set()
        self._problems: list[Problem] = []
        self._named: RemoteLogSegmentId | None = None
        """The ruling segment by the watermark."""
        self._has_looked = False

    def trace(self) -> tuple[TracedPartition | None, list[Problem]]:
        self._prove(find_overlapping(self._segments.values()))
        while self._segments:
            named = None if self._named is None else self._segments.get(self._named)
            ruler = named or ruling_segment(self._segments.values())
            history: LeaderEpochs | None = None
            lineage: Lineage | TieredStoreError
            try:
                history = self._history(ruler)
                lineage = trace_lineage(list(self._segments.values()), ruler, history)
                doubtful = [part.segment for part in lineage.superseded]
            # Keep the error in place of the lineage (the valid segments of one log). Other partitions then stay usable.
            except (*_UNREADABLE, ObjectArchivedError) as error:
                lineage, doubtful = _explain(ruler, error), [ruler]
            # This loop ends, because each segment's manifest is compared with the segment's contents at most once, and
            # the watermark is read at most once.
            if self._prove(doubtful):
                continue
            try:
                has_other_ruler = self._look_at_watermark(lineage)
            except ObjectArchivedError as error:
                lineage, has_other_ruler = _explain(ruler, error), False
            if not has_other_ruler:
                segments = PartitionSegments.of(self._segments.values(), lineage)
                known = history if isinstance(lineage, Lineage) else None
                proven = tuple(self._segments[segment_id] for segment_id in self._proven & self._segments.keys())
                return TracedPartition(ruler, known, segments, proven), self._problems
        return None, self._problems

    def _look_at_watermark(self, lineage: Lineage | TieredStoreError) -> bool:
        """If leaders contradict each other, read the partition's watermark, once. Return True if it shows the ruling
        segment.

        Two unclean elections may make an earlier epoch's log valid again. The last leader then moves the watermark
        back, and uploads segments of the earlier epoch. Until a segment has records of the last leader's own epoch,
        only the watermark shows that these segments replaced those of the epoch between.
        """
        if self._has_looked or isinstance(lineage, TieredStoreError) or not lineage.superseded:
            return False
        self._has_looked = True
        mark = find_watermark(self._source, lineage.partition)
        if mark is None or mark.segment is None:
            return False
        if any(move.leader_epoch > lineage.epochs[-1][0] for move in mark.moved_back):
            self._named = self._find_named(lineage.partition, mark.segment)
        return self._named is not None

    def _find_named(self, where: TopicIdPartition, named: ShippedSegment) -> RemoteLogSegmentId | None:
        """Return the segment that the watermark names. If it was uploaded after the listing, return the last segment of
        its log in the listing. Return None if there is none, or if retention has deleted the named segment.
        """
        segment_id = RemoteLogSegmentId(where, Uuid.parse(named.id))
        if segment_id in self._segments:
            return segment_id
        try:
            history = read_history(
                self._source, RemoteLogSegmentMetadata(segment_id, named.base_offset, named.end_offset, 0)
            )
        except _UNREADABLE:
            return None
        epochs = {epoch for epoch, _ in history}
        log = [
            segment
            for segment in self._segments.values()
            if segment.segment_leader_epochs and segment.segment_leader_epochs[-1][0] in epochs
        ]
        return ruling_segment(log).remote_log_segment_id if log else None

    def _history(self, ruler: RemoteLogSegmentMetadata) -> LeaderEpochs | None:
        if not needs_history(ruler, self._segments.values()):
            return None
        history, asked = self._index(ruler), {ruler.remote_log_segment_id}
        while True:
            history = with_earliest_start(self._segments.values(), self._bridge(history, asked))
            before = last_before(self._segments.values(), history)
            if before is None:
                return history
            segment, own = before
            asked.add(segment.remote_log_segment_id)
            earlier = own
            # Read the segment's leader-epoch index, because the metadata have only the segment's own epochs, but the
            # index also has earlier ones.
            with self._ignore_unreadable(own[-1], segment):
                earlier = join_epochs(self._index(segment), own)
            history = join_epochs(earlier, history)

    def _bridge(self, history: LeaderEpochs, asked: set[RemoteLogSegmentId]) -> LeaderEpochs:
        """Restore the truncated beginning of the leader-epoch history, as far as other segments' indexes have this
        beginning."""
        tries = 0
        while tries < _INDEXES_OF_AN_EPOCH:
            older = earliest_of_first_epoch(self._segments.values(), history, asked)
            if older is None:
                break
            asked.add(older.remote_log_segment_id)
            tries += 1
            with self._ignore_unreadable(history[0], older):
                reaching = join_epochs(self._index(older), history)
                if reaching[0][0] < history[0][0]:
                    tries = 0
                history = reaching
        return history

    @staticmethod
    @contextlib.contextmanager
    def _ignore_unreadable(entry: tuple[int, int], segment: RemoteLogSegmentMetadata) -> Generator[None]:
        """Log and ignore an unreadable leader-epoch index, because another segment's index may have the same epochs."""
        try:
            yield
        except _UNREADABLE as error:
            _logger.warning("the leader epochs before %s cannot be read from %s: %s", entry, segment, error)

    def _index(self, segment: RemoteLogSegmentMetadata) -> LeaderEpochs:
        # Take the index from the catalog file if the file has it, because a segment's index never changes.
        return self._known.histories.get(segment.remote_log_segment_id) or read_history(self._source, segment)

    def _prove(self, doubtful: Iterable[RemoteLogSegmentMetadata]) -> bool:
        """Compare the manifests of these segments with their logs and indexes, once per segment. Return True if any was
        compared.
        """
        asked = {segment.remote_log_segment_id for segment in doubtful} - self._asked - set(self._known.segments)
        for segment_id in sorted(asked):
            self._prove_one(segment_id)
        self._asked |= asked
        return bool(asked)

    def _prove_one(self, segment_id: RemoteLogSegmentId) -> None:
        segment = self._segments[segment_id]
        try:
            self._segments[segment_id] = prove_segment(self._source, segment)
            self._proven.add(segment_id)
        # Skip the segment, which retention may have deleted.
        except SegmentNotFoundError:
            del self._segments[segment_id]
        except CorruptDataError as error:
            del self._segments[segment_id]
            self._problems.append(Problem(ProblemKind.DAMAGED, segment_id, segment.start_offset, str(error)))
        # Ignore the error here, because a caller that reads the segment gets the same error.
        except (ObjectArchivedError, UnknownKeyError, WrongKeyError):
            pass


def _explain(ruler: RemoteLogSegmentMetadata, error: TieredStoreError) -> TieredStoreError:
    """Return an error of the same class, with a text that also says what the error means for the partition."""
    return type(error)(f"the segments of the log of {ruler.topic_id_partition} cannot be determined: {error}")


def find_overlapping(segments: Iterable[RemoteLogSegmentMetadata]) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the segments that, according to their manifests, overlap a following segment. Ignore copies with equal
    offsets."""
    ordered = sorted(segments, key=attrgetter("start_offset"))
    if all(one.end_offset < following.start_offset for one, following in itertools.pairwise(ordered)):
        return  # the usual case
    # If segments have the same start, put the longest first, because it covers the others.
    by_extent = sorted(ordered, key=lambda segment: (segment.start_offset, -segment.end_offset))
    extents = [list(group) for _, group in itertools.groupby(by_extent, key=attrgetter("start_offset", "end_offset"))]
    for group, following in itertools.pairwise(extents):
        if following[0].start_offset <= group[0].end_offset:
            yield from group


def prove_segment(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Return the segment with the end of its last batch and with its own leader epochs, by three requests.

    If compaction removed the segment's last batches, the returned end is earlier than the manifest's. The segment is
    still valid, because it has no records after that end.

    Raise CorruptDataError for a damaged log, and UnknownKeyError if the log cannot be decrypted.
    """
    last = last_batch(source, segment)
    if last is None or last.last_offset < segment.start_offset:
        raise SegmentCorruptError(f"{segment} claims to end at offset {segment.end_offset}, but has no batch")
    ended = dataclasses.replace(segment, end_offset=last.last_offset)
    return dataclasses.replace(ended, segment_leader_epochs=_own_epochs(source, ended, last))


def _own_epochs(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, last: BatchHeader) -> LeaderEpochs:
    """Return the segment's epochs from its index, or from its manifest if the index is unusable or contradicts the last
    batch."""
    said = segment.segment_leader_epochs
    try:
        history = read_history(source, segment)
    # Trust the manifest, because an unreadable index cannot contradict it.
    except CorruptDataError:
        return said
    indexed = segment_leader_epochs(history, segment.start_offset, segment.end_offset)
    if not indexed:
        return said
    # Index and manifest have no checksum, so let the last batch decide between them. Its header has the leader epoch.
    index_is_wrong = last.partition_leader_epoch not in (-1, indexed[-1][0])
    return said if said and index_is_wrong else indexed
