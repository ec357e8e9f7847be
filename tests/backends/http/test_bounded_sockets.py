"""Sockets under the clouds' SDKs: every wait ends by the call's deadline, whatever is between client and store."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from http.client import RemoteDisconnected
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.network.loopback_server import ConnectionServer
from tests.support.network.socks_proxy import proxy_at
from tests.support.servers.kafka_certificates import issue, make_authority
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.backends.http.sockets import BoundedConnection, bound_socket, first_connected, within
from tieredstore.backends.s3.connections import BoundedSession, WholeContinue, bound_chain, endpoint_of
from tieredstore.backends.s3.options import AccessKeys, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.config.storage import ProxySettings
from tieredstore.errors import StoreError, StoreUnavailableError
from tieredstore.process.deadline import Deadline
from tieredstore.process.retry import RetryPolicy

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.4
GRACE_S = 120.0


class Trickle(ConnectionServer):
    """A server that answers each connection with ``first``, and then repeatedly with ``drop``."""

    def __init__(self, first: bytes, drop: bytes, context: ssl.SSLContext | None = None) -> None:
        self._first, self._drop, self._context = first, drop, context
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        with connection:
            connection.recv(1 << 16)
            connection.sendall(self._first)
            while True:
                connection.sendall(self._drop)
                time.sleep(0.01)


def make_s3(url: str, proxy: ProxySettings | None = None, *, certificate_check: bool = True) -> S3ObjectStore:
    keys = AccessKeys("key", "secret")
    options = S3Options(
        "bucket", "us-east-1", url, path_style=True, credentials=keys, proxy=proxy, certificate_check=certificate_check
    )
    return S3ObjectStore(options, retries=RetryPolicy(timeout_s=TIMEOUT_S))


def make_gcs(url: str, proxy: ProxySettings | None = None) -> GcsObjectStore:
    return GcsObjectStore(GcsOptions("bucket", Anonymous(), url, proxy=proxy), retries=RetryPolicy(timeout_s=TIMEOUT_S))


STORES: dict[str, Callable[..., ObjectStore]] = {"s3": make_s3, "gcs": make_gcs}
"""The S3 store uses botocore's connections, the GCS store those of ``requests``."""


def assert_given_up(store: ObjectStore) -> None:
    with closing(store):
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.get("key")
        # Twice the timeout, because opening the client may take as long as the call.
        assert time.monotonic() - started < 2 * TIMEOUT_S + GRACE_S


@pytest.mark.parametrize("cloud", STORES)
class TestBetweenHereAndTheStore:
    def test_tls(self, cloud: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        authority = make_authority()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issue(authority, "store").write(tmp_path / "store.pem"))
        bundle = tmp_path / "authority.pem"
        bundle.write_text(authority.certificate_pem)
        for name in ("REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"):
            monkeypatch.setenv(name, str(bundle))
        with Trickle(b"HTTP/1.1 200 OK\r\nX-Dripping: ", b"x", context) as server:
            assert_given_up(STORES[cloud](f"https://127.0.0.1:{server.port}"))

    def test_a_handshake(self, cloud: str) -> None:
        # The server begins a TLS record, and then sends its bytes one by one.
        with Trickle(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xf0", b"\x00") as server:
            assert_given_up(STORES[cloud](f"https://127.0.0.1:{server.port}"))

    def test_a_tunnel_through_a_proxy(self, cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with Trickle(b"HTTP/1.1 200 OK\r\n", b"X-Dripping: x\r\n") as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
            assert_given_up(STORES[cloud]("https://store.invalid"))

    def test_a_proxy(self, cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with Trickle(b"HTTP/1.1 200 OK\r\n", b"X-Dripping: x\r\n") as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            assert_given_up(STORES[cloud]("http://store.invalid"))

    def test_a_socks_proxy_s_answer(self, cloud: str) -> None:
        # The proxy reports a host name of 255 letters, and sends each letter before the read timeout ends.
        with Trickle(b"\x05\x00\x05\x00\x00\x03\xff", b"x") as proxy:
            assert_given_up(STORES[cloud]("http://store.invalid", proxy_at("127.0.0.1", proxy.port)))


@pytest.mark.parametrize("at", ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT"])
def test_where_a_machine_asks_for_credentials(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Trickle(b"HTTP/1.1 200 OK\r\nX-Dripping: ", b"x") as server:
        monkeypatch.setenv(at, f"http://127.0.0.1:{server.port}/")
        options = S3Options("bucket", "us-east-1", "http://127.0.0.1:9")
        assert_given_up(S3ObjectStore(options, retries=RetryPolicy(timeout_s=TIMEOUT_S)))


def test_clients_that_fetch_credentials() -> None:
    opened = BoundedSession()
    bound_chain(opened)
    client: Any = opened.create_client("sts", region_name="us-east-1")
    with closing(client):
        session: Any = endpoint_of(client).http_session
        pools = session._manager.pool_classes_by_scheme
        assert all(issubclass(pool.ConnectionCls, BoundedConnection) for pool in pools.values())


class TestASocket:
    @pytest.fixture
    def ours(self) -> Iterator[socket.socket]:
        one, other = socket.socketpair()
        with one, other:
            one.settimeout(30)
            yield bound_socket(one)

    def test_waits_as_long_as_the_deadline_and_then_again_as_long_as_its_own_time_out(
        self, ours: socket.socket
    ) -> None:
        for operation in (
            lambda: ours.recv(1),
            lambda: ours.recv_into(bytearray(1)),
            lambda: ours.sendall(bytes(1 << 24)),
        ):
            with within(Deadline.after(0.05)), pytest.raises(TimeoutError):
                operation()
            assert ours.gettimeout() == 30

    def test_does_not_wait_after_the_deadline(self, ours: socket.socket) -> None:
        with within(Deadline.after(-1)), pytest.raises(TimeoutError, match="deadline"):
            ours.send(b"x")

    def test_keeps_its_own_time_out_where_that_is_shorter(self, ours: socket.socket) -> None:
        ours.settimeout(0.05)
        with within(Deadline.after(30)), pytest.raises(TimeoutError):
            ours.recv(1)

    def test_is_bounded_once(self, ours: socket.socket) -> None:
        kind = type(ours)
        assert type(bound_socket(ours)) is kind
        assert kind.__mro__.count(socket.socket) == 1


def test_all_addresses_of_a_host_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 443)) for number in range(8)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses)
    now = 0.0
    given: list[float | None] = []

    def unreachable(_: Any, timeout_s: float | None) -> socket.socket:
        nonlocal now
        given.append(timeout_s)
        now += timeout_s or 0.0
        raise TimeoutError

    with within(Deadline(25.0, lambda: now)), pytest.raises(TimeoutError):
        first_connected("store", 443, 0, unreachable, 10.0)
    assert given == [10.0, 10.0, 5.0]
    with pytest.raises(TimeoutError):
        first_connected("store", 443, 0, unreachable, 10.0)
    assert given[3:] == [10.0] * 8


def test_the_next_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def connect(address: Any, timeout_s: float | None) -> socket.socket:
            if address[4][0] != "127.0.0.1":
                raise ConnectionRefusedError
            return socket.create_connection(address[4][:2], timeout_s)

        first_connected("localhost", port, socket.AF_INET, connect, 5.0).close()


def test_a_connection_that_ends_within_a_100_continue_is_not_read_for_ever() -> None:
    for cut, expected in ((b"X-Header: x\r\n", pytest.raises(RemoteDisconnected)), (b"X: x\r\n\r\n", nullcontext())):
        with expected:
            WholeContinue()._consume_headers(BytesIO(cut))  # pyright: ignore[reportPrivateUsage]  http.client calls it


def test_a_botocore_that_is_built_otherwise_is_refused() -> None:
    other: Any = requests
    with pytest.raises(StoreError, match="botocore"):
        endpoint_of(other)
