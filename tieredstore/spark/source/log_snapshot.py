"""Which offsets there are at one moment: the bucket's, and from where these end the broker's.

The bucket is read up to the *seam*, the offset up to which its records are decided, and the broker from exactly there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tieredstore.catalog import Catalog, CatalogFile, Incarnation, Lineage, Problem, ProblemKind, load_catalog
from tieredstore.errors import ConfigError, DataLoss, ResourceNotFound
from tieredstore.model import Uuid
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.records import ReadSettings, decided_end
from tieredstore.records.times import offset_at
from tieredstore.spark.source.options import Assign, SourceOptions, Subscribe, SubscribePattern, TopicPartition
from tieredstore.spark.source.partition_log import PartitionLog

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster, LiveTopic
    from tieredstore.remote import RemoteStorageManager

__all__ = ["LogSnapshot", "PartitionLog"]

_UNREADABLE: Final = (ProblemKind.DAMAGED, ProblemKind.UNREADABLE)


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The logs of all partitions that the options select, as they were when it was taken.

    ``problems`` are sentences to be logged: segments that do not count, and what of bucket and broker does not belong
    together. ``unreadable`` are segments that are whole and that the settings' keys do not open, or that are damaged.
    """

    logs: Mapping[TopicPartition, PartitionLog]
    problems: tuple[str, ...] = ()
    unreadable: tuple[Problem, ...] = ()

    @classmethod
    def take(
        cls,
        manager: RemoteStorageManager,
        options: SourceOptions,
        *,
        catalog_file: CatalogFile | None = None,
        cluster: LiveCluster | None = None,
    ) -> LogSnapshot:
        """List the bucket and ask the broker, if there is a ``cluster``.

        Topics and partitions that neither has are absent. DataLoss by ``failOnDataLoss`` where the two do not belong
        together: the broker has no such topic, has it under an id that the bucket does not know, or its log ends
        before the bucket's. ConfigError for a topic that was created again where nothing tells which one is meant.
        """
        survey = _Survey(manager, options, cluster)
        # In this order: what the broker deletes after it is in the bucket is a hole otherwise, and what it gets and
        # copies into the bucket meanwhile lies behind its end.
        survey.ask_for_beginnings()
        catalog = survey.catalog(catalog_file)
        logs = {log.where: log for log in survey.logs(catalog)}
        unreadable = tuple(problem for problem in catalog.problems if problem.kind in _UNREADABLE)
        return cls(logs, (*map(str, catalog.problems), *survey.losses), unreadable)

    def bytes_between(self, where: TopicPartition, start: int, stop: int) -> int:
        """How many bytes of a partition's log the offsets (half-open) take, about."""
        return self.logs[where].bytes_between(start, stop)

    def check_selected(self, options: SourceOptions) -> None:
        """ResourceNotFound if a topic or partition that the options name is not there."""
        topics = {topic for topic, _ in self.logs}
        match options.selection:
            case Subscribe(topics=named):
                missing = [topic for topic in named if topic not in topics]
            case Assign(partitions=wanted):
                missing = [f"{topic}-{partition}" for topic, partition in wanted if (topic, partition) not in self.logs]
            case _:
                missing = []
        if missing:
            place = "in the bucket" if options.kafka is None else "in the bucket or on the broker"
            raise ResourceNotFound(f"there is no {', '.join(missing)} {place}; check the names and key.prefix")


class _Stored(NamedTuple):
    """A partition before its offsets are known."""

    where: TopicPartition
    topic_id: Uuid
    lineage: Lineage | None
    on_broker: bool


class _Survey:
    """How a snapshot is taken."""

    def __init__(self, manager: RemoteStorageManager, options: SourceOptions, cluster: LiveCluster | None) -> None:
        self._manager = manager
        self._options = options
        self._cluster = cluster
        self._settings = ReadSettings(columns=("offset",), isolation=options.isolation, on_data_loss="report")
        self.losses: list[str] = []
        self._live: dict[str, LiveTopic] = {}
        self._live_starts: dict[TopicPartition, int] = {}

    def ask_for_beginnings(self) -> None:
        """Which of the topics the broker has, and from which offsets on."""
        if self._cluster is None:
            return
        found = map(self._live_topic, self._selected(self._cluster.topics()))
        self._live = {live.topic: live for live in found if live is not None}
        places = [(live.topic, partition) for live in self._live.values() for partition in live.partitions]
        self._live_starts = self._cluster.earliest_offsets(filter(self._is_wanted, places))

    def catalog(self, file: CatalogFile | None) -> Catalog:
        """Of the topics that are named; for a pattern of the whole store."""
        named = named_topics(self._options)
        if named is None:
            return load_catalog(self._manager, file=file)
        catalogs = [load_catalog(self._manager, topic=topic, file=file) for topic in named]
        segments = {where: found for catalog in catalogs for where, found in catalog.segments.items()}
        return Catalog.of(segments, [problem for catalog in catalogs for problem in catalog.problems])

    def logs(self, catalog: Catalog) -> list[PartitionLog]:
        """The logs of what is selected and there."""
        topics = self._selected({*catalog.topics(), *self._live})
        stored = [found for topic in topics for found in self._partitions(catalog, topic)]
        live = self._live_extents(found.where for found in stored if found.on_broker)
        with ThreadPoolExecutor(READERS, thread_name_prefix="tieredstore-logs") as pool:
            made = in_parallel(pool, lambda found: self._log_of(found, live), stored, at_once=4 * READERS)
            return list(made)

    def _selected(self, there: Iterable[str]) -> list[str]:
        match self._options.selection:
            case SubscribePattern(pattern=pattern):
                expression = re.compile(pattern)
                return sorted(filter(expression.fullmatch, there))
            case _:
                return sorted(set(there).intersection(named_topics(self._options) or ()))

    def _partitions(self, catalog: Catalog, topic: str) -> Iterator[_Stored]:
        life, live = self._lives(catalog, topic)
        stored = () if life is None else life.partitions
        on_broker = () if live is None else live.partitions
        topic_id = live.topic_id if live is not None else life.topic_id if life is not None else None
        for partition in sorted({*stored, *on_broker}):
            if topic_id is None or not self._is_wanted((topic, partition)):
                continue
            lineage = catalog.lineage(topic, partition, topic_id) if partition in stored else None
            # One that was added to the topic a moment ago has no beginning yet.
            asked = partition in on_broker and (topic, partition) in self._live_starts
            if asked or lineage is not None:
                yield _Stored((topic, partition), topic_id, lineage, asked)

    def _lives(self, catalog: Catalog, topic: str) -> tuple[Incarnation | None, LiveTopic | None]:
        """The topic in the bucket and on the broker, both under one id; None for the one that is not to be read."""
        live, wanted = self._live_topic(topic), self._options.topic_ids.get(topic)
        if live is not None and wanted not in (None, live.topic_id):
            self._lost(f"topic {topic} is {live.topic_id} on the broker, and topicIds names {wanted}")
            return self._life(catalog, topic), None
        if live is None:
            if self._cluster is not None:
                self._lost(f"topic {topic} is in the bucket, and the broker has no topic of this name")
            return self._life(catalog, topic), None
        ids = [life.topic_id for life in catalog.incarnations(topic)] if topic in catalog.topics() else []
        if live.topic_id in ids:
            return catalog.incarnation(topic, live.topic_id), live
        if ids and wanted is None:
            known = ", ".join(map(str, ids))
            self._lost(
                f"topic {topic} was created again: it is {live.topic_id} on the broker and {known} in the bucket"
            )
        return None, live

    def _life(self, catalog: Catalog, topic: str) -> Incarnation | None:
        if topic not in catalog.topics():
            return None
        try:
            return catalog.incarnation(topic, self._options.topic_ids.get(topic))
        except ConfigError as error:
            raise ConfigError(f"{error} with the option topicIds") from None

    def _live_topic(self, topic: str) -> LiveTopic | None:
        if self._cluster is None or topic in self._live:
            return self._live.get(topic)
        try:
            return self._cluster.topic(topic)
        except ResourceNotFound:
            return None

    def _live_extents(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset and the end of each partition that the broker has."""
        places = list(wanted)
        if self._cluster is None or not places:
            return {}
        ends = self._cluster.end_offsets(places)
        return {where: (start, max(start, ends[where])) for where in places for start in [self._live_starts[where]]}

    def _is_wanted(self, where: TopicPartition) -> bool:
        selection = self._options.selection
        return not isinstance(selection, Assign) or where in selection.partitions

    def _log_of(self, found: _Stored, live: Mapping[TopicPartition, tuple[int, int]]) -> PartitionLog:
        live_start, live_end = live.get(found.where, (0, 0))
        log = PartitionLog(
            *found.where, found.topic_id, found.lineage,
            seam=live_start, earliest=live_start, end=live_end,
            live_start=live_start if found.where in live else None,
            time_lookup=self._offset_for_time,
        )  # fmt: skip
        if found.lineage is None:
            return log
        seam = max(self._stored_end(found.lineage), found.lineage.earliest_offset)
        if log.on_broker and live_end < seam:
            self._lost(
                f"the broker's log of {found.lineage.partition} ends at offset {live_end - 1}, and the bucket has "
                f"records up to offset {seam - 1}"
            )
        return replace(log, seam=seam, earliest=found.lineage.earliest_offset, end=max(seam, live_end))

    def _stored_end(self, lineage: Lineage) -> int:
        if self._options.isolation == "read_uncommitted":
            return lineage.end_offset
        # A transaction that is open at the end may have begun in any segment since the last hole.
        first = max((gap.stop for gap in lineage.gaps), default=lineage.earliest_offset)
        return decided_end(self._manager, lineage, first, lineage.end_offset)

    def _offset_for_time(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        if log.lineage is not None:
            offset = offset_at(self._manager, log.lineage, timestamp_ms, self._settings)
            if offset < log.seam:
                return offset
        if self._cluster is None or not log.on_broker:
            return None
        live = self._cluster.offsets_for_times({log.where: timestamp_ms})[log.where]
        # A time that the bucket has no record of may be one that the broker still has in front of the seam.
        return None if live is None or live >= log.end else max(live, log.seam)

    def _lost(self, sentence: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{sentence}; check the settings, or set failOnDataLoss to false to read what there is")
        self.losses.append(sentence)


def named_topics(options: SourceOptions) -> list[str] | None:
    """The topics that the options name; None for a pattern."""
    match options.selection:
        case Subscribe(topics=topics):
            return list(topics)
        case Assign(partitions=partitions):
            return sorted({topic for topic, _ in partitions})
        case _:
            return None
