"""The target cluster of a run of ``restore produce``: its topics as they are now, and what the run changes in them.

Separate from ``dry_run``, which judges these facts and makes no requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from confluent_kafka import TopicCollection
from pydantic import Field, TypeAdapter, ValidationError

from tieredstore.config.properties import read_properties
from tieredstore.errors import BrokerDeniedError, BrokerError, ConfigError, ResourceNotFoundError
from tieredstore.live.cluster import LiveCluster, is_of_topic
from tieredstore.live.faults import unknown_s
from tieredstore.process.whole_files import read_named
from tieredstore.restore.produce.runs import CONTROL_TOPIC
from tieredstore.versions import fault_in

_AGAIN_S: Final = 0.1
TIMESTAMP_TYPE: Final = "message.timestamp.type"


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target cluster.

    ``settings`` are in force; ``own`` are those that the topic sets itself. ``least_live`` is the smallest number of
    replicas in sync of a partition, 0 without a leader. ``operations`` are what the login may do, in Kafka's words;
    None if the brokers do not report it.
    """

    topic: str
    partition_count: int
    least_live: int
    settings: Mapping[str, str]
    own: Mapping[str, str]
    operations: frozenset[str] | None

    @property
    def has_append_times(self) -> bool:
        """True if records get the broker's time."""
        return self.settings.get(TIMESTAMP_TYPE) == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The names are those of a snapshot's ``TopicSettings``; without a number, the bucket's or the
    cluster's counts.
    """

    settings: dict[str, str]
    partition_count: Annotated[int, Field(ge=1)] | None = None
    replication_factor: Annotated[int, Field(ge=1)] | None = None

    @classmethod
    def read(cls, path: Path) -> NewTopic:
        """Read a JSON object with these fields, or a properties file of settings; raise ConfigError for another one."""
        try:
            if path.suffix != ".json":
                return cls(dict(read_properties(path)))
            return _NEW_TOPIC.validate_json(read_named(path))
        except ValidationError as error:
            raise ConfigError(f"{path} has no settings of a topic: {fault_in(error)}") from None


NewTopics: TypeAlias = Callable[[str, str], NewTopic | None]
"""Returns how to create a topic, given by its name and id in the bucket; None if that is not known."""

_NEW_TOPIC: Final = TypeAdapter(NewTopic)


class TargetCluster(LiveCluster):
    """Looks at the topics of the target cluster, and changes their settings."""

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float = 60.0) -> None:
        """Raise ConfigError for invalid properties; nothing connects yet."""
        super().__init__(properties, isolation="read_committed", timeout_s=timeout_s)

    def target(self, topic: str) -> TargetTopic | None:
        """Return the topic as it is now, None if there is none. Two requests."""
        doing = f"topic {topic} of {self._servers} cannot be looked up"
        described = self._one(
            lambda timeout_s: self._untyped.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=timeout_s
            )[topic],
            doing,
            absent_too=True,
        )
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
        )

    def longest_transaction_ms(self) -> int | None:
        """Return the brokers' ``transaction.max.timeout.ms``; None if the login may not see it."""
        client = self._clients.get()
        listed = client.metadata(self._timeout_s, f"the brokers of {self._servers} cannot be listed")
        try:
            entries = self.broker_settings(min(listed.brokers))
        except BrokerDeniedError:
            return None
        return int(entries["transaction.max.timeout.ms"].value)

    def create(self, topic: str, new: NewTopic) -> None:
        """Create a topic; raise BrokerError for a refusal."""
        self.create_topic(topic, new.partition_count or -1, new.replication_factor or -1, new.settings)

    def control_topic(self) -> TargetTopic:
        """Return the control topic; create it if it is missing.

        Raise ConfigError if it is not compacted: it would lose positions.
        """
        found = self.target(CONTROL_TOPIC)
        if found is None:
            try:
                self.create(CONTROL_TOPIC, NewTopic({"cleanup.policy": "compact"}, partition_count=1))
            except BrokerError:
                # Another run may have created the control topic concurrently.
                if self.target(CONTROL_TOPIC) is None:
                    raise
            found = self.existing_target(CONTROL_TOPIC)
        if (policy := found.settings.get("cleanup.policy")) != "compact":
            raise ConfigError(
                f"the topic {CONTROL_TOPIC} has cleanup.policy={policy}, so it would lose the positions of restores: "
                "set it to compact"
            )
        return found

    def existing_target(self, topic: str) -> TargetTopic:
        """Return the topic as it is now; raise ResourceNotFoundError if there is none.

        Retry for a few seconds: a new topic is not known to all brokers at once.
        """
        end = time.monotonic() + unknown_s(self._timeout_s)
        while (found := self.target(topic)) is None:
            if time.monotonic() > end:
                raise ResourceNotFoundError(f"there is no topic {topic} in the cluster: create it, empty")
            time.sleep(_AGAIN_S)
        return found

    def set_times(self, topics: Mapping[str, str | None]) -> None:
        """Set ``message.timestamp.type`` of topics; None leaves it to the cluster."""
        for topic, value in topics.items():
            self.change_settings(topic, {TIMESTAMP_TYPE: value})
