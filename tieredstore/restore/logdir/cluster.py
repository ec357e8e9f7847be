"""The running cluster around a restore. Before it, empty topics are created there; after it, they get their own
settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException, TopicCollection, admin

from tieredstore.errors import BrokerError, ConfigError
from tieredstore.live.clients import LiveAdmin, await_answer
from tieredstore.live.cluster import LiveCluster, changed_settings, is_of_topic, uuid_of
from tieredstore.live.faults import fault
from tieredstore.live.properties import client_configuration
from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedRestore, PreparedTopic

PREPARED: Final = {
    "cleanup.policy": "delete", "remote.storage.enable": "false", "retention.bytes": "-1", "retention.ms": "-1",
}  # fmt: skip
"""Settings of a topic while it is restored: nothing may delete, compact or move its segments."""

_ANSWER_S: Final = 60.0
_PAUSE_S: Final = 0.1

# confluent-kafka does not type this module.
_admin: Final[Any] = admin
_Answer = TypeVar("_Answer")


class RestoreCluster:
    """The brokers of ``properties``, which have the names of Kafka's clients. Each call waits a minute at most."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        configuration = client_configuration(properties, "read_uncommitted")
        self._properties = properties
        self._servers = configuration["bootstrap.servers"]
        self._client = LiveAdmin(configuration)

    def prepare(
        self,
        topics: Mapping[str, tuple[str, Sequence[tuple[int, int]]]],
        *,
        replication_factor: int,
        on_topic: Callable[[str], object],
    ) -> PreparedRestore:
        """Create empty topics, given by name with their id in the bucket, and the offsets of each partition's log.

        Raise ConfigError if one exists, or if the cluster gives it other settings than ``PREPARED``: its log would not
        survive the restore. BrokerError for a refusal.
        """
        doing = f"topics cannot be created at {self._servers}"
        listed = cast("Any", self._client).metadata(_ANSWER_S, doing)
        existing = sorted(topics.keys() & listed.topics.keys())
        if existing:
            raise ConfigError(
                f"topic {existing[0]} exists at {self._servers}: restore into a cluster without it, or delete the "
                "topic if it is empty, as after a prepare that failed"
            )
        prepared: list[PreparedTopic] = []
        for name, (source_id, logs) in topics.items():
            new = _admin.NewTopic(name, len(logs), replication_factor, config=PREPARED)
            self._ask(partial(self._create, new), f"{doing}: {name}")
            self._check_settings(name)
            topic_id, replicas = self._describe(name, len(logs))
            partitions = tuple(PreparedPartition(own, *log) for own, log in zip(replicas, logs, strict=True))
            prepared.append(PreparedTopic(name, source_id, topic_id, partitions))
            on_topic(name)
        return PreparedRestore(listed.cluster_id, tuple(prepared))

    def empty_partitions(self, topic: PreparedTopic) -> list[int]:
        """Return the prepared partitions that have no offsets yet; raise ConfigError if the topic is another one."""
        name = topic.topic
        with LiveCluster(self._properties, isolation="read_uncommitted", timeout_s=_ANSWER_S) as cluster:
            found = str(cluster.topic(name).topic_id)
            if found != topic.topic_id:
                raise ConfigError(
                    f"topic {name} at {self._servers} has the id {found}, and {topic.topic_id} was prepared: this is "
                    "another cluster, or the topic was created again"
                )
            ends = cluster.end_offsets((name, number) for number in range(len(topic.partitions)))
        return [number for (_, number), end in sorted(ends.items()) if not end]

    def own_settings(self, topic: str) -> dict[str, str]:
        """Return the values that the settings named in ``PREPARED`` would have if the topic did not set them."""
        found = self._settings(topic)
        return {name: _without_own(found[name]) for name in PREPARED if name in found}

    def producer_expiration_ms(self, broker: int) -> int:
        """Return how long the broker remembers an idempotent producer after its last record."""
        resource = _admin.ConfigResource(_admin.ResourceType.BROKER, str(broker))
        doing = f"the settings of broker {broker} cannot be read at {self._servers}"
        found = self._ask(lambda: self._untyped.describe_configs([resource])[resource], doing)
        return int(found["producer.id.expiration.ms"].value)

    def release(self, topic: str, settings: Mapping[str, str]) -> None:
        """Drop the settings of the restore, and set these."""
        resource = changed_settings(topic, {**dict.fromkeys(PREPARED), **settings})
        doing = f"the settings of {topic} cannot be changed at {self._servers}"
        self._ask(lambda: self._untyped.incremental_alter_configs([resource])[resource], doing)

    def _create(self, new: Any) -> Future[None]:
        futures: Mapping[str, Future[None]] = self._untyped.create_topics([new])
        return futures[new.topic]

    @property
    def _untyped(self) -> Any:
        return self._client

    def _check_settings(self, topic: str) -> None:
        found = self._settings(topic)
        forced = [name for name, value in PREPARED.items() if name in found and found[name].value != value]
        if forced:
            name = forced[0]
            raise ConfigError(
                f"the cluster sets {name}={found[name].value} for {topic}, and a restore needs {name}={PREPARED[name]}"
            )

    def _settings(self, topic: str) -> Mapping[str, Any]:
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, topic)
        doing = f"the settings of {topic} cannot be read at {self._servers}"
        return self._ask(lambda: self._untyped.describe_configs([resource])[resource], doing)

    def _describe(self, topic: str, partitions: int) -> tuple[str, tuple[tuple[int, ...], ...]]:
        """Return the topic's id and the brokers of each partition, once all have a leader, and so a folder."""
        doing, end = f"{topic} cannot be looked up at {self._servers}", time.monotonic() + _ANSWER_S
        names = TopicCollection([topic])
        while True:
            described = self._ask(lambda: self._untyped.describe_topics(names)[topic], doing)
            if len(described.partitions) == partitions and all(each.leader for each in described.partitions):
                by_number = sorted(described.partitions, key=lambda each: each.id)
                replicas = tuple(tuple(node.id for node in each.replicas) for each in by_number)
                return str(uuid_of(described.topic_id)), replicas
            if time.monotonic() > end:
                raise BrokerError(f"{topic} has partitions without a leader at {self._servers}: look at the brokers")
            time.sleep(_PAUSE_S)

    def _ask(self, ask: Callable[[], Future[_Answer]], doing: str) -> _Answer:
        """Send a request, and again while the brokers do not know the new topic yet."""
        end = time.monotonic() + _ANSWER_S
        while True:
            try:
                return await_answer(self._client, ask(), end, lambda: self._client.listen(doing))
            except TimeoutError:
                raise self._client.trouble.unavailable(doing, _ANSWER_S) from None
            except KafkaException as error:
                self._client.listen(doing)
                is_new = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not is_new or time.monotonic() > end:
                    raise fault(error.args[0], doing) from error
            time.sleep(_PAUSE_S)


def _without_own(entry: Any) -> str:
    """Return the value of a setting's first source that is not the topic itself."""
    sources: Sequence[Any] = list(entry.synonyms.values())
    others = [each.value for each in sources if not is_of_topic(each)]
    return str(others[0] if others else entry.value)
