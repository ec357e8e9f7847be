"""What tests of the Google and the Azure store share: making stores, and naming requests to the fault proxy."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from azure.storage.blob import ContainerClient

from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tieredstore.backends.azure.options import AccountKey, AzureOptions
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.process.retry import RetryPolicy

PART = 1 << 18
"""The size of a chunk or block in these tests: objects above it are written in parts."""

ATTEMPTS = 3


def no_wait(_: float) -> None:
    """In place of sleeping."""


def quick(**changes: Any) -> RetryPolicy:
    """A policy that tries three times without waiting."""
    settings: dict[str, Any] = {"attempts": ATTEMPTS, "timeout_s": 20.0, "sleep": no_wait}
    return RetryPolicy(**{**settings, **changes})


@dataclass(frozen=True)
class Cloud:
    """One of the two clouds: ``make(url, place, retry, **options)`` is a store of the place behind ``url``.

    The other attributes tell requests by their method and path with query.
    """

    name: str
    endpoint_url: str
    make_place: Callable[[], str]
    make: Callable[..., ObjectStore] = field(repr=False)
    single_write: Callable[[str, str], bool]
    part: Callable[[str, str], bool]
    finish: Callable[[str, str], bool]
    read: Callable[[str, str], bool]
    head: Callable[[str, str], bool]
    page: Callable[[str, str], bool]
    deletion: Callable[[str, str], bool]


def make_gcs(url: str, place: str, retry: RetryPolicy | None = None, **options: Any) -> GcsObjectStore:
    """A store of a bucket of the emulator behind ``url``."""
    return GcsObjectStore(GcsOptions(place, Anonymous(), url, chunk_size=PART, **options), retry=retry or quick())


def gcs_cloud(server: GcsServer) -> Cloud:
    """Google's, as its emulator shows it."""
    return Cloud(
        name="gcs",
        endpoint_url=server.endpoint_url,
        make_place=server.make_bucket,
        make=make_gcs,
        single_write=lambda method, path: method == "POST" and "uploadType=multipart" in path,
        part=lambda method, path: method == "PUT" and "upload_id=" in path,
        finish=lambda method, path: method == "PUT" and "upload_id=" in path,
        read=lambda method, path: method == "GET" and "alt=media" in path,
        head=lambda method, path: method == "GET" and "/o/" in path and "alt=media" not in path,
        page=lambda method, path: method == "GET" and "/o?" in path,
        deletion=lambda method, path: method == "DELETE" and "/o/" in path,
    )


def make_azure(url: str, place: str, retry: RetryPolicy | None = None, **options: Any) -> AzureObjectStore:
    """A store of a container of the emulator behind ``url``."""
    parts = urlsplit(url)
    # The emulator finds the account in the path, or in a host that has a name.
    account = parts.path.strip("/") or (parts.hostname or "").partition(".")[0]
    key = AccountKey(account, AZURE_KEYS[account])
    return AzureObjectStore(AzureOptions(place, key, url, block_size=PART, **options), retry=retry or quick())


AZURE_KEYS: dict[str, str] = {}
"""The keys of the emulator's accounts."""


def make_container(server: AzureServer) -> str:
    """A new container's name."""
    name = f"container-{uuid.uuid4().hex[:16]}"
    with ContainerClient.from_connection_string(server.connection_string, name) as container:
        container.create_container()
    return name


def azure_cloud(server: AzureServer) -> Cloud:
    """Azure's, as its emulator shows it."""
    AZURE_KEYS[server.account_name] = server.account_key
    return Cloud(
        name="azure",
        endpoint_url=server.endpoint_url,
        make_place=lambda: make_container(server),
        make=make_azure,
        single_write=lambda method, path: method == "PUT" and "comp=" not in path,
        part=lambda method, path: method == "PUT" and "comp=block&" in path,
        finish=lambda method, path: method == "PUT" and "comp=blocklist" in path,
        read=lambda method, path: method == "GET" and "comp=" not in path,
        head=lambda method, path: method == "HEAD",
        page=lambda method, path: method == "GET" and "comp=list" in path,
        deletion=lambda method, path: method == "POST" and "comp=batch" in path,
    )


LARGE = random.Random(5).randbytes(3 * PART + 1000)
"""Content of four parts."""

Operation = tuple[str, Callable[[ObjectStore], object]]

OPERATIONS: dict[str, Operation] = {
    "small put": ("single_write", lambda store: store.put("object", b"small")),
    "part of a put": ("part", lambda store: store.put("object", [LARGE])),
    "end of a put": ("finish", lambda store: store.put("object", LARGE)),
    "replace": ("single_write", lambda store: store.replace("object", b"new", store.head("object").etag or "")),
    "get": ("read", lambda store: store.get("object", 1, 5)),
    "get_into": ("read", lambda store: store.get_into("object", 0, bytearray(5))),
    "head": ("head", lambda store: store.head("object")),
    "list": ("page", lambda store: list(store.list())),
    "delete": ("deletion", lambda store: store.delete(["object"])),
}


def plan(proxy: FaultProxy, cloud: Cloud, fault: Fault, request: str, times: int | None = 1) -> None:
    proxy.plan(fault, where=getattr(cloud, request), times=times)


class OnBothClouds:
    """Fixtures of tests that run on each of the two clouds, ``store`` behind a fault proxy."""

    pytestmark: ClassVar = pytest.mark.server

    @pytest.fixture(params=["gcs", "azure"])
    def cloud(self, request: pytest.FixtureRequest) -> Cloud:
        if request.param == "gcs":
            server: GcsServer = request.getfixturevalue("fake_gcs")
            return gcs_cloud(server)
        azurite: AzureServer = request.getfixturevalue("azurite")
        return azure_cloud(azurite)

    @pytest.fixture
    def proxy(self, cloud: Cloud) -> Iterator[FaultProxy]:
        with FaultProxy(cloud.endpoint_url) as proxy:
            yield proxy

    @pytest.fixture
    def place(self, cloud: Cloud) -> str:
        return cloud.make_place()

    @pytest.fixture
    def direct(self, cloud: Cloud, place: str) -> Iterator[ObjectStore]:
        """The store past the proxy."""
        with closing(cloud.make(cloud.endpoint_url, place)) as store:
            yield store

    @pytest.fixture
    def store(self, cloud: Cloud, place: str, proxy: FaultProxy) -> Iterator[ObjectStore]:
        with closing(cloud.make(proxy.url, place)) as store:
            yield store

    @pytest.fixture(params=OPERATIONS)
    def operation(self, request: pytest.FixtureRequest) -> Operation:
        return OPERATIONS[request.param]
