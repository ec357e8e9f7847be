"""Tests of connections to a broker: logins, TLS, brokers that do not answer, and clients that are pickled or forked."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates as serialize_key_store

from tests.support.kafka.kafka_topics import Produced, allow_to_read, make_topic, produce
from tests.support.kafka.live_reads import read_live
from tests.support.kafka.mock_kafka import mock_kafka
from tests.support.servers.kafka import PASSWORD, USER, KafkaServer, start_kafka
from tests.support.servers.kafka_certificates import issue, make_authority
from tests.support.servers.process import unanswered_port
from tieredstore.errors import BrokerDeniedError, BrokerUnavailableError, ResourceNotFoundError, TieredStoreError
from tieredstore.live import LiveCluster, LiveFollower

pytestmark = pytest.mark.slow

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
Properties = dict[str, str]


@pytest.fixture(scope="module")
def topic(kafka: KafkaServer) -> str:
    """Return a topic with three records."""
    name = make_topic(kafka)
    produce(kafka, name, [Produced(None, b"%d" % number) for number in range(3)])
    return name


def rows_through(properties: Properties, topic: str, timeout_s: float = 60) -> int:
    """Read all records twice, by offsets from the cluster and with a consumer; return their number."""
    with LiveCluster(properties, isolation="read_committed", timeout_s=timeout_s) as cluster:
        stop = cluster.end_offsets([(topic, 0)])[topic, 0]
    batches = read_live(properties, topic, 0, 0, stop, isolation="read_committed", timeout_s=timeout_s)
    return sum(batch.num_rows for batch in batches)


WRONG: Final = "not-that-one"


def listener_of(kafka: KafkaServer, protocol: str) -> Properties:
    """Return the client properties for a listener. The listener ``elsewhere`` uses TLS and a host name that is not
    in the broker's certificate.
    """
    servers = {
        "SASL_PLAINTEXT": kafka.sasl_servers,
        "SASL_SSL": kafka.sasl_tls_servers,
        "SSL": kafka.tls_servers,
        "elsewhere": kafka.tls_servers.replace("127.0.0.1", "localhost"),
    }[protocol]
    return {"bootstrap.servers": servers, "security.protocol": "SSL" if protocol == "elsewhere" else protocol}


def login(mechanism: str, password: str) -> Properties:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    jaas = f'{module} required username="{USER}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


def refusal(properties: Properties, topic: str) -> str:
    """Return the error message. Both ways to read give the same message, except for its first words."""
    cluster = LiveCluster(properties, isolation="read_committed", timeout_s=60)
    with cluster, pytest.raises(BrokerDeniedError) as looked_up:
        cluster.topic(topic)
    with cluster, pytest.raises(BrokerDeniedError):
        cluster.topics()
    with pytest.raises(BrokerDeniedError) as read:
        next(read_live(properties, topic, 0, 0, 3, isolation="read_committed", timeout_s=60))
    assert not read.value.retryable
    sentences = {re.sub(r"^.*?: | \(after .*", "", str(raised.value)) for raised in (looked_up, read)}
    assert len(sentences) == 1
    assert "\n" not in str(read.value)
    return sentences.pop()


def trusted(kafka: KafkaServer, folder: Path, kind: str = "pem") -> Properties:
    """Return properties that trust the broker's certificate authority, in a form that Java and librdkafka accept."""
    pem, store = folder / "authority.pem", folder / "authority.p12"
    pem.write_text(kafka.authority.certificate_pem)
    entry = PKCS12Certificate(kafka.authority.certificate, b"authority")
    store.write_bytes(serialize_java_truststore([entry], BestAvailableEncryption(b"of the store")))
    java = {"ssl.truststore.location": str(store), "ssl.truststore.password": "of the store"}
    return {
        "pem": {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem)},
        "words": {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem.read_text()},
        "pkcs12": java | {"ssl.truststore.type": "PKCS12"},
        "javas default": java,
        "librdkafka": {"ssl.ca.location": str(pem)},
        "others": {"ssl.truststore.certificates": make_authority("others").certificate_pem},
    }[kind]


LIBRDKAFKAS: Final = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
NO_NAME: Final = {"ssl.endpoint.identification.algorithm": ""}


@pytest.mark.parametrize(
    ("protocol", "trust", "own"),
    [
        pytest.param("SASL_PLAINTEXT", "", login("PLAIN", PASSWORD), id="a login in Java's words"),
        pytest.param("SASL_PLAINTEXT", "", login("SCRAM-SHA-256", PASSWORD), id="SCRAM in Java's words"),
        pytest.param("SASL_PLAINTEXT", "", LIBRDKAFKAS, id="a login in librdkafka's words"),
        pytest.param("SASL_SSL", "pem", login("PLAIN", PASSWORD), id="a login over TLS"),
        *(
            pytest.param("SSL", kind, {}, id=f"trusted by {kind}")
            for kind in ("pem", "words", "pkcs12", "javas default", "librdkafka")
        ),
        pytest.param("elsewhere", "pem", NO_NAME, id="a name that is not checked"),
    ],
)
def test_ways_in(kafka: KafkaServer, topic: str, tmp_path: Path, protocol: str, trust: str, own: Properties) -> None:
    trusting = trusted(kafka, tmp_path, trust) if trust else {}
    assert rows_through({**listener_of(kafka, protocol), **trusting, **own}, topic) == 3


@pytest.mark.parametrize(
    ("protocol", "trust", "own", "said"),
    [
        pytest.param("SASL_PLAINTEXT", "", login("PLAIN", WRONG), "Authentication failed", id="a wrong password"),
        pytest.param("SASL_PLAINTEXT", "", login("SCRAM-SHA-256", WRONG), "Authentication failed", id="by SCRAM"),
        pytest.param(
            "SASL_PLAINTEXT", "", login("SCRAM-SHA-512", PASSWORD), "supported mechanisms: PLAIN,SCRAM",
            id="a mechanism that the listener does not know",
        ),
        pytest.param("SSL", "others", {}, "certificate verify failed", id="a broker of another authority"),
        pytest.param("SSL", "", {}, "certificate verify failed", id="an authority that nobody named"),
        pytest.param("elsewhere", "pem", {}, "certificate verify failed", id="a broker of another name"),
    ],
)  # fmt: skip
def test_ways_that_are_denied_at_once(
    kafka: KafkaServer, topic: str, tmp_path: Path, protocol: str, trust: str, own: Properties, said: str
) -> None:
    trusting = trusted(kafka, tmp_path, trust) if trust else {}
    sentence = refusal({**listener_of(kafka, protocol), **trusting, **own}, topic)
    assert said in sentence
    assert WRONG not in sentence


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaServer]:
    """A broker that allows the user of its SASL listener only the given operations, and requires client certificates
    at its TLS listener.
    """
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=client",
        "ssl.client.auth": "required",
    }
    with start_kafka(**settings) as server:
        yield server


@pytest.mark.broker
def test_the_right_to_read_the_topic_is_all_that_is_needed(guarded: KafkaServer) -> None:
    allowed, forbidden = make_topic(guarded), make_topic(guarded)
    for topic in (allowed, forbidden):
        produce(guarded, topic, [Produced(None, b"")] * 3)
    allow_to_read(guarded, USER, allowed)
    listener = listener_of(guarded, "SASL_PLAINTEXT") | login("PLAIN", PASSWORD)
    # The user has no access to any group.
    assert rows_through(listener, allowed) == 3
    with LiveCluster(listener, isolation="read_committed", timeout_s=60) as cluster:
        assert cluster.topics() == (allowed,)
        for ask in (
            lambda: cluster.topic(forbidden),
            lambda: cluster.end_offsets([(forbidden, 0)]),
            # If a client asks for all topics, the broker leaves out those that the user may not describe.
            lambda: cluster.end_offsets([(allowed, 0), (forbidden, 0)]),
        ):
            with pytest.raises(BrokerDeniedError, match="authorization failed"):
                ask()
    # The error must come long before the timeout.
    with pytest.raises(BrokerDeniedError, match="authorization failed"):
        next(read_live(listener, forbidden, 0, 0, 3, isolation="read_committed", timeout_s=500))
    with LiveFollower(listener, isolation="read_committed", timeout_s=500) as follower:
        follower.add({(allowed, 0): 0, (forbidden, 0): 0})
        with pytest.raises(BrokerDeniedError, match="authorization failed"):
            list(iter(lambda: follower.poll(400), None))


def test_nothing_that_is_asked_for_creates_a_topic() -> None:
    """The mock broker creates each topic that a client requests, as Kafka does by default."""
    with mock_kafka() as broker:
        properties = {"bootstrap.servers": broker.bootstrap_servers, "allow.auto.create.topics": "true"}
        with LiveCluster(properties, isolation="read_committed") as cluster:
            # Ask in parallel, because a topic counts as absent only after 5 s.
            with ThreadPoolExecutor() as pool:
                asked = pool.submit(cluster.end_offsets, [("nobody", 0)])
                with pytest.raises(ResourceNotFoundError):
                    next(read_live(properties, "nobody", 0, 0, 1, isolation="read_committed"))
            assert type(asked.exception()) is ResourceNotFoundError
            assert cluster.topics() == ()


@pytest.mark.broker
def test_a_client_shows_its_certificate(guarded: KafkaServer, tmp_path: Path) -> None:
    topic = make_topic(guarded)
    produce(guarded, topic, [Produced(None, b"")] * 3)
    ours = issue(guarded.authority, "client")
    pem, store = ours.write(tmp_path / "client.pem"), tmp_path / "client.p12"
    locked = BestAvailableEncryption(b"of the store")
    store.write_bytes(serialize_key_store(b"client", ours.key, ours.certificate, None, locked))
    listener = listener_of(guarded, "SSL") | trusted(guarded, tmp_path)
    for shown in (
        {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem)},
        {"ssl.keystore.location": str(store), "ssl.keystore.password": "of the store"},
        {"ssl.keystore.key": ours.key_pem, "ssl.keystore.certificate.chain": ours.certificate_pem},
        {"ssl.key.location": str(pem), "ssl.certificate.location": str(pem)},
    ):
        assert rows_through({**listener, **shown}, topic) == 3, sorted(shown)
    with pytest.raises(TieredStoreError):
        rows_through(listener, topic, timeout_s=2)


def refusal_of_nobody(ask: Callable[[float], object]) -> str:
    """Return the error message about an address where no broker listens. librdkafka may need several calls to notice
    it.
    """
    for timeout_s in (0.5, 5, 50):
        with pytest.raises(BrokerUnavailableError) as raised:
            ask(timeout_s)
        assert raised.value.retryable
        if "Connection refused" in str(raised.value):
            break
    return str(raised.value)


def test_a_broker_that_is_not_there_can_be_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with unanswered_port() as port:
        nobody = {"bootstrap.servers": f"127.0.0.1:{port}"}

        def ask(way: Callable[[LiveCluster], object], timeout_s: float) -> None:
            with LiveCluster(nobody, isolation="read_committed", timeout_s=timeout_s) as cluster:
                way(cluster)

        ways: list[Callable[[LiveCluster], object]] = [
            lambda cluster: cluster.topics(),
            lambda cluster: cluster.topic("t"),
            lambda cluster: cluster.end_offsets([("t", 0)]),
        ]
        for way in ways:
            assert "Connection refused" in refusal_of_nobody(partial(ask, way))
        caplog.clear()
        read = refusal_of_nobody(
            lambda timeout_s: next(read_live(nobody, "t", 0, 0, 1, isolation="read_committed", timeout_s=timeout_s))
        )
        assert re.match(r"t-0 at .* cannot be read: .*Connection refused", read)
        # A client logs this once per call, although librdkafka reports it about 30 times per second.
        assert len([one for one in caplog.records if one.name.startswith("tieredstore.live")]) <= 3


def test_a_listener_of_another_protocol_is_told_by_its_silence(kafka: KafkaServer) -> None:
    wrong = {"bootstrap.servers": kafka.tls_servers}
    said = pytest.raises(BrokerUnavailableError, match=r"within 1 s; if a broker runs there, check security\.protocol")
    with LiveCluster(wrong, isolation="read_committed", timeout_s=1) as cluster, said:
        cluster.topic("t")


@pytest.mark.broker
def test_a_broker_that_dies_in_the_middle_can_be_tried_again() -> None:
    with start_kafka() as server:
        topic, properties = make_topic(server), {"bootstrap.servers": server.bootstrap_servers}
        # The records exceed the read-ahead, so the reader must fetch again after its first batch.
        for _ in range(3):
            produce(server, topic, [Produced(None, os.urandom(990_000)) for _ in range(20)])
        batches = read_live(properties, topic, 0, 0, 60, isolation="read_committed", timeout_s=10)
        offsets = next(batches)["offset"].to_pylist()
        server.kill()
        with pytest.raises(BrokerUnavailableError):
            offsets.extend(offset for batch in batches for offset in batch["offset"].to_pylist())
        assert offsets == list(range(len(offsets)))


def test_a_cluster_is_pickled_without_its_client_and_shows_no_secret(kafka: KafkaServer, topic: str) -> None:
    listener = listener_of(kafka, "SASL_PLAINTEXT") | login("PLAIN", PASSWORD)
    with LiveCluster(listener, isolation="read_committed") as cluster:
        known = cluster.topic(topic)
        assert repr(cluster) == f"LiveCluster(bootstrap.servers='{kafka.sasl_servers}', isolation='read_committed')"
        with pickle.loads(pickle.dumps(cluster)) as copy:
            assert copy.topic(topic) == known
    assert cluster.topic(topic) == known
    cluster.close()


def test_a_forked_child_has_a_client_of_its_own_and_leaves_its_parents_alone(kafka: KafkaServer, topic: str) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    cluster = LiveCluster(properties, isolation="read_committed", timeout_s=30)
    known = cluster.topic(topic)
    batches = read_live(properties, topic, 0, 0, 3, isolation="read_committed")
    first = next(batches)

    def child() -> None:
        nonlocal batches
        try:
            fine = cluster.topic(topic) == known
            cluster.close()
            # Reading in the child must not affect the read in the parent.
            batches = read_live(properties, topic, 0, 0, 3, isolation="read_committed", timeout_s=30)
            fine = fine and sum(batch.num_rows for batch in batches) == 3
        except BrokerUnavailableError as error:
            os._exit(UNLUCKY if "forked from a process with Kafka clients" in str(error) else 1)
        os._exit(0 if fine else 1)

    codes = [exit_code_of_fork(child)]
    while codes[-1] == UNLUCKY and len(codes) < 4:
        codes.append(exit_code_of_fork(child))
    assert codes == [UNLUCKY] * (len(codes) - 1) + [0]
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 3
    assert cluster.topic(topic) == known
    cluster.close()


UNLUCKY: Final = 75
"""Exit code of a child that cannot use librdkafka. A thread of the parent held a lock of librdkafka during the fork,
and nothing releases this lock in the child. This happens about once in some hundred forks.
"""


def exit_code_of_fork(target: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join(120)
    return process.exitcode


def test_a_child_that_was_forked_beside_clients_says_so_when_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        cluster = LiveCluster(properties, isolation="read_committed", timeout_s=0.2)

        def words() -> str:
            with pytest.raises(BrokerUnavailableError, match=r"no broker answered within 0\.2 s") as raised:
                cluster.topics()
            return str(raised.value)

        def child() -> None:
            os._exit(0 if "forked from a process with Kafka clients" in words() else 1)

        assert "security.protocol" in words()
        assert exit_code_of_fork(child) == 0
        assert "security.protocol" in words()
        cluster.close()
