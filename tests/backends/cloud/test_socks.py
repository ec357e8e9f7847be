"""The cloud stores behind a SOCKS5 proxy, which alone looks names up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.support.network.socks_proxy import Asked, SocksServer
from tests.support.stores.clouds import LARGE, Cloud, OnClouds
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.backends.http.proxies import SocksProxy
from tieredstore.config import settings_from
from tieredstore.errors import StoreUnavailable

NAMES = {"gcs": "storage.elsewhere.example", "azure": "devstoreaccount1.elsewhere.example"}


@pytest.fixture
def only_local_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any look-up of a name on this side fails."""
    real = socket.getaddrinfo

    def look_up(host: str, *args: int, **options: int) -> object:
        assert host == "127.0.0.1", f"{host} was looked up here"
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def named(cloud: Cloud) -> str:
    """The endpoint under a name that only the proxy knows; Azurite takes the account from it."""
    return f"http://{NAMES[cloud.name]}"


@pytest.mark.usefixtures("only_local_addresses")
class TestSocks(OnClouds):
    @pytest.fixture
    def socks(self, cloud: Cloud) -> Iterator[SocksServer]:
        port = urlsplit(cloud.endpoint_url).port or 0
        with SocksServer({NAMES[cloud.name]: port}, login=("user@home", "p:w")) as socks:
            yield socks

    def test_every_request_goes_by_name_through_the_proxy(self, cloud: Cloud, place: str, socks: SocksServer) -> None:
        proxy = SocksProxy("127.0.0.1", socks.port, "user@home", "p:w")
        with closing(cloud.make(named(cloud), place, proxy=proxy)) as store:
            store.put("object", LARGE)
            assert store.get("object", 3) == LARGE[3:]
            assert [info.key for info in store.list()] == ["object"]
            store.delete(["object"])
        # Connections are kept: Azure's blocks go side by side, everything else goes one after the other.
        assert len(socks.asked) <= (1 if cloud.name == "gcs" else 4)
        assert set(socks.asked) == {Asked(NAMES[cloud.name], 80, by_name=True, username="user@home")}

    def test_a_refused_login_is_told_without_the_password(self, cloud: Cloud, place: str, socks: SocksServer) -> None:
        proxy = SocksProxy("127.0.0.1", socks.port, "user@home", "wrong-password")
        with closing(cloud.make(named(cloud), place, proxy=proxy)) as store:
            with pytest.raises(StoreUnavailable) as caught:
                store.get("object")
            assert "wrong-password" not in str(caught.value) + repr(store)
        assert socks.refused_logins > 0

    def test_without_the_proxy_nothing_goes_elsewhere(self, cloud: Cloud, place: str) -> None:
        proxy = SocksProxy("127.0.0.1", 1)
        store: ObjectStore
        with closing(cloud.make(cloud.endpoint_url, place, proxy=proxy)) as store, pytest.raises(StoreUnavailable):
            store.get("object")

    def test_the_settings_name_the_proxy(self, cloud: Cloud) -> None:
        own = {
            "gcs": {"storage.gcs.bucket.name": "b", "storage.gcs.credentials.default": "false"},
            "azure": {"storage.azure.container.name": "c", "storage.azure.account.name": "a"},
        }[cloud.name]
        shared = {"storage.backend.class": cloud.name, "chunk.size": "4194304"}
        proxy = {"host": "proxy", "port": "1080", "username": "u", "password": "p"}
        settings = settings_from({**shared, **own, **{f"storage.proxy.{name}": text for name, text in proxy.items()}})
        store_class = GcsObjectStore if cloud.name == "gcs" else AzureObjectStore
        assert store_class.from_settings(settings).options.proxy == SocksProxy("proxy", 1080, "u", "p")
