"""Tests of errors: a lasting one ends a call long before its timeout, and the client waits for a temporary one to pass.

A mock broker returns the errors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.support.kafka.live_reads import read_live
from tests.support.kafka.mock_kafka import FETCH, LIST_OFFSETS, MockKafka, mock_kafka
from tieredstore.errors import (
    BrokerDeniedError,
    BrokerError,
    BrokerUnavailableError,
    ResourceNotFoundError,
    TieredStoreError,
)
from tieredstore.live import LiveCluster, LiveFollower
from tieredstore.live.broker_state import BrokerState
from tieredstore.live.clients import LiveAdmin
from tieredstore.model import TopicPartition

pytestmark = pytest.mark.slow

LONG_S = 100.0
"""A timeout longer than any test, so a call that ends has ended for another reason."""

RECORDS = 5
Call = Callable[[MockKafka, TopicPartition, float], object]


@pytest.fixture
def broker() -> Iterator[MockKafka]:
    """A mock broker with a topic ``t`` of two partitions, and records in the first."""
    with mock_kafka() as cluster:
        cluster.make_topic("t", partitions=2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": "0"})
        for _ in range(RECORDS):
            producer.produce("t", b"", partition=0)
        assert producer.flush(60) == 0
        yield cluster


def read(broker: MockKafka, where: TopicPartition, timeout_s: float) -> object:
    batches = read_live(
        {"bootstrap.servers": broker.bootstrap_servers}, *where, 0, RECORDS,
        isolation="read_uncommitted", timeout_s=timeout_s,
    )  # fmt: skip
    return sum(batch.num_rows for batch in batches)


def look_up(broker: MockKafka, where: TopicPartition, timeout_s: float) -> object:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    with LiveCluster(properties, isolation="read_uncommitted", timeout_s=timeout_s) as cluster:
        return cluster.end_offsets([where])[where]


def follow(broker: MockKafka, where: TopicPartition, timeout_s: float) -> object:
    """Return the number of records, or None if the follower gives the partition up."""
    rows = 0
    with LiveFollower(
        {"bootstrap.servers": broker.bootstrap_servers}, isolation="read_uncommitted", timeout_s=timeout_s
    ) as follower:
        follower.add({where: 0})
        while rows < RECORDS:
            event = follower.poll(1)
            if event is not None and event.records is None:
                return None
            rows += 0 if event is None or event.records is None else event.records.num_rows
    return rows


CALLS = [read, look_up, follow]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerDeniedError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, BrokerDeniedError),
        (KafkaError.TOPIC_EXCEPTION, BrokerError),
        (KafkaError.UNSUPPORTED_VERSION, BrokerError),
    ],
)
def test_what_the_metadata_say_of_a_topic_ends_the_call(
    broker: MockKafka, call: Call, code: int, kind: type[TieredStoreError]
) -> None:
    broker.set_topic_error("t", code)
    with pytest.raises(kind, match=rf"{broker.bootstrap_servers} cannot be .*{KafkaError(code).str()}") as raised:
        call(broker, ("t", 0), LONG_S)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerDeniedError),
        (KafkaError.UNSUPPORTED_VERSION, BrokerError),
        (KafkaError.UNKNOWN, BrokerError),
    ],
)
def test_what_a_request_is_answered_ends_the_call(broker: MockKafka, code: int, kind: type[TieredStoreError]) -> None:
    for request, call in ((FETCH, read), (LIST_OFFSETS, look_up)):
        broker.push_errors(request, code)
        with pytest.raises(kind) as raised:
            call(broker, ("t", 0), LONG_S)
        assert type(raised.value) is kind


@pytest.mark.parametrize("call", CALLS)
def test_what_passes_is_waited_for(broker: MockKafka, call: Call) -> None:
    passing = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.KAFKA_STORAGE_ERROR]
    broker.push_errors(LIST_OFFSETS if call is look_up else FETCH, *passing)
    assert call(broker, ("t", 0), LONG_S) == RECORDS


@pytest.mark.parametrize("call", CALLS)
def test_what_does_not_pass_in_time_is_unavailable_and_says_why(broker: MockKafka, call: Call) -> None:
    broker.set_topic_error("t", KafkaError.LEADER_NOT_AVAILABLE)
    # On a busy machine the first timeout may pass before librdkafka has sent a request.
    for timeout_s in (0.4, 4, 40):
        with pytest.raises(BrokerUnavailableError) as raised:
            call(broker, ("t", 0), timeout_s)
        if "no broker answered" not in str(raised.value):
            break
    assert "Leader not available" in str(raised.value)


@pytest.mark.parametrize("where", [("nobody", 0), ("t", 2)])
def test_what_is_absent_is_so_after_a_part_of_the_time(broker: MockKafka, where: TopicPartition) -> None:
    """A topic counts as absent after a quarter of the timeout, and after 5 s at most."""

    def ask(call: Call) -> float:
        begun = time.monotonic()
        with pytest.raises(ResourceNotFoundError, match=f"{where[0]}-{where[1]} at {broker.bootstrap_servers}"):
            call(broker, where, LONG_S)
        return time.monotonic() - begun

    with ThreadPoolExecutor() as pool:
        waited_s = pool.map(ask, (read, look_up))
        assert follow(broker, where, LONG_S) is None
    assert min(waited_s) >= 5


@pytest.mark.parametrize("call", CALLS)
def test_a_topic_that_not_all_brokers_know_of_yet_is_waited_for(broker: MockKafka, call: Call) -> None:
    broker.set_topic_error("t", KafkaError.UNKNOWN_TOPIC_OR_PART)
    is_known = threading.Event()

    def make_known() -> None:
        is_known.set()
        broker.set_topic_error("t", KafkaError.NO_ERROR)

    threading.Timer(0.3, make_known).start()
    assert call(broker, ("t", 0), LONG_S) == RECORDS
    assert is_known.is_set()


def test_a_follower_gives_up_one_partition_and_keeps_the_others(broker: MockKafka) -> None:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    came: dict[TopicPartition, object] = {}
    with LiveFollower(properties, isolation="read_uncommitted", timeout_s=LONG_S) as follower:
        follower.add({("t", 0): 0, ("nobody", 0): 0, ("t", 2): 0, ("t", 1): 0})
        end = time.monotonic() + 120
        while len(came) < 3 and time.monotonic() < end:
            event = follower.poll(0.2)
            if event is not None:
                came[event.where] = None if event.records is None else True
        assert came == {("t", 0): True, ("nobody", 0): None, ("t", 2): None}
        assert set(follower.positions) == {("t", 0), ("t", 1)}


def test_a_request_goes_only_to_known_leaders(broker: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka 2.16 looks up an unknown leader. If other metadata arrives at that moment, the process may end."""
    asked: list[set[TopicPartition]] = []

    def listened(request: Callable[..., object]) -> Callable[..., object]:
        def ask(client: LiveAdmin, places: Iterable[KafkaPartition], **how: object) -> object:
            asked.append({(place.topic, place.partition) for place in places})
            return request(client, places, **how)

        return ask

    monkeypatch.setattr(LiveAdmin, "list_offsets", listened(LiveAdmin.list_offsets))
    monkeypatch.setattr(LiveAdmin, "delete_records", listened(LiveAdmin.delete_records))
    broker.set_leader("t", 1, -1)
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    with LiveCluster(properties, isolation="read_uncommitted", timeout_s=1) as cluster:
        for places in ([("t", 1)], [("t", 0), ("t", 1)], [("nobody", 0)], [("t", 7)], [("t", 0), ("nobody", 0)]):
            with pytest.raises((BrokerUnavailableError, ResourceNotFoundError), match="-".join(map(str, places[-1]))):
                cluster.end_offsets(places)
        with pytest.raises(BrokerUnavailableError, match="t-1"):
            cluster.delete_records(("t", 1), 0)
    with BrokerState(properties, timeout_s=1) as state:
        assert state.ends([("t", 0), ("t", 1), ("nobody", 0)], stable=False).keys() == {("t", 0)}
    assert asked == [{("t", 0)}]
