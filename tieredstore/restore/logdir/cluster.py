"""The running cluster before and after a restore of log directories. It gets empty topics, and later the topics get
their own settings back. From then on, retention deletes segments again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicCollection

from tieredstore.api.outcomes import Outcome, Plan
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import BrokerError, ConfigError
from tieredstore.live.cluster import LiveCluster, is_of_topic, uuid_of
from tieredstore.model import human_bytes, utc_text
from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedRestore, PreparedTopic
from tieredstore.restore.retention import select_deleted

if TYPE_CHECKING:
    from confluent_kafka.admin import ConfigEntry

    from tieredstore.catalog.lineage import Span
    from tieredstore.remote import RemoteStorageManager

PREPARED: Final = {
    "cleanup.policy": "delete", "remote.storage.enable": "false", "retention.bytes": "-1", "retention.ms": "-1",
}  # fmt: skip
"""Settings of a topic while it is restored. With these settings, the broker does not delete, compact or move the
topic's segments."""

_PAUSE_S: Final = 0.1


class RestoreCluster(LiveCluster):
    """Cluster client that prepares topics for a restore, and gives them their settings back afterwards. Each call takes
    at most a minute."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raise ConfigError for invalid properties. The constructor does not connect to a broker."""
        super().__init__(properties, isolation="read_uncommitted")

    def prepare(
        self,
        topics: Mapping[str, tuple[str, Sequence[tuple[int, int]]]],
        *,
        replication_factor: int,
        on_topic: Callable[[str], object],
    ) -> PreparedRestore:
        """Create empty topics. ``topics`` has each topic's name, its id in the bucket, and the offsets of each
        partition's log.

        Raise ConfigError if a topic exists already. Also raise ConfigError if the cluster overrides the settings in
        ``PREPARED``, because the restored log would not survive. Raise BrokerError if the brokers refuse a request.
        """
        listed = self._client.metadata(self._timeout_s, f"topics cannot be created at {self._servers}")
        existing = sorted(topics.keys() & listed.topics.keys())
        if existing:
            raise ConfigError(
                f"topic {existing[0]} exists at {self._servers}: restore into a cluster without it, or delete the "
                "topic if it is empty, as after a prepare that failed"
            )
        prepared: list[PreparedTopic] = []
        for name, (source_id, logs) in topics.items():
            self.create_topic(name, len(logs), replication_factor, PREPARED)
            self._check_settings(name)
            topic_id, replicas = self._places(name, len(logs))
            partitions = tuple(PreparedPartition(own, *log) for own, log in zip(replicas, logs, strict=True))
            prepared.append(PreparedTopic(name, source_id, topic_id, partitions))
            on_topic(name)
        return PreparedRestore(str(listed.cluster_id), tuple(prepared))

    def empty_partitions(self, topic: PreparedTopic) -> list[int]:
        """Return the partitions that are still empty, but have a log in the bucket. Raise ConfigError if the cluster's
        topic is not the prepared topic."""
        name, found = topic.topic, str(self.topic(topic.topic).topic_id)
        if found != topic.topic_id:
            raise ConfigError(
                f"topic {name} at {self._servers} has the id {found}, but the restore was prepared for the id "
                f"{topic.topic_id}: this is another cluster, or the topic was created again"
            )
        ends = self.end_offsets((name, number) for number, one in enumerate(topic.partitions) if one.start < one.stop)
        return [number for (_, number), end in sorted(ends.items()) if not end]

    def own_settings(self, topic: str) -> dict[str, str]:
        """Return the values that the settings in ``PREPARED`` will have when the topic no longer overrides them."""
        found = self.settings_of(topic)
        return {name: _without_own(found[name]) for name in PREPARED if name in found}

    def producer_expiration_ms(self, broker: int) -> int:
        """Return how many milliseconds the broker remembers an idempotent producer after the producer's last record."""
        settings = self.broker_settings(broker)
        # Before Kafka 3.4 (KIP-854), the time of transactional ids applies.
        return int(settings.get("producer.id.expiration.ms") or settings["transactional.id.expiration.ms"])

    def release(self, topic: str, settings: Mapping[str, str], *, dry_run: bool) -> None:
        """Remove the settings of the restore from the topic, and set ``settings``. With ``dry_run``, the brokers only
        check the settings."""
        self.change_settings(topic, {**dict.fromkeys(PREPARED), **settings}, dry_run=dry_run)

    def _check_settings(self, topic: str) -> None:
        found = self.settings_of(topic)
        forced = [name for name, value in PREPARED.items() if name in found and found[name].value != value]
        if forced:
            name = forced[0]
            raise ConfigError(
                f"the cluster sets {name}={found[name].value} for {topic}, but a restore needs "
                f"{name}={PREPARED[name]}: change the cluster's setting for the restore"
            )

    def _places(self, topic: str, partitions: int) -> tuple[str, tuple[tuple[int, ...], ...]]:
        """Return the topic's id and the brokers of each partition. First wait until all partitions have a leader,
        because their folders then exist."""
        doing, end = f"{topic} cannot be looked up at {self._servers}", time.monotonic() + self._timeout_s
        names = TopicCollection([topic])
        while True:
            described = self._one(
                lambda timeout_s: self._client.describe_topics(names, request_timeout=timeout_s)[topic], doing
            )
            if len(described.partitions) == partitions and all(each.leader for each in described.partitions):
                by_number = sorted(described.partitions, key=lambda each: each.id)
                replicas = tuple(tuple(node.id for node in each.replicas) for each in by_number)
                return str(uuid_of(described.topic_id)), replicas
            if time.monotonic() > end:
                raise BrokerError(f"{topic} has partitions without a leader at {self._servers}: start all brokers")
            time.sleep(_PAUSE_S)


def _without_own(entry: ConfigEntry) -> str:
    """Return the value that a setting has without the topic's own value: the cluster's value, or Kafka's default."""
    others = [each.value for each in entry.synonyms.values() if not is_of_topic(each)]
    return str(others[0] if others else entry.value)


def plan_finish(
    source: RemoteStorageManager, cluster: RestoreCluster, prepared: PreparedRestore, settings: Mapping[str, str]
) -> Plan:
    """Return a plan that gives the prepared topics the cluster's defaults back, and sets ``settings`` in each topic.

    Each outcome has the number of bytes that retention will delete at once, according to the segments' times in the
    bucket. The outcome also names empty partitions, and the time after which replicas may be added.

    Raise ConfigError before the first change if a topic is not the prepared topic. Otherwise, topics of the same names
    in another cluster would lose their settings.
    """

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        empty = {topic.topic: cluster.empty_partitions(topic) for topic in prepared.topics}
        for topic in prepared.topics:
            known = {**cluster.own_settings(topic.topic), **settings}
            logs, now_ms = _logs_of(source, topic), int(time.time() * 1000)
            deleted = [span for log in logs for span in select_deleted(log, known, now_ms)]
            size = sum(span.segment.segment_size_in_bytes for span in deleted)
            forgotten_ms = cluster.producer_expiration_ms(topic.partitions[0].replicas[0])
            reason = _reason(known, len(deleted), size)
            if numbers := ", ".join(map(str, empty[topic.topic])):
                reason += f"; partitions without a record: {numbers} (run restore logdir for every broker)"
            reason += _replicas(logs, forgotten_ms, now_ms)
            cluster.release(topic.topic, settings, dry_run=dry_run)
            yield Outcome(
                action="finish_restore", status="planned" if dry_run else "done", code="released", topic=topic.topic,
                name=topic.topic, size=size, stored_size=size, reason=reason,
            )  # fmt: skip

    return Plan("finish_restore", ", ".join(topic.topic for topic in prepared.topics), outcomes)


def _reason(known: Mapping[str, str], count: int, size: int) -> str:
    shown = ", ".join(f"{name}={known[name]}" for name in ("cleanup.policy", "retention.ms", "retention.bytes"))
    if not count:
        return f"{shown}: nothing is deleted at once"
    return f"{shown}: {count} segments ({human_bytes(size)}) are deleted at once"


def _replicas(logs: Sequence[Sequence[Span]], forgotten_ms: int, now_ms: int) -> str:
    """Return a text with the time after which replicas may be added, or an empty text if that time is past.

    A new replica reads the batches, and learns of old producers that ``restore logdir`` has dropped from the producer
    state. A new producer may have the same id and epoch as an old producer. If this replica becomes the leader, it may
    then take the new producer's first batch for a duplicate. The replica ignores an old producer whose last record is
    older than ``forgotten_ms``.
    """
    newest_ms = max((span.segment.max_timestamp_ms for log in logs for span in log), default=0)
    if newest_ms + forgotten_ms <= now_ms:
        return ""
    return f"; add replicas after {utc_text(newest_ms + forgotten_ms + 1000)}, unless the producers' state was kept"


def _logs_of(source: RemoteStorageManager, topic: PreparedTopic) -> list[tuple[Span, ...]]:
    """Return the spans (offset ranges within segments) of each prepared log."""
    catalog = load_catalog(source, topic=topic.topic, topic_id=topic.incarnation)
    return [
        catalog.lineage(topic.topic, number, topic.incarnation).spans_between(one.start, one.stop)
        for number, one in enumerate(topic.partitions)
        if one.start < one.stop
    ]
