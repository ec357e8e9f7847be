"""Look-ups that a consumer's calls do not wait for: where a partition starts, and where it goes on.

Two threads, one that asks the broker and one that asks the bucket, so that a store that keeps silent holds up nobody
who does not need it. The broker is asked first: what it deletes after that is in the listing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tieredstore.consumer.looks import Answer, Asked, KnownLook, Look, Start, Tail, blank_answer, cut_below
from tieredstore.consumer.placement import Lost, OnBroker, OutOfRange, Placement, Unreadable, Waits, place, run_stop
from tieredstore.consumer.settings import Mode, Reset
from tieredstore.errors import AlreadyClosed
from tieredstore.model import Isolation, TopicPartition, Uuid
from tieredstore.partitions.epoch_inquiry import BothSides, EpochInquiry
from tieredstore.partitions.stored_logs import StoredLogs
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.split_planning import decided_end

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.live import LiveCluster
    from tieredstore.partitions.history import History
    from tieredstore.remote.source import SegmentSource

Result = TypeVar("Result")
Waiting = TypeVar("Waiting")

_LOGICAL: Final = {"earliest": -2, "latest": -1, "error": -1}
"""As librdkafka numbers the ends of a log."""
_TAIL_BASE: Final = -2000
"""And what it takes a count from, for a place that many offsets before the end."""

CommittedOffsets: TypeAlias = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int | None]]
"""Asks the coordinator for the group's offsets; None for none. KafkaException or BrokerUnavailable."""


class Lookups:
    """Answers looks, in the order in which they can be answered. Asked and listened to on one thread."""

    def __init__(
        self,
        *,
        mode: Mode,
        reset: Reset,
        isolation: Isolation,
        refresh_s: float,
        source: SegmentSource,
        cluster: LiveCluster | None,
        committed: CommittedOffsets,
        news: threading.Event,
    ) -> None:
        """``cluster`` is None where there is no broker; both it and ``source`` stay their owner's to close."""
        self._mode = mode
        self._reset: Reset = reset
        self._isolation: Isolation = isolation
        self._refresh_s = refresh_s
        self._source = source
        self._cluster = cluster
        self._committed = committed
        self._news = news
        self._logs = StoredLogs(source)
        self._epochs = EpochInquiry(source, cluster)
        self._listed_at: dict[TopicPartition, float] = {}
        self._whole_at: dict[str, float] = {}
        """When all of a topic was listed last."""
        self._answers: deque[Answer] = deque()
        self._changed = threading.Condition()
        self._of_broker: list[Look] = []
        self._of_bucket: list[KnownLook] = []
        self._calls: deque[tuple[Asked[Any], Callable[[], Any]]] = deque()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._reloading = threading.Lock()
        self._reloaded: set[str] = set()
        """The topics that were listed anew for the looks that are being answered."""

    @property
    def refreshes(self) -> int:
        """How often the bucket was listed."""
        return self._logs.listings

    def ask(self, looks: Iterable[Look]) -> None:
        """Have these answered; never waits."""
        with self._changed:
            self._of_broker += looks
            self._start()

    def call(self, work: Callable[[StoredLogs], Result]) -> Asked[Result]:
        """Have something found out of the bucket's logs, on its thread."""
        asked: Asked[Result] = Asked()
        with self._changed:
            self._calls.append((asked, lambda: work(self._logs)))
            self._start()
        return asked

    def _start(self) -> None:
        """Have the threads run. The lock is held."""
        if not self._threads:
            for name, work in (("broker", self._broker_work), ("bucket", self._bucket_work)):
                thread = threading.Thread(target=work, name=f"tieredstore-consumer-{name}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._changed.notify_all()

    def answers(self) -> Iterator[Answer]:
        """Take those that have come, one by one: what a caller does not get to is there for the next call."""
        while self._answers:
            yield self._answers.popleft()

    def close(self) -> None:
        """Ask the threads to end; they do once broker and store have answered."""
        with self._changed:
            self._is_closed = True
            while self._calls:
                self._calls.popleft()[0].answer(_closed)
            self._changed.notify_all()

    def join(self, end: float) -> None:
        """Wait for them, until the moment ``end`` at most."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _broker_work(self) -> None:
        while (looks := self._taken(self._of_broker)) is not None:
            self._ask_broker(looks)

    def _bucket_work(self) -> None:
        while (known := self._taken(self._of_bucket)) is not None:
            while self._calls:
                asked, work = self._calls.popleft()
                asked.answer(work)
            if known:
                self._ask_bucket(known)

    def _taken(self, waiting: list[Waiting]) -> list[Waiting] | None:
        """All that have come, answered together: five hundred partitions by a few requests. None at the end."""
        with self._changed:
            while not waiting and not self._is_closed and not (self._calls and waiting is self._of_bucket):
                self._changed.wait()
            if self._is_closed:
                return None
            taken = waiting[:]
            waiting.clear()
            return taken

    def _answered(self, answers: Iterable[Answer]) -> None:
        self._answers.extend(answers)
        self._news.set()

    def _failed(self, looks: Iterable[Look], error: Exception) -> None:
        if not isinstance(error, AlreadyClosed) or not self._is_closed:
            self._answered(Answer(look.where, look.generation, error=error, is_review=look.is_review) for look in looks)

    # ---- the broker's thread

    def _ask_broker(self, looks: list[Look]) -> None:
        try:
            known = self._with_starts(looks)
            self._add_extents(known)
        except Exception as error:  # noqa: BLE001  whatever it is, the caller of the consumer has to hear of it
            self._failed(looks, error)
            return
        rest: list[KnownLook] = []
        for one in known:
            answer = self._by_broker_alone(one)
            if answer is None:
                rest.append(one)
            else:
                self._answered([answer])
        with self._changed:
            self._of_bucket += rest
            self._changed.notify_all()

    def _with_starts(self, looks: list[Look]) -> list[KnownLook]:
        """Offsets in place of what is committed."""
        asked = [look.where for look in looks if look.start == "committed"]
        committed: Mapping[TopicPartition, int | None] = self._committed(asked) if asked else {}
        known: list[KnownLook] = []
        for look in looks:
            start = look.start
            if start == "committed":
                offset = committed[look.where]
                start = self._reset if offset is None else offset
            known.append(KnownLook(look, start, topic_id=look.topic_id))
        return known

    def _add_extents(self, known: Sequence[KnownLook]) -> None:
        """What the broker has, and under which id. ``remote_only`` asks for ids alone, and once."""
        if self._cluster is None:
            return
        if self._mode is Mode.REMOTE_ONLY:
            known = [one for one in known if one.topic_id is None]
        topics = self._cluster.describe({one.look.where[0] for one in known})
        there: list[KnownLook] = []
        for one in known:
            topic = topics.get(one.look.where[0])
            if topic is None:
                continue
            one.topic_id = topic.topic_id
            if one.look.where[1] in topic.partitions:
                there.append(one)
        if self._mode is Mode.REMOTE_ONLY:
            return
        wheres = [one.look.where for one in there]
        starts = self._cluster.earliest_offsets(wheres)
        # What is not stable yet is there all the same: an offset behind it is none that is out of range.
        heads = self._cluster.ends(wheres, "read_uncommitted")
        ends = {where: head.offset for where, head in heads.items()}
        asks_stable = self._reset == "latest" or any(one.look.is_review or _is_by_end(one.start) for one in there)
        stable = self._cluster.end_offsets(wheres) if asks_stable and self._isolation == "read_committed" else ends
        for one in there:
            where = one.look.where
            one.live = starts[where], max(starts[where], ends[where])
            one.live_epoch = heads[where].leader_epoch
            one.latest = max(starts[where], stable[where])
            one.answered_at = time.monotonic()

    def _by_broker_alone(self, one: KnownLook) -> Answer | None:
        """The answer, if the bucket need not be asked for it."""
        if one.start == "error":
            return replace(blank_answer(one), is_unset=True)
        if self._mode is not Mode.KAFKA_PREFERRED or one.live is None or self._is_recreated(one):
            return None
        start = _before(one.latest, one.start) if _is_by_end(one.start) else one.start
        if not isinstance(start, int) or not one.live[0] <= start <= one.live[1]:
            return None
        return replace(blank_answer(one), placement=OnBroker(), position=start)

    # ---- the bucket's thread

    def _ask_bucket(self, known: list[KnownLook]) -> None:
        topics = {one.look.where[0] for one in known}
        ids = {one.look.where[0]: one.topic_id for one in known if one.topic_id is not None}
        self._reloaded.clear()
        try:
            begun = time.monotonic()
            listed = self._logs.load(topics, ids)
            self._whole_at.update(dict.fromkeys(listed, begun))
            self._listed_at.update((one.look.where, begun) for one in known if one.look.where[0] in listed)
            # Of all at once: what each finds out then is known.
            self._epochs.histories({one.look.where: both for one in known if (both := self._both(one)) is not None})
            alone = [self._logs.lineage(one.look.where) for one in known if one.live is None]
            self._epochs.look_at_watermarks(lineage for lineage in alone if lineage is not None)
        except Exception as error:  # noqa: BLE001  as above
            self._failed([one.look for one in known], error)
            return
        # Snapshots of producers are read for each partition: side by side, as they are small.
        with ThreadPool(READERS, "tieredstore-looks") as pool:
            for answer in in_parallel(pool, self._answer_or_error, known, at_once=2 * READERS):
                self._answered([answer])

    def _answer_or_error(self, one: KnownLook) -> Answer:
        try:
            return self._answer(one)
        except Exception as error:  # noqa: BLE001  as above
            return Answer(one.look.where, one.look.generation, error=error, is_review=one.look.is_review)

    def _both(self, one: KnownLook) -> BothSides | None:
        lineage = None if self._is_recreated(one) else self._logs.lineage(one.look.where)
        return None if lineage is None or one.live is None else BothSides(lineage, one.live[0], one.live_epoch)

    def _lineage(self, one: KnownLook) -> Lineage | None:
        """What the bucket has, without what the broker's log left behind after an unclean election."""
        lineage, history = self._logs.lineage(one.look.where), self._history(one)
        if lineage is None or history is None or history.cut is None:
            return lineage
        self._logs.say(history.cut.sentence(lineage))
        return history.cut.applied(lineage)

    def alone(self, lineage: Lineage) -> Lineage | None:
        """What counts of the bucket's log of a partition where no broker is asked. On the bucket's thread."""
        self._epochs.look_at_watermarks([lineage])
        history = self._epochs.stored_history(lineage)
        return lineage if history is None or history.cut is None else history.cut.applied(lineage)

    def _history(self, one: KnownLook) -> History | None:
        where, lineage = one.look.where, self._logs.lineage(one.look.where)
        if lineage is None or self._is_recreated(one):
            return None
        if one.live is None:
            return self._epochs.stored_history(lineage)
        both = BothSides(lineage, one.live[0], one.live_epoch)
        return self._epochs.histories({where: both}).get(where)

    def _answer(self, one: KnownLook) -> Answer:
        where = one.look.where
        if self._is_recreated(one):
            lineage = self._logs.lineage(where)
            return replace(blank_answer(one), lineage=lineage, recreated=True, position=self._beginning(one, lineage))
        if self._mode is not Mode.REMOTE_ONLY and one.live is None and self._logs.lineage(where) is None:
            # Neither has it: the client waits for it, and says what is wrong in its own words.
            return replace(blank_answer(one), placement=OnBroker(), position=_logical(one.start))
        if one.look.reload and not one.is_reloaded:
            self._reload(where, one.topic_id)
            one.is_reloaded = True
        position = self._fresh_offset(one)
        if position is None:
            return blank_answer(one)
        placement = self._place(one, position)
        if self._may_be_behind(placement) and self._refresh_is_due(where):
            self._refresh(where, one.topic_id)
            placement = self._place(one, position)
        if isinstance(placement, Lost | OutOfRange | Unreadable) and not one.is_reloaded:
            # Before anything is called lost all of the topic is listed: a late copy may fill a hole.
            self._reload(where, one.topic_id)
            one.is_reloaded = True
            placement = self._place(one, position)
        if isinstance(placement, OutOfRange):
            return self._after_reset(one, position)
        lineage = self._lineage(one)
        answer = replace(blank_answer(one), placement=placement, position=position, lineage=lineage)
        return replace(
            answer, topic_id=one.topic_id or self._logs.topic_id(where[0]), truncated_to=cut_below(one, lineage)
        )

    def _after_reset(self, one: KnownLook, position: int) -> Answer:
        if self._reset == "error":
            return replace(blank_answer(one), is_unset=True, was_reset=position)
        one.start, one.was_reset = self._reset, position
        return self._answer(one)

    def _is_recreated(self, one: KnownLook) -> bool:
        return self._logs.contradicts(one.look.where[0], one.look.topic_id, one.topic_id)

    def _fresh_offset(self, one: KnownLook) -> int | None:
        """Where to start, by listings that are new enough for it; None where nothing is there yet to start at."""
        where, position = one.look.where, self._offset(one)
        if self._may_begin_earlier(one, position):
            self._reload(where, one.topic_id)
            position = self._offset(one)
        # What comes first is the beginning, whatever the reset.
        if position is None and self._refresh_is_due(where):
            self._refresh(where, one.topic_id)
            position = self._offset(one)
        return position

    def _offset(self, one: KnownLook) -> int | None:
        """Where to start; None where nothing tells."""
        if isinstance(one.start, int):
            return one.start
        lineage = self._lineage(one)
        if one.start == "earliest" or (self._mode is Mode.REMOTE_ONLY and lineage is None):
            return self._beginning(one, lineage)
        if self._mode is Mode.REMOTE_ONLY or one.live is None:
            end = None if lineage is None else self._decided(lineage, lineage.earliest_offset, lineage.end_offset)
            return _before(end, one.start)
        return _before(one.latest, one.start)

    def _beginning(self, one: KnownLook, lineage: Lineage | None) -> int | None:
        if self._mode is Mode.REMOTE_ONLY or one.live is None:
            return None if lineage is None else lineage.earliest_offset
        return one.live[0] if lineage is None else min(one.live[0], lineage.earliest_offset)

    def _may_begin_earlier(self, one: KnownLook, position: int | None) -> bool:
        """Whether what the broker had deleted by then may have been copied since the topic was listed."""
        is_brokers = one.start == "earliest" and one.live is not None and position == one.live[0] > 0
        return is_brokers and self._whole_at.get(one.look.where[0], 0.0) < one.answered_at

    def _place(self, one: KnownLook, position: int) -> Placement:
        lineage = self._lineage(one)
        stop = run_stop(lineage, position)
        decided = None if lineage is None or stop is None else self._decided(lineage, position, stop)
        left = one.look.broker_from
        mode = self._mode if left is None or position < left else Mode.KAFKA_PREFERRED
        return place(mode, position, one.live, lineage, decided)

    def _decided(self, lineage: Lineage, start: int, stop: int) -> int:
        return stop if self._isolation == "read_uncommitted" else decided_end(self._source, lineage, start, stop)

    def _may_be_behind(self, placement: Placement) -> bool:
        """Whether what comes next may be in segments that came since the last listing."""
        at_seam = self._mode is Mode.REMOTE_PREFERRED and isinstance(placement, OnBroker)
        return at_seam or isinstance(placement, Waits)

    def _refresh_is_due(self, where: TopicPartition) -> bool:
        return time.monotonic() >= self._listed_at.get(where, 0.0) + self._refresh_s

    def _refresh(self, where: TopicPartition, topic_id: Uuid | None) -> None:
        if self._logs.lineage(where) is None:
            self._reload(where, topic_id)
            return
        self._listed_at[where] = time.monotonic()
        self._logs.refresh(where)

    def _reload(self, where: TopicPartition, topic_id: Uuid | None) -> None:
        with self._reloading:
            if where[0] not in self._reloaded:
                begun = time.monotonic()
                self._logs.reload(where[0], topic_id)
                self._whole_at[where[0]] = begun
                self._reloaded.add(where[0])
            self._listed_at[where] = time.monotonic()


def _is_by_end(start: Start) -> bool:
    return start == "latest" or isinstance(start, Tail)


def _before(end: int | None, start: Start) -> int | None:
    """Where a start lies that is told from the end; as librdkafka has it, none lies before offset 0."""
    return end if end is None or not isinstance(start, Tail) else max(0, end - start.count)


def _logical(start: int | Reset | Tail) -> int:
    """As librdkafka numbers it."""
    if isinstance(start, Tail):
        return _TAIL_BASE - start.count
    return start if isinstance(start, int) else _LOGICAL[start]


def _closed() -> None:
    raise AlreadyClosed("the consumer was closed")
