"""Groups of consumers for a queue in Kafka. They are Kafka's consumer groups: the Kafka client assigns partitions, and
positions are committed offsets.

The committed offset is the offset of the next batch's notification, as with MemQ's consumers. The metadata of the
commit has the position within the batch as ``message/record``. MemQ ignores this metadata.

This module is separate from ``kafka_queue``, which reads and writes the queue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ConsumerGroupDescription

from tieredstore.errors import BrokerUnavailableError, FencedError
from tieredstore.live.clients import LiveAdmin, LiveConsumer
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.faults import fault
from tieredstore.live.properties import client_configuration, member_configuration
from tieredstore.pubsub.queue.queues import Claim, GroupMember, GroupPartition, Position, name_partitions

_PLACE: Final = re.compile(r"(\d{1,10})/(\d{1,10})", re.ASCII)
_OTHERS: Final = frozenset(
    {
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._FENCED,
        KafkaError._STATE,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
"""Errors of the coordinator which mean that the member is no longer in the group, or has an old generation."""


class KafkaGroup(GroupMember):
    """One member of the group. It pauses its assigned partitions, because the queue reads their records by offset."""

    def __init__(self, properties: Mapping[str, str], group: str, name: str, cluster: LiveCluster) -> None:
        # Use only eager strategies. They revoke all partitions before they reassign them, so that a position has one
        # owner at a time.
        theirs = {"group.protocol", "partition.assignment.strategy", "group.id"}
        given = {key: value for key, value in properties.items() if key not in theirs}
        self._configuration: dict[str, str] = {
            **member_configuration(given),
            "group.id": group,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "error",
            "allow.auto.create.topics": "false",
        }
        self._group = group
        self._name = name
        self._cluster = cluster
        self._consumer: LiveConsumer | None = None
        self._owned: dict[int, Position | None] = {}
        # Assigned partitions. Their committed offsets may not be known yet.
        self._assigned: set[int] = set()
        self._term = 0  # number of assignments and revocations
        self._version = 0

    def claims(self) -> dict[int, Claim]:
        """Return this member's partitions, with the number of the last assignment as ``term`` (see :class:`Claim`)."""
        return {partition: Claim(self._term, position) for partition, position in self._owned.items()}

    @property
    def version(self) -> int:
        """Return a number that changes whenever the claims change."""
        return self._version

    def tick(self) -> None:
        """Run the client's callbacks. The client's threads keep this member in the group as long as ticks continue."""
        self._serve()
        if missing := self._assigned - self._owned.keys():
            places = _read_commits(self._cluster, self._group, [(self._name, number) for number in sorted(missing)])
            for number in missing:
                self._owned[number] = places.get(number)
            self._version += 1

    def commit(self, positions: dict[int, Position]) -> None:
        """Commit all positions in one request. Raise FencedError if the coordinator refuses the request, or if this
        member lost a partition."""
        self._serve()
        lost = sorted(positions.keys() - self._owned.keys())
        owned = {number: place for number, place in positions.items() if number in self._owned}
        self._commit({number: place for number, place in owned.items() if self._owned[number] != place})
        if lost:
            raise FencedError(self._describe_loss(name_partitions(lost)))

    def _commit(self, changed: dict[int, Position]) -> None:
        if not changed or self._consumer is None:
            return
        offsets = [
            TopicPartition(self._name, number, place.offset, f"{place.message}/{place.record}")
            for number, place in sorted(changed.items())
        ]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
            errors = [answer.error for answer in answers if answer.error is not None]
        except KafkaException as error:
            errors = [error.args[0]]
        for refusal in errors:
            if refusal.code() in _OTHERS:
                # Drop all partitions, because the next assignment replaces the present assignment as a whole, and has a
                # new ``term``.
                self._forget()
                raise FencedError(self._describe_loss("partitions"))
            raise fault(refusal, f"group {self._group} cannot commit")
        self._owned.update(changed)

    def leave(self) -> None:
        """Leave the group, so that the coordinator reassigns the partitions at once."""
        consumer, self._consumer = self._consumer, None
        self._forget()
        if consumer is not None:
            consumer.close()

    def _serve(self) -> None:
        """Run the client's callbacks. Raise the client's error if a retry cannot help."""
        if self._consumer is None:
            self._consumer = LiveConsumer(self._configuration)
            self._consumer.subscribe([self._name], on_assign=self._take, on_revoke=self._give_up, on_lost=self._give_up)
        message = self._consumer.poll(0)
        error = None if message is None else message.error()
        if error is not None:
            failure = fault(error, f"group {self._group} of {self._name}")
            if not failure.retryable:
                raise failure

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([TopicPartition(part.topic, part.partition, OFFSET_END) for part in partitions])
        consumer.pause(partitions)
        self._forget()
        self._assigned = {part.partition for part in partitions}

    def _give_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        del partitions  # ignore the list: eager strategies revoke all partitions
        self._forget()
        consumer.unassign()

    def _forget(self) -> None:
        self._owned, self._assigned = {}, set()
        self._term += 1
        self._version += 1

    def _describe_loss(self, what: str) -> str:
        return (
            f"another member of group {self._group} now owns {what} of {self._name}, or will soon: nothing was "
            "committed, and that member reads the records again"
        )


def _read_commits(cluster: LiveCluster, group: str, wheres: list[tuple[str, int]]) -> dict[int, Position]:
    return {
        partition: _position(offset, metadata)
        for (_, partition), (offset, metadata, _) in cluster.commits(group, wheres).items()
    }


def _position(offset: int, metadata: str | None) -> Position:
    """Return the committed position. If another client wrote the metadata, return the beginning of the batch."""
    place = _PLACE.fullmatch(metadata or "")
    return Position(offset) if place is None else Position(offset, int(place[1]), int(place[2]))


def group_states(
    properties: Mapping[str, str], name: str, cluster: LiveCluster, partitions: int, timeout_s: float
) -> dict[str, list[GroupPartition]]:
    """Return each group's state in topic ``name``, with the owners of its partitions."""
    client = LiveAdmin(client_configuration(properties, "read_uncommitted"))
    wheres = [(name, partition) for partition in range(partitions)]
    try:
        listed = client.list_consumer_groups(
            states={ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY, ConsumerGroupState.PREPARING_REBALANCING,
                    ConsumerGroupState.COMPLETING_REBALANCING},
            request_timeout=timeout_s,
        ).result(timeout_s)  # fmt: skip
        groups = sorted(group.group_id for group in listed.valid)
        owners: dict[str, dict[int, str]] = {}
        if groups:
            described = client.describe_consumer_groups(groups, request_timeout=timeout_s)
            owners = {group: _owners(future.result(timeout_s), name) for group, future in described.items()}
    except KafkaException as error:
        raise fault(error.args[0], f"cannot look up the groups of {name}") from error
    except TimeoutError as error:
        raise BrokerUnavailableError(f"cannot look up the groups of {name} in time") from error
    states: dict[str, list[GroupPartition]] = {}
    for group in groups:
        places, owned = _read_commits(cluster, group, wheres), owners[group]
        known = sorted({*places, *owned})
        if known:
            states[group] = [GroupPartition(each, owned.get(each), None, places.get(each)) for each in known]
    return states


def _owners(description: ConsumerGroupDescription, name: str) -> dict[int, str]:
    return {
        place.partition: member.member_id
        for member in description.members
        for place in (member.assignment.topic_partitions if member.assignment is not None else ())
        if place.topic == name
    }
