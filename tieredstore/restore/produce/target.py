"""The target cluster of a run of ``restore produce``: look-up and creation of topics, and changes of their settings.

This module is separate from ``dry_run``, because ``dry_run`` makes no requests. ``dry_run`` checks the topics that this
module looks up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from confluent_kafka import TopicCollection
from pydantic import Field, TypeAdapter, ValidationError

from tieredstore.config.properties import read_properties
from tieredstore.errors import BrokerDeniedError, BrokerError, ConfigError, ResourceNotFoundError
from tieredstore.live.cluster import LiveCluster, is_of_topic, uuid_of
from tieredstore.live.faults import unknown_s
from tieredstore.model import Uuid
from tieredstore.process.whole_files import read_named
from tieredstore.restore.produce.runs import CONTROL_TOPIC
from tieredstore.versions import fault_in

_AGAIN_S: Final = 0.1
TIMESTAMP_TYPE: Final = "message.timestamp.type"
_NO_ID: Final = Uuid(bytes(16))
_CONTROL: Final = {"cleanup.policy": "compact", "max.message.bytes": str(8 * 1024 * 1024)}
"""Settings of the control topic. A position has about a hundred bytes for each partition of the run, before
compression."""


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target cluster.

    ``settings`` has the effective settings, and ``own`` the settings that the topic itself sets. ``least_live`` is the
    smallest number of in-sync replicas of a partition. A partition without a leader counts as 0.

    ``operations`` has Kafka's names of the operations that the login may do; None if the brokers do not report them.
    ``topic_id`` is zero if the brokers have no topic ids, or if the topic does not exist yet.
    """

    topic: str
    partition_count: int
    least_live: int
    settings: Mapping[str, str]
    own: Mapping[str, str]
    operations: frozenset[str] | None
    topic_id: Uuid = _NO_ID

    @property
    def has_append_times(self) -> bool:
        """True if the topic gives records the broker's time (LogAppendTime)."""
        return self.settings.get(TIMESTAMP_TYPE) == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The fields have the names of a snapshot's ``TopicSettings``. If ``partition_count`` is None,
    the topic gets the bucket's number of partitions. If ``replication_factor`` is None, the cluster's default applies.
    """

    settings: dict[str, str]
    partition_count: Annotated[int, Field(ge=1)] | None = None
    replication_factor: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def read(cls, path: Path) -> NewTopic:
        """Read the fields from a JSON file, or only settings from a properties file. Raise ConfigError for any other
        file."""
        try:
            if path.suffix != ".json":
                return cls(dict(read_properties(path)))
            return _NEW_TOPIC.validate_json(read_named(path))
        except ValidationError as error:
            raise ConfigError(f"{path} cannot be used as a topic's settings: {fault_in(error)}") from None


NewTopics: TypeAlias = Callable[[str, str], NewTopic]
"""A function that takes a topic's name and its id in the bucket, and returns the topic to create."""

_NEW_TOPIC: Final = TypeAdapter(NewTopic)


class TargetCluster(LiveCluster):
    """Client of the target cluster that looks up topics, creates them, and changes their settings."""

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float = 60.0) -> None:
        """Raise ConfigError for invalid properties. The constructor does not connect to a broker."""
        super().__init__(properties, isolation="read_committed", timeout_s=timeout_s)

    def target(self, topic: str) -> TargetTopic | None:
        """Return the current state of a topic, by two requests, or None if the topic does not exist."""
        doing = f"topic {topic} of {self._servers} cannot be looked up"
        described = self._answers(
            self._client,
            lambda timeout_s: self._client.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=timeout_s
            ),
            doing,
            leave_out_absent=True,
        ).get(topic)
        if described is None:
            return None
        entries = self.settings_of(topic)
        operations = described.authorized_operations
        settings = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        return TargetTopic(
            topic,
            len(described.partitions),
            min(len(each.isr) if each.leader else 0 for each in described.partitions),
            settings,
            {name: value for name, value in settings.items() if is_of_topic(entries[name])},
            None if operations is None else frozenset(each.name for each in operations),
            uuid_of(described.topic_id),
        )

    def longest_transaction_ms(self) -> int | None:
        """Return the brokers' ``transaction.max.timeout.ms``; None if the login may not read it, or if the brokers hide
        it, as those of a managed service do."""
        try:
            longest_ms = self.broker_settings(min(self.brokers())).get("transaction.max.timeout.ms")
        except BrokerDeniedError:
            return None
        return None if longest_ms is None else int(longest_ms)

    def create(self, topic: str, new: NewTopic) -> None:
        """Create a topic. Raise BrokerError if the brokers refuse to create it."""
        self.create_topic(topic, new.partition_count or -1, new.replication_factor or -1, new.settings)

    def brokers(self) -> Collection[int]:
        """Return the ids of the brokers."""
        return self._client.metadata(self._timeout_s, f"the brokers of {self._servers} cannot be listed").brokers

    def control_topic(self) -> TargetTopic:
        """Return the control topic; create it if it is missing. A new topic has three replicas, or one replica per
        broker if there are fewer brokers.

        Raise ConfigError if the control topic is not compacted, because retention would then delete positions of runs.
        """
        found = self.target(CONTROL_TOPIC)
        if found is None:
            # Do not use the cluster's default, which may be only one replica, or more replicas than there are brokers.
            replicas = min(3, len(self.brokers()))
            try:
                self.create(CONTROL_TOPIC, NewTopic(_CONTROL, 1, replicas))
            except BrokerError:
                # Another run may have created the control topic concurrently.
                if self.target(CONTROL_TOPIC) is None:
                    raise
            found = self.existing_target(CONTROL_TOPIC)
        check_control(found)
        return found

    def existing_target(self, topic: str) -> TargetTopic:
        """Return the current state of a topic. Raise ResourceNotFoundError if the topic does not exist.

        Retry for a few seconds, because brokers learn of a new topic at different times.
        """
        end = time.monotonic() + unknown_s(self._timeout_s)
        while (found := self.target(topic)) is None:
            if time.monotonic() > end:
                raise ResourceNotFoundError(f"there is no topic {topic} in the cluster: create an empty topic")
            time.sleep(_AGAIN_S)
        return found

    def set_times(self, topics: Mapping[str, str | None]) -> None:
        """Set ``message.timestamp.type`` of topics; None removes the setting, so that the cluster's default applies."""
        for topic, value in topics.items():
            self.change_settings(topic, {TIMESTAMP_TYPE: value})


def check_control(control: TargetTopic) -> None:
    """Raise ConfigError if the control topic is not compacted, because retention would then delete positions of
    runs."""
    if (policy := control.settings.get("cleanup.policy")) != "compact":
        raise ConfigError(
            f"the topic {CONTROL_TOPIC} has cleanup.policy={policy}, so it would lose the positions of restores: set "
            "this policy to compact"
        )
