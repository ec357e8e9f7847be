"""Fixtures of object stores, Kafka and ZooKeeper. Each server starts once per run, when a test first needs it.

The process that starts the run owns the servers, and gives their addresses to its workers (``shared``). A test that
kills a server starts a private one: ``with start_minio() as server: ... server.kill()``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, cast

import botocore.loaders
import botocore.session
import pytest

from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.s3_server import S3Server
from tests.support.servers.shared import Server, ServersDoor, SharedServers, ask, server_of
from tests.support.servers.zookeeper import ZooKeeperServer

_DOOR = "tieredstore_servers"
_servers = pytest.StashKey[SharedServers]()
_door = pytest.StashKey[ServersDoor]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_servers] = SharedServers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a new xdist worker the address of the socket at which it requests servers."""
    stash = node.config.stash
    if _door not in stash:
        stash[_door] = ServersDoor(stash[_servers])
    node.workerinput[_DOOR] = stash[_door].address


def pytest_unconfigure(config: pytest.Config) -> None:
    if _door in config.stash:
        config.stash[_door].close()
    config.stash[_servers].close()


def _server(config: pytest.Config, name: str) -> Server:
    workerinput = getattr(config, "workerinput", None)
    texts = config.stash[_servers].describe(name) if workerinput is None else ask(workerinput[_DOOR], name)
    return server_of(name, texts)


@pytest.fixture(scope="session", autouse=True)
def _data_of_botocore_is_read_once() -> Iterator[None]:
    """Cache botocore's descriptions of S3, because each test's own session would spend 0.2 s on parsing them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.loaders.create_loader))
        yield


@pytest.fixture(scope="session")
def seaweedfs(pytestconfig: pytest.Config) -> S3Server:
    return cast("S3Server", _server(pytestconfig, "seaweedfs"))


@pytest.fixture(scope="session")
def minio(pytestconfig: pytest.Config) -> S3Server:
    return cast("S3Server", _server(pytestconfig, "minio"))


@pytest.fixture(scope="session")
def fake_gcs(pytestconfig: pytest.Config) -> GcsServer:
    return cast("GcsServer", _server(pytestconfig, "fake_gcs"))


@pytest.fixture(scope="session")
def azurite(pytestconfig: pytest.Config) -> AzureServer:
    return cast("AzureServer", _server(pytestconfig, "azurite"))


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> KafkaServer:
    return cast("KafkaServer", _server(pytestconfig, "kafka"))


@pytest.fixture(scope="session")
def zookeeper(pytestconfig: pytest.Config) -> ZooKeeperServer:
    return cast("ZooKeeperServer", _server(pytestconfig, "zookeeper"))
