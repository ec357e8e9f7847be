"""Three brokers, each a process, are killed, stopped and cut off under load: no loss, no duplicates."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from typing import Final, Literal, Self

import pytest

from tests.support.pubsub.broker_processes import BrokerProcess, broker_processes, store_properties
from tests.support.pubsub.pubsub_brokers import LONG_S
from tests.support.pubsub.pubsub_topics import values_of
from tests.support.servers.s3_server import S3Server
from tests.support.servers.zookeeper import ZooKeeperServer, zookeeper_client
from tests.support.waiting import wait_until
from tieredstore.backends.wrappers.stack import open_wrapped
from tieredstore.config import Settings, settings_from
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.produce.futures import UNREPORTED, RecordPlace
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.server]

TOPICS: Final = ("clicks", "orders")
ASSIGNMENTS: Final = "!tieredstore/pubsub/default/governor/assignments"
LEASE: Final = "!tieredstore/pubsub/default/governor/lease"
_logger: Final = logging.getLogger(__name__)

How = Literal["killed", "stopped", "cut off"]
Which = Literal["has a topic", "governs"]
Round = tuple[tuple[How, Which], ...]
FAULTS: Final[tuple[tuple[How, Which], ...]] = (
    ("killed", "has a topic"), ("killed", "governs"), ("stopped", "has a topic"),
    ("stopped", "governs"), ("cut off", "has a topic"), ("cut off", "governs"),
)  # fmt: skip


class Load:
    """Producers, one for each topic. Each sends a record every few milliseconds until the end."""

    def __init__(self, properties: dict[str, str], brokers: Sequence[BrokerProcess], pause_s: float) -> None:
        own = {"pubsub.bootstrap": ",".join(broker.place for broker in brokers), "pubsub.linger.ms": "5"}
        settings = settings_from({**properties, **own, "pubsub.request.timeout.ms": "3000"})
        self.sent: dict[str, dict[Future[RecordPlace], bytes]] = {topic: {} for topic in TOPICS}
        self._is_over = threading.Event()
        self._pause_s = pause_s
        self._threads = [threading.Thread(target=self._send, args=(settings, topic)) for topic in TOPICS]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * LONG_S)

    def delivered_so_far(self) -> Callable[[], bool]:
        """Return a function that returns True once all records sent until now are acknowledged or have failed."""
        futures = [future for sent in self.sent.values() for future in list(sent)]
        return lambda: all(future.done() for future in futures)

    def _send(self, settings: Settings, topic: str) -> None:
        with BatchProducer(settings, topic) as producer:
            while not self._is_over.wait(self._pause_s):
                value = b"%s %07d" % (topic.encode(), len(self.sent[topic]))
                self.sent[topic][producer.send(value)] = value


def governor_by_store(server: S3Server, bucket: str) -> str:
    lease = json.loads(server.plain.get_object(Bucket=bucket, Key=LEASE)["Body"].read())
    return str(lease["owner"]).partition("_")[0]


def governor_by_zookeeper(hosts: str) -> str:
    with zookeeper_client(hosts) as client:
        return str(client.get("/governor")[0].decode())


def generations_written(server: S3Server, bucket: str) -> list[int]:
    """Return the generations of all assignments ever written, in order. The bucket still has each version."""
    listed = server.plain.list_object_versions(Bucket=bucket, Prefix=ASSIGNMENTS)
    versions = [version.get("VersionId", "") for version in reversed(listed.get("Versions", []))]
    bodies = [server.plain.get_object(Bucket=bucket, Key=ASSIGNMENTS, VersionId=each)["Body"] for each in versions]
    return [json.loads(body.read())["generation"] for body in bodies]


def afflict(broker: BrokerProcess, how: str) -> None:
    {"killed": broker.kill, "stopped": broker.stop, "cut off": broker.cut_off}[how]()


def play(
    brokers: Sequence[BrokerProcess], load: Load, rounds: Sequence[Round], governor: Callable[[], str]
) -> list[float]:
    """Run rounds of faults; return, for each round, the seconds until other brokers had all topics.

    Before the next fault, wait until the clients have recovered too.
    """
    took_s: list[float] = []
    for faults in rounds:
        wait_until(lambda: all(holders_of(brokers, topic) for topic in TOPICS), what="topics at brokers that are well")
        faulty: list[BrokerProcess] = []
        for how, which in faults:
            faulty.append(choose_broker(brokers, which, governor))
            afflict(faulty[-1], how)
        took_s.append(
            wait_until(lambda: all(holders_of(brokers, topic) for topic in TOPICS), what=f"{faults}: elsewhere")
        )
        clients_s = wait_until(load.delivered_so_far(), what=f"{faults}: clients go on")
        _logger.info("%s: elsewhere after %.1f s, clients %.1f s later", faults, took_s[-1], clients_s)
        for broker in faulty:
            broker.recover()
    return took_s


def choose_broker(brokers: Sequence[BrokerProcess], which: Which, governor: Callable[[], str]) -> BrokerProcess:
    """Return a running broker."""
    well = [broker for broker in brokers if broker.is_well]
    has_a_topic = next(iter(well[0].writers(TOPICS[0]) or ()), "").partition(":")[0]
    host = governor() if which == "governs" else has_a_topic
    return next((broker for broker in well if broker.host == host), well[0])


def holders_of(brokers: Sequence[BrokerProcess], topic: str) -> set[str]:
    """Return the brokers of the topic, as all running brokers report them; an empty set if they disagree or one has
    failed.
    """
    well = [broker for broker in brokers if broker.is_well]
    first, *others = (broker.writers(topic) for broker in well)
    is_settled = first and all(each == first for each in others) and first <= {broker.place for broker in well}
    return first if is_settled and first else set()


def check(properties: dict[str, str], load: Load) -> int:
    """Check that each acknowledged record is read once; return the number of repeated Messages."""
    settings = settings_from(properties)
    store, doubles = open_wrapped(settings), 0
    for topic, sent in load.sent.items():
        assert {future.result(0) for future in sent} == {UNREPORTED}
        with BatchConsumer(Topics(store, settings), topic, delivery="effectively-once") as consumer:
            assert sorted(values_of(consumer, at_least=len(sent))) == sorted(sent.values())
            doubles += consumer.doubles
    store.close()
    return doubles


def under_load(
    server: S3Server, folder: Path, rounds: Sequence[Round], *, zookeeper: str | None = None, pause_s: float
) -> list[float]:
    bucket = server.make_bucket()
    server.plain.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    properties = {**store_properties(server, bucket), "pubsub.batch.ms": "200", "pubsub.batch.by": "producer"}
    settings = settings_from(properties)
    store = open_wrapped(settings)
    for topic in TOPICS:
        Topics(store, settings).create(topic, 2)
    store.close()

    def governor() -> str:
        return governor_by_store(server, bucket) if zookeeper is None else governor_by_zookeeper(zookeeper)

    with broker_processes(folder, server, properties, zookeeper=zookeeper) as brokers:
        with Load(properties, brokers, pause_s) as load:
            took_s = play(brokers, load, rounds, governor)
        logs = "".join(broker.log for broker in brokers)
    doubles = check(properties, load)
    # A governor cannot write after a later governor has written, because its etag is outdated.
    generations = generations_written(server, bucket)
    assert generations == sorted(generations)
    assert "Traceback" not in logs
    assert "exception" not in logs
    sent = sum(map(len, load.sent.values()))
    _logger.info("%d records, %d Messages twice, governors %s", sent, doubles, sorted(set(generations)))
    return took_s


def test_brokers_that_are_killed_and_govern_and_are_cut_off(minio: S3Server, tmp_path: Path) -> None:
    under_load(minio, tmp_path, [(("cut off", "governs"), ("killed", "has a topic"))], pause_s=0.1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("coordinator", ["store", "zookeeper"])
def test_brokers_and_governors_under_fault_after_fault(
    minio: S3Server, tmp_path: Path, coordinator: str, seed: int, request: pytest.FixtureRequest
) -> None:
    zookeeper: ZooKeeperServer | None = request.getfixturevalue("zookeeper") if coordinator == "zookeeper" else None
    rounds: list[Round] = [(fault,) for fault in random.Random(seed).sample(FAULTS, len(FAULTS))]
    hosts = None if zookeeper is None else zookeeper.chroot()
    took_s = under_load(minio, tmp_path, rounds, zookeeper=hosts, pause_s=0.02)
    assert median(took_s) <= 15, took_s  # generous, because a busy machine slows each recovery
