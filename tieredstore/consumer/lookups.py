"""Look-ups in the background of a consumer: where a partition starts, and where it continues.

One thread asks the broker, and another thread the bucket, so that a slow store delays only look-ups that need it. A
look-up asks the broker first, because if the broker then deletes records, the later listing of the bucket has them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tieredstore.consumer.group import logical_offset, topic_id_in
from tieredstore.consumer.partition import Start, Tail
from tieredstore.consumer.placement import (
    Lost,
    OnBroker,
    OutOfRange,
    Overwritten,
    Placement,
    Recreated,
    Unreadable,
    Unset,
    Waits,
    beginning,
    place,
)
from tieredstore.consumer.settings import Mode
from tieredstore.errors import AlreadyClosedError, BrokerUnavailableError
from tieredstore.model import TopicPartition, Uuid, name_of
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.position import Position, stand
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.reading.epoch_inquiry import BothSides, EpochInquiry
from tieredstore.reading.stored_logs import StoredLogs
from tieredstore.records.splits import find_decided_end, find_stable_end

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.placement import LiveSpan
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.live import LiveCluster
    from tieredstore.live.cluster import GroupCommit
    from tieredstore.partitions.history import History
    from tieredstore.remote import RemoteStorageManager

Result = TypeVar("Result")

_NO_ID: Final = Uuid(bytes(16))
_LEAST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class BrokerSpan:
    """The broker's offsets of a partition."""

    span: LiveSpan
    epoch: int | None
    """The leader's epoch."""
    latest: int
    """The offset where ``latest`` starts: the last stable offset if it was requested, else the high watermark."""
    answered_at: float
    """The time of the broker's answer. An earlier listing of the bucket may lack records that the broker has
    deleted."""


@dataclass(eq=False, slots=True)
class Look:
    """A look-up of where one partition continues. The broker's thread fills in fields that the bucket's thread uses.

    ``epoch`` is the leader epoch of the record before ``start``. ``read_id`` is the id of the topic from which that
    record was read. Both are None if unknown. The broker's thread replaces a ``start`` of ``committed`` by the group's
    offset.
    """

    where: TopicPartition
    start: Start
    begun_at: float
    end: float
    """The time by which the look-up should have an answer: its requests time out then."""
    epoch: int | None = None
    read_id: Uuid | None = None
    reload: bool = False
    """True to list the whole topic again, because a segment has disappeared since the last listing."""
    is_review: bool = False
    """True for a periodic check, during which the client continues to fetch the partition."""
    left_at: int | None = None
    """From this offset on, prefer the broker in every mode, because the logs of bucket and broker diverge there."""
    is_commit: bool = False
    """True if ``start`` is the group's commit: the group has then read up to ``start``, even if the epoch is
    unknown."""
    topic_id: Uuid | None = None
    """The current id of the topic with this name."""
    broker: BrokerSpan | None = None
    """The broker's offsets. None if the broker lacks the partition, or if the look-up does not ask the broker."""
    error: Exception | None = None
    """The reason why the broker cannot answer now."""
    was_reset: int | None = None
    """The offset that caused a reset, because neither the bucket nor the broker has it."""

    @property
    def live(self) -> LiveSpan | None:
        """The broker's first offset and its end."""
        return None if self.broker is None else self.broker.span

    def is_recreated(self, logs: StoredLogs) -> bool:
        """Return True if the topic was re-created since it was last read or uploaded."""
        return logs.contradicts(self.where[0], self.read_id, self.topic_id)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a look-up. ``at`` is the partition's next offset; None if no start offset is known."""

    look: Look
    placement: Placement
    at: Position | None = None
    lineage: Lineage | None = None
    topic_id: Uuid | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A failed look-up, its error, and how long it took."""

    look: Look
    error: Exception
    lasted_s: float


Answer: TypeAlias = Found | Unanswered


class Lookups:
    """Runs look-ups on background threads, and yields their answers in the order of arrival. Used from one thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        source: RemoteStorageManager,
        cluster: LiveCluster | None,
        news: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        """Create the look-ups. The caller closes ``source`` and ``cluster``; ``cluster`` is None without a broker."""
        self._bucket = BucketInquiry(settings, source, cluster, clock)
        self._broker = BrokerInquiry(settings, cluster, self._bucket.logs, clock)
        self._news = news
        self._clock = clock
        self._answers: deque[Answer] = deque()
        self._changed = threading.Condition()
        self._of_broker: list[Look] = []
        self._of_bucket: list[Look] = []
        self._calls: deque[tuple[Future[Any], Callable[[BucketInquiry], Any]]] = deque()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    @property
    def refreshes(self) -> int:
        """The number of times that the look-ups have listed the bucket."""
        return self._bucket.logs.listings

    def ask(self, looks: Iterable[Look]) -> None:
        """Queue look-ups. Never wait."""
        with self._changed:
            self._of_broker += looks
            self._start()

    def call(self, work: Callable[[BucketInquiry], Result]) -> Future[Result]:
        """Run ``work`` on the bucket's thread. The future fails if the consumer is closed first."""
        asked: Future[Result] = Future()
        with self._changed:
            if self._is_closed:
                raise AlreadyClosedError("the consumer was closed")
            self._calls.append((asked, work))
            self._start()
        return asked

    def _start(self) -> None:
        """Start the threads if needed, and wake them. The caller holds the lock."""
        if not self._threads:
            for name, work in (("broker", self._broker_work), ("bucket", self._bucket_work)):
                thread = threading.Thread(target=work, name=f"tieredstore-consumer-{name}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._changed.notify_all()

    def answers(self) -> Iterator[Answer]:
        """Remove and yield the answers one by one. The next call yields those that the caller did not take."""
        while self._answers:
            yield self._answers.popleft()

    def close(self) -> None:
        """Ask the threads to end. Each thread ends after its current request to the broker or the store."""
        with self._changed:
            self._is_closed = True
            while self._calls:
                self._calls.popleft()[0].set_exception(AlreadyClosedError("the consumer was closed"))
            self._changed.notify_all()

    def join(self, end: float) -> None:
        """Wait for the reading threads to end, at most until the monotonic time ``end``."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _broker_work(self) -> None:
        while (looks := self._take_all(self._of_broker)) is not None:
            self._ask_broker(looks)

    def _bucket_work(self) -> None:
        while (looks := self._take_all(self._of_bucket)) is not None:
            while True:
                with self._changed:
                    if not self._calls:
                        break
                    asked, work = self._calls.popleft()
                try:
                    asked.set_result(work(self._bucket))
                except BaseException as error:  # noqa: BLE001  the caller must learn of every error
                    asked.set_exception(error)
            if looks:
                self._ask_bucket(looks)

    def _take_all(self, waiting: list[Look]) -> list[Look] | None:
        """Wait for look-ups, and take all that are queued, so that a few requests answer hundreds of partitions. Return
        None after ``close``.
        """
        with self._changed:
            while not waiting and not self._is_closed and not (self._calls and waiting is self._of_bucket):
                self._changed.wait()
            if self._is_closed:
                return None
            taken = waiting[:]
            waiting.clear()
            return taken

    def _give(self, answers: Iterable[Answer]) -> None:
        self._answers.extend(answers)
        self._news.set()

    def _give_up(self, looks: Iterable[Look], error: Exception) -> None:
        if not isinstance(error, AlreadyClosedError) or not self._is_closed:
            self._give(self._make_unanswered(look, error) for look in looks)

    def _make_unanswered(self, look: Look, error: Exception) -> Unanswered:
        return Unanswered(look, error, self._clock() - look.begun_at)

    def _ask_broker(self, looks: list[Look]) -> None:
        try:
            self._broker.complete(looks)
        except Exception as error:  # noqa: BLE001  the caller must learn of every error
            self._give_up(looks, error)
            return
        found = {look: self._broker.find(look) for look in looks}
        self._give(answer for answer in found.values() if answer is not None)
        with self._changed:
            self._of_bucket += [look for look, answer in found.items() if answer is None]
            self._changed.notify_all()

    def _ask_bucket(self, looks: list[Look]) -> None:
        try:
            self._bucket.load(looks)
        except Exception as error:  # noqa: BLE001  as above
            self._give_up(looks, error)
            return
        # Answer the look-ups in parallel, because each partition needs a separate small request for its producer
        # snapshot.
        with ThreadPool(READERS, "tieredstore-looks") as pool:
            for answer in in_parallel(pool, self._answer, looks, at_once=2 * READERS):
                self._give([answer])

    def _answer(self, look: Look) -> Answer:
        try:
            return self._bucket.find(look)
        except Exception as error:  # noqa: BLE001  as above
            return self._make_unanswered(look, error)


class BrokerInquiry:
    """Asks the group's coordinator and the brokers. Used by the broker's thread only."""

    def __init__(
        self, settings: ConsumerSettings, cluster: LiveCluster | None, logs: StoredLogs, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._group = str(settings.client.get("group.id", ""))
        self._logs = logs
        self._clock = clock
        self._end = 0.0

    @property
    def _left_s(self) -> float:
        """The timeout of the next request."""
        return seconds_left(self._end, self._settings, self._clock)

    def complete(self, looks: Sequence[Look]) -> None:
        """Add the group's commits and the broker's offsets to the look-ups."""
        self._end = min(look.end for look in looks)
        self._resolve_commits(looks)
        self._add_spans(looks)

    def _resolve_commits(self, looks: Iterable[Look]) -> None:
        """Replace the start ``committed`` by the group's offset, or by ``auto.offset.reset`` if there is no commit."""
        asked = [look for look in looks if look.start == "committed"]
        commits: Mapping[TopicPartition, GroupCommit] = {}
        if asked and self._cluster is not None:
            # Use the separate client of the cluster, because the group member's client blocks while one of its
            # callbacks runs.
            commits = self._cluster.within(self._left_s).commits(self._group, [look.where for look in asked])
        for look in asked:
            commit = commits.get(look.where)
            if commit is None:
                look.start = self._settings.reset
            else:
                look.start, look.epoch, look.is_commit = commit.offset, commit.leader_epoch, True
                look.read_id = look.read_id or topic_id_in(commit.metadata)

    def _add_spans(self, looks: Sequence[Look]) -> None:
        """Add the broker's offsets and the topic ids. With ``remote_only``, ask only for the ids that are unknown."""
        if self._cluster is None:
            return
        if self._settings.mode is Mode.REMOTE_ONLY:
            looks = [look for look in looks if look.topic_id is None]
        topics = self._cluster.within(self._left_s).describe({look.where[0] for look in looks})
        there: list[Look] = []
        for look in looks:
            topic = topics.get(look.where[0])
            if topic is None:
                continue
            look.topic_id = topic.topic_id
            if look.where[1] in topic.leaderless and self._settings.mode is not Mode.REMOTE_ONLY:
                # Do not ask for its offsets, because the other partitions in the request would wait for its answer.
                look.error = BrokerUnavailableError(f"{name_of(look.where)} has no leader now")
            elif look.where[1] in topic.partitions:
                there.append(look)
        if self._settings.mode is Mode.REMOTE_ONLY:
            return
        wheres = [look.where for look in there]
        starts = self._cluster.within(self._left_s).earliest_offsets(wheres)
        # Ask for the high watermark as the end, because offsets between the last stable offset and the high watermark
        # are in range too.
        heads = self._cluster.within(self._left_s).ends(wheres, "read_uncommitted")
        stable: dict[TopicPartition, int] = {}
        by_end = any(look.is_review or _is_by_end(look.start) for look in there)
        if self._settings.isolation == "read_committed" and (by_end or self._settings.reset == "latest"):
            stable = self._cluster.within(self._left_s).end_offsets(wheres)
        for look in there:
            where = look.where
            first, end = starts[where], heads[where]
            latest = max(first, stable.get(where, end.offset))
            span = first, max(first, end.offset)
            look.broker = BrokerSpan(span, end.leader_epoch, latest, self._clock())

    def find(self, look: Look) -> Answer | None:
        """Return the answer if the broker alone can give it, otherwise None."""
        if look.error is not None:
            return Unanswered(look, look.error, self._clock() - look.begun_at)
        if look.start == "error":
            return _make_found(look, Unset())
        if self._settings.mode is not Mode.KAFKA_PREFERRED or look.broker is None or look.is_recreated(self._logs):
            return None
        if look.is_commit and look.epoch is None and look.broker.epoch:
            return None  # only the bucket shows if the log was truncated before the position
        start = _before(look.broker.latest, look.start) if _is_by_end(look.start) else look.start
        if not isinstance(start, int) or not look.broker.span[0] <= start <= look.broker.span[1]:
            return None
        return _make_found(look, OnBroker(), start)


class BucketInquiry:
    """Decides where partitions start and continue. Used by the bucket's thread only."""

    def __init__(
        self,
        settings: ConsumerSettings,
        source: RemoteStorageManager,
        cluster: LiveCluster | None,
        clock: Callable[[], float],
    ) -> None:
        self.source = source
        self.cluster = cluster
        self.logs = StoredLogs(source, settings.topic_ids)
        self._settings = settings
        self._clock = clock
        self._epochs = EpochInquiry(source, cluster)
        self._listed_at: dict[TopicPartition, float] = {}
        self._whole_at: dict[str, float] = {}
        """For each topic, the time when the whole topic was last listed."""
        self._reloading = threading.Lock()
        self._reloaded: set[str] = set()
        """Topics that were already listed again for the current look-ups."""

    def load(self, looks: Sequence[Look]) -> None:
        """List the topics of these look-ups, and load leader epochs and watermarks for all topics together."""
        topics = {look.where[0] for look in looks}
        ids = {look.where[0]: look.topic_id for look in looks if look.topic_id is not None}
        self._reloaded.clear()
        begun = self._clock()
        listed = self.logs.load(topics, ids)
        self._whole_at.update(dict.fromkeys(listed, begun))
        self._listed_at.update((look.where, begun) for look in looks if look.where[0] in listed)
        left_s = seconds_left(min(look.end for look in looks), self._settings, self._clock)
        self._epochs.histories({look.where: both for look in looks if (both := self._both(look)) is not None}, left_s)
        alone = [self.logs.lineage(look.where) for look in looks if look.broker is None]
        self._epochs.look_at_watermarks(lineage for lineage in alone if lineage is not None)

    def _both(self, look: Look) -> BothSides | None:
        lineage = None if look.is_recreated(self.logs) else self.logs.lineage(look.where)
        if lineage is None or look.broker is None:
            return None
        return BothSides(lineage, look.broker.span[0], look.broker.epoch)

    def _history(self, look: Look) -> History | None:
        lineage, both = self.logs.lineage(look.where), self._both(look)
        if both is not None:
            return self._epochs.histories({look.where: both}).get(look.where)
        is_alone = lineage is not None and look.broker is None and not look.is_recreated(self.logs)
        return self._epochs.stored_history(lineage) if is_alone and lineage is not None else None

    def until_cut(self, lineage: Lineage) -> Lineage | None:
        """Return the part of the bucket's log that is valid by the uploader's watermark, without asking a broker."""
        self._epochs.look_at_watermarks([lineage])
        history = self._epochs.stored_history(lineage)
        return lineage if history is None or history.cut is None else history.cut.apply(lineage)

    def find_end(self, lineage: Lineage) -> int:
        """Return the end of the bucket's records; for ``read_committed``, the beginning of the first transaction that
        is open after the last gap."""
        if self._settings.isolation == "read_uncommitted":
            return lineage.end_offset
        stable = find_stable_end(self.source, lineage, lineage.end_offset)
        return max([stable, *(gap.stop for gap in lineage.gaps)])

    def _lineage(self, look: Look) -> Lineage | None:
        """Return the bucket's log, without records that the broker dropped in an unclean leader election."""
        lineage, history = self.logs.lineage(look.where), self._history(look)
        if lineage is None or history is None or history.cut is None:
            return lineage
        self.logs.notices.warn(history.cut.sentence(lineage))
        return history.cut.apply(lineage)

    def find(self, look: Look) -> Found:
        """Decide where a partition continues. Runs on several threads at once."""
        where = look.where
        if look.is_recreated(self.logs):
            lineage = self.logs.lineage(where)
            # Drop the leader epoch of the previous topic, because it means nothing in the new topic.
            look.epoch = None
            return _make_found(look, Recreated(look.topic_id), self._beginning(look, lineage), lineage)
        if self._settings.mode is not Mode.REMOTE_ONLY and look.broker is None and self.logs.lineage(where) is None:
            # Neither bucket nor broker has the partition, so let the Kafka client wait for it and report errors.
            return _make_found(look, OnBroker(), logical_offset(look.start))
        is_reloaded = look.reload
        if is_reloaded:
            self._reload(look)
        position = self._fresh_offset(look)
        if position is None:
            return _make_found(look, self._waits(look))
        placement = self._place(look, position)
        at_seam = self._settings.mode is Mode.REMOTE_PREFERRED and isinstance(placement, OnBroker)
        # The next records may be in segments newer than the last listing.
        if (at_seam or isinstance(placement, Waits)) and self._refresh_is_due(where):
            self._refresh(look)
            placement = self._place(look, position)
        if isinstance(placement, Overwritten | Lost | OutOfRange | Unreadable) and not is_reloaded:
            # Before a loss, list the whole topic again: a later upload may fill the gap, or be what a watermark names.
            self._reload(look)
            placement = self._place(look, position)
        if isinstance(placement, OutOfRange):
            if self._settings.reset == "error":
                look.was_reset = position
                return _make_found(look, Unset())
            look.start, look.epoch, look.is_commit, look.was_reset = self._settings.reset, None, False, position
            look.reload = True
            return self.find(look)
        return _make_found(
            look, placement, position, self._lineage(look), look.topic_id or self.logs.topic_id(where[0])
        )

    def _fresh_offset(self, look: Look) -> int | None:
        """Return the start offset from a listing that is fresh enough, or None if there is no start yet."""
        position = self._offset(look)
        if self._may_begin_earlier(look, position):
            self._reload(look)
            position = self._offset(look)
        # An empty log has no start yet. List the bucket again to find the log's first record, because the read must
        # start there, whatever ``auto.offset.reset`` says.
        if position is None and self._refresh_is_due(look.where):
            self._refresh(look)
            position = self._offset(look)
        return position

    def _offset(self, look: Look) -> int | None:
        """Return the start offset; None if it is unknown."""
        if isinstance(look.start, int):
            return look.start
        lineage = self._lineage(look)
        if look.start == "earliest" or (self._settings.mode is Mode.REMOTE_ONLY and lineage is None):
            return self._beginning(look, lineage)
        if self._settings.mode is Mode.REMOTE_ONLY or look.broker is None:
            return _before(None if lineage is None else self.find_end(lineage), look.start)
        return _before(look.broker.latest, look.start)

    def _beginning(self, look: Look, lineage: Lineage | None) -> int | None:
        if self._settings.mode is Mode.REMOTE_ONLY or look.broker is None:
            return None if lineage is None else beginning(lineage)
        return look.broker.span[0] if lineage is None else min(look.broker.span[0], beginning(lineage))

    def _may_begin_earlier(self, look: Look, position: int | None) -> bool:
        """Return True if the broker may have deleted records that were uploaded only after the listing."""
        broker = look.broker
        if broker is None or look.start != "earliest" or not position == broker.span[0] > 0:
            return False
        return self._whole_at.get(look.where[0], 0.0) < broker.answered_at

    def _place(self, look: Look, position: int) -> Placement:
        lineage = self._lineage(look)
        at = self._find_cut(look, position, lineage)
        if at is not None:
            return Overwritten(at)
        stored = None if lineage is None else lineage.epoch_at(position)
        if lineage is not None and stored is not None and look.epoch is not None and stored < look.epoch:
            # From this position on, ignore the bucket's records, because their leader epoch is older than the epoch of
            # the log being read. The new leader's records are not uploaded yet.
            lineage = lineage.until(position)
        decided = position
        if lineage is not None:
            decided = lineage.missing_from(position)
            if self._settings.isolation == "read_committed":
                decided = find_decided_end(self.source, lineage, position, decided)
        mode = self._settings.mode if look.left_at is None or position < look.left_at else Mode.KAFKA_PREFERRED
        placement = place(mode, position, look.live, lineage, decided)
        return self._waits(look) if isinstance(placement, Waits) else placement

    def _waits(self, look: Look) -> Waits | Unreadable:
        """Return why there is no next record: the bucket has no later segment, or no readable one of the partition."""
        problem = self.logs.find_unreadable(look.where)
        return Waits() if problem is None else Unreadable(problem)

    def _find_cut(self, look: Look, position: int, lineage: Lineage | None) -> int | None:
        """Return where the log was truncated after the consumer had read up to ``position``; else None."""
        if look.epoch is None and not look.is_commit:
            return None
        log = PartitionLog(
            *look.where, look.topic_id or _NO_ID, lineage, seam=position, earliest=self._beginning(look, lineage) or 0,
            end=position, history=self._history(look),
        )  # fmt: skip
        standing = stand(Position(position, look.epoch), log)
        return standing.at if standing.kind == "cut" else None

    def _refresh_is_due(self, where: TopicPartition) -> bool:
        return self._clock() >= self._listed_at.get(where, 0.0) + self._settings.refresh_s

    def _refresh(self, look: Look) -> None:
        if self.logs.lineage(look.where) is None:
            self._reload(look)
            return
        self._listed_at[look.where] = self._clock()
        self.logs.refresh(look.where)

    def _reload(self, look: Look) -> None:
        topic = look.where[0]
        with self._reloading:
            if topic not in self._reloaded:
                begun = self._clock()
                self.logs.reload(topic, look.topic_id)
                self._whole_at[topic] = begun
                self._reloaded.add(topic)
            self._listed_at[look.where] = self._clock()


def seconds_left(end: float, settings: ConsumerSettings, clock: Callable[[], float]) -> float:
    """Return the seconds left for a request: at least one, because a broker that has just restarted needs one."""
    return max(min(_LEAST_S, settings.timeout_s), round(end - clock(), 1))


def _make_found(
    look: Look,
    placement: Placement,
    offset: int | None = None,
    lineage: Lineage | None = None,
    topic_id: Uuid | None = None,
) -> Found:
    at = None if offset is None else Position(offset, look.epoch)
    return Found(look, placement, at, lineage, topic_id or look.topic_id)


def _is_by_end(start: Start) -> bool:
    return start == "latest" or isinstance(start, Tail)


def _before(end: int | None, start: Start) -> int | None:
    """Return the offset of a start that counts from the end. Like librdkafka, return at least 0."""
    return end if end is None or not isinstance(start, Tail) else max(0, end - start.count)
