"""The S3 store through a SOCKS5 proxy: nothing passes it by, and names are resolved there."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.network.socks_proxy import SocksServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.s3_stores import options_for
from tieredstore.backends.http.proxies import SocksProxy
from tieredstore.backends.s3.socks import send_through
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import StoreError, StoreUnavailable
from tieredstore.process.retry import RetryPolicy

NAME = "bucket-store.invalid"
"""No resolver knows it: RFC 6761 keeps ``.invalid`` free of names."""


def store_through(server: S3Server, proxy: SocksProxy, *, attempts: int = 1) -> S3ObjectStore:
    port = urlsplit(server.endpoint_url).port
    options = options_for(server, server.make_bucket())
    options = replace(options, endpoint_url=f"http://{NAME}:{port}", proxy=proxy)
    return S3ObjectStore(options, retries=RetryPolicy(attempts=attempts, base_delay_s=0))


def names_of(server: S3Server) -> dict[str, int]:
    return {NAME: urlsplit(server.endpoint_url).port or 0}


@pytest.fixture
def no_lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every name that is looked up here; addresses are no names."""
    seen: list[str] = []
    real = socket.getaddrinfo

    def watched(host: str, *rest: Any, **named: Any) -> object:
        if host != "127.0.0.1":
            seen.append(host)
        return real(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    return seen


def test_all_requests_pass_the_proxy_by_name(minio: S3Server, no_lookups: list[str]) -> None:
    with (
        SocksServer(names_of(minio)) as proxy,
        closing(store_through(minio, SocksProxy("127.0.0.1", proxy.port))) as store,
    ):
        data = bytes(range(256)) * 48_000
        store.put("large", (data[at : at + 70_001] for at in range(0, len(data), 70_001)))
        store.put("small", b"x", if_absent=True)
        assert store.get("large") == data
        assert [info.key for info in store.list()] == ["large", "small"]
        store.delete(["large", "small"])
        assert {(asked.host, asked.by_name, asked.username) for asked in proxy.asked} == {(NAME, True, None)}
    assert no_lookups == []


def test_the_proxy_s_login_is_sent(minio: S3Server) -> None:
    with SocksServer(names_of(minio), login=("who", "p@ss:w/rd")) as proxy:
        right = SocksProxy("127.0.0.1", proxy.port, "who", "p@ss:w/rd")
        with closing(store_through(minio, right)) as store:
            store.put("object", b"x")
        assert {asked.username for asked in proxy.asked} == {"who"}


def test_a_wrong_login_is_an_error_and_not_a_way_around(minio: S3Server) -> None:
    with SocksServer(names_of(minio), login=("who", "right")) as proxy:
        wrong = SocksProxy("127.0.0.1", proxy.port, "who", "secret-guess")
        with closing(store_through(minio, wrong)) as store, pytest.raises(StoreUnavailable) as caught:
            store.put("object", b"x")
        assert proxy.asked == []
        assert proxy.refused_logins == 1
    assert "secret-guess" not in str(caught.value)


def test_a_name_that_the_proxy_does_not_know_is_retryable(minio: S3Server) -> None:
    with (
        SocksServer({}) as proxy,
        closing(store_through(minio, SocksProxy("127.0.0.1", proxy.port), attempts=2)) as store,
        pytest.raises(StoreUnavailable),
    ):
        store.head("object")
    assert len(proxy.asked) == 2


def test_without_the_proxy_nothing_is_sent(minio: S3Server) -> None:
    with SocksServer(names_of(minio)) as proxy:
        port = proxy.port
    with closing(store_through(minio, SocksProxy("127.0.0.1", port))) as store, pytest.raises(StoreUnavailable):
        store.get("object")


def test_a_release_of_botocore_built_otherwise_is_refused() -> None:
    rebuilt: Any = object()
    options: Any = None
    with pytest.raises(StoreError, match="botocore"):
        send_through(rebuilt, options, SocksProxy("127.0.0.1", 1))
