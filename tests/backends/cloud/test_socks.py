"""The cloud stores through a SOCKS5 proxy that alone resolves names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.network.socks_proxy import Asked, SocksServer, proxy_at
from tests.support.stores.clouds import ATTEMPTS, Cloud, OnEveryCloud
from tieredstore.backends.s3.socks import send_through
from tieredstore.errors import StoreError, StoreUnavailableError

NAMES = {
    "s3": "bucket.elsewhere.example",
    "gcs": "storage.elsewhere.example",
    "azure": "devstoreaccount1.elsewhere.example",
}
LOGIN = ("user@home", "p@ss:w/rd")


@pytest.fixture
def only_local_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any name lookup on this side fail."""
    real = socket.getaddrinfo

    def look_up(host: str, *args: int, **options: int) -> object:
        assert host == "127.0.0.1", f"{host} was looked up here"
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def named(cloud: Cloud) -> str:
    """Return an endpoint URL whose host only the proxy resolves; Azurite takes the account from the host name."""
    return f"http://{NAMES[cloud.name]}"


@pytest.mark.usefixtures("only_local_addresses")
class TestSocks(OnEveryCloud):
    @pytest.fixture
    def socks(self, cloud: Cloud) -> Iterator[SocksServer]:
        with SocksServer({NAMES[cloud.name]: urlsplit(cloud.endpoint_url).port or 0}, login=LOGIN) as socks:
            yield socks

    @pytest.mark.parametrize("login", [(None, None), LOGIN], ids=["no login", "login"])
    def test_every_request_goes_by_name_through_the_proxy(
        self, cloud: Cloud, place: str, login: tuple[str | None, str | None]
    ) -> None:
        names = {NAMES[cloud.name]: urlsplit(cloud.endpoint_url).port or 0}
        with SocksServer(names, login=LOGIN if login[0] else None) as socks:
            proxy = proxy_at("127.0.0.1", socks.port, *login)
            with closing(cloud.make(named(cloud), place, proxy=proxy)) as store:
                store.put("object", cloud.large)
                assert store.get("object", 3) == cloud.large[3:]
                assert [info.key for info in store.list()] == ["object"]
                store.delete(["object"])
        # Connections are reused. Parts are sent in parallel, except Google's chunks; all other requests are sequential.
        assert len(socks.asked) <= (1 if cloud.name == "gcs" else 4)
        assert set(socks.asked) == {Asked(NAMES[cloud.name], 80, by_name=True, username=login[0])}

    def test_a_refused_login_is_told_without_the_password(self, cloud: Cloud, place: str, socks: SocksServer) -> None:
        proxy = proxy_at("127.0.0.1", socks.port, LOGIN[0], "wrong-password")
        with closing(cloud.make(named(cloud), place, proxy=proxy)) as store:
            with pytest.raises(StoreUnavailableError) as caught:
                store.get("object")
            assert "wrong-password" not in str(caught.value) + repr(store)
        assert socks.refused_logins == ATTEMPTS
        assert socks.asked == []

    def test_a_name_that_the_proxy_does_not_know_is_retryable(self, cloud: Cloud, place: str) -> None:
        with SocksServer({}) as socks:
            proxy = proxy_at("127.0.0.1", socks.port)
            with closing(cloud.make(named(cloud), place, proxy=proxy)) as store, pytest.raises(StoreUnavailableError):
                store.head("object")
        assert len(socks.asked) == ATTEMPTS

    def test_without_the_proxy_nothing_goes_elsewhere(self, cloud: Cloud, place: str) -> None:
        proxy = proxy_at("127.0.0.1", 1)
        with closing(cloud.make(cloud.endpoint_url, place, proxy=proxy)) as store, pytest.raises(StoreUnavailableError):
            store.get("object")


def test_a_release_of_botocore_built_otherwise_is_refused() -> None:
    rebuilt: Any = object()
    options: Any = None
    with pytest.raises(StoreError, match="botocore"):
        send_through(rebuilt, options, proxy_at("127.0.0.1", 1))
