"""Properties of an S3 server that the tests need, for every implementation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from tests.support.servers.process import ServerProcess

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """Running S3 server; ``kill`` is kill -9. ``process`` is set only if the test started it."""

    name: str
    endpoint_url: str
    access_key: str
    secret_key: str = field(repr=False)
    kill: Callable[[], None] = field(repr=False)
    process: ServerProcess | None = field(default=None, repr=False)

    @cached_property
    def plain(self) -> S3Client:
        """Return a plain boto3 client, independent of the code under test."""
        session: Any = boto3.Session()  # the type stubs cover only one of its services
        client: S3Client = session.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3, "mode": "standard"}),
        )
        return client

    def make_bucket(self) -> str:
        """Create a bucket and return its name."""
        name = f"bucket-{uuid.uuid4().hex[:16]}"
        self.plain.create_bucket(Bucket=name)
        return name
