"""Pipelines on an S3 server: lost responses, and few requests per file and batch."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.support.network.fault_proxy import CutRequest, Fault, FaultProxy, LoseAnswer
from tests.support.pipelines.pipeline_runs import listed, listed_offsets, pipeline_of, run_once, texts, verify_output
from tests.support.pubsub.broker_processes import store_properties
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import ATTEMPTS, make_s3, s3_cloud
from tests.support.stores.s3_stores import replace_part
from tieredstore.errors import AccessDeniedError, TieredStoreError
from tieredstore.pipelines.run.source import open_parts

SMALL = pipeline_of(secor__max__file__size__bytes="20000")


@pytest.mark.parametrize("request_kind", ["part", "finish", "single_write"])
@pytest.mark.parametrize("fault", [LoseAnswer(), CutRequest()], ids=["answer", "request"])
def test_whatever_is_lost_the_next_run_completes(
    topic: StoredTopic, minio: S3Server, request_kind: str, fault: Fault
) -> None:
    cloud, bucket = s3_cloud(minio), minio.make_bucket()
    with FaultProxy(minio.endpoint_url) as proxy, closing(make_s3(minio.endpoint_url, bucket)) as direct:
        with closing(make_s3(proxy.url, bucket)) as store:
            proxy.plan(fault, where=getattr(cloud, request_kind), times=ATTEMPTS)
            with suppress(TieredStoreError):
                run_once(topic, store, SMALL)
        seen = listed_offsets(direct)
        assert len(seen) == len(set(seen))
        run_once(topic, direct, SMALL)
        assert listed_offsets(direct) == list(range(300))
        assert list(verify_output(SMALL, direct)) == []


def test_a_file_whose_parts_the_server_lost_before_it_was_published_is_written_again(
    topic: StoredTopic, minio: S3Server
) -> None:
    bucket = minio.make_bucket()
    with FaultProxy(minio.endpoint_url) as proxy, closing(make_s3(proxy.url, bucket)) as store:
        proxy.plan(CutRequest(), where=s3_cloud(minio).finish, times=ATTEMPTS)
        with suppress(TieredStoreError):
            run_once(topic, store, SMALL)
    uploads: Any = minio.plain.list_multipart_uploads(Bucket=bucket)["Uploads"]
    for upload in uploads:
        replace_part(minio, bucket, upload["Key"], upload["UploadId"])
    with closing(make_s3(minio.endpoint_url, bucket)) as direct:
        run_once(topic, direct, SMALL)
        assert listed_offsets(direct) == list(range(300))
        assert list(verify_output(SMALL, direct)) == []
    assert uploads
    assert "Uploads" not in minio.plain.list_multipart_uploads(Bucket=bucket)


def test_a_small_file_and_a_batch_cost_three_requests_each(topic: StoredTopic, minio: S3Server) -> None:
    bucket = minio.make_bucket()
    with FaultProxy(minio.endpoint_url) as proxy, closing(make_s3(proxy.url, bucket)) as store:
        entries = run_once(topic, store, SMALL)
        files = len(listed(store))
        kinds = Counter(
            "file" if "uploadId=" in seen.path or "uploads" in seen.path else "other" for seen in list(proxy.seen)
        )
    assert files == 2
    assert len(entries) == 1
    assert kinds["file"] == 3 * files
    commits = [seen for seen in proxy.seen if "/commits/" in seen.path and seen.method in {"PUT", "HEAD"}]
    # Three requests are for the batch: its entry, and a check before and after publication that no other driver has
    # taken over. The others are for the ``begin`` entry and the last ``published`` entry.
    assert len(commits) == 3 + 2


def test_no_secret_of_the_output_is_in_what_is_written_logged_or_said(
    topic: StoredTopic, minio: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Log entries contain upload ids, but completing such an upload still needs credentials."""
    caplog.set_level(logging.DEBUG, "tieredstore")
    bucket, wrong = minio.make_bucket(), "wrong-secret-of-an-output"
    with FaultProxy(minio.endpoint_url) as proxy, closing(make_s3(minio.endpoint_url, bucket)) as direct:
        stored = store_properties(minio, bucket, proxy.url)
        properties = {f"output.{name}": text for name, text in stored.items() if name.startswith("storage.")}
        secret = "output.storage.aws.secret.access.key"
        refused = pipeline_of(**texts({**properties, secret: wrong}))
        with open_parts(refused) as parts, pytest.raises(AccessDeniedError) as error:
            run_once(topic, parts.store, refused)
        pipeline = pipeline_of(**texts(properties))
        proxy.plan(LoseAnswer(), where=s3_cloud(minio).finish, times=1)
        with open_parts(pipeline) as parts:
            run_once(topic, parts.store, pipeline)
        assert listed_offsets(direct) == list(range(300))
        own = b"".join(direct.get(info.key) for info in direct.list("out/_tieredstore/"))
    assert b'"prepared"' in own
    assert properties[secret].encode() not in own
    said = [caplog.text, str(error.value), repr(error.value), repr(pipeline), repr(refused)]
    assert not [one for one in said if properties[secret] in one or wrong in one]
