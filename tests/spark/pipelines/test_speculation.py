"""A task of a pipeline that Spark tries a second time beside the first, and both of which write: each record once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import listed, texts
from tests.support.pipelines.pipeline_service import pipeline_service
from tests.support.spark.spark_cluster import spark_cluster
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tests.support.spark.spark_session import environment
from tests.support.spark.spark_speculated_job import HOSTS, SPECULATION
from tests.support.stores.meeting_folder import BOTH, MeetingFolder
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]

RECORDS = 500


def test_a_task_that_is_tried_twice_at_once_files_its_records_once(tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    # One file of the batch's first window, which both attempts have prepared before either is done.
    name = f"1_0_{0:020}.parquet"
    store = {
        "output.storage.backend.class": f"{MeetingFolder.__module__}.{MeetingFolder.__name__}",
        "output.storage.meeting": f"/{name}", "output.storage.marks": str(marks),
        "output.storage.folder": str(tmp_path / "output"),
    }  # fmt: skip
    with closing(Kept(tmp_path)) as kept, spark_cluster(tmp_path, environment(tmp_path)) as cluster:
        kept.write(RECORDS)
        file = kept.file(**texts(store), secor__max__file__size__bytes="2000")
        for host in HOSTS:
            cluster.add_worker(host)
        with pipeline_service(tmp_path, file, conf={**SPECULATION, "spark.master": cluster.url}) as service:
            service.wait_until(lambda: sum(kept.committed(file).values()) == 2 * RECORDS)
            service.wait_until(lambda: sum(map(len, kept.offsets().values())) == 2 * RECORDS)
            service.stop()
        assert {mark.name for mark in marks.iterdir()} >= BOTH
        assert kept.offsets() == {(TOPIC, partition): list(range(RECORDS)) for partition in (0, 1)}
        pipeline = load_pipeline(file)
        committed = [one for entry in commit_log_of(pipeline, kept.store).entries() for one in entry.files]
        assert sorted(one.key for one in committed) == listed(kept.store, ROOT)
        assert list(verify_output(pipeline, kept.store)) == []
        # What the other attempt has prepared lies there, seen by nobody, unless it lived to take it back.
        (published,) = (one for one in committed if one.key.endswith(name))
        left = [write.key for write in kept.store.abandoned_writes(ROOT)]
        assert published.prepared.place.rpartition("/")[2] not in {key.rpartition("/")[2] for key in left}
        assert left
