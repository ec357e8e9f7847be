"""MinIO, which scripts/servers.py builds from its Go module."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, free_port, installed_server, running
from tests.support.servers.s3_server import REGION, S3Server

ACCESS_KEY = "minio-tests"
SECRET_KEY = "minio-tests-secret"


@contextmanager
def start_minio() -> Generator[S3Server, None, None]:
    """Run a fresh server (under a second to be ready); kill it at the end of the block."""
    chosen: list[int] = []

    def prepare(folder: Path) -> Launch:
        port = free_port()
        chosen.append(port)
        command: list[str | Path] = [
            installed_server("minio"),
            "server",
            folder,
            "--address",
            f"127.0.0.1:{port}",
            "--quiet",
        ]
        environment = {
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            # Allows data on the machine's root disk, which MinIO otherwise refuses.
            "MINIO_CI_CD": "1",
            "HOME": str(folder.parent),
        }
        return Launch(command, lambda: _is_ready(port), environment)

    with running("minio", prepare) as process:
        yield S3Server("minio", f"http://127.0.0.1:{chosen[-1]}", ACCESS_KEY, SECRET_KEY, process.kill, process)


def read_only_login(server: S3Server) -> tuple[str, str, str]:
    """Return access key id, secret and token of a login that may only list and read."""
    rights = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::*"]}
    session: Any = boto3.Session(server.access_key, server.secret_key, region_name=REGION)
    login = session.client("sts", endpoint_url=server.endpoint_url).assume_role(
        # MinIO ignores both names, but the SDK requires them.
        RoleArn="arn:aws:iam::0:role/reader", RoleSessionName="reader",
        Policy=json.dumps({"Version": "2012-10-17", "Statement": [rights]}),
    )["Credentials"]  # fmt: skip
    return login["AccessKeyId"], login["SecretAccessKey"], login["SessionToken"]


def _is_ready(port: int) -> bool:
    """Return True if MinIO answers a client's request. Its health page alone proves nothing, because it reports good
    health before MinIO has loaded its data.
    """
    if not answers(port, "/minio/health/cluster"):
        return False
    server = S3Server("minio", f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY, lambda: None)
    with contextlib.suppress(BotoCoreError, ClientError), contextlib.closing(server.plain) as client:
        client.list_buckets()
        return True
    return False
