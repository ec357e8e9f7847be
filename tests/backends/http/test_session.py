"""Sessions under the cloud SDKs: limits, bodies in pieces, failures without secrets, identities that stay."""

from __future__ import annotations

import socket
import ssl
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from tests.support.network.loopback_server import ConnectionServer
from tests.support.network.socks_proxy import proxy_at
from tests.support.servers.process import unanswered_port
from tieredstore.backends.http.session import (
    Buffers,
    HttpLimits,
    StoreAdapter,
    certificates,
    configure,
    proxies_of,
)
from tieredstore.backends.http.sockets import PIECE_BYTES, connection_failure, within
from tieredstore.config.storage import ProxySettings
from tieredstore.errors import StoreError, StoreUnavailableError, redact
from tieredstore.process.deadline import Deadline


class Echo(ConnectionServer):
    """A server that answers each connection's single request with its head and body."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}/path"
        self.requests: list[bytes] = []

    def serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = stream.readline()
                if not line:
                    return
                head += line
            lines = head.lower().split(b"\r\n")
            size = next((int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length:")), 0)
            self.requests.append(head + stream.read(size))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@contextmanager
def session_of(limits: HttpLimits | None = None, proxy: ProxySettings | None = None) -> Generator[requests.Session]:
    with configure(requests.Session(), StoreAdapter(limits or HttpLimits()), proxy) as session:
        yield session


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_arrives_whole_with_its_length(echo: Echo, size: int, kind: type) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    with session_of() as session:
        session.put(echo.url, data=kind(data[:size]))
    head, _, body = echo.requests[0].partition(b"\r\n\r\n")
    assert body == data[:size]
    assert f"content-length: {size}".encode() in head.lower()
    assert b"chunked" not in head.lower()


@given(st.lists(st.integers(0, 600_000), max_size=4))
def test_several_buffers_go_as_one_body(counts: list[int]) -> None:
    with Echo() as echo, session_of() as session:
        buffers = [bytes([65 + at]) * count for at, count in enumerate(counts)]
        body = Buffers(*buffers)
        untyped: object = body
        for _ in range(2):
            # The body can be sent again, as after a token refresh.
            session.request("PUT", echo.url, data=untyped, headers={"Content-Type": "x/y"})  # type: ignore[arg-type]  # requests' types do not know it
    assert [got.partition(b"\r\n\r\n")[2] for got in echo.requests] == [b"".join(buffers)] * 2


def test_a_refused_connection_is_a_passing_failure_and_tells_no_query() -> None:
    with unanswered_port() as port, session_of() as session:
        url = f"http://127.0.0.1:{port}/container/key?sv=1&sig=SECRET"
        with pytest.raises(StoreUnavailableError) as caught:
            session.get(url)
    trace = "".join(traceback.format_exception(caught.value))
    assert "SECRET" not in trace
    assert "sig=" not in trace
    assert "refused" in str(caught.value)


def test_a_server_without_an_answer_is_a_passing_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, session_of(HttpLimits(read_timeout_s=0.1)) as session:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/?sig=SECRET"
        with pytest.raises(StoreUnavailableError, match="timed out"):
            session.get(url, timeout=600)


def test_the_time_outs_end_with_the_deadline() -> None:
    limits = HttpLimits(connect_timeout_s=10, read_timeout_s=30)
    assert limits.timeouts_s() == (10, 30)
    with within(Deadline(20.0, lambda: 5.0)):
        assert limits.timeouts_s() == (10, 15)
    with within(Deadline(20.0, lambda: 19.0)):
        assert limits.timeouts_s() == (1, 1)
    with within(Deadline(20.0, lambda: 20.0)), pytest.raises(StoreUnavailableError, match="deadline"):
        limits.timeouts_s()
    assert limits.timeouts_s() == (10, 30)


def test_a_body_stops_being_sent_at_the_deadline(echo: Echo) -> None:
    clock = iter(range(1000))
    with (
        session_of() as session,
        within(Deadline(6.0, lambda: next(clock))),
        pytest.raises(StoreUnavailableError, match="deadline"),
    ):
        session.put(echo.url, data=bytes(100 * PIECE_BYTES))


def test_a_password_for_the_host_elsewhere_does_not_replace_the_credentials(
    echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with session_of() as session:
        session.get(echo.url, headers={"Authorization": "Bearer chosen"})
    assert b"Bearer chosen" in echo.requests[0]


def test_the_proxy_of_the_environment_does_not_replace_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/bundle.pem")
    with session_of(proxy=proxy_at("proxy", 1080)) as session:
        merged = session.merge_environment_settings("https://storage", {}, None, None, None)
        assert session.verify == certificates() == "/etc/bundle.pem"
    assert merged["proxies"]["https"] == "socks5h://proxy:1080"


def test_a_machine_s_own_identity_is_not_asked_for_through_the_proxy() -> None:
    proxies = proxies_of(proxy_at("proxy", 1080))
    for url in ("http://169.254.169.254/metadata/identity", "http://metadata.google.internal/computeMetadata/v1"):
        assert not requests.utils.select_proxy(url, proxies)
    assert requests.utils.select_proxy("https://storage", proxies) == "socks5h://proxy:1080"


@pytest.mark.parametrize(
    ("proxy", "url"),
    [
        (proxy_at("proxy", 1080), "socks5h://proxy:1080"),
        (proxy_at("proxy", 1080, "me@home", "p:w/d?"), "socks5h://me%40home:p%3Aw%2Fd%3F@proxy:1080"),
        (proxy_at("::1", 1080, "u", "p"), "socks5h://u:p@[::1]:1080"),
    ],
)
def test_a_proxy_s_url_resolves_names_at_the_proxy(proxy: ProxySettings, url: str) -> None:
    assert proxy.url == url
    assert "p:w" not in repr(proxy)
    assert "me@home" not in repr(proxy)


def test_an_untrusted_certificate_is_no_passing_failure() -> None:
    cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
    failure = connection_failure(requests.exceptions.SSLError(requests.exceptions.ConnectionError(cause)))
    assert type(failure) is StoreError
    assert "certificate" in str(failure)
    assert isinstance(connection_failure(requests.exceptions.SSLError("EOF")), StoreUnavailableError)


def test_causes_that_go_in_circles_come_to_an_end() -> None:
    one, other = OSError("one"), OSError("other")
    one.__cause__, other.__cause__ = other, one
    assert isinstance(connection_failure(one), StoreUnavailableError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GET http://host/key?sig=a&se=b failed", "GET http://host/key?… failed"),
        ("url: /key?sig=a (Caused by x)", "url: /key?… (Caused by x)"),
        ("no query", "no query"),
    ],
)
def test_queries_are_left_out_of_messages(text: str, expected: str) -> None:
    assert redact(text) == expected
