"""Executors added while a backlog is written, and one lost during an upload."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.network.connections import is_connected, parent_of, processes_of
from tests.support.network.fault_proxy import CutRequest, FaultProxy
from tests.support.pipelines.pipeline_runs import listed, listed_offsets, texts, verify_output
from tests.support.pipelines.pipeline_service import EXECUTORS, pipeline_service
from tests.support.pubsub.broker_processes import store_properties
from tests.support.records.topic_buckets import FIRST_ID
from tests.support.servers.s3_server import S3Server
from tests.support.spark.marked_messages import FOLDER, marks_of, slowly
from tests.support.spark.spark_cluster import spark_cluster
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tests.support.spark.spark_session import environment
from tests.support.spark.spark_speculated_job import HOSTS, SPECULATION
from tests.support.stores.clouds import MIN_PART_SIZE, make_s3
from tests.support.stores.meeting_folder import BOTH, MeetingFolder
from tieredstore.model import TopicIdPartition
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.testing.batches import Record, build_batch

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON = "pyspark.daemon"
RECORDS = 1500


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_executors_that_are_added_take_windows_and_none_is_taken_twice(tmp_path: Path) -> None:
    """One executor is too slow for the backlog; another is added while it works."""
    (marks := tmp_path / "marks").mkdir()
    with closing(Kept(tmp_path)) as kept, spark_cluster(tmp_path, environment(tmp_path)) as cluster:
        kept.write(RECORDS)
        file = kept.file(
            secor__max__file__size__bytes="2000",
            secor__message__transformer__class=f"{slowly.__module__}:{slowly.__name__}",
        )
        conf = {
            "spark.master": cluster.url, "spark.executor.memory": "512m", "spark.executor.cores": "1",
            f"spark.executorEnv.{FOLDER}": str(marks),
        }  # fmt: skip
        cluster.add_worker("127.0.0.1")
        with pipeline_service(tmp_path, file, conf=conf) as service:
            service.wait_until(lambda: bool(marks_of(marks)))
            cluster.add_worker("127.0.0.2")
            service.wait_until(lambda: sum(kept.committed(file).values()) == 2 * RECORDS)
            service.stop()
        assert len(marks_of(marks)) == 2
        worked_on = Counter(mark for own in marks_of(marks).values() for mark in own)
        assert set(worked_on.values()) == {1}
        assert len(worked_on) == 2 * RECORDS
        assert kept.offsets() == {(TOPIC, partition): list(range(RECORDS)) for partition in (0, 1)}
        assert list(verify_output(load_pipeline(file), kept.store)) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_an_executor_that_is_lost_in_mid_upload_leaves_nothing_and_its_window_is_written(
    minio: S3Server, tmp_path: Path
) -> None:
    """Kill the executor while it uploads a file's second part. Its worker may continue, but the result is ignored."""
    killed: list[int] = []
    place, dice = minio.make_bucket(), random.Random(18)
    with (
        FaultProxy(minio.endpoint_url) as proxy,
        closing(make_s3(minio.endpoint_url, place)) as store,
        closing(Kept(tmp_path)) as kept,
    ):
        offsets = range(3 * MIN_PART_SIZE // 1_000_000)
        batches = [build_batch([Record(dice.randbytes(1_000_000))], offset) for offset in offsets]
        kept.bucket.copy(TopicIdPartition(FIRST_ID, TOPIC, 0), batches, offsets)
        stored = store_properties(minio, place, proxy.url)
        output = {f"output.{name}": text for name, text in stored.items() if name.startswith("storage.")}
        file = kept.file(
            **texts(output), **texts({"output.storage.s3.multipart.upload.part.size": str(MIN_PART_SIZE)}),
            secor__compression__codec="none",
        )  # fmt: skip
        with pipeline_service(tmp_path, file, conf=EXECUTORS) as service:

            def kill_executor(method: str, path: str) -> bool:
                """Kill the executor at its first upload of a second part, and drop that request."""
                if killed or method != "PUT" or "partNumber=2" not in path:
                    return False
                killed.append(executor_at(service.process.pid, urlsplit(proxy.url).port or 0))
                os.kill(killed[0], signal.SIGKILL)
                return True

            proxy.plan(CutRequest(), where=kill_executor)
            service.wait_until(lambda: bool(listed_offsets(store)))
            service.stop()
        assert len(killed) == 1
        begun = [seen for seen in proxy.seen if seen.method == "POST" and seen.path.endswith("uploads")]
        assert len(begun) >= 2
        assert listed_offsets(store) == list(offsets)
        assert list(verify_output(load_pipeline(file), store)) == []


def executor_at(session: int, port: int) -> int:
    """Return the executor whose Python worker is connected to this port."""
    executors = processes_of(session, named=EXECUTOR)
    parents = [
        parent_of(parent_of(worker)) for worker in processes_of(session, named=DAEMON) if is_connected(worker, port)
    ]
    (executor,) = {parent for parent in parents if parent in executors}
    return executor


SPECULATED = 500


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_task_that_is_tried_twice_at_once_files_its_records_once(tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    # This file, of the batch's first window, is prepared by both attempts before either finishes.
    name = f"1_0_{0:020}.parquet"
    store = {
        "output.storage.backend.class": f"{MeetingFolder.__module__}.{MeetingFolder.__name__}",
        "output.storage.meeting": f"/{name}", "output.storage.marks": str(marks),
        "output.storage.folder": str(tmp_path / "output"),
    }  # fmt: skip
    with closing(Kept(tmp_path)) as kept, spark_cluster(tmp_path, environment(tmp_path)) as cluster:
        kept.write(SPECULATED)
        file = kept.file(**texts(store), secor__max__file__size__bytes="2000")
        for host in HOSTS:
            cluster.add_worker(host)
        with pipeline_service(tmp_path, file, conf={**SPECULATION, "spark.master": cluster.url}) as service:
            service.wait_until(lambda: sum(kept.committed(file).values()) == 2 * SPECULATED)
            service.wait_until(lambda: sum(map(len, kept.offsets().values())) == 2 * SPECULATED)
            service.stop()
        assert {mark.name for mark in marks.iterdir()} >= BOTH
        assert kept.offsets() == {(TOPIC, partition): list(range(SPECULATED)) for partition in (0, 1)}
        pipeline = load_pipeline(file)
        committed = [one for entry in commit_log_of(pipeline, kept.store).entries() for one in entry.files]
        assert sorted(one.key for one in committed) == listed(kept.store, ROOT)
        assert list(verify_output(pipeline, kept.store)) == []
        # The other attempt's prepared file is still there, but invisible, because that attempt was killed before it
        # could discard the file.
        (published,) = (one for one in committed if one.key.endswith(name))
        left = [write.key for write in kept.store.abandoned_writes(ROOT)]
        assert published.prepared.place.rpartition("/")[2] not in {key.rpartition("/")[2] for key in left}
        assert left
