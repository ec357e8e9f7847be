"""The group's side: what is assigned and revoked, by the coordinator or by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer.client import kafka_error
from tieredstore.consumer.partition import Partition

if TYPE_CHECKING:
    from tieredstore.consumer.assembly import Parts
    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.looks import Start
    from tieredstore.model import TopicPartition

_BEGINNING, _END, _STORED, _INVALID = -2, -1, -1000, -1001
_STARTS: Final[dict[int, Start]] = {
    _BEGINNING: "earliest",
    _END: "latest",
    _STORED: "committed",
    _INVALID: "committed",
}
"""librdkafka's logical offsets."""

_Callback = Callable[[Any, list[KafkaPartition]], None]


class Group:
    """Keeps the core's partitions those that are assigned; none of them is in the client but by the core's doing."""

    def __init__(self, consumer: Any, client: MemberClient, parts: Parts) -> None:
        self.revision = 0
        """Goes up whenever something is revoked."""
        self._own_consumer = weakref.ref(consumer)
        self._client = client
        self._parts = parts
        self._on_assign: _Callback | None = None
        self._on_revoke: _Callback | None = None
        self._on_lost: _Callback | None = None
        self._was_assigned = False

    def subscribe(
        self, topics: Sequence[str], on_assign: _Callback | None, on_revoke: _Callback | None, on_lost: _Callback | None
    ) -> None:
        """Join; the user's callbacks are called from ours."""
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._parts.live.is_eager = self._parts.settings.is_eager
        self._client.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def assign(self, places: Sequence[KafkaPartition]) -> None:
        """These in place of all."""
        self._was_assigned = True
        starts = [_start(place) for place in places]
        self.drop_all()
        self._client.assign([])
        self._parts.core.add(starts)

    def unassign(self) -> None:
        """None."""
        self.drop_all()
        self._client.unassign()

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        """These too."""
        self._was_assigned = True
        starts = [_start(place) for place in places]
        core = self._parts.core
        again = [where for where, _ in starts if where in core.partitions]
        if again:
            reason = f"{again[0][0]} [{again[0][1]}] can't be added to the current assignment"
            raise KafkaException(kafka_error(KafkaError._CONFLICT, f"{reason} since it is already assigned"))
        # Nothing of them is the client's yet; a rebalance waits for its answer all the same.
        self._client.incremental_assign([])
        core.add(starts)

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        """These no longer."""
        wheres = [(place.topic, place.partition) for place in places]
        unknown = [where for where in wheres if where not in self._parts.core.partitions]
        if unknown:
            reason = f"{unknown[0][0]} [{unknown[0][1]}] can't be removed from the current assignment"
            raise KafkaException(kafka_error(KafkaError._INVALID_ARG, f"{reason} since it is not assigned"))
        self._give_up(wheres)

    def drop_all(self) -> None:
        """Nothing of what is assigned is given any more; the client is told by the caller."""
        core = self._parts.core
        if not core.partitions:
            return
        self._parts.commits.commit_auto()
        self._forget(list(core.partitions))
        self._parts.live.forget()

    def leave(self) -> None:
        """Commit at the end what was assigned by hand; a member's is when it is revoked."""
        self._parts.commits.commit_auto()

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Give nothing of these; the client's are paused in the client."""
        for partition in partitions:
            if partition.is_live and not partition.paused:
                self._client.pause([partition.where])
            elif not partition.paused:
                self._parts.handing_out.forget([partition.where])
            self._parts.core.pause(partition)

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Go on with these."""
        for partition in partitions:
            if partition.is_live and partition.paused:
                self._client.resume([partition.where])
            self._parts.core.resume(partition)
            self._parts.handing_out.hold_on(partition)

    def seek(self, place: KafkaPartition) -> None:
        """Go on there, by way of a look: the broker may not have it."""
        where = place.topic, place.partition
        partition = self._parts.core.partitions.get(where)
        if partition is None:
            reason = f"Failed to seek to offset {place.offset}: Local: Erroneous state"
            raise KafkaException(kafka_error(KafkaError._STATE, reason))
        _, start = _start(place)
        self._parts.handing_out.forget([where])
        if self._seeks_in_client(partition, start):
            return
        self._parts.core.move(partition, start)

    def _seeks_in_client(self, partition: Partition, start: Start) -> bool:
        """Within what the broker surely has: no other place is looked for then."""
        live = partition.live
        if not (partition.is_live and isinstance(start, int) and live is not None and live[0] <= start <= live[1]):
            return False
        if self._parts.live.is_eager and self._parts.live.due_in is not None:
            return False  # the client does not have it yet
        if partition.lineage is not None and start < partition.lineage.end_offset:
            return False
        try:
            self._client.seek(partition.where, start)
        except KafkaException:
            return False
        partition.held.clear()
        partition.position = partition.start = partition.assigned_at = start
        partition.last_epoch, partition.eof_at = -1, -1
        self._parts.live.begin_silent(partition)
        return True

    def _assigned(self, _: Any, places: list[KafkaPartition]) -> None:
        """The coordinator has assigned partitions: nothing of them is the client's before its place is known."""
        self._was_assigned = False
        try:
            if self._on_assign is not None:
                self._on_assign(self._own_consumer(), places)
        finally:
            # The library assigns by itself what nobody has, after an error too.
            if not self._was_assigned:
                (self.assign if self._parts.live.is_eager else self.incremental_assign)(places)

    def _revoked(self, _: Any, places: list[KafkaPartition]) -> None:
        self._end(places, self._on_revoke, commits=True)

    def _lost(self, _: Any, places: list[KafkaPartition]) -> None:
        """Others may have them by now: nothing is committed."""
        self._end(places, self._on_lost or self._on_revoke, commits=False)

    def _end(self, places: list[KafkaPartition], callback: _Callback | None, *, commits: bool) -> None:
        wheres = [(place.topic, place.partition) for place in places]
        try:
            if callback is not None:
                callback(self._own_consumer(), places)
        finally:
            known = [where for where in wheres if where in self._parts.core.partitions]
            if commits:
                self._parts.commits.commit_auto(known)
            if self._parts.live.is_eager:
                self._forget(known)
                self._parts.live.forget()
                self._client.unassign()
            else:
                self._give_up(known, commits=False)

    def _give_up(self, wheres: Sequence[TopicPartition], *, commits: bool = True) -> None:
        if commits:
            self._parts.commits.commit_auto(wheres)
        live = [where for where in wheres if where in self._parts.live.partitions]
        self._forget(wheres)
        self._client.incremental_unassign([KafkaPartition(*where) for where in live])

    def _forget(self, wheres: Sequence[TopicPartition]) -> None:
        self.revision += 1
        self._parts.handing_out.forget(wheres)
        self._parts.core.drop(wheres)


def _start(place: KafkaPartition) -> tuple[TopicPartition, Start]:
    offset: int = place.offset
    if offset < 0 and offset not in _STARTS:
        raise KafkaException(kafka_error(KafkaError._INVALID_ARG, f"{offset} is no offset to start at"))
    return (place.topic, place.partition), _STARTS[offset] if offset < 0 else offset
