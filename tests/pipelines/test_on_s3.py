"""Pipelines on a server of S3: answers that are lost, and how few requests a file and a batch cost."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress

import pytest

from tests.support.clouds import ATTEMPTS, make_s3, s3_cloud
from tests.support.fault_proxy import CutRequest, Fault, FaultProxy, LoseAnswer
from tests.support.pipeline_runs import listed, listed_offsets, pipeline_of, run_once
from tests.support.servers.s3_server import S3Server
from tests.support.stored_records import StoredTopic
from tieredstore.errors import TieredStoreError
from tieredstore.pipelines.inspection import verify_output

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


def test_a_small_file_costs_three_requests_and_a_batch_two(topic: StoredTopic, minio: S3Server) -> None:
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
    # Two are the batch's; the others the beginning's, and the end's word that all is published.
    assert len(commits) == 2 + 2
