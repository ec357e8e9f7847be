"""What is assigned in the client: those partitions, and no others, whose records come from the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.model import TopicPartition

if TYPE_CHECKING:
    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.partition import Partition

_REASSIGN_S: Final = 1.0
"""The least time between two assignments of all: each drops what the client has read ahead."""


class LiveSide:
    """Keeps the client's assignment what it is to be. For the polling thread.

    Eager groups know no incremental assignment: there all live partitions are assigned anew, with the offsets at which
    they are, once a second at most.
    """

    def __init__(self, client: MemberClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self.is_eager = False
        self.partitions: dict[TopicPartition, Partition] = {}
        """Those that are to come from the client."""
        self.silent: set[TopicPartition] = set()
        """Those of which nothing has come since they were assigned, so that the client does not tell where they are."""
        self.leaving: set[TopicPartition] = set()
        """Those that the client still has, and that are not to come from it."""
        self.unchecked: set[TopicPartition] = set()
        """Those of which it is still to be checked that the last record that was given is of the broker's log."""
        self._paused: set[TopicPartition] = set()
        """Those that are paused in the client, which keeps that from one assignment to the next."""
        self._is_due = False
        self._assigned_at = -_REASSIGN_S

    def add(self, partition: Partition) -> None:
        """Have the client fetch a partition from its position on."""
        assert partition.position is not None
        if not self.is_eager:
            self._client.incremental_assign([_place(partition)])
        self.partitions[partition.where] = partition
        partition.assigned_at = partition.position
        self.begin_silent(partition)
        if self.is_eager:
            self._is_due = True
        else:
            self.set_paused(partition)
            self._begin_check([partition])

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
        """Have the client fetch it no longer; what has come and was not given is dropped."""
        where = partition.where
        if self.partitions.pop(where, None) is None:
            return
        partition.held.clear()
        self.silent.discard(where)
        self.unchecked.discard(where)
        if self.is_eager:
            self.leaving.add(where)
            self._is_due = True
        else:
            self._client.incremental_unassign([KafkaPartition(*where)])

    def forget(self, wheres: Iterable[TopicPartition] | None = None) -> None:
        """The client has none of these any more; of none at all if it is not said which."""
        for where in list(self.partitions) if wheres is None else wheres:
            self.partitions.pop(where, None)
            self.silent.discard(where)
            self.unchecked.discard(where)
            self.leaving.discard(where)
        if wheres is None:
            self.leaving.clear()
            self._is_due = False

    @property
    def due_in(self) -> float | None:
        """In how many seconds all are to be assigned anew; None if they need not be."""
        return max(0.0, self._assigned_at + _REASSIGN_S - self._clock()) if self._is_due else None

    def flush(self) -> None:
        """Assign all anew, if that is due."""
        if not self._is_due or self.due_in:
            return
        self.locate()
        self._client.assign([_place(partition) for partition in self.partitions.values()])
        self._assigned_at, self._is_due = self._clock(), False
        self.leaving.clear()
        for partition in self.partitions.values():
            partition.assigned_at = partition.position if partition.position is not None else -1
            partition.held.clear()
            self.begin_silent(partition)
            self.set_paused(partition)
        self._begin_check(self.partitions.values())

    def check(self) -> None:
        """Have the client ask whether the logs of those that are unchecked were cut below where they are."""
        for where in list(self.unchecked):
            partition = self.partitions[where]
            assert partition.position is not None
            try:
                # An assignment is not checked by librdkafka, whatever epoch it carries: a seek is.
                self._client.seek(where, partition.position, partition.last_epoch)
            except KafkaException:
                continue  # it is not being fetched yet
            self.unchecked.discard(where)

    def _begin_check(self, partitions: Iterable[Partition]) -> None:
        self.unchecked |= {partition.where for partition in partitions if _has_epoch(partition)}
        self.check()

    def hear(self, where: TopicPartition) -> None:
        """Something has come of a partition."""
        self.silent.discard(where)
        self.partitions[where].has_spoken = True

    def locate(self) -> None:
        """Bring the positions of all up to date, and the leader epochs of their last records."""
        spoken = [where for where in self.partitions if where not in self.silent]
        for place in self._client.positions(spoken) if spoken else ():
            partition = self.partitions[place.topic, place.partition]
            if place.offset < 0:
                continue
            if partition.held:
                partition.position = partition.held[0].offset()
                continue
            if partition.position is None or place.offset > partition.position:
                partition.has_given = True
            partition.position = place.offset
            epoch: Any = place.leader_epoch  # None too, whatever its type says
            partition.last_epoch = partition.last_epoch if epoch is None else epoch

    def begin_silent(self, partition: Partition) -> None:
        """The client was told where to start with a partition, and has given nothing of it since."""
        partition.has_spoken, partition.hole_at = False, -1
        self.silent.add(partition.where)


def _place(partition: Partition) -> KafkaPartition:
    """With the leader epoch of the last record, if it is known."""
    assert partition.position is not None
    if not _has_epoch(partition):
        return KafkaPartition(*partition.where, partition.position)
    return KafkaPartition(*partition.where, partition.position, leader_epoch=partition.last_epoch)


def _has_epoch(partition: Partition) -> bool:
    return partition.last_epoch >= 0 and partition.position is not None and partition.position > 0
