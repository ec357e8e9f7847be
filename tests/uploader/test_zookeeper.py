"""Who leads as a real ZooKeeper says it: watched, through changes, topics that come and go, and outages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.process import free_port
from tests.support.servers.zookeeper import ZooKeeperServer, start_zookeeper, zookeeper_client
from tests.support.uploader_disk import BrokerDisk, extents, uploader_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config.loading import uploader_settings_from
from tieredstore.errors import BrokerUnavailable, ConfigError
from tieredstore.model import TopicPartition
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import BrokerEnvironment
from tieredstore.uploader import zookeeper as module
from tieredstore.uploader.environment import broker_environment
from tieredstore.uploader.zookeeper import ZooKeeperLeadership

pytestmark = [pytest.mark.slow, pytest.mark.broker]

LONG_S = 120
ONE, TWO = ("one", 0), ("two", 3)


class Cluster:
    """The nodes that a controller writes."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def lead(self, where: TopicPartition, leader: int, epoch: int = 0) -> None:
        state = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": epoch, "isr": [leader]}
        self.write(where, json.dumps(state).encode())

    def write(self, where: TopicPartition, raw: bytes) -> None:
        path = f"/brokers/topics/{where[0]}/partitions/{where[1]}/state"
        if self.client.exists(path):
            self.client.set(path, raw)
        else:
            self.client.create(path, raw, makepath=True)

    def delete(self, topic: str) -> None:
        self.client.delete(f"/brokers/topics/{topic}", recursive=True)


@contextmanager
def leadership_of(hosts: str, broker_id: int = 1) -> Iterator[ZooKeeperLeadership]:
    leadership = ZooKeeperLeadership(BrokerEnvironment((), broker_id, {}, zookeeper=hosts))
    try:
        yield leadership
    finally:
        leadership.close()


def until_led(leadership: ZooKeeperLeadership, expected: Collection[TopicPartition]) -> None:
    end = time.monotonic() + LONG_S
    while True:
        try:
            led = leadership.led()
        except BrokerUnavailable:
            led = None
        if led == frozenset(expected):
            return
        assert time.monotonic() < end, f"{led} are led, and not {expected}"
        time.sleep(0.02)


def test_leaders_change_and_topics_come_and_go(zookeeper: ZooKeeperServer) -> None:
    hosts = zookeeper.chroot()
    with zookeeper_client(hosts) as client, leadership_of(hosts) as leadership:
        cluster = Cluster(client)
        cluster.lead(ONE, 1)
        cluster.lead(TWO, 2)
        assert leadership.led() == frozenset(), "nothing lies here"
        leadership.watch([ONE, TWO])
        assert leadership.led() == {ONE}
        cluster.lead(TWO, 1, 1)
        until_led(leadership, [ONE, TWO])
        cluster.lead(ONE, -1, 1)  # its only replica is dead
        until_led(leadership, [TWO])
        cluster.delete("two")
        until_led(leadership, [])
        cluster.lead(TWO, 1)
        until_led(leadership, [TWO])
        leadership.watch([ONE])
        assert leadership.led() == frozenset()


def test_a_state_that_cannot_be_read_is_nobodys(zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture) -> None:
    hosts = zookeeper.chroot()
    with zookeeper_client(hosts) as client, leadership_of(hosts) as leadership:
        cluster = Cluster(client)
        odd = [b"", b"{", b"[1]", b'{"leader": "1"}', b'{"leader": true}', b"[" * 100_000]
        for number, raw in enumerate(odd):
            cluster.write(("odd", number), raw)
        cluster.lead(ONE, 1)
        leadership.watch([ONE, *(("odd", number) for number in range(len(odd)))])
        assert leadership.led() == {ONE}
        assert caplog.text.count("names no leader") == len(odd)


def test_only_what_has_changed_is_read_again(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = zookeeper.chroot()
    with zookeeper_client(hosts) as client, leadership_of(hosts) as leadership:
        cluster = Cluster(client)
        places = [("many", number) for number in range(30)]
        for place in places:
            cluster.lead(place, 1)
        leadership.watch(places)
        read: list[TopicPartition] = []
        real: Callable[..., None] = leadership._read  # pyright: ignore[reportPrivateUsage]

        def counted(client: Any, partitions: list[TopicPartition]) -> None:
            read.extend(partitions)
            real(client, partitions)

        monkeypatch.setattr(leadership, "_read", counted)
        assert leadership.led() == set(places)
        assert sorted(read) == places
        read.clear()
        assert leadership.led() == set(places)
        assert read == []
        cluster.lead(places[7], 2)
        until_led(leadership, set(places) - {places[7]})
        assert read == [places[7]]
        # And once in a while all of them, whatever the watches have told.
        read.clear()
        monkeypatch.setattr(module, "_AGAIN_S", -1.0)
        leadership.led()
        assert sorted(read) == places


def test_an_outage_is_told_and_what_changed_meanwhile_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 1.0)
    data, port = tmp_path / "data", free_port()
    with start_zookeeper(data, port) as server, zookeeper_client(server.hosts) as client:
        Cluster(client).lead(ONE, 1)
        Cluster(client).lead(TWO, 2)
    # Without watches that tell: these died with the server.
    with leadership_of(f"127.0.0.1:{port}") as leadership:
        leadership.watch([ONE, TWO])
        with pytest.raises(BrokerUnavailable, match="not connected"):
            leadership.led()
        with start_zookeeper(data, port):
            until_led(leadership, [ONE])
        with start_zookeeper(data, port) as server:
            with zookeeper_client(server.hosts) as client:
                Cluster(client).lead(ONE, 2, 1)
                Cluster(client).lead(TWO, 1, 1)
            until_led(leadership, [TWO])


def test_the_uploader_ships_what_zookeeper_says_is_led(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    disk = BrokerDisk(tmp_path)
    disk.grow(3)
    hosts, store = zookeeper.chroot(), MemoryObjectStore()
    name = (PARTITION.topic, PARTITION.partition)
    with zookeeper_client(hosts) as client:
        cluster = Cluster(client)
        cluster.lead(name, 2)
        with uploader_of(tmp_path, store, leadership="zookeeper", zookeeper_connect=hosts) as shipping:
            assert shipping.run_once() == []
            assert extents(store) == []
            cluster.lead(name, 1, 1)
            end = time.monotonic() + LONG_S
            while not shipping.ask_leadership():
                assert time.monotonic() < end
            assert shipping.run_once() == []
            assert extents(store) == [(0, 9), (10, 19)]


def test_the_brokers_own_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(f"broker.id=4\nlog.dirs={tmp_path}\nzookeeper.connect=a:1,b:2/kafka\n")
    own = {"uploader.server.properties": str(tmp_path / "server.properties"), "uploader.leadership": "zookeeper"}
    environment = broker_environment(uploader_settings_from(own))
    assert (environment.zookeeper, environment.broker_id, dict(environment.client)) == ("a:1,b:2/kafka", 4, {})
    elsewhere = broker_environment(uploader_settings_from({**own, "uploader.zookeeper.connect": "c:3"}))
    assert elsewhere.zookeeper == "c:3"
    with (tmp_path / "server.properties").open("a") as file:
        file.write("zookeeper.ssl.client.enable=true\n")
    with pytest.raises(ConfigError, match=r"by TLS .*uploader\.leadership=auto"):
        broker_environment(uploader_settings_from(own))
    assert broker_environment(uploader_settings_from({**own, "uploader.zookeeper.connect": "c:3"})).zookeeper == "c:3"
    (tmp_path / "server.properties").write_text(f"broker.id=4\nlog.dirs={tmp_path}\n")
    with pytest.raises(ConfigError, match=r"uploader\.zookeeper\.connect"):
        broker_environment(uploader_settings_from(own))


def test_what_is_no_list_of_hosts_is_a_wrong_setting() -> None:
    with leadership_of("a:b:c:d") as leadership, pytest.raises(ConfigError, match="no list of hosts"):
        leadership.led()
