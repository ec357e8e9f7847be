"""Takes a snapshot of logs. Finds each topic in the bucket and at the broker, and the offset from which the broker is
read.

The bucket is read up to an offset called *seam*, before which every transaction has an outcome. The broker is read from
the seam on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tieredstore.catalog.names import topic_ids
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.problems import UNREADABLE
from tieredstore.errors import ConfigError
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.history import History, last_epoch
from tieredstore.partitions.life import Life, choose_life, contradict, others_than
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Assign, named_topics, select_topics
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.reading.epoch_inquiry import BothSides, EpochInquiry
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.losses import Loss, Losses
from tieredstore.records.splits import find_stable_end

if TYPE_CHECKING:
    from tieredstore.catalog.catalog import Catalog
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.catalog.planning import ValidSegment
    from tieredstore.catalog.watermark import StoredWatermarks
    from tieredstore.live import LiveCluster, LiveTopic
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager


class _LiveSpan(NamedTuple):
    """The broker's offsets of a partition (``end`` is exclusive), and its leader epoch."""

    start: int
    end: int
    epoch: int | None


class _FoundPartition(NamedTuple):
    """A partition for which the seam (the offset between the bucket's and the broker's part) is not known yet."""

    where: TopicPartition
    topic_id: Uuid
    lineage: Lineage | None
    on_broker: bool
    live: _LiveSpan | None = None
    history: History | None = None

    @property
    def both(self) -> BothSides | None:
        """The partition's logs in bucket and broker; None unless both have the partition."""
        if self.lineage is None or self.live is None:
            return None
        return BothSides(self.lineage, self.live.start, self.live.epoch)

    @property
    def missing(self) -> int | None:
        """The first offset of the broker's log that the bucket lacks, although it has later ones; else None."""
        if self.lineage is None or self.live is None:
            return None
        missing = self.lineage.missing_from(self.live.start)
        return missing if missing < self.lineage.end_offset else None

    @property
    def is_left_behind(self) -> bool:
        """True if the broker's leader has a later epoch than the bucket's last record."""
        return self.both is not None and self.both.is_left_behind


def survey_logs(
    source: RemoteStorageManager,
    query: LogQuery,
    *,
    known: dict[str, ValidSegment] | None = None,
    cluster: LiveCluster | None = None,
    before: LogSnapshot | None = None,
    watermarks: StoredWatermarks | None = None,
) -> LogSnapshot:
    """List the bucket. If the query names a broker, ask the broker too, by ``cluster`` if it is given, else by a
    connection of its own.

    All topics are looked up together: the broker gets as many requests for many topics as for one topic. Listing the
    bucket takes one request for each page of keys of these topics, and a few more requests. The result omits topics and
    partitions that neither bucket nor broker has.

    If the query does not accept losses, raise DataLossError if the broker contradicts the bucket in one of four ways.
    The broker lacks the topic. The broker's topic id differs from the id in the query or the bucket. The broker's
    leader epoch is earlier than the bucket's. The broker's log ends before the bucket's. Raise ConfigError for a
    re-created topic if neither broker nor query names the topic id to read.

    ``known`` has the segments of earlier snapshots, as for :func:`load_catalog`. ``before`` is an earlier snapshot with
    the same isolation. It saves requests for logs that have not changed.
    ``watermarks`` holds watermark objects that the caller has already read.
    """
    own = query.open_cluster() if cluster is None else None
    with nullcontext() if own is None else closing(own):
        survey = _Survey(source, query, cluster or own, {} if before is None else before.logs, watermarks)
        # Ask for the broker's first offsets before listing the bucket. In the other order, records that the broker
        # copies and deletes between the two requests would look like a gap. Records that are written and copied
        # between the two requests do no harm, because they come after the log's end in the broker's answer.
        survey.ask_for_beginnings()
        catalog = survey.catalog(known)
        logs = {log.where: log for log in survey.logs(catalog)}
    unreadable = tuple(problem for problem in catalog.problems if problem.is_loss)
    return LogSnapshot(logs, (*map(str, catalog.problems), *survey.sentences), unreadable)


class _Survey:
    """Looks up the logs of the query's partitions at the broker and in the bucket."""

    def __init__(
        self,
        source: RemoteStorageManager,
        query: LogQuery,
        cluster: LiveCluster | None,
        before: Mapping[TopicPartition, PartitionLog],
        watermarks: StoredWatermarks | None,
    ) -> None:
        self.sentences: list[str] = []
        """Sentences about truncated logs, and about contradictions between bucket and broker that the query accepts."""
        self._source = source
        self._query = query
        self._cluster = cluster
        self._before = before
        self._watermarks = watermarks
        selection = query.selection
        self._assigned = frozenset(selection.partitions) if isinstance(selection, Assign) else None
        self._live_topics: dict[str, LiveTopic] = {}
        self._live_starts: dict[TopicPartition, int] = {}
        self._untiered: set[str] = set()
        """Topics of which the bucket lacks offsets, and whose brokers do not read them from the same bucket."""

    def ask_for_beginnings(self) -> None:
        """Ask the broker which of the topics it has, and for their first offsets."""
        if self._cluster is None:
            return
        self._live_topics = self._cluster.describe(select_topics(self._query.selection, self._cluster.topics()))
        partitions = [(live.topic, number) for live in self._live_topics.values() for number in live.partitions]
        self._live_starts = self._cluster.earliest_offsets(filter(self._is_wanted, partitions))

    def catalog(self, known: dict[str, ValidSegment] | None) -> Catalog:
        """Load the catalog of the named topics, or of the whole store for a pattern."""
        # If the query names one partition, load only this partition. But if the topic has several ids in the bucket,
        # load all partitions, because they help to find the current id.
        if known is None and self._assigned is not None and len(self._assigned) == 1:
            ((topic, partition),) = self._assigned
            ids = topic_ids(self._source.store, self._source.layout.prefix, topic)
            if len(ids) == 1:
                return load_catalog(self._source, topic=topic, topic_id=ids[0], partition=partition)
        return load_catalog(self._source, topics=named_topics(self._query.selection), known=known)

    def logs(self, catalog: Catalog) -> list[PartitionLog]:
        """Return the selected logs that exist."""
        topics = select_topics(self._query.selection, {*catalog.topics(), *self._live_topics})
        if self._cluster is not None:
            # Ask the broker for topics that the listing has just shown, because a topic that was created just now
            # may already have segments.
            self._live_topics |= self._cluster.describe([topic for topic in topics if topic not in self._live_topics])
        known = [partition for topic in topics for partition in self._partitions(catalog, topic)]
        spans = self._live_spans(partition.where for partition in known if partition.on_broker)
        known = self._join([partition._replace(live=spans.get(partition.where)) for partition in known])
        ends = {partition.where: end for partition in known if (end := self._end_before(partition)) is not None}
        asked = [partition for partition in known if partition.where not in ends]
        incomplete = {partition.where[0] for partition in asked if partition.missing is not None}
        if self._cluster is not None and incomplete:
            settings = self._cluster.effective_settings(incomplete)
            self._untiered = {name for name in settings if settings[name].get("remote.storage.enable") != "true"}
        with ThreadPool(READERS, "tieredstore-logs") as pool:
            stored = in_parallel(pool, self._stored_end, asked, at_once=4 * READERS)
            ends |= zip([partition.where for partition in asked], stored, strict=True)
        return [self._log_of(partition, ends[partition.where]) for partition in known]

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
                # Drop the problems of unreadable segments, because `check_readable` handles them for the whole
                # snapshot.
                lineage = replace(catalog.lineage(topic, number, life.stored.topic_id), problems=())
                topic_id = topic_id or life.stored.topic_id
            assert topic_id is not None
            # A partition that was just added to the topic may have no first offset yet.
            has_beginning = number in on_broker and where in self._live_starts
            if has_beginning or lineage is not None:
                yield _FoundPartition(where, topic_id, lineage, has_beginning)

    def _life(self, catalog: Catalog, topic: str) -> Life:
        """Return the topic id that bucket and broker share. If their ids differ and the query accepts that, return the
        id to read.
        """
        live, wanted = self._live_topics.get(topic), self._query.topic_ids.get(topic)
        live_id = None if live is None else live.topic_id
        if live is None and self._cluster is not None:
            self._lose(f"topic {topic} is in the bucket, but the broker has no such topic")
        if contradict(self._source.layout, topic, live_id, wanted):
            named = f"{self._query.words.topic_ids} names {wanted}"
            self._lose(f"topic {topic} has id {live_id} on the broker, but {named}")
        try:
            life = choose_life(catalog, self._source.layout, topic, live=live_id, wanted=wanted)
        except ConfigError as error:
            raise ConfigError(f"{error} with {self._query.words.choose_topic_id}") from None
        # If the caller named a topic id, it knows that the topic has other ids. So report other ids only if the caller
        # named none.
        if life.others and wanted is None:
            ids = f"its id is {live_id} on the broker and {', '.join(map(str, life.others))} in the bucket"
            self._lose(f"topic {topic} was created again: {ids}")
        elif life.stored is not None and wanted is None:
            choose = f"choose by {self._query.words.choose_topic_id}"
            self.sentences += others_than(catalog, life.stored, choose)
        return life

    def _join(self, known: list[_FoundPartition]) -> list[_FoundPartition]:
        """Drop records of the bucket that an election has truncated, and logs of the bucket that contradict the
        broker.
        """
        before = {log.stored_partition: log.history for log in self._before.values() if log.history is not None}
        both = {one.where: one.both for one in known if one.both is not None}
        inquiry = EpochInquiry(self._source, self._cluster, before, self._watermarks)
        histories: dict[TopicPartition, History | None] = {**inquiry.histories(both)}
        alone = {one.where: one.lineage for one in known if one.lineage is not None and one.live is None}
        inquiry.look_at_watermarks(alone.values())
        histories |= {where: inquiry.stored_history(lineage) for where, lineage in alone.items()}
        return [self._cut(self._of_one_log(one), histories.get(one.where)) for one in known]

    def _cut(self, one: _FoundPartition, history: History | None) -> _FoundPartition:
        """Drop the bucket's records after the offset at which an election truncated the log. Dropping them is no data
        loss.
        """
        cut, lineage = (None if history is None else history.cut), one.lineage
        if cut is None or lineage is None:
            return one._replace(history=history)
        self.sentences.append(cut.sentence(lineage))
        return one._replace(lineage=cut.apply(lineage), history=history)

    def _of_one_log(self, one: _FoundPartition) -> _FoundPartition:
        """If the broker's leader epoch is earlier than the bucket's, the broker has another log. Report this, and
        ignore the bucket.
        """
        epoch = None if one.live is None else one.live.epoch
        if one.lineage is None or epoch is None or epoch >= last_epoch(one.lineage):
            return one
        self._lose(
            f"the broker's log of {one.lineage.partition} has leader epoch {epoch}, but the bucket has records of "
            f"epoch {last_epoch(one.lineage)}: the broker has another log, or a deposed leader has answered"
        )
        return one._replace(lineage=None)

    def _live_spans(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, _LiveSpan]:
        """Return the broker's offsets and leader epoch of each partition."""
        partitions = list(wanted)
        if self._cluster is None or not partitions:
            return {}
        ends, starts = self._cluster.ends(partitions), self._live_starts
        return {
            where: _LiveSpan(starts[where], max(starts[where], ends[where].offset), ends[where].leader_epoch)
            for where in partitions
        }

    def _is_wanted(self, where: TopicPartition) -> bool:
        return self._assigned is None or where in self._assigned

    def _log_of(self, known: _FoundPartition, stored_end: int) -> PartitionLog:
        cut = None if known.history is None else known.history.cut
        # An election may have truncated all of the bucket's log. If the broker does not have the partition either,
        # the log is empty, and its next offset is where the election cut (truncated) the log.
        empty = 0 if cut is None or known.lineage is not None else cut.at
        live_start, live_end, live_epoch = known.live or (empty, empty, None)
        log = PartitionLog(
            *known.where, known.topic_id, known.lineage,
            seam=live_start, earliest=live_start, end=live_end,
            live_start=None if known.live is None else live_start,
            derived_id=self._source.layout.derived_id(known.where[0]), live_epoch=live_epoch, history=known.history,
        )  # fmt: skip
        if known.lineage is None:
            return log
        # The broker's log should not end before the bucket's. There is one exception. A leader with a later epoch has
        # the same log, but may not know the log's end yet.
        if log.on_broker and live_end < stored_end and not known.is_left_behind:
            self._lose(
                f"the broker's log of {known.lineage.partition} ends at offset {live_end - 1}, but the bucket has "
                f"records up to offset {stored_end - 1}"
            )
        earliest, end = min(stored_end, known.lineage.earliest_offset), max(stored_end, live_end)
        if known.is_left_behind and known.missing is not None:
            # Such a leader has all records of the bucket. If the log ended at the gap, a position after it would count
            # as lost, and a read would leave out the later records.
            end = max(end, self._decided_end(known.lineage, known.lineage.end_offset))
        return replace(log, seam=stored_end, earliest=earliest, end=end)

    def _end_before(self, known: _FoundPartition) -> int | None:
        """Return the seam (the offset between the bucket's and the broker's part) of the earlier snapshot. Return None
        if the bucket's log or the broker's first offset has changed since. Return None also if the seam depends on the
        broker's end, which changes more often.
        """
        log, live_start = self._before.get(known.where), None if known.live is None else known.live.start
        if log is None or known.lineage is None or known.missing is not None:
            return None
        return log.seam if (log.lineage, log.live_start) == (known.lineage, live_start) else None

    def _stored_end(self, known: _FoundPartition) -> int:
        """Return the offset at which the bucket's part must end: before the first transaction without an outcome, and
        before offsets that only the broker has. Return 0 if the bucket has no log.

        If the bucket has a gap, but the broker may have its offsets, the bucket's part ends as follows.

        | the broker's log | the bucket's part ends |
        |---|---|
        | ends before readable records of the bucket, and the leader is not new | at the bucket's end: both are losses |
        | has the start of a transaction that is open at the gap | at this start |
        | begins within such a transaction | where the broker begins: the outcome of earlier records may be in the gap |
        | otherwise | at the gap |

        If an index cannot be read, raise the error. With ``by_partition``, ignore transactions: a read of their records
        meets the same error.
        """
        lineage, live = known.lineage, known.live
        if lineage is None:
            return 0
        last, end = lineage.spans[-1], lineage.end_offset
        is_cut = known.history is not None and known.history.cut is not None and end <= last.segment.end_offset
        is_committed = self._query.isolation == "read_committed"
        if is_committed and is_cut and live is not None and live.start <= last.start:
            # After an election has cut (truncated) the log, a transaction in the last segment may have another outcome
            # at the broker. So read the segment's offsets from the broker.
            end = last.start
        missing = known.missing
        if live is None or missing is None or missing >= end or known.where[0] not in self._untiered:
            return self._decided_end(lineage, end)
        is_behind = live.end < end and not known.is_left_behind
        if is_behind and live.end < (decided := self._decided_end(lineage, end)):
            return decided
        return max(live.start, self._decided_end(lineage, missing))

    def _decided_end(self, lineage: Lineage, end: int) -> int:
        if self._query.isolation == "read_uncommitted":
            return end
        try:
            return find_stable_end(self._source, lineage, end)
        except UNREADABLE:
            if not self._query.by_partition:
                raise
            return end

    def _lose(self, sentence: str) -> None:
        """Apply the loss policy to a contradiction between bucket and broker."""
        # If the query accepts data loss, raise no error, because the snapshot's problems report the loss.
        if self._query.fails_on_loss:
            Losses(self._query).accept(Loss(sentence, "; check the settings, or {} to read anyway"))
        self.sentences.append(sentence)
