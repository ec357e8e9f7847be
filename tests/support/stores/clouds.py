"""Fault matrix: every operation of every cloud's store behind a proxy that causes network faults."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from azure.storage.blob import ContainerClient

from tests.support.network.fault_proxy import Fault, FaultProxy
from tests.support.servers.azurite_server import AzureServer, start_azurite
from tests.support.servers.fake_gcs import GcsServer, start_fake_gcs
from tests.support.servers.minio import ACCESS_KEY, SECRET_KEY, start_minio
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.waiting import wait_until
from tieredstore.backends.azure.options import AccountKey, AzureOptions
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.backends.s3.options import AccessKeys, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import StoreUnavailableError
from tieredstore.process.retry import RetryPolicy

PART = 1 << 18
"""Part size of Google's and Azure's uploads in these tests: larger objects are written in parts. S3's are larger."""

MIN_PART_SIZE = 5 << 20
"""Smallest part that S3 accepts, except as the last one."""

ATTEMPTS = 3


def no_wait(_: float) -> None:
    """Do nothing, instead of sleeping."""


def quick(**changes: Any) -> RetryPolicy:
    """Return a policy of three tries that does not wait between them."""
    settings: dict[str, Any] = {"attempts": ATTEMPTS, "timeout_s": 120.0, "sleep": no_wait}
    return RetryPolicy(**{**settings, **changes})


@dataclass(frozen=True)
class Cloud:
    """One of the clouds: ``make(url, place, retries, **options)`` returns a store of the place behind ``url``.

    The functions from ``single_write`` to ``deletion`` classify a request by its method and its path with query. An
    upload has ``around_parts`` requests before and after its parts. A large conditional upload also has ``looks``
    requests before all these. A deletion request has at most ``deleted_at_once`` keys.
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
    around_parts: int
    looks: int
    deleted_at_once: int
    part_size: int = PART
    kill: Callable[[], None] = field(default=lambda: None, repr=False)

    @cached_property
    def large(self) -> bytes:
        """Content of four parts."""
        return random.Random(5).randbytes(3 * self.part_size + 1000)


def make_s3(url: str, place: str, retries: RetryPolicy | None = None, **options: Any) -> S3ObjectStore:
    """Return a store of a MinIO bucket at ``url``."""
    keys = AccessKeys(ACCESS_KEY, SECRET_KEY)
    made_of: dict[str, Any] = {
        "region": REGION, "endpoint_url": url, "path_style": True, "credentials": keys, "part_size": MIN_PART_SIZE,
    }  # fmt: skip
    return S3ObjectStore(S3Options(place, **(made_of | options)), retries=retries or quick())


def s3_cloud(server: S3Server) -> Cloud:
    """Return Amazon's cloud, emulated by MinIO."""
    return Cloud(
        name="s3",
        endpoint_url=server.endpoint_url,
        make_place=server.make_bucket,
        make=make_s3,
        single_write=lambda method, path: method == "PUT" and "partNumber=" not in path,
        part=lambda method, path: method == "PUT" and "partNumber=" in path,
        finish=lambda method, path: method == "POST" and "uploadId=" in path,
        read=lambda method, path: method == "GET" and "list-type=" not in path,
        head=lambda method, path: method == "HEAD",
        page=lambda method, path: method == "GET" and "list-type=" in path,
        deletion=lambda method, path: method == "POST" and "delete" in path,
        around_parts=2,
        looks=0,
        deleted_at_once=1000,
        part_size=MIN_PART_SIZE,
        kill=server.kill,
    )


def make_gcs(url: str, place: str, retries: RetryPolicy | None = None, **options: Any) -> GcsObjectStore:
    """Return a store of an emulator's bucket at ``url``."""
    return GcsObjectStore(GcsOptions(place, Anonymous(), url, part_size=PART, **options), retries=retries or quick())


def gcs_cloud(server: GcsServer) -> Cloud:
    """Return Google's cloud, emulated by fake-gcs-server."""
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
        around_parts=1,
        # Google reports whether the object or the bucket is absent. Its emulator does not, so the store checks the
        # bucket.
        looks=2,
        deleted_at_once=1,
        kill=server.kill,
    )


def make_azure(url: str, place: str, retries: RetryPolicy | None = None, **options: Any) -> AzureObjectStore:
    """Return a store of an emulator's container at ``url``."""
    parts = urlsplit(url)
    # The emulator takes the account from the URL's path, or else from its host name.
    account = parts.path.strip("/") or (parts.hostname or "").partition(".")[0]
    key = AccountKey(account, AZURE_KEYS[account])
    return AzureObjectStore(AzureOptions(place, key, url, part_size=PART, **options), retries=retries or quick())


AZURE_KEYS: dict[str, str] = {}
"""Keys of the emulator's accounts."""


def make_container(server: AzureServer) -> str:
    """Create a container and return its name."""
    name = f"container-{uuid.uuid4().hex[:16]}"
    with ContainerClient.from_connection_string(server.connection_string, name) as container:
        container.create_container()
    return name


def azure_cloud(server: AzureServer) -> Cloud:
    """Return Azure's cloud, emulated by Azurite."""
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
        around_parts=1,
        looks=1,
        deleted_at_once=256,
        kill=server.kill,
    )


LARGE = random.Random(5).randbytes(3 * PART + 1000)
"""Content of four parts of Google's and Azure's uploads in these tests."""

Operation = tuple[str, Callable[[ObjectStore], object]]


def operations(cloud: Cloud) -> dict[str, Operation]:
    """Return every operation of a store with a small object ``object``, each with the kind of request to disturb."""
    return {
        "small put": ("single_write", lambda store: store.put("object", b"small")),
        "part of a put": ("part", lambda store: store.put("object", [cloud.large])),
        "end of a put": ("finish", lambda store: store.put("object", cloud.large)),
        "replace": ("single_write", lambda store: store.replace("object", b"new", store.head("object").etag or "")),
        "get": ("read", lambda store: store.get("object", 1, 5)),
        "get_into": ("read", lambda store: store.get_into("object", 0, bytearray(5))),
        "head": ("head", lambda store: store.head("object")),
        "list": ("page", lambda store: list(store.list())),
        "delete": ("deletion", lambda store: store.delete(["object"])),
    }


OPERATION_NAMES = ("small put", "part of a put", "end of a put", "replace", "get", "get_into", "head", "list", "delete")


def count(cloud: Cloud, proxy: FaultProxy, request: str) -> int:
    """Return the number of requests of this kind at the proxy."""
    is_of_kind: Callable[[str, str], bool] = getattr(cloud, request)
    return sum(is_of_kind(seen.method, seen.path) for seen in list(proxy.seen))


@contextmanager
def fresh_cloud(name: str) -> Generator[Cloud]:
    """Yield a cloud on a private server that may be killed."""
    if name == "s3":
        with start_minio() as minio:
            yield s3_cloud(minio)
    elif name == "gcs":
        with start_fake_gcs() as fake_gcs:
            yield gcs_cloud(fake_gcs)
    else:
        with start_azurite() as azurite:
            yield azure_cloud(azurite)


def until_answered(call: Callable[[], object]) -> None:
    """Repeat a call until the store is available. With a short deadline, the first calls may fail while they open a
    client.
    """
    wait_until(lambda: [call()], passing=(StoreUnavailableError,))


def plan(proxy: FaultProxy, cloud: Cloud, fault: Fault, request: str, times: int | None = 1) -> None:
    proxy.plan(fault, where=getattr(cloud, request), times=times)


def shared_cloud(request: pytest.FixtureRequest) -> Cloud:
    """Return the cloud of the fixture's parameter, on the shared server."""
    if request.param == "s3":
        minio: S3Server = request.getfixturevalue("minio")
        return s3_cloud(minio)
    if request.param == "gcs":
        fake_gcs: GcsServer = request.getfixturevalue("fake_gcs")
        return gcs_cloud(fake_gcs)
    azurite: AzureServer = request.getfixturevalue("azurite")
    return azure_cloud(azurite)


class OnEveryCloud:
    """Fixtures for tests on each cloud, with ``store`` behind a fault proxy."""

    pytestmark: ClassVar = pytest.mark.server

    @pytest.fixture(params=["s3", "gcs", "azure"])
    def cloud(self, request: pytest.FixtureRequest) -> Cloud:
        return shared_cloud(request)

    @pytest.fixture
    def proxy(self, cloud: Cloud) -> Iterator[FaultProxy]:
        with FaultProxy(cloud.endpoint_url) as proxy:
            yield proxy

    @pytest.fixture
    def place(self, cloud: Cloud) -> str:
        return cloud.make_place()

    @pytest.fixture
    def direct(self, cloud: Cloud, place: str) -> Iterator[ObjectStore]:
        """Yield the store without the proxy."""
        with closing(cloud.make(cloud.endpoint_url, place)) as store:
            yield store

    @pytest.fixture
    def store(self, cloud: Cloud, place: str, proxy: FaultProxy) -> Iterator[ObjectStore]:
        with closing(cloud.make(proxy.url, place)) as store:
            yield store

    @pytest.fixture(params=OPERATION_NAMES)
    def operation(self, request: pytest.FixtureRequest, cloud: Cloud) -> Operation:
        return operations(cloud)[request.param]
