"""Leaders, ends and settings from a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.kafka.kafka_topics import TIMEOUT_S, Produced, Transaction, make_topic, produce
from tests.support.kafka.mock_kafka import mock_kafka
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.process import unanswered_port
from tests.support.simulated_time import SimulatedClock
from tests.support.waiting import wait_until
from tieredstore.errors import BrokerDeniedError, BrokerError, BrokerUnavailableError, ConfigError
from tieredstore.live import LiveCluster
from tieredstore.live.broker_state import BrokerState, PartitionEnd
from tieredstore.live.clients import LiveAdmin

_LIST_OFFSETS = 2
"""Number of the request ListOffsets in Kafka's protocol."""


def last_stable(kafka: KafkaServer, topic: str) -> int:
    """Return the end of the first partition for a consumer with read_committed."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "none", "isolation.level": "read_committed"}
    )
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)[1]
        return end
    finally:
        consumer.close()


def test_leaders_ends_and_settings_of_a_topic(kafka: KafkaServer) -> None:
    topic = make_topic(kafka, {"retention.ms": "123456"}, partitions=2)
    produce(kafka, topic, [Produced(None, b"1"), Produced(None, b"2")])
    transaction = Transaction(kafka)
    transaction.send(topic, [Produced(None, b"3")])
    with BrokerState({"bootstrap.servers": kafka.bootstrap_servers}) as state:
        leaders = state.leaders()
        assert leaders[topic, 0] == leaders[topic, 1] >= 0
        places = [(topic, 0), (topic, 1)]
        assert state.ends(places, stable=False)[places[0]] == PartitionEnd(3, 0)
        assert state.ends(places, stable=False)[places[1]].offset == 0

        def stable_end() -> int:
            return state.ends(places, stable=True)[places[0]].offset

        # This end is usually 2, where the open transaction begins. The test only demands that a consumer sees the same
        # end.
        wait_until(lambda: stable_end() == last_stable(kafka, topic))
        transaction.end("abort")
        wait_until(lambda: stable_end() == 4)
        settings = state.topic_settings([topic])
        assert settings[topic]["retention.ms"] == "123456"
        assert settings[topic]["cleanup.policy"] == "delete"
        # The answer omits topics that do not exist and has all others.
        assert set(state.topic_settings([topic, "not-there"])) == {topic}
        assert set(state.ends([places[0], ("not-there", 0)], stable=False)) == {places[0]}
        assert state.ends([], stable=True) == {}
        assert state.topic_settings([]) == {}


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_named() -> None:
    with unanswered_port() as port:
        server = f"127.0.0.1:{port}"
        with BrokerState({"bootstrap.servers": server}, timeout_s=0.5) as state:
            for ask in (
                state.leaders,
                lambda: state.ends([("orders", 0)], stable=False),
                lambda: state.topic_settings(["orders"]),
            ):
                with pytest.raises(BrokerUnavailableError, match=server):
                    ask()


@pytest.mark.slow
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(BrokerState.leaders, id="leaders"),
        pytest.param(lambda state: state.ends([("events", 0)], stable=False), id="ends"),
        pytest.param(lambda state: state.topic_settings(["events"]), id="settings"),
        pytest.param(lambda state: state.topic_ids(["events"]), id="ids"),
    ],
)
def test_a_refused_login_ends_each_call_long_before_its_time(ask: Callable[[BrokerState], object]) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    with mock_kafka() as mocked:
        # The mock does not support SASL. Its answer is a lasting error, so the call must not wait for the timeout.
        properties = {"bootstrap.servers": mocked.bootstrap_servers, **login}
        with BrokerState(properties, timeout_s=100) as state:
            begun = time.monotonic()
            with pytest.raises(BrokerDeniedError, match=f"{mocked.bootstrap_servers}.*SASL Handshake not supported"):
                ask(state)
            assert time.monotonic() - begun < 50


def test_both_requests_for_ends_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, allowed = SimulatedClock(), list[float]()
    metadata, list_offsets = LiveAdmin.metadata, LiveAdmin.list_offsets

    def late(client: LiveAdmin, timeout_s: float, doing: str, topic: str | None = None) -> Any:
        clock.now += 50
        return metadata(client, timeout_s, doing, topic)

    def noted(client: LiveAdmin, *positional: Any, **named: Any) -> Any:
        allowed.append(named["request_timeout"])
        return list_offsets(client, *positional, **named)

    monkeypatch.setattr(LiveAdmin, "metadata", late)
    monkeypatch.setattr(LiveAdmin, "list_offsets", noted)
    with mock_kafka() as mocked:
        mocked.make_topic("events")
        with BrokerState({"bootstrap.servers": mocked.bootstrap_servers}, timeout_s=60) as state:
            monkeypatch.setattr("tieredstore.live.broker_state.time", SimpleNamespace(monotonic=clock))
            assert state.ends([("events", 0)], stable=False)[("events", 0)].offset == 0
    assert allowed == [10]


def test_the_reason_why_no_partition_has_a_leader_is_named() -> None:
    with (
        mock_kafka() as mocked,
        BrokerState({"bootstrap.servers": mocked.bootstrap_servers}, timeout_s=60) as state,
        pytest.raises(BrokerUnavailableError, match=r"no leader of 1 partitions .*: Broker: Unknown topic"),
    ):
        state.ends([("absent", 0)], stable=False)


def test_properties_that_cannot_be_used_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        BrokerState({})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list with one entry per lookup of leaders."""
    asked: list[bool] = []
    real = BrokerState.leaders

    def counted(state: BrokerState) -> dict[tuple[str, int], int]:
        asked.append(True)
        return real(state)

    monkeypatch.setattr(BrokerState, "leaders", counted)
    return asked


def test_ends_are_told_again_after_the_leader_s_epoch_was_refused() -> None:
    """librdkafka keeps a leader epoch that it knows for 15 minutes, even if brokers reject it."""
    place = ("events", 0)
    with mock_kafka(2) as cluster, BrokerState({"bootstrap.servers": cluster.bootstrap_servers}) as state:
        cluster.make_topic("events")
        assert state.ends([place], stable=False)[place].offset == 0
        assert state.ends([place], stable=True)[place].offset == 0
        cluster.push_errors(_LIST_OFFSETS, *[KafkaError.FENCED_LEADER_EPOCH] * 20)
        with pytest.raises(BrokerError):
            state.ends([place], stable=False)
        cluster.push_errors(_LIST_OFFSETS)
        wait_until(lambda: _is_told(state, place))


@pytest.mark.slow
def test_where_settings_are_not_told_it_is_asked_anew_which_broker_is_the_controller(asked: list[bool]) -> None:
    # The mock broker does not support this request, so it acts like a controller that does not answer.
    with mock_kafka() as mocked, BrokerState({"bootstrap.servers": mocked.bootstrap_servers}, timeout_s=1) as state:
        mocked.make_topic("events")
        for before in range(3):
            with pytest.raises((BrokerUnavailableError, BrokerError)):
                state.topic_settings(["events"])
            assert len(asked) == before


@pytest.mark.slow
def test_what_is_said_of_a_partition_whose_broker_is_dead_is_no_answer() -> None:
    """While a partition's broker is dead, librdkafka returns the offset -1001 and no error. This number is not an
    offset.
    """
    place = ("events", 0)
    with mock_kafka(2) as mocked:
        properties = {"bootstrap.servers": mocked.bootstrap_servers}
        mocked.make_topic("events")
        mocked.set_leader(*place, 1)
        with (
            BrokerState(properties, timeout_s=2) as state,
            LiveCluster(properties, isolation="read_committed", timeout_s=2) as cluster,
        ):
            wait_until(lambda: _is_told(state, place))
            wait_until(lambda: _end_of(cluster, place) == 0)
            mocked.set_down(1)
            with pytest.raises((BrokerUnavailableError, BrokerError)):
                state.ends([place], stable=False)
            with pytest.raises((BrokerUnavailableError, BrokerError)):
                cluster.offsets_for_times({place: 0})
            mocked.set_leader(*place, 2)
            wait_until(lambda: _is_told(state, place))
            wait_until(lambda: _end_of(cluster, place) == 0)


def test_who_is_told_that_leaders_have_changed_asks_none_of_those_before() -> None:
    place = ("events", 0)
    with mock_kafka(2) as mocked:
        mocked.make_topic("events")
        mocked.set_leader(*place, 1)
        # The call must end long before this timeout.
        with BrokerState({"bootstrap.servers": mocked.bootstrap_servers}, timeout_s=60) as state:
            assert state.ends([place], stable=False)[place].offset == 0
            mocked.set_leader(*place, 2)
            mocked.set_down(1)
            began_s = time.monotonic()
            state.look_anew()
            assert state.ends([place], stable=False)[place].offset == 0
            assert time.monotonic() - began_s < 30


def _is_told(state: BrokerState, place: tuple[str, int]) -> bool:
    try:
        return place in state.ends([place], stable=False)
    except (BrokerError, BrokerUnavailableError):
        return False


def _end_of(cluster: LiveCluster, place: tuple[str, int]) -> int | None:
    try:
        return cluster.end_offsets([place])[place]
    except (BrokerError, BrokerUnavailableError):
        return None
