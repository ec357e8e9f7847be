"""What is assigned in the client: the live partitions, and no others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer.client import place_at, position_of
from tieredstore.consumer.partition import Live, Parked, Partition, Stall
from tieredstore.live.follower import Link
from tieredstore.model import TopicPartition
from tieredstore.partitions.position import Position

if TYPE_CHECKING:
    from tieredstore.consumer.assembly import Makers
    from tieredstore.consumer.client import MemberClient

_logger: Final = logging.getLogger(__name__)


class LiveSide:
    """Keeps the client's assignment what it is to be. For the polling thread.

    Eager groups know no incremental assignment: there all live partitions are assigned anew, with the offsets at which
    they are, once a second at most.
    """

    def __init__(
        self, client: MemberClient, timeout_s: float, makers: Makers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self.partitions: dict[TopicPartition, Partition] = {}
        """All that are assigned."""
        self._timeout_s = timeout_s
        self._silent_s = min(makers.silent_s, timeout_s)
        self._reassign_s = makers.reassign_s
        self._clock = clock
        self.is_eager = False
        self.leaving: set[TopicPartition] = set()
        """Those that the client still has, and that are not to come from it."""
        self.unheard: set[TopicPartition] = set()
        """Those of which nothing has come since they were assigned: each call asks whether there are some."""
        self._paused: set[TopicPartition] = set()
        """Those that are paused in the client, which keeps that from one assignment to the next."""
        self._is_due = False
        self._assigned_at = -makers.reassign_s
        self._drained_at = 0.0

    def __iter__(self) -> Iterator[tuple[Partition, Live]]:
        for partition in self.partitions.values():
            if isinstance(partition.phase, Live):
                yield partition, partition.phase

    def join(self, *, is_eager: bool) -> None:
        """Be a member of a group from now on, eager or not."""
        self.is_eager = is_eager

    def add(self, partition: Partition) -> None:
        """Have the client fetch a partition from its position on, which makes it live."""
        assert partition.position is not None
        if not self.is_eager:
            self._client.incremental_assign([_place(partition)])
        live = partition.phase = Live(partition.position)
        self.unheard.add(partition.where)
        if self.is_eager:
            self._is_due = True
        else:
            self.set_paused(partition)
            self._begin_check([(partition, live)])

    def set_paused(self, partition: Partition) -> None:
        """Have the client pause a partition, or resume it, as the partition says."""
        where = partition.where
        if partition.paused:
            # Also where that was said before: of what it is not assigned yet the client takes no notice.
            self._client.pause([where])
            self._paused.add(where)
        elif where in self._paused:
            self._client.resume([where])
            self._paused.discard(where)

    def remove(self, partition: Partition) -> None:
        """Have the client fetch a live partition no longer; what has come and was not given is dropped."""
        where, partition.phase = partition.where, Parked()
        self.unheard.discard(where)
        if self.is_eager:
            self.leaving.add(where)
            self._is_due = True
        else:
            self._client.incremental_unassign([KafkaPartition(*where)])

    def forget(self, wheres: Iterable[TopicPartition]) -> None:
        """Take note that the client has none of these any more."""
        self.unheard.difference_update(wheres)
        self.leaving.difference_update(wheres)

    def forget_all(self) -> None:
        """Take note that the client has nothing assigned."""
        self.unheard.clear()
        self.leaving.clear()
        self._is_due = False

    @property
    def due_in(self) -> float | None:
        """In how many seconds all are to be assigned anew; None if they need not be."""
        return max(0.0, self._assigned_at + self._reassign_s - self._clock()) if self._is_due else None

    def flush(self) -> None:
        """Assign all anew, if that is due."""
        if not self._is_due or self.due_in:
            return
        self.locate()
        known = list(self)
        self._client.assign([_place(partition) for partition, _ in known])
        self._assigned_at, self._is_due = self._clock(), False
        self.leaving.clear()
        for partition, live in known:
            live.held.clear()
            self.begin_silent(partition, live)
            self.set_paused(partition)
        self._begin_check(known)

    @property
    def has_unchecked(self) -> bool:
        """Whether the client has yet to ask for some whether their logs were cut."""
        return any(live.link is Link.UNCHECKED for _, live in self._list_unheard())

    def check(self) -> None:
        """Have the client ask whether the logs of those that are unchecked were cut below where they are."""
        for partition, live in self._list_unheard():
            if live.link is not Link.UNCHECKED:
                continue
            assert partition.position is not None
            try:
                # An assignment is not checked by librdkafka, whatever epoch it carries: a seek is.
                self._client.seek(partition.where, partition.position, partition.epoch)
            except KafkaException:
                continue  # it is not being fetched yet
            live.link = Link.SILENT

    def _list_unheard(self) -> list[tuple[Partition, Live]]:
        known = (self.partitions[where] for where in self.unheard)
        return [(partition, partition.phase) for partition in known if isinstance(partition.phase, Live)]

    def _begin_check(self, known: Iterable[tuple[Partition, Live]]) -> None:
        for partition, live in known:
            live.link = Link.UNCHECKED if partition.epoch is not None and partition.position else Link.SILENT
        self.check()

    def hear(self, partition: Partition, live: Live) -> None:
        """Take note that something has come of a partition."""
        live.link, partition.retry.tries = Link.HEARD, 0
        self.unheard.discard(partition.where)

    def locate(self) -> None:
        """Bring the positions of all up to date, and the leader epochs of their last records."""
        heard = [partition.where for partition, live in self if live.link is Link.HEARD]
        for place in self._client.positions(heard) if heard else ():
            partition = self.partitions[place.topic, place.partition]
            if partition.held:
                partition.at = position_of(partition.held[0])
            elif place.offset >= 0 and place.offset != partition.position:
                partition.commit.has_given |= partition.position is None or place.offset > partition.position
                partition.at = position_of(place)

    def begin_silent(self, partition: Partition, live: Live) -> None:
        """Take note that the client was told where to start with a partition."""
        live.assigned_at = -1 if partition.position is None else partition.position
        live.link, live.hole_at = Link.SILENT, -1
        self.unheard.add(partition.where)

    def note_drained(self) -> None:
        """The client has given all that it had: what waits in it is the caller's delay, and no standstill."""
        self._drained_at = self._clock()

    def is_stalled(self, partition: Partition, live: Live, end: int | None) -> bool:
        """Whether a partition has not moved for too long though records up to ``end`` can be read, as the broker says.

        librdkafka has been seen to fetch nothing of a partition for minutes after its broker was away: it waited for an
        answer about the leader epoch that nobody was to give any more. An assignment ends that.

        Said once of a position and an end: behind the last record there may be markers alone, which nobody is given.
        """
        position, now = partition.position, self._clock()
        if end is None or position is None or position >= end or partition.paused or live.held:
            live.stall = None
            return False
        if live.stall is None or live.stall.position != position:
            live.stall = Stall(position, now)
            return False
        late = live.stall.since + (self._timeout_s if live.link is Link.HEARD else self._silent_s)
        if now < late or self._drained_at < late or partition.revived == (position, end):
            return False
        live.stall, partition.revived = None, (position, end)
        _logger.info(
            "nothing comes of %s from offset %d on, and the broker has records up to %d: it is assigned anew",
            partition, position, end - 1,
        )  # fmt: skip
        return True


def _place(partition: Partition) -> KafkaPartition:
    """Where the client is to begin, with the leader epoch of the last record."""
    at = partition.at
    assert isinstance(at, Position)
    return place_at(partition.where, at if at.offset else Position(0))
