"""How a snapshot of logs is taken: the broker's topics beside the bucket's, and where one follows on the other.

The bucket is read up to the *seam*, the offset up to which its records are decided, and the broker from exactly there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tieredstore.catalog.names import topic_ids
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, DataLoss
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.life import Life, choose_life, contradict
from tieredstore.partitions.partition_log import PartitionLog
from tieredstore.partitions.selections import Assign, named_topics, selected_topics
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.settings import ReadSettings
from tieredstore.records.split_planning import decided_end
from tieredstore.records.times import offset_at

if TYPE_CHECKING:
    from tieredstore.catalog.catalog_file import CatalogFile
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.catalog.view import Catalog
    from tieredstore.live import LiveCluster, LiveTopic
    from tieredstore.partitions.log_query import LogQuery
    from tieredstore.remote.source import SegmentSource


class _FoundPartition(NamedTuple):
    """A partition before its offsets are known."""

    where: TopicPartition
    topic_id: Uuid
    lineage: Lineage | None
    on_broker: bool


class LogSurvey:
    """Asks broker and bucket, once each. Whoever takes a snapshot calls the three steps in their order."""

    def __init__(
        self,
        source: SegmentSource,
        query: LogQuery,
        cluster: LiveCluster | None,
        before: Mapping[TopicPartition, PartitionLog] | None = None,
    ) -> None:
        """``before`` are logs of an earlier look by the same isolation: of a lineage that is as it was nothing is
        asked for again, since segments never change."""
        self.losses: list[str] = []
        """Sentences about what of bucket and broker does not belong together, as far as the query puts up with it."""
        self._source = source
        self._query = query
        self._cluster = cluster
        self._before = before or {}
        self._settings = ReadSettings(columns=("offset",), isolation=query.isolation, on_data_loss="report")
        selection = query.selection
        self._assigned = frozenset(selection.partitions) if isinstance(selection, Assign) else None
        self._live_topics: dict[str, LiveTopic] = {}
        self._live_starts: dict[TopicPartition, int] = {}

    def ask_for_beginnings(self) -> None:
        """Which of the topics the broker has, and from which offsets on."""
        if self._cluster is None:
            return
        self._live_topics = self._cluster.describe(selected_topics(self._query.selection, self._cluster.topics()))
        partitions = [(live.topic, number) for live in self._live_topics.values() for number in live.partitions]
        self._live_starts = self._cluster.earliest_offsets(filter(self._is_wanted, partitions))

    def catalog(self, file: CatalogFile | None) -> Catalog:
        """Of the topics that are named; for a pattern of the whole store."""
        # Of one partition alone where the topic has one life: which is the current one the other partitions tell too.
        if file is None and self._assigned is not None and len(self._assigned) == 1:
            ((topic, partition),) = self._assigned
            ids = topic_ids(self._source.store, self._source.layout.prefix, topic)
            if len(ids) == 1:
                return load_catalog(self._source, topic=topic, topic_id=ids[0], partition=partition)
        return load_catalog(self._source, topics=named_topics(self._query.selection), file=file)

    def logs(self, catalog: Catalog) -> list[PartitionLog]:
        """The logs of what is selected and there."""
        topics = selected_topics(self._query.selection, {*catalog.topics(), *self._live_topics})
        if self._cluster is not None:
            # A topic that was made while the bucket was listed has segments by now.
            self._live_topics |= self._cluster.describe([topic for topic in topics if topic not in self._live_topics])
        known = [partition for topic in topics for partition in self._partitions(catalog, topic)]
        extents = self._live_extents(partition.where for partition in known if partition.on_broker)
        ends = {partition.where: end for partition in known if (end := self._end_before(partition)) is not None}
        asked = [partition for partition in known if partition.where not in ends]
        with ThreadPool(READERS, "tieredstore-logs") as pool:
            stored = in_parallel(pool, self._stored_end, asked, at_once=4 * READERS)
            ends |= zip([partition.where for partition in asked], stored, strict=True)
        return [self._log_of(partition, ends[partition.where], extents) for partition in known]

    def _partitions(self, catalog: Catalog, topic: str) -> Iterator[_FoundPartition]:
        life = self._life(catalog, topic)
        stored = () if life.stored is None else life.stored.partitions
        live = self._live_topics[topic] if life.is_live else None
        on_broker = () if live is None else live.partitions
        for number in sorted({*stored, *on_broker}):
            where = topic, number
            if not self._is_wanted(where):
                continue
            lineage, topic_id = None, live.topic_id if live is not None else None
            if life.stored is not None and number in stored:
                # What cannot be read of it is judged for the snapshot as a whole: see `check_readable`.
                lineage = replace(catalog.lineage(topic, number, life.stored.topic_id), problems=())
                topic_id = topic_id or life.stored.topic_id
            assert topic_id is not None
            # One that was added to the topic a moment ago has no beginning yet.
            has_beginning = number in on_broker and where in self._live_starts
            if has_beginning or lineage is not None:
                yield _FoundPartition(where, topic_id, lineage, has_beginning)

    def _life(self, catalog: Catalog, topic: str) -> Life:
        """The life of a topic that bucket and broker share, or that the query takes in spite of what contradicts it."""
        live, wanted, words = self._live_topics.get(topic), self._query.topic_ids.get(topic), self._query.words
        live_id = None if live is None else live.topic_id
        if live is None and self._cluster is not None:
            self._lose(f"topic {topic} is in the bucket, and the broker has no topic of this name")
        if contradict(self._source.layout, topic, live_id, wanted):
            self._lose(f"topic {topic} is {live_id} on the broker, and {words.topic_ids} names {wanted}")
        try:
            life = choose_life(catalog, self._source.layout, topic, live=live_id, wanted=wanted)
        except ConfigError as error:
            raise ConfigError(f"{error} with {words.choose_topic_id}") from None
        # Who names the id knows that the bucket has another life of the topic, and loses nothing unawares.
        if life.others and wanted is None:
            known = ", ".join(map(str, life.others))
            self._lose(f"topic {topic} was created again: it is {live_id} on the broker and {known} in the bucket")
        return life

    def _live_extents(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset and the end of each partition that the broker has."""
        partitions = list(wanted)
        if self._cluster is None or not partitions:
            return {}
        ends = self._cluster.end_offsets(partitions)
        return {where: (start, max(start, ends[where])) for where in partitions for start in [self._live_starts[where]]}

    def _is_wanted(self, where: TopicPartition) -> bool:
        return self._assigned is None or where in self._assigned

    def _log_of(
        self, known: _FoundPartition, stored_end: int, live_extents: Mapping[TopicPartition, tuple[int, int]]
    ) -> PartitionLog:
        live_start, live_end = live_extents.get(known.where, (0, 0))
        log = PartitionLog(
            *known.where, known.topic_id, known.lineage,
            seam=live_start, earliest=live_start, end=live_end,
            live_start=live_start if known.where in live_extents else None,
            derived_id=self._source.layout.derived_id(known.where[0]),
            time_lookup=self._offset_for_time,
        )  # fmt: skip
        if known.lineage is None:
            return log
        seam = max(stored_end, known.lineage.earliest_offset)
        if log.on_broker and live_end < seam:
            self._lose(
                f"the broker's log of {known.lineage.partition} ends at offset {live_end - 1}, and the bucket has "
                f"records up to offset {seam - 1}"
            )
        return replace(log, seam=seam, earliest=known.lineage.earliest_offset, end=max(seam, live_end))

    def _end_before(self, known: _FoundPartition) -> int | None:
        """Up to where the bucket's records were decided at the look before; None if that has to be asked for."""
        log = self._before.get(known.where)
        return None if log is None or known.lineage is None or log.lineage != known.lineage else log.seam

    def _stored_end(self, known: _FoundPartition) -> int:
        """Up to where the bucket's records are decided; 0 where there are none."""
        lineage = known.lineage
        if lineage is None:
            return 0
        if self._query.isolation == "read_uncommitted":
            return lineage.end_offset
        # A transaction that is open at the end may have begun in any segment since the last hole.
        first = max((gap.stop for gap in lineage.gaps), default=lineage.earliest_offset)
        return decided_end(self._source, lineage, first, lineage.end_offset)

    def _offset_for_time(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        if log.lineage is not None:
            offset = offset_at(self._source, log.lineage, timestamp_ms, self._settings)
            if offset < log.seam:
                return offset
        if self._cluster is None or not log.on_broker:
            return None
        live_offset = self._cluster.offsets_for_times({log.where: timestamp_ms})[log.where]
        # A time that the bucket has no record of may be one that the broker still has in front of the seam.
        return None if live_offset is None or live_offset >= log.end else max(live_offset, log.seam)

    def _lose(self, sentence: str) -> None:
        if self._query.fails_on_loss:
            accept = self._query.words.accept_loss
            raise DataLoss(f"{sentence}; check the settings, or {accept} to read what there is")
        self.losses.append(sentence)
