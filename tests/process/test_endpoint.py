"""The endpoint with slow, wrong and many clients; liveness and readiness."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from tests.support.waiting import wait_until
from tieredstore.process import endpoint as endpoint_module
from tieredstore.process.endpoint import Endpoint
from tieredstore.process.health import Health

pytestmark = pytest.mark.slow


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def endpoint(health: Health, request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """Serve an endpoint; the parameter is the request timeout, by default longer than a busy machine needs."""
    # Ignore threads of earlier tests, which may still run. At the end, wait for the endpoint's threads, which may take
    # a moment to end.
    before = set(threading.enumerate())
    request_s = getattr(request, "param", 600.0)
    served = Endpoint("127.0.0.1", 0, health, request_s=request_s, pages={"/lag": lambda: {"segments": 3}})
    yield served
    served.close()
    served.close()
    wait_until(lambda: not [one for one in set(threading.enumerate()) - before if "endpoint" in one.name])


SLOW_CLIENTS = pytest.mark.parametrize("endpoint", [0.3], indirect=True)


def answer(endpoint: Endpoint, request: bytes) -> bytes:
    """Return everything received until the connection is closed."""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as client:
        client.sendall(request)
        received = b""
        while more := client.recv(65536):
            received += more
        return received


def until_answered(endpoint: Endpoint) -> None:
    """Retry until an answer arrives, because a busy machine may refuse connections or exceed a timeout of a second."""
    wait_until(
        lambda: answer(endpoint, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200"),
        passing=(ConnectionError,),
    )


def get(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    head, _, body = answer(endpoint, f"GET {path} HTTP/1.1\r\nHost: it\r\n\r\n".encode()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404, b"Available: /metrics, /healthz, /lag and /readyz."),
        (b"GET /lag HTTP/1.1\r\n\r\n", 200, b'{\n  "segments": 3\n}'),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", 404, b"Available: /metrics"),
        (b"GET /readyz?verbose HTTP/1.1\r\n\r\n", 200, b"true"),
        (b"GET /readyz HTTP/1.0\r\n\r\n", 200, b"true"),
        (b"POST /readyz HTTP/1.1\r\n\r\n", 501, b""),
    ],
)
def test_paths_and_methods(endpoint: Endpoint, request_: bytes, status: int, words: bytes) -> None:
    head, _, body = answer(endpoint, request_).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert words in body


def test_bytes_that_are_no_request_are_refused(endpoint: Endpoint) -> None:
    assert b"Error code: 400" in answer(endpoint, b"nonsense\r\n\r\n")


def test_a_head_has_the_same_status_and_no_body(endpoint: Endpoint, health: Health) -> None:
    health.fails("store", "it does not answer")
    head, _, body = answer(endpoint, b"HEAD /readyz HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"503", b"")


def test_a_request_in_pieces_is_answered(endpoint: Endpoint) -> None:
    with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # one packet each
        for piece in (b"GET /hea", b"lthz HTTP/1.0\r", b"\nA: b\r\n", b"\r\n"):
            client.sendall(piece)
        assert client.recv(100).startswith(b"HTTP/1.0 200")


@SLOW_CLIENTS
def test_clients_that_say_nothing_or_too_much_are_dropped_and_others_answered(endpoint: Endpoint) -> None:
    silent = [socket.create_connection((endpoint.host, endpoint.port), timeout=60) for _ in range(12)]
    try:
        # The silent clients occupy most connections until their timeout.
        until_answered(endpoint)
        assert [client.recv(1) for client in silent] == [b""] * 12
    finally:
        for client in silent:
            client.close()
    with contextlib.suppress(ConnectionError):
        assert answer(endpoint, b"GET /healthz HTTP/1.0\r\nA: " + bytes(1 << 20)) == b""
    until_answered(endpoint)


@SLOW_CLIENTS
def test_a_client_that_trickles_has_no_more_time_than_others(endpoint: Endpoint) -> None:
    with socket.create_connection((endpoint.host, endpoint.port), timeout=0.05) as client:
        started, dropped = time.monotonic(), b"?"
        while dropped:
            assert time.monotonic() - started < 60
            with contextlib.suppress(TimeoutError):
                try:
                    client.sendall(b"G")
                    dropped = client.recv(1)
                except ConnectionError:
                    break


def test_more_connections_than_may_wait_are_closed_at_once_and_it_goes_on(endpoint: Endpoint) -> None:
    # Open no more connections than fit in the kernel's backlog, because the server may accept slowly.
    crowd = [socket.create_connection((endpoint.host, endpoint.port), timeout=60) for _ in range(30)]
    # Nineteen are being answered, and the others are closed at once.
    wait_until(lambda: len(select.select(crowd, (), (), 1)[0]) >= 30 - 19)
    for client in crowd:
        client.close()
    until_answered(endpoint)


def test_the_end_cuts_off_who_is_being_answered(health: Health) -> None:
    served = Endpoint("127.0.0.1", 0, health, request_s=600.0)
    with socket.create_connection((served.host, served.port), timeout=60) as client:
        client.sendall(b"GET /hea")
        # Another connection is answered, so this one has been accepted too.
        assert get(served, "/healthz")[0] == 200
        started = time.monotonic()
        served.close()
        assert time.monotonic() - started < 300  # the client could take ten minutes for its request
        assert client.recv(1) == b""


def test_a_metric_that_cannot_be_collected_is_an_error_of_that_page_alone(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Collector):
        def describe(self) -> Iterable[Metric]:
            return ()

        def collect(self) -> Iterable[Metric]:
            raise ValueError("the database password is 1234")

    registry = CollectorRegistry()
    registry.register(Broken())
    monkeypatch.setattr(endpoint_module, "REGISTRY", registry)
    served = Endpoint("127.0.0.1", 0, health)
    try:
        status, body = get(served, "/metrics")
        assert status == 500
        assert b"1234" not in body
        assert get(served, "/readyz")[0] == 200
    finally:
        served.close()


def test_all_addresses_of_the_next_protocol_can_be_listened_on(health: Health) -> None:
    try:
        served = Endpoint("::1", 0, health)
    except Exception as error:  # noqa: BLE001  a machine without IPv6
        pytest.skip(str(error))
    try:
        assert get(served, "/healthz")[0] == 200
    finally:
        served.close()


def test_a_server_is_lost_and_regained_in_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    health = Health(
        {"leadership": "not asked yet", "topics": None, "store": None},
        servers={"leadership": "broker", "topics": "broker", "store": "store"},
        monotonic=lambda: now[0],
    )
    health.holds("leadership")
    assert not caplog.messages
    health.fails("topics", "no answer")
    health.fails("leadership", "no answer")
    health.fails("topics", "still no answer")
    now[0] = 107.0
    health.holds("topics")
    health.holds("leadership")
    health.holds("leadership")
    assert caplog.messages == [
        "broker: lost; retrying until it answers: no answer",
        "broker: available again after 7 s",
    ]


def test_who_owes_a_sign_of_life_is_named() -> None:
    now = [100.0]
    health = Health(monotonic=lambda: now[0])
    health.beat("ship", within_s=30)
    health.beat("watch", within_s=60)
    now[0] += 31
    assert health.silent() == {"ship": "no sign of life for 31 s, expected within 30 s"}
    health.beat("ship", within_s=30)
    assert health.silent() == {}
    now[0] += 61
    health.rest("ship")
    assert set(health.silent()) == {"watch"}


def test_a_condition_that_nobody_named_is_a_mistake(health: Health) -> None:
    with pytest.raises(KeyError, match="stroe"):
        health.holds("stroe")
    health.fails("partition 3", "another process leads it")
    assert health.reasons() == {"partition 3": "another process leads it"}
    health.holds("partition 3")
    assert health.reasons() == {}


def test_health_is_told_in_json(health: Health, endpoint: Endpoint) -> None:
    health.beat("ship", within_s=-1)
    health.fails("store", 'it says "no"\n')
    status, body = get(endpoint, "/healthz")
    assert status == 503
    assert json.loads(body)["alive"] is False
    status, body = get(endpoint, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reasons": {"store": 'it says "no"\n'}})
