"""Tests of committed offsets with every answer of a coordinator. librdkafka's mock broker runs in this process.

One answer, that the broker is no longer the coordinator, would crash a process with librdkafka's administrative client.
"""

from __future__ import annotations

import pickle
import time
from typing import Final

import pytest
from confluent_kafka import KafkaError

from tests.support.kafka.mock_kafka import OFFSET_COMMIT, OFFSET_FETCH, MockKafka, mock_kafka
from tieredstore.errors import BrokerDeniedError, BrokerError, BrokerUnavailableError
from tieredstore.live import LiveCluster

PASSING: Final = {
    "moved": KafkaError.NOT_COORDINATOR,
    "loading": KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    "away": KafkaError.COORDINATOR_NOT_AVAILABLE,
    "unstable": KafkaError.UNSTABLE_OFFSET_COMMIT,
}
WHERES: Final = [("orders", 0), ("orders", 1)]
DEADLINE_S: Final = 60.0


def cluster_of(mocked: MockKafka, timeout_s: float = DEADLINE_S) -> LiveCluster:
    mocked.make_topic("orders", 2)
    properties = {"bootstrap.servers": mocked.bootstrap_servers}
    return LiveCluster(properties, isolation="read_uncommitted", timeout_s=timeout_s)


@pytest.mark.parametrize("code", PASSING.values(), ids=PASSING)
def test_a_coordinator_that_is_none_now_is_asked_again(code: int) -> None:
    with mock_kafka() as mocked, cluster_of(mocked) as cluster:
        cluster.commit_offsets("readers", {("orders", 0): 7})
        mocked.push_errors(OFFSET_FETCH, code, code)
        assert cluster.committed_offsets("readers", WHERES) == {("orders", 0): 7, ("orders", 1): None}
        again: LiveCluster = pickle.loads(pickle.dumps(cluster))
        with again:
            assert again.committed_offsets("readers", WHERES[1:]) == {("orders", 1): None}


@pytest.mark.slow
@pytest.mark.parametrize("code", PASSING.values(), ids=PASSING)
def test_one_that_stays_so_is_unavailable_in_time(code: int) -> None:
    with mock_kafka() as mocked, cluster_of(mocked, timeout_s=1) as cluster:
        mocked.push_errors(OFFSET_FETCH, *[code] * 200)
        begun = time.monotonic()
        with pytest.raises(BrokerUnavailableError, match=r"the offsets of the group readers at .* cannot be looked up"):
            cluster.committed_offsets("readers", WHERES)
        assert time.monotonic() - begun < DEADLINE_S


@pytest.mark.parametrize(
    ("code", "kind"),
    [(KafkaError.GROUP_AUTHORIZATION_FAILED, BrokerDeniedError), (KafkaError.INVALID_GROUP_ID, BrokerError)],
)
def test_what_does_not_pass_is_told_at_once(code: int, kind: type[Exception]) -> None:
    with mock_kafka() as mocked, cluster_of(mocked) as cluster:
        mocked.push_errors(OFFSET_FETCH, code)
        with pytest.raises(kind, match=r"the offsets of the group readers at .* cannot be looked up"):
            cluster.committed_offsets("readers", WHERES)


@pytest.mark.parametrize("code", PASSING.values(), ids=PASSING)
def test_committing_to_such_a_coordinator_is_an_error_that_passes(code: int) -> None:
    with mock_kafka() as mocked, cluster_of(mocked, timeout_s=1) as cluster:
        mocked.push_errors(OFFSET_COMMIT, *[code] * 200)
        with pytest.raises(BrokerUnavailableError, match="offsets of the group readers cannot be committed"):
            cluster.commit_offsets("readers", {("orders", 0): 7})


@pytest.mark.slow
def test_no_broker_is_unavailable() -> None:
    with mock_kafka() as mocked, cluster_of(mocked, timeout_s=1) as cluster:
        mocked.set_down(1)
        with pytest.raises(BrokerUnavailableError, match=r"the offsets of the group readers at .* cannot be looked up"):
            cluster.committed_offsets("readers", WHERES)
