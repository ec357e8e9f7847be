"""TLS clients that are silent, or that stop in the middle of the handshake. The broker still serves good clients."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import gc
import resource
import socket
import ssl
from asyncio import sslproto
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.pubsub.pubsub_brokers import (
    LONG_S,
    PacketClient,
    RunningBroker,
    message_of,
    running_broker,
    write_of,
)
from tests.support.pubsub.pubsub_topics import fresh_topics
from tests.support.servers.kafka_certificates import issue, make_authority
from tieredstore.pubsub.broker import handshakes
from tieredstore.pubsub.broker.handshakes import (
    HANDSHAKES,
    HANDSHAKES_AN_ADDRESS,
    TLS_COST,
    WAITING_AN_ADDRESS,
    Handshakes,
)
from tieredstore.pubsub.format.packets import Code, MetadataRequest

BUFFER = 16 << 20
MOST_CONNECTIONS = BUFFER // 2 // TLS_COST
HALF_A_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(make_authority(), "broker").write(tmp_path_factory.mktemp("tls") / "broker.pem")


@pytest.fixture
def many_files() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class TlsClient(PacketClient):
    def __init__(self, place: str, own_address: str = "127.0.0.1") -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket = context.wrap_socket(connected(place, own_address))


def connected(place: str, own_address: str = "127.0.0.1") -> socket.socket:
    host, _, port = place.partition(":")
    return socket.create_connection((host, int(port)), LONG_S, source_address=(own_address, 0))


def begun(place: str, own_address: str = "127.0.0.1") -> socket.socket:
    client = connected(place, own_address)
    client.sendall(HALF_A_HANDSHAKE)
    return client


def release(client: socket.socket) -> bool:
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def running_with_tls(certificate: Path, buffer: int = BUFFER) -> contextlib.AbstractContextManager[RunningBroker]:
    gc.collect()  # TLS objects that earlier tests left as garbage must not count
    files = {"broker_tls_certificate": str(certificate), "broker_tls_key": str(certificate)}
    return running_broker(fresh_topics(1, batch_ms="20", broker_buffer_bytes=str(buffer), **files))


def of(running: RunningBroker) -> Handshakes:
    assert running.broker.handshakes is not None
    return running.broker.handshakes


def tls_objects() -> int:
    return sum(isinstance(each, sslproto.SSLProtocol) for each in gc.get_objects())


@pytest.mark.usefixtures("many_files")
def test_silent_clients_get_no_tls_and_a_good_one_is_served_beside_1500_of_them(certificate: Path) -> None:
    with running_with_tls(certificate) as running, ExitStack() as stack:
        silent = [stack.enter_context(connected(running.place)) for _ in range(1500)]
        with TlsClient(running.place) as good:
            assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
            assert running.ask(tls_objects) == 1
            left = WAITING_AN_ADDRESS - 1  # the good client took a place too
            assert running.ask(lambda: (of(running).waiting, of(running).in_progress)) == (left, 0)
            assert running.broker.room.taken == TLS_COST
            # Only the oldest clients were disconnected.
            assert all(release(client) for client in silent[:-left])
            assert running.broker.counts.refused_connections == 1500 - left
        for client in silent:
            client.close()
        running.until(lambda: of(running).waiting == 0 and running.broker.connections == 0)
        # The TLS objects are freed at once, without a garbage collection.
        running.until(lambda: tls_objects() == 0)
        assert running.broker.room.taken == 0


def test_who_stays_silent_is_sent_away(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_with_tls(certificate) as running, TlsClient(running.place) as good:
        monkeypatch.setattr(handshakes, "WAIT_S", 0.2)
        with connected(running.place) as silent:
            assert release(silent)
        assert good.ask(MetadataRequest()).code is Code.OK
        assert running.ask(lambda: of(running).waiting) == 0


@pytest.mark.parametrize("sent", [HALF_A_HANDSHAKE, b"\0\0\0\x0d\0\5" + bytes(9)], ids=["half", "no handshake"])
def test_half_a_handshake_ends_at_its_deadline_and_holds_nothing(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.2)
    with running_with_tls(certificate) as running:
        with connected(running.place) as client:
            client.sendall(sent)
            assert release(client)
        running.until(lambda: of(running).in_progress == 0)
        assert (running.broker.room.taken, running.broker.connections) == (0, 0)
        running.until(lambda: tls_objects() == 0)


def test_a_client_that_goes_amid_its_handshake_or_before_holds_nothing(certificate: Path) -> None:
    with running_with_tls(certificate) as running:
        for come in (connected, begun):
            client = come(running.place)
            running.until(lambda: of(running).waiting + of(running).in_progress == 1)
            client.close()
            running.until(lambda: of(running).waiting + of(running).in_progress == 0)
            assert running.broker.room.taken == 0


def test_handshakes_in_progress_are_few_of_each_address_and_in_all(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "WAIT_S", LONG_S)
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", LONG_S)
    with running_with_tls(certificate, 4 * BUFFER) as running, ExitStack() as stack:
        for _ in range(2 * HANDSHAKES):
            stack.enter_context(begun(running.place))
        running.until(lambda: of(running).in_progress == HANDSHAKES_AN_ADDRESS)
        running.until(lambda: of(running).waiting == 2 * HANDSHAKES - HANDSHAKES_AN_ADDRESS)
        # Another address still gets its handshake.
        with TlsClient(running.place, "127.0.0.2") as good:
            assert good.ask(MetadataRequest()).code is Code.OK
        for number in range(3, 6):
            for _ in range(HANDSHAKES_AN_ADDRESS):
                stack.enter_context(begun(running.place, f"127.0.0.{number}"))
        waiting = 2 * HANDSHAKES + 3 * HANDSHAKES_AN_ADDRESS
        running.until(lambda: of(running).waiting + of(running).in_progress == waiting)
        running.until(lambda: of(running).in_progress == HANDSHAKES)
        assert running.ask(tls_objects) <= HANDSHAKES + 1


def test_tls_connections_count_as_held_bytes_and_leave_half_of_the_buffer(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_with_tls(certificate) as running, ExitStack() as stack:
        clients = [stack.enter_context(TlsClient(running.place)) for _ in range(MOST_CONNECTIONS)]
        assert clients[-1].ask(MetadataRequest()).code is Code.OK
        assert running.broker.room.taken == MOST_CONNECTIONS * TLS_COST <= BUFFER // 2
        for _ in range(2):
            with begun(running.place) as refused:
                assert release(refused)
        assert caplog.text.count("raise pubsub.broker.buffer.bytes") == 1
        assert running.broker.counts.refused_connections == 2
        assert clients[0].ask(write_of(message_of([bytes(4_000_000)]))).code is Code.OK
        clients[1].socket.close()
        running.until(lambda: running.broker.connections == MOST_CONNECTIONS - 1)
        with TlsClient(running.place) as another:
            assert another.ask(MetadataRequest()).code is Code.OK
        for client in clients:
            client.socket.close()
        running.until(lambda: (running.broker.room.taken, running.broker.connections) == (0, 0))


def test_a_handshake_waits_for_room_and_no_longer_than_its_deadline(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_with_tls(certificate) as running:
        room = running.broker.room
        running.ask(lambda: room.take(BUFFER, lambda: None))
        with begun(running.place) as patient:
            running.until(lambda: room.waiting == 1)
            running.ask(lambda: room.give_back(BUFFER))
            running.until(lambda: room.taken == TLS_COST)
            patient.close()
        running.until(lambda: room.taken == 0)
        running.ask(lambda: room.take(BUFFER, lambda: None))
        monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.2)
        with begun(running.place) as sent_away:
            assert release(sent_away)
        running.ask(lambda: room.give_back(BUFFER))
        running.until(lambda: (room.taken, room.waiting, of(running).in_progress) == (0, 0, 0))


@pytest.mark.slow
def test_a_broker_that_drains_ends_those_who_are_not_connected_yet(certificate: Path) -> None:
    with running_with_tls(certificate) as running, connected(running.place) as silent, begun(running.place) as half:
        running.until(lambda: (of(running).waiting, of(running).in_progress) == (1, 1))
        with TlsClient(running.place) as good:
            assert good.ask(write_of(message_of([b"v"]))).code is Code.OK
            running.drain()
            assert release(good.socket)
        assert release(silent)
        assert release(half)
        assert (of(running).waiting, of(running).in_progress, running.broker.room.taken) == (0, 0, 0)


def test_the_memory_of_a_tls_connection_is_what_asyncio_takes_and_more() -> None:
    assert sslproto.SSLProtocol.max_size < TLS_COST
