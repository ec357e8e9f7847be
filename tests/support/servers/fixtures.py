"""Fixtures for the servers of object stores and Kafka: each starts when a test first asks for it, once a test process.

A test that kills a server takes one of its own: ``with start_minio() as server: ... server.kill()``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.azurite_server import AzureServer, start_azurite
from tests.support.servers.fake_gcs import GcsServer, start_fake_gcs
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.minio import start_minio
from tests.support.servers.s3_server import S3Server
from tests.support.servers.seaweedfs import start_seaweedfs


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    with start_seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Server]:
    with start_minio() as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[GcsServer]:
    with start_fake_gcs() as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzureServer]:
    with start_azurite() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    with start_kafka() as server:
        yield server
