"""The bucket's logs of some partitions, cached. A refresh lists only the keys after the last known segment."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.lineage import Lineage
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.planning import load_catalog, read_listed
from tieredstore.catalog.problems import Problem
from tieredstore.catalog.tracing import KnownProofs, trace_partitions
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.life import choose_life, contradict, others_than
from tieredstore.process.log_once import LogOnce
from tieredstore.process.parallel import READERS
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)


class StoredLogs:
    """Cache of the bucket's logs, for long-lived readers. Not thread-safe, except :meth:`refresh`.

    Each topic is listed once, with all its partitions. Later, :meth:`refresh` lists the new segments of one partition.
    :meth:`reload` lists the whole topic again, for example before a loss is reported. ``wanted`` are the topic ids that
    readers chose for re-created topics.
    """

    def __init__(self, source: RemoteStorageManager, wanted: Mapping[str, Uuid]) -> None:
        self._source = source
        self._wanted = wanted
        self._lives: dict[str, Uuid | None] = {}
        """The id under which each listed topic is read. None if the bucket does not have the topic."""
        self._logs: dict[TopicPartition, Lineage] = {}
        self._taking = threading.Lock()
        """A lock held while a topic's logs are replaced, so that no other thread sees the topic without its logs."""
        self._problems: dict[str, tuple[Problem, ...]] = {}
        """The problems of the last listing of each topic."""
        # Log each sentence once, because otherwise every look-up would report a segment that is still being copied.
        self.notices: LogOnce = LogOnce(_logger)
        self.listings = 0
        """The number of listings so far."""

    def load(self, topics: Collection[str], ids: dict[str, Uuid]) -> set[str]:
        """List the topics that were not listed before, or were listed under another id. Return these topics.

        ``ids`` holds the broker's topic ids. Raise ConfigError for a re-created topic if no id chooses an incarnation.
        """
        new = {topic for topic in topics if topic not in self._lives}
        new |= {topic for topic in topics if self.contradicts(topic, self._lives.get(topic), ids.get(topic))}
        if new:
            self.listings += 1
            catalog = load_catalog(self._source, topics=new)
            self._tell(catalog.problems)
            with self._taking:
                for topic in new:
                    self._take(catalog, topic, ids.get(topic))
        return new

    def reload(self, topic: str, topic_id: Uuid | None) -> None:
        """List a whole topic again."""
        self.listings += 1
        catalog = load_catalog(self._source, topic=topic)
        self._tell(catalog.problems)
        with self._taking:
            self._take(catalog, topic, topic_id)

    def refresh(self, where: TopicPartition, *, from_start: bool = False) -> None:
        """List the keys after the partition's last known segment. This takes one request if the bucket has no new
        segment. With ``from_start``, list all keys of the partition, and drop the segments that the bucket has no more.
        """
        lineage = self.lineage(where)
        if lineage is None:  # another thread has reloaded the topic, and the bucket has no segment of the partition
            return
        self.listings += 1
        known = _segments(lineage)
        last = 0 if from_start else max(segment.start_offset for segment in known.values())
        scope = Scope.of(lineage.partition, last)
        new: list[RemoteLogSegmentMetadata] = []
        problems: list[Problem] = []
        gone = {*known} if from_start else set[RemoteLogSegmentId]()
        for objects in list_segments(self._source.store, self._source.layout.prefix, scope):
            if objects.find(Suffix.MANIFEST) is None:
                continue  # the copy is in progress
            if objects.segment_id in known:
                gone.discard(objects.segment_id)
                continue
            found = read_listed(self._source, objects)
            if isinstance(found, Problem):
                problems.append(found)
            elif found is not None:
                new.append(found.metadata)
        self._tell(problems)
        kept = [segment for segment_id, segment in known.items() if segment_id not in gone]
        if not kept and not new:
            self._logs.pop(where, None)
        elif new or gone:
            self._trace(where, [*kept, *new], [*(() if from_start else lineage.problems), *problems])
        elif problems != [problem for problem in lineage.problems if problem.start_offset >= last]:
            earlier = [problem for problem in lineage.problems if problem.start_offset < last]
            self._logs[where] = replace(lineage, problems=(*earlier, *problems))

    def lineage(self, where: TopicPartition) -> Lineage | None:
        """Return the partition's log as the last listing found it. Return None if the bucket has no segment of the
        partition."""
        with self._taking:
            return self._logs.get(where)

    def find_unreadable(self, where: TopicPartition) -> Problem | None:
        """Return a problem of a partition of which the bucket has segments, but no readable one; otherwise None."""
        with self._taking:
            topic_id = self._lives.get(where[0])
            if where in self._logs or topic_id is None:
                return None
            wanted, problems = TopicIdPartition(topic_id, *where), self._problems[where[0]]
        return next((one for one in problems if one.is_loss and one.segment_id.topic_id_partition == wanted), None)

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id under which a topic is read, or None if the bucket does not have the topic."""
        return self._lives.get(topic)

    def contradicts(self, topic: str, one: Uuid | None, other: Uuid | None) -> bool:
        """Return True if two ids of a topic certainly differ; None means unknown."""
        return contradict(self._source.layout, topic, one, other)

    def _take(self, catalog: Catalog, topic: str, topic_id: Uuid | None) -> None:
        # Copy the keys first, because a refresh on another thread may add or remove one.
        for where in [where for where in list(self._logs) if where[0] == topic]:
            self._logs.pop(where, None)
        self._problems[topic] = catalog.problems
        self._lives[topic] = None
        if topic not in catalog.topics():
            # A topic that has only unreadable segments does exist, so raise DataLossError, not the error of an absent
            # topic.
            with contextlib.suppress(ResourceNotFoundError):
                catalog.incarnations(topic)
            return
        wanted = self._wanted.get(topic)
        try:
            life = choose_life(catalog, self._source.layout, topic, live=None if wanted else topic_id, wanted=wanted)
        except ConfigError as error:
            raise ConfigError(
                f"{error} by tiered.storage.topic.ids, or set bootstrap.servers to read the broker's topic"
            ) from None
        if life.stored is None:
            known = ", ".join(map(str, life.others))
            self.notices.warn(
                f"topic {topic} has id {topic_id} on the broker; the bucket's segments of {known} are not read"
            )
            return
        self._lives[topic] = life.stored.topic_id
        if wanted is None:
            for sentence in others_than(catalog, life.stored, "choose by tiered.storage.topic.ids"):
                self.notices.warn(sentence)
        for number in life.stored.partitions:
            self._logs[topic, number] = catalog.lineage(topic, number, life.stored.topic_id)

    def _trace(self, where: TopicPartition, segments: list[RemoteLogSegmentMetadata], problems: list[Problem]) -> None:
        with ThreadPool(READERS, "tieredstore-catalog") as pool:
            traced = trace_partitions(self._source, segments, KnownProofs(), pool, at_once=READERS)
        for partition in traced.partitions:
            lineage = partition.segments.lineage
            if not isinstance(lineage, Lineage):
                raise lineage.with_traceback(None)
            self._logs[where] = replace(lineage, problems=tuple(dict.fromkeys((*problems, *traced.problems))))
        self._tell(traced.problems)

    def _tell(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.notices.warn(str(problem))


def _segments(lineage: Lineage) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
    """Return all segments from which the log was built."""
    segments = [
        *(span.segment for span in lineage.spans), *(part.segment for part in lineage.superseded), *lineage.covered
    ]  # fmt: skip
    return {segment.remote_log_segment_id: segment for segment in segments}
