"""Brokers that elect a governor through a real ZooKeeper with MemQ's nodes, together with brokers of MemQ."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.pubsub.pubsub_topics import topics_on
from tests.support.servers.zookeeper import ZooKeeperServer, end_session, zookeeper_client
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import BrokerUnavailableError, ConfigError, FencedError
from tieredstore.live.zookeeper_session import ZooKeeperSession
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.governor.assigning import BrokerSeat, FreeCapacity
from tieredstore.pubsub.governor.directory import Directory, KnownTopic, StoreTopics
from tieredstore.pubsub.governor.zookeeper_governor import ZooKeeperGovernor
from tieredstore.pubsub.governor.zookeeper_nodes import ZooKeeperTopics
from tieredstore.pubsub.queue.topics import Topics

pytestmark = pytest.mark.slow

LONG_S: Final = 120.0
SESSION_S: Final = 20.0
MEMQ_TOPIC: Final = {
    "topic": "clicks", "topicOrder": 7, "storageHandlerName": "customs3aync2",
    "storageHandlerConfig": {
        "bucket": "logs", "path": "prod/topics/clicks", "notificationTopic": "clicks_n", "enableHashing": True,
    },
    "batchSizeBytes": "1048576", "batchMilliSeconds": 250, "inputTrafficMB": 9.5, "clusteringMultiplier": 3,
}  # fmt: skip


class Member:
    """One broker with its governor."""

    def __init__(self, hosts: str, number: int, topics: Sequence[KnownTopic], port: int = 9092) -> None:
        self.ip = f"10.0.0.{number}"
        self.topics = list(topics)
        self.session = ZooKeeperSession(hosts, SESSION_S, answer_s=LONG_S)
        seat = BrokerSeat(f"broker-{number}", BrokerAddress("a", self.ip, port), 200, serves_reads=number == 2)
        self.governor = ZooKeeperGovernor(self.session, lambda: seat, lambda: self.topics, FreeCapacity())

    def expire(self, hosts: str) -> None:
        end_session(hosts, self.session._client)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def members(hosts: str, count: int, topics: Sequence[KnownTopic]) -> Generator[list[Member]]:
    all_members = [Member(hosts, number, topics) for number in range(count)]
    try:
        yield all_members
    finally:
        for member in all_members:
            member.session.close()


def own_topics(count: int) -> list[KnownTopic]:
    topics = topics_on()
    for number in range(count):
        topics.create(f"topic-{number}")
    return list(StoreTopics(topics).all())


def tick(all_members: Sequence[Member], rounds: int = 3) -> None:
    for _ in range(rounds):
        for member in all_members:
            member.governor.tick()


def node(client: Any, path: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(client.get(path)[0])
    return document


def generation(member: Member) -> int | None:
    return member.governor.generation


def memq_broker(client: Any, ip: str, **fields: object) -> str:
    """Make a node like a broker of MemQ."""
    document = {
        "brokerIP": ip, "brokerPort": 9092, "instanceType": "2xl", "locality": "a", "assignedTopics": [],
        "totalNetworkCapacity": 0, "brokerType": "WRITE", "ofItsOwn": {"x": 1}, **fields,
    }  # fmt: skip
    client.ensure_path("/brokers")
    client.create(f"/brokers/{ip}", json.dumps(document).encode(), ephemeral=True)
    return f"/brokers/{ip}"


def test_one_governs_topics_are_spread_and_those_of_who_is_gone_are_elsewhere(zookeeper: ZooKeeperServer) -> None:
    hosts, topics = zookeeper.chroot(), own_topics(5)
    with members(hosts, 3, []) as all_members, zookeeper_client(hosts) as client:
        tick(all_members, 1)
        for member in all_members:
            member.topics = topics
        tick(all_members)
        (governing,) = (member for member in all_members if member.governor.generation is not None)
        assert client.get("/governor")[0] == governing.ip.encode()
        for topic in topics:
            serving = [member for member in all_members if member.governor.serves(topic.name)]
            assert len(serving) == 1
            assert {member.governor.writers(topic.name) for member in all_members} == {
                (BrokerAddress("a", serving[0].ip, 9092),)
            }
            assert serving[0].governor.readers(topic.name) == (BrokerAddress("a", "10.0.0.2", 9092),)
        written = node(client, "/brokers/10.0.0.2")
        assert written | {"assignedTopics": []} == {
            "brokerIP": "10.0.0.2", "brokerPort": 9092, "instanceType": "tieredstore", "locality": "a",
            "assignedTopics": [], "totalNetworkCapacity": 200, "brokerType": "READ_WRITE",
        }  # fmt: skip
        assert {"topic", "storageHandlerName", "storageHandlerConfig", "assignmentTimestamp"} <= set(
            written["assignedTopics"][0]
        )
        version = client.get("/brokers/10.0.0.2")[1].version
        tick(all_members)
        assert client.get("/brokers/10.0.0.2")[1].version == version, "what has not changed is not written"
        earlier = generation(governing)
        governing.governor.leave()
        rest = [member for member in all_members if member is not governing]
        tick(rest)
        (new,) = (member.governor.generation for member in rest if member.governor.generation is not None)
        assert earlier is not None
        assert new > earlier
        for topic in topics:
            assert sum(member.governor.serves(topic.name) for member in rest) == 1


def test_a_deposed_governor_writes_nothing_whenever_it_wakes(zookeeper: ZooKeeperServer) -> None:
    hosts, topics = zookeeper.chroot(), own_topics(4)
    with members(hosts, 2, topics) as all_members, zookeeper_client(hosts) as client:
        old, new = all_members
        tick(all_members)
        assert generation(old) is not None
        sleeping = old.governor._read_nodes()  # pyright: ignore[reportPrivateUsage]
        candidate = old.governor._find_leader(old.governor._seat())  # pyright: ignore[reportPrivateUsage]
        assert candidate is not None
        old.expire(hosts)
        wait_until(lambda: candidate.rpartition("/")[2] not in client.get_children("/governor"))
        tick([new], 2)
        assert (generation(new) or 0) > (generation(old) or 0)
        before = client.get("/brokers/10.0.0.1")
        # The old governor resumes in the middle of a tick, with its old view. Each of its writes is refused.
        old.topics = own_topics(9)
        with pytest.raises(FencedError):
            old.governor._govern(sleeping, candidate)  # pyright: ignore[reportPrivateUsage]
        assert client.get("/brokers/10.0.0.1") == before
        served = {topic.name for topic in topics if old.governor.serves(topic.name)}
        assert served, "a broker keeps its topics until it learns of another assignment"
        wait_until(lambda: try_tick(old))
        assert generation(old) is None
        tick(all_members)
        assert sum(member.governor.generation is not None for member in all_members) == 1
        for topic in topics:
            assert sum(member.governor.serves(topic.name) for member in all_members) == 1


def try_tick(member: Member) -> bool:
    """Tick; return False if the member has no session."""
    try:
        member.governor.tick()
    except BrokerUnavailableError:
        return False
    return True


def test_curators_contenders_and_ours_take_turns(zookeeper: ZooKeeperServer) -> None:
    hosts, topics = zookeeper.chroot(), own_topics(1)
    with zookeeper_client(hosts) as client:
        client.ensure_path("/governor")
        # The node's whole name sorts after this project's, but Curator compares the text after the last "lock-".
        first = client.create("/governor/_c_ffffffff-0000-lock-", b"", ephemeral=True, sequence=True)
        with members(hosts, 1, topics) as (member,):
            tick([member])
            assert generation(member) is None
            # A governor of MemQ assigns a topic. Our broker accepts the assignment, and keeps all other fields.
            given = node(client, f"/brokers/{member.ip}")
            given["assignedTopics"] = [{**MEMQ_TOPIC, "assignmentTimestamp": 5, "assignmentInputTrafficMB": 9.0}]
            client.set(f"/brokers/{member.ip}", json.dumps(given).encode())
            tick([member], 1)
            assert member.governor.serves("clicks")
            assert member.governor.writers("clicks") == (BrokerAddress("a", member.ip, 9092),)
            second = client.create("/governor/_c_00000000-0000-lock-", b"", ephemeral=True, sequence=True)
            client.delete(first)
            tick([member], 2)
            assert generation(member) is not None
            assert not member.governor.serves("clicks"), "there is no such topic"
            assert member.governor.serves("topic-0")
            names = client.get_children("/governor")
            ours = next(name for name in names if f"/governor/{name}" != second)
            assert min(names, key=lambda name: name[name.rindex("lock-") + 5 :]) == ours


def s3_topics(zookeeper_topics: str) -> Topics:
    settings = settings_from({
        "storage.backend.class": "s3", "storage.s3.bucket.name": "logs", "storage.s3.region": "us-east-1",
        "chunk.size": "4194304", "pubsub.kafka.bootstrap.servers": "127.0.0.1:1",
        "pubsub.broker.coordinator": "zookeeper", "pubsub.broker.zookeeper.connect": zookeeper_topics,
    })  # fmt: skip
    return Topics(MemoryObjectStore(), settings)


def test_memqs_topics_are_assigned_to_both_kinds_by_their_traffic_and_others_to_who_can_store_them(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = zookeeper.chroot()
    topics = s3_topics(hosts)
    session = ZooKeeperSession(hosts, SESSION_S, answer_s=LONG_S)
    directory = Directory(ZooKeeperTopics(session, topics), StoreTopics(topics))
    with zookeeper_client(hosts) as client, members(hosts, 2, []) as all_members:
        nodes = {
            "clicks": json.dumps(MEMQ_TOPIC).encode(),
            "elsewhere": json.dumps(
                {**MEMQ_TOPIC, "topic": "elsewhere", "storageHandlerConfig": {"bucket": "b", "notificationTopic": "n"}}
            ).encode(),
            "bad": b"{", "other": b'{"topic":"another"}', "odd": b'{"topic":"odd","inputTrafficMB":"much"}',
        }  # fmt: skip
        for name, raw in nodes.items():
            client.create(f"/topics/{name}", raw, makepath=True)
        directory.refresh()
        directory.refresh()
        assert [known.name for known in directory.all()] == ["clicks", "elsewhere"]
        assert caplog.text.count("broker cannot store the topic") == 1, "once, though they are read again and again"
        clicks = directory.get("clicks")
        assert clicks is not None
        assert (clicks.load.input_mb, clicks.load.batch_bytes, clicks.load.partitions(1)) == (9.5, 1 << 20, 3)
        assert clicks.stored is not None
        stored, _ = clicks.stored
        assert (stored.batches.batch_ms, stored.batches.batch_bytes) == (250, 1 << 20)
        assert [directory.look(name) for name in ("nothing", "a/b", "..", "bad")] == [None] * 4
        for member in all_members:
            member.topics = directory.all()
        path = memq_broker(client, "10.0.9.9")
        client.create("/brokers/noise", b"[]", ephemeral=True)
        tick(all_members)
        theirs = node(client, path)
        assert {topic["topic"] for topic in theirs["assignedTopics"]} == {"clicks", "elsewhere"}
        assert (theirs["ofItsOwn"], theirs["instanceType"]) == ({"x": 1}, "2xl")
        (assigned,) = (topic for topic in theirs["assignedTopics"] if topic["topic"] == "clicks")
        assert assigned["assignmentInputTrafficMB"] == pytest.approx(9.5 / 3)
        assert {name: assigned[name] for name in MEMQ_TOPIC} == MEMQ_TOPIC
        for member in all_members:
            assert member.governor.serves("clicks")
            assert not member.governor.serves("elsewhere"), "its bucket is another one"
        metadata = clicks.metadata(all_members[0].governor)
        assert [broker.ip for broker in metadata.write_brokers] == ["10.0.0.0", "10.0.0.1", "10.0.9.9"]
        assert (metadata.handler, dict(metadata.properties)["enableHashing"]) == ("customs3aync2", "true")
    session.close()


def test_a_broker_that_comes_back_has_its_node_and_one_at_the_address_of_another_is_refused(
    zookeeper: ZooKeeperServer,
) -> None:
    hosts, topics = zookeeper.chroot(), own_topics(3)
    with members(hosts, 1, topics) as (member,), zookeeper_client(hosts) as client:
        tick([member])
        before = node(client, f"/brokers/{member.ip}")
        assert len(before["assignedTopics"]) == 3
        client.delete(f"/brokers/{member.ip}")
        tick([member], 1)
        assert node(client, f"/brokers/{member.ip}") == before
        other = Member(hosts, 0, topics, port=9093)
        with pytest.raises(ConfigError, match=r"another broker has the node /brokers/10\.0\.0\.0, with port 9092"):
            other.governor.tick()
        other.session.close()
        # A member with the same address and port is the same broker, restarted before its old session has ended.
        again = Member(hosts, 0, topics)
        again.governor.tick()
        assert client.get(f"/brokers/{member.ip}")[1].ephemeralOwner == again.session.id
        again.session.close()
        with pytest.raises(BrokerUnavailableError, match="has ended"):
            again.governor.tick()


def test_what_is_no_list_of_hosts_and_who_does_not_answer_are_named() -> None:
    with pytest.raises(ConfigError, match="not a list of ZooKeeper hosts"):
        ZooKeeperSession("a:b:c:d", 8).children("/")
    session = ZooKeeperSession("127.0.0.1:1", 8, answer_s=0.01)
    with pytest.raises(BrokerUnavailableError, match="not connected"):
        session.children("/")
    session.close()
    with pytest.raises(ConfigError, match=r"pubsub\.broker\.zookeeper\.connect"):
        topics_on(broker_coordinator="zookeeper")
