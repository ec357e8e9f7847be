"""Leadership from a real ZooKeeper: watches, changes, topics created and deleted, and outages."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.network.loopback_server import ConnectionServer, relay
from tests.support.servers.kafka_certificates import issue, make_authority
from tests.support.servers.process import free_port
from tests.support.servers.zookeeper import ZooKeeperServer, start_zookeeper, zookeeper_client
from tests.support.uploader.uploader_disk import BrokerDisk, extents, uploader_of
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.model import TopicPartition, Uuid
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import BrokerEnvironment
from tieredstore.uploader.broker import broker_environment
from tieredstore.uploader.leadership import ZooKeeperLeadership
from tieredstore.uploader.settings import uploader_settings_from

pytestmark = [pytest.mark.slow, pytest.mark.broker]

LONG_S = 120
ONE, TWO = ("one", 0), ("two", 3)
CHECKED = {
    "use_ssl": True, "certfile": None, "keyfile": None, "keyfile_password": None, "ca": None, "check_hostname": True,
}  # fmt: skip


class Cluster:
    """Nodes of a cluster, written as a controller writes them."""

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
def leadership_of(
    hosts: str, *, tls: Mapping[str, object] | None = None, answer_s: float = 10.0, again_s: float = 60.0
) -> Generator[ZooKeeperLeadership]:
    environment = BrokerEnvironment((), 1, {}, zookeeper=hosts, zookeeper_tls=tls or {})
    leadership = ZooKeeperLeadership(environment, answer_s=answer_s, again_s=again_s)
    try:
        yield leadership
    finally:
        leadership.close()


def until_led(leadership: ZooKeeperLeadership, expected: Collection[TopicPartition]) -> None:
    wait_until(lambda: leadership.led() == frozenset(expected), passing=(BrokerUnavailableError,), what=expected)


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
        cluster.lead(ONE, -1, 1)  # the only replica is dead
        until_led(leadership, [TWO])
        cluster.delete("two")
        until_led(leadership, [])
        cluster.lead(TWO, 1)
        until_led(leadership, [TWO])
        leadership.watch([ONE])
        assert leadership.led() == frozenset()


def test_ids_of_topics_are_told_and_which_are_not_there(zookeeper: ZooKeeperServer) -> None:
    hosts, topic_id = zookeeper.chroot(), Uuid.random()
    with zookeeper_client(hosts) as client, leadership_of(hosts) as leadership:
        contents = {"new": json.dumps({"version": 3, "topic_id": str(topic_id)}), "old": '{"version": 1}', "odd": "["}
        for topic, text in contents.items():
            client.create(f"/brokers/topics/{topic}", text.encode(), makepath=True)
        nobody = Uuid(bytes(16))
        assert leadership.topic_ids(["new", "old", "odd", "none"]) == {
            "new": topic_id, "old": nobody, "odd": nobody, "none": None,
        }  # fmt: skip


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
        get_async = KazooClient.get_async

        def counted(client: KazooClient, path: str, watch: Any = None) -> Any:
            _, _, _, topic, _, number, _ = path.split("/")
            read.append((topic, int(number)))
            return get_async(client, path, watch)

        monkeypatch.setattr(KazooClient, "get_async", counted)
        assert leadership.led() == set(places)
        assert sorted(read) == places
        read.clear()
        assert leadership.led() == set(places)
        assert read == []
        cluster.lead(places[7], 2)
        until_led(leadership, set(places) - {places[7]})
        assert read == [places[7]]
    # All states are read again periodically, even if no watch reported a change.
    with leadership_of(hosts, again_s=-1.0) as leadership:
        leadership.watch(places)
        leadership.led()
        read.clear()
        leadership.led()
        assert sorted(read) == places


def test_an_outage_is_told_and_what_changed_meanwhile_is_read(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    with start_zookeeper(data, port) as server, zookeeper_client(server.hosts) as client:
        Cluster(client).lead(ONE, 1)
        Cluster(client).lead(TWO, 2)
    # The server is down when the uploader begins to watch.
    with leadership_of(f"127.0.0.1:{port}", answer_s=1.0) as leadership:
        leadership.watch([ONE, TWO])
        with pytest.raises(BrokerUnavailableError, match="not connected"):
            leadership.led()
        with start_zookeeper(data, port):
            until_led(leadership, [ONE])
        with start_zookeeper(data, port) as server:
            with zookeeper_client(server.hosts) as client:
                Cluster(client).lead(ONE, 2, 1)
                Cluster(client).lead(TWO, 1, 1)
            until_led(leadership, [TWO])


def test_the_uploader_ships_what_zookeeper_says_is_led(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    BrokerDisk(tmp_path, segments=3)
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
    (tmp_path / "server.properties").write_text(f"broker.id=4\nlog.dirs={tmp_path}\n")
    with pytest.raises(ConfigError, match=r"uploader\.zookeeper\.connect"):
        broker_environment(uploader_settings_from(own))


def test_a_setting_that_is_no_list_of_hosts_is_an_error() -> None:
    with leadership_of("a:b:c:d") as leadership, pytest.raises(ConfigError, match="not a list of hosts"):
        leadership.led()


class TlsFront(ConnectionServer):
    """TLS server in front of a port. It requires a client's certificate."""

    def __init__(self, folder: Path, port: int, to_port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem")
        self._context.load_verify_locations(folder / "authority.pem")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._to = "127.0.0.1", to_port
        super().__init__(port)

    def serve(self, connection: socket.socket) -> None:
        with (
            self._context.wrap_socket(connection, server_side=True) as client,
            socket.create_connection(self._to) as server,
        ):
            relay(client, server)


def test_the_brokers_own_names_of_tls_are_honoured(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """The server requires a client certificate, which the broker's file names. A client without TLS gets no answer."""
    authority, port = make_authority(), free_port()
    (tmp_path / "authority.pem").write_text(authority.certificate_pem)
    for name in ("server", "client"):
        issue(authority, name).write(tmp_path / f"{name}.pem")
    (tmp_path / "server.properties").write_text(
        f"broker.id=1\nlog.dirs={tmp_path}\nzookeeper.connect=127.0.0.1:{port}\nzookeeper.ssl.client.enable=true\n"
        f"zookeeper.ssl.keystore.location={tmp_path}/client.pem\nzookeeper.ssl.truststore.location={tmp_path}/authority.pem\n"
    )
    own = {"uploader.server.properties": str(tmp_path / "server.properties"), "uploader.leadership": "zookeeper"}
    environment = broker_environment(uploader_settings_from(own))
    tls = environment.zookeeper_tls
    files = {"certfile": "client.pem", "keyfile": "client.pem", "ca": "authority.pem"}
    assert tls == {**CHECKED, **{name: f"{tmp_path}/{file}" for name, file in files.items()}}
    hosts = zookeeper.chroot()
    front, _, chroot = hosts.partition("/")
    with zookeeper_client(hosts) as client, TlsFront(tmp_path, port, int(front.rpartition(":")[2])):
        Cluster(client).lead(ONE, 1)
        with leadership_of(f"{environment.zookeeper}/{chroot}", tls=tls) as leadership:
            leadership.watch([ONE])
            until_led(leadership, [ONE])
        with leadership_of(environment.zookeeper, answer_s=1.0) as leadership:
            leadership.watch([ONE])
            with pytest.raises(BrokerUnavailableError):
                leadership.led()


def test_tls_that_cannot_be_done_as_the_broker_does_it_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("")
    own = {"uploader.server.properties": str(tmp_path / "server.properties"), "uploader.leadership": "zookeeper"}

    def environment_of(**tls: str) -> BrokerEnvironment:
        lines = {"broker.id": "4", "log.dirs": str(tmp_path), "zookeeper.connect": "a:1"}
        named = {f"zookeeper.ssl.{name.replace('_', '.')}": text for name, text in tls.items()}
        texts = {**lines, "zookeeper.ssl.client.enable": "true", **named}
        (tmp_path / "server.properties").write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
        return broker_environment(uploader_settings_from(own))

    assert environment_of().zookeeper_tls == CHECKED
    assert environment_of(client_enable="false").zookeeper_tls == {}
    unchecked = environment_of(endpoint_identification_algorithm="", crl_enable="false").zookeeper_tls
    assert unchecked == {**CHECKED, "check_hostname": False}
    for refused, reason in (
        ({"keystore_location": f"{tmp_path}/a.jks"}, "keystore.location .*not a PEM file"),
        ({"truststore_location": f"{tmp_path}/a.pem", "truststore_type": "PKCS12"}, "not a PEM file"),
        ({"truststore_location": f"{tmp_path}/absent.pem"}, "does not exist"),
        ({"cipher_suites": "TLS_AES_128_GCM_SHA256"}, "does not support .*cipher.suites"),
    ):
        with pytest.raises(ConfigError, match=reason):
            environment_of(**refused)
    # If the broker's TLS settings cannot be used, an explicit address without TLS still works.
    own["uploader.zookeeper.connect"] = "c:3"
    plain = environment_of(keystore_location=f"{tmp_path}/a.jks")
    assert (plain.zookeeper, plain.zookeeper_tls) == ("c:3", {})
