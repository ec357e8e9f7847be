"""What the tests need to know of an S3 server, whichever it is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A running S3 server; ``kill`` is kill -9."""

    name: str
    endpoint_url: str
    access_key: str
    secret_key: str = field(repr=False)
    kill: Callable[[], None] = field(repr=False)

    @cached_property
    def plain(self) -> S3Client:
        """A plain boto3 client, beside the code under test."""
        return boto3.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3, "mode": "standard"}),
        )

    def make_bucket(self) -> str:
        """A new bucket's name."""
        name = f"bucket-{uuid.uuid4().hex[:16]}"
        self.plain.create_bucket(Bucket=name)
        return name
