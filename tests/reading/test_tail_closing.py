"""Tests of closing a tail or its bucket: each waiting call soon ends with one error, and nothing stays open."""

from __future__ import annotations

import threading
import time

import pytest

from tests.reading.test_tail_troubles import ALONE, ORDERS, SETTINGS, Broker
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore import live
from tieredstore.errors import AlreadyClosedError, BrokerUnavailableError
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.reading.tail import LogTail

ASKED = LogQuery(Subscribe(("orders",)), on_data_loss="report", client={"bootstrap.servers": "nowhere:1"})


@pytest.fixture
def bucket(bucket: Bucket) -> Bucket:
    bucket.write(10)
    return bucket


class Noted(Broker):
    """A part of a broker that records the name of its class when it is closed, and then fails."""

    closed: list[str]

    def close(self) -> None:
        self.closed.append(type(self).__name__)
        raise BrokerUnavailableError("the broker does not let go")

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)


class Cluster(Noted):
    pass


class Follower(Noted):
    pass


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(live, "LiveCluster", Cluster)
    monkeypatch.setattr(live, "LiveFollower", Follower)
    Noted.topics_by_name, Noted.extents, Noted.events = {"orders": FIRST_ID}, {ORDERS: (0, 10)}, []
    Noted.closed = []
    return Noted.closed


def test_all_is_closed_though_some_of_it_refuses(bucket: Bucket, closed: list[str]) -> None:
    tail = LogTail(bucket.manager, ASKED, {ORDERS: 0}, settings=SETTINGS)
    assert tail.poll(0) is not None
    with pytest.raises(BrokerUnavailableError):
        tail.close()
    assert closed == ["Follower", "Cluster"]
    tail.close()
    assert closed == ["Follower", "Cluster"]
    with pytest.raises(AlreadyClosedError, match="the tail was closed"):
        tail.poll(0)


def test_a_snapshot_leaves_no_cluster_open(bucket: Bucket, closed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noted, "close", lambda self: closed.append(type(self).__name__))
    survey_logs(bucket.manager, ASKED)
    assert closed == ["Cluster"]
    closed.clear()
    bucket.manager.close()
    with pytest.raises(AlreadyClosedError):
        survey_logs(bucket.manager, ASKED)
    assert closed == ["Cluster"]


@pytest.mark.slow
@pytest.mark.parametrize("query", [ALONE, ASKED], ids=["bucket alone", "bucket and broker"])
def test_a_tail_that_waits_ends_soon_when_its_bucket_is_closed(
    bucket: Bucket, closed: list[str], query: LogQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noted, "close", lambda self: closed.append(type(self).__name__))
    with LogTail(bucket.manager, query, {ORDERS: 10}, settings=SETTINGS) as tail:
        threading.Timer(0.2, bucket.manager.close).start()
        begun = time.monotonic()
        with pytest.raises(AlreadyClosedError, match="remote storage manager"):
            tail.poll(60)
        assert time.monotonic() - begun < 40


def test_a_closed_follower_says_that_it_is_closed() -> None:
    follower = live.LiveFollower({"bootstrap.servers": "localhost:1"}, isolation="read_committed", timeout_s=1)
    follower.close()
    follower.close()
    with pytest.raises(AlreadyClosedError, match="the follower was closed"):
        follower.poll(0)
