"""Tests of the clients of a restore, with brokers that do not answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from tieredstore.errors import BrokerUnavailableError
from tieredstore.live.cluster import LiveTopic
from tieredstore.model import Isolation, TopicPartition, Uuid
from tieredstore.restore.logdir.cluster import RestoreCluster
from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedTopic
from tieredstore.restore.produce.target import TargetCluster

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def test_prepare_says_that_no_broker_answers() -> None:
    with (
        RestoreCluster(NOWHERE) as cluster,
        pytest.raises(BrokerUnavailableError, match=r"^topics cannot be created at 127\.0\.0\.1:1: "),
    ):
        cluster.within(1.0).prepare({"orders": ("", [(0, 1)])}, replication_factor=1, on_topic=print)


class _OldCluster(RestoreCluster):
    def broker_settings(self, broker: int) -> dict[str, str]:
        return {"transactional.id.expiration.ms": f"{broker}000"}


def test_brokers_before_kafka_3_4_remember_a_producer_like_its_transactional_id() -> None:
    with _OldCluster(NOWHERE) as cluster:
        assert cluster.producer_expiration_ms(7) == 7000


class _NewCluster(RestoreCluster):
    def topic(self, topic: str) -> LiveTopic:
        return LiveTopic(topic, Uuid(bytes(16)), (0, 1, 2))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        return {where: 9 if where[1] == 0 else 0 for where in partitions}


def test_a_partition_that_has_no_log_in_the_bucket_is_not_missing() -> None:
    """``--partition-count`` adds such partitions."""
    logs = [(0, 9), (4, 9), (0, 0)]
    topic = PreparedTopic("orders", "", str(Uuid(bytes(16))), tuple(PreparedPartition((1,), *log) for log in logs))
    with _NewCluster(NOWHERE) as cluster:
        assert cluster.empty_partitions(topic) == [1]


class _ManagedCluster(TargetCluster):
    def brokers(self) -> Collection[int]:
        return (1,)

    def broker_settings(self, broker: int) -> dict[str, str]:
        return {"message.max.bytes": "8388608"}


def test_brokers_may_hide_their_settings() -> None:
    with _ManagedCluster(NOWHERE) as cluster:
        assert cluster.longest_transaction_ms() is None


def test_a_target_says_that_no_broker_answers() -> None:
    with (
        TargetCluster(NOWHERE, timeout_s=1.0) as cluster,
        pytest.raises(BrokerUnavailableError, match=r"^the brokers of 127\.0\.0\.1:1 cannot be listed: "),
    ):
        cluster.longest_transaction_ms()
