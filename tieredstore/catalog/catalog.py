"""The contents of a store as a value: topics, their incarnations, partitions and logs. The methods of a catalog make no
requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.problems import Problem
from tieredstore.errors import ConfigError, DataLossError, ResourceNotFoundError, TieredStoreError, excerpt
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a topic. Kafka gives a re-created topic a new id, and each id is another incarnation.

    ``first_copied_ms`` and ``last_copied_ms`` are the times at which the incarnation's first and last segments were
    copied. They are -1 if a segment's time is unknown.
    """

    topic: str
    topic_id: Uuid
    partitions: tuple[int, ...]
    first_copied_ms: int
    last_copied_ms: int

    def follows(self, other: Incarnation) -> bool:
        """Return True if all copies of this incarnation were made after all copies of ``other``."""
        return 0 <= other.last_copied_ms < self.first_copied_ms


@dataclass(frozen=True, slots=True)
class PartitionSegments:
    """Segments of one partition.

    ``lineage`` assigns each offset to a segment. If the leader-epoch index is damaged or unreadable, ``lineage`` is the
    error to raise instead.
    """

    lineage: Lineage | TieredStoreError
    first_copied_ms: int
    last_copied_ms: int

    @classmethod
    def of(cls, segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage | TieredStoreError) -> PartitionSegments:
        """Combine the lineage (the valid segments of one log) with the times of all segments. Segments outside the
        lineage count too.
        """
        times = [segment.event_timestamp_ms for segment in segments]
        return cls(lineage, min(times), max(times) if min(times) >= 0 else -1)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The valid segments of a store, by partition. A catalog is picklable and thread-safe.

    ``lives`` are the incarnations of each topic (see :meth:`incarnations`). ``problems`` are the segments that cannot
    be used. A method without ``topic_id`` uses the topic's current incarnation.
    """

    segments: Mapping[TopicIdPartition, PartitionSegments]
    lives: Mapping[str, tuple[Incarnation, ...]]
    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, segments: Mapping[TopicIdPartition, PartitionSegments], problems: Iterable[Problem] = ()) -> Catalog:
        """Make the catalog of these partitions."""
        known = tuple(problems)
        segments = dict(zip(segments, _with_problems(segments, known), strict=True))
        by_topic: defaultdict[str, defaultdict[Uuid, dict[int, PartitionSegments]]]
        by_topic = defaultdict(lambda: defaultdict(dict))
        for where, partition in segments.items():
            by_topic[where.topic][where.topic_id][where.partition] = partition
        lives = {
            topic: sorted(
                (_incarnation(topic, *life) for life in by_id.items()),
                key=lambda life: (life.last_copied_ms, life.topic_id),
            )
            for topic, by_id in by_topic.items()
        }
        return cls(segments, {topic: tuple(lives[topic]) for topic in sorted(lives)}, known)

    def topics(self) -> tuple[str, ...]:
        """Return the names of the topics that have segments, sorted."""
        return tuple(self.lives)

    def incarnations(self, topic: str) -> tuple[Incarnation, ...]:
        """Return a topic's incarnations, sorted by the time of their last copy.

        Raise ResourceNotFoundError if there are none.

        Raise DataLossError if the topic has segments but none is readable.
        """
        if topic not in self.lives:
            self._expect_readable(lambda where: where.topic == topic)
            raise ResourceNotFoundError(
                f"no segment of a topic named {excerpt(topic, 249)!r} was found{self._why_none(topic)}"
            )
        return self.lives[topic]

    def _why_none(self, topic: str) -> str:
        # Name a problem, because a topic with segments is not absent, even if none of them can be used.
        of_topic = [problem for problem in self.problems if problem.segment_id.topic_id_partition.topic == topic]
        if not of_topic:
            return ""
        more = f" (and {len(of_topic) - 1} more)" if len(of_topic) > 1 else ""
        return f" that can be used: {of_topic[0]}{more}"

    def incarnation(self, topic: str, topic_id: Uuid | None = None) -> Incarnation:
        """Return one incarnation of the topic, by default the current one.

        The current incarnation is the latest one: all its segments were copied after all segments of the others.

        If the times overlap, raise ConfigError. The error lists all incarnations, so that the caller can choose a
        ``topic_id``.
        """
        lives = self.incarnations(topic)
        candidates = [life for life in lives if topic_id in (None, life.topic_id)]
        named = ", ".join(str(life.topic_id) for life in lives)
        if not candidates:
            raise ResourceNotFoundError(
                f"no segment of topic {topic} with the id {topic_id} was found; there is {named}"
            )
        last = candidates[-1]
        # If the incarnations' times overlap, let the user decide, because a guess could return records of a deleted
        # topic.
        if not all(last.follows(life) for life in candidates[:-1]):
            raise ConfigError(f"topic {topic} was created more than once; choose one of the topic ids {named}")
        return last

    def lineage(self, topic: str, partition: int, topic_id: Uuid | None = None) -> Lineage:
        """Return the log of one partition.

        Raise ResourceNotFoundError if the partition has no segment, and DataLossError if none of its segments is
        readable. If an error prevented the catalog from finding the partition's lineage (the valid segments of its
        log), raise this error.
        """
        life = self.incarnation(topic, topic_id)
        wanted = TopicIdPartition(life.topic_id, topic, partition)
        held = self.segments.get(wanted)
        if held is None:
            self._expect_readable(lambda where: where == wanted)
            raise ResourceNotFoundError(f"partition {partition} of topic {topic} ({life.topic_id}) has no segment")
        if isinstance(held.lineage, TieredStoreError):
            raise held.lineage.with_traceback(None)
        return held.lineage

    def _expect_readable(self, is_wanted: Callable[[TopicIdPartition], bool]) -> None:
        for problem in self.problems:
            if problem.is_loss and is_wanted(problem.segment_id.topic_id_partition):
                raise DataLossError(f"no stored segment can be read: {problem}")


def _with_problems(
    segments: Mapping[TopicIdPartition, PartitionSegments], problems: Iterable[Problem]
) -> Iterator[PartitionSegments]:
    """Yield each partition with its problems. The problems are segments that cannot be used, and are not part of the
    partition's log."""
    by_partition: defaultdict[TopicIdPartition, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_partition[problem.segment_id.topic_id_partition].append(problem)
    for where, held in segments.items():
        if where in by_partition and isinstance(held.lineage, Lineage):
            yield replace(held, lineage=replace(held.lineage, problems=tuple(by_partition[where])))
        else:
            yield held


def _incarnation(topic: str, topic_id: Uuid, partitions: Mapping[int, PartitionSegments]) -> Incarnation:
    first = min(held.first_copied_ms for held in partitions.values())
    last = max(held.last_copied_ms for held in partitions.values())
    return Incarnation(topic, topic_id, tuple(sorted(partitions)), first, last if first >= 0 else -1)
