"""Drivers that enter files in a table of Iceberg and die at any operation, or between publication and snapshot (-9)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.pipelines.run.test_iceberg import Folder, backfill
from tests.support.pipelines.pipeline_runs import listed_offsets, run_once
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.clouds import make_s3
from tests.support.stores.operation_sweep import DyingStore, Killed
from tieredstore.pipelines import Pipeline
from tieredstore.pipelines.upkeep.inspection import verify_output

EVERY = pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.soak)])
"""Every so many operations are the last one."""


@EVERY
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_dies_at_any_operation_of_the_store(
    tmp_path: Path, moment: Literal["before", "after"], step: int
) -> None:
    at, count = 0, None
    while count is None:
        # A new one each time: a log that grows has more operations, and they would never have been all.
        (tmp_path / str(at)).mkdir()
        folder = Folder(tmp_path / str(at))
        with closing(StoredTopic(tmp_path / str(at) / "logs")) as topic:
            topic.copy_plain(0, 10, size=100)
            run_once(topic, folder.store, folder.pipeline())
            topic.copy_plain(10, 5, size=100)
            store = DyingStore(folder.store, at, moment)
            try:
                run_once(topic, store, folder.pipeline())
            except Killed:
                run_once(topic, folder.store, folder.pipeline())
            else:
                count = len(store.operations)
            folder.is_whole()
            assert folder.offsets() == list(range(15))
            assert len(folder.commits()) == 2
        at += step
    assert count > 10


@EVERY
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_replacement_that_dies_at_any_operation_is_completed(
    tmp_path: Path, moment: Literal["before", "after"], step: int
) -> None:
    topic = StoredTopic(tmp_path / "small")
    topic.copy_plain(0, 20, size=100)
    at, count = 0, None
    while count is None:
        (tmp_path / str(at)).mkdir()
        folder = Folder(tmp_path / str(at))
        run_once(topic, folder.store, folder.pipeline())
        try:
            backfill(folder, topic, DyingStore(folder.store, at, moment))
        except Killed:
            with folder.table() as table:
                assert table.scan().to_arrow().num_rows == 20
            run_once(topic, folder.store, folder.pipeline())
            backfill(folder, topic)
        else:
            count = at
        folder.is_whole()
        assert folder.offsets() == list(range(20))
        at += step
    topic.close()


def killed_in_commit(run: Callable[[], object], moment: Literal["before", "after"]) -> None:
    """A process of its own, which is killed (-9) where it commits a snapshot to the catalog."""
    child = os.fork()
    if child == 0:
        original = SqlCatalog.commit_table

        def commit_table(self: SqlCatalog, *arguments: Any) -> Any:
            if moment == "after":
                original(self, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        untyped: Any = SqlCatalog
        untyped.commit_table = commit_table
        try:
            run()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_between_publication_and_snapshot_is_made_good(
    topic: StoredTopic, tmp_path: Path, moment: Literal["before", "after"]
) -> None:
    folder = Folder(tmp_path)
    run_once(topic, folder.store, folder.pipeline())
    topic.copy_plain(300, 50, size=100)
    killed_in_commit(lambda: run_once(topic, folder.store, folder.pipeline()), moment)
    # All is published, whether the table has it or not.
    assert listed_offsets(folder.store) == list(range(350))
    assert folder.offsets() == list(range(300 if moment == "before" else 350))
    for _ in range(2):
        run_once(topic, folder.store, folder.pipeline())
        folder.is_whole()
    assert folder.offsets() == list(range(350))
    assert len(folder.commits()) == 2


class Bucket(Folder):
    """An output on S3 and the table's own files beside it."""

    def __init__(self, path: Path, server: S3Server) -> None:
        self._server, self.name = server, server.make_bucket()
        self.store = make_s3(server.endpoint_url, self.name)
        self._own = {
            "type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"s3://{self.name}/warehouse",
        }  # fmt: skip
        # For who reads the table; the pipeline has all of that from its output.
        self.catalog = self._own | {
            "s3.endpoint": server.endpoint_url, "s3.region": REGION,
            "s3.access-key-id": server.access_key, "s3.secret-access-key": server.secret_key,
        }  # fmt: skip

    def pipeline(self, **changes: str) -> Pipeline:
        output = {
            "output.storage.backend.class": "s3", "output.storage.s3.bucket.name": self.name,
            "output.storage.s3.region": REGION, "output.storage.s3.endpoint.url": self._server.endpoint_url,
            "output.storage.s3.path.style.access.enabled": "true",
            "output.storage.aws.access.key.id": self._server.access_key,
            "output.storage.aws.secret.access.key": self._server.secret_key,
        }  # fmt: skip
        return self.with_table(output, self._own, changes)


def test_on_s3_files_and_table_say_the_same_whatever_is_killed(
    topic: StoredTopic, tmp_path: Path, minio: S3Server
) -> None:
    bucket = Bucket(tmp_path, minio)
    with closing(bucket.store):
        run_once(topic, bucket.store, bucket.pipeline())
        topic.copy_plain(300, 50, size=100)
        with pytest.raises(Killed):
            run_once(topic, DyingStore(bucket.store, 12), bucket.pipeline())
        run_once(topic, bucket.store, bucket.pipeline())
        bucket.is_whole()
        with bucket.table() as table:
            assert {task.file.file_path.partition("out/")[0] for task in table.scan().plan_files()} == {
                f"s3://{bucket.name}/"
            }
        backfill(bucket, topic)
        bucket.is_whole()
        assert bucket.offsets() == list(range(350))
        assert list(verify_output(bucket.pipeline(secor__generation="2"), bucket.store)) == []
