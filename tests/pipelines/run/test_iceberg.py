"""Pipeline files in an Iceberg table, read by pyiceberg: each commit exactly once despite failures and kills."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from sqlalchemy.exc import OperationalError

from tests.support.pipelines.iceberg_tables import SMALL, Folder, rewrite_by_another
from tests.support.pipelines.pipeline_runs import (
    TOPIC,
    listed,
    listed_offsets,
    run_once,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.clouds import make_s3
from tests.support.stores.operation_sweep import DyingStore, Killed
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError, FencedError, StoreError, StoreUnavailableError
from tieredstore.pipelines import Parts, Pipeline, Runner
from tieredstore.pipelines.run.iceberg import IcebergTable
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.record_sources import LogSource, Selected
from tieredstore.pipelines.upkeep.topic_backup import PipelineBackup
from tieredstore.process.stopping import is_without_work
from tieredstore.testing.segments import Record, build_batch

pytestmark = pytest.mark.slow  # most of them, by pyiceberg


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_each_batch_is_a_snapshot_with_the_number_of_its_commit(topic: StoredTopic, folder: Folder) -> None:
    pipeline = folder.pipeline(**SMALL)
    run_once(topic, folder.store, pipeline)
    topic.copy_plain(300, 50, size=100)
    run_once(topic, folder.store, pipeline)
    folder.is_whole()
    assert folder.offsets() == list(range(350))
    run_once(topic, folder.store, pipeline)
    assert folder.commits() == [1, 4]
    with folder.table() as table:
        said = table.snapshots()[0].summary.additional_properties
        assert (said["tieredstore.pipeline"], said["tieredstore.generation"]) == ("kept", "1")
        rows = table.scan().to_arrow()
        assert set(rows.column("topic").to_pylist()) == {TOPIC}
        assert [field.name for field in table.schema().fields] == [
            "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
        ]  # fmt: skip


def test_filters_by_time_leave_nothing_out(folder: Folder, tmp_path: Path) -> None:
    topic = StoredTopic(tmp_path / "timed")
    topic.copy(0, [build_batch([Record(b"v", timestamp_ms=1_767_268_800_000 + at) for at in range(100)], 0)])
    run_once(topic, folder.store, folder.pipeline())
    topic.close()
    with folder.table() as table:
        rows = table.scan(row_filter="timestamp >= '2026-01-01T12:00:00.050+00:00'").to_arrow()
        assert rows.column("offset").to_pylist() == list(range(50, 100))
        assert table.scan(row_filter="offset >= 98").to_arrow().num_rows == 2


def test_columns_that_come_later_widen_the_table(folder: Folder, tmp_path: Path) -> None:
    topic = StoredTopic(tmp_path / "json")
    topic.copy(0, [build_batch([Record(b'{"id": 1, "name": "a"}')], 0)])
    columns = {"columns": "json", f"json__schema__{TOPIC}": "id INT"}
    run_once(topic, folder.store, folder.pipeline(**columns))
    topic.copy(1, [build_batch([Record(b'{"id": 5000000000, "name": "b"}')], 1)])
    run_once(topic, folder.store, folder.pipeline(**columns | {f"json__schema__{TOPIC}": "id BIGINT, name STRING"}))
    topic.close()
    with folder.table() as table:
        rows = table.scan().to_arrow().to_pylist()
    assert sorted((row["kafka"]["offset"], row["id"], row["name"]) for row in rows) == [
        (0, 1, None), (1, 5_000_000_000, "b"),
    ]  # fmt: skip


Failure = Callable[[Callable[[], Any]], Any]


def before(_: Callable[[], Any]) -> Any:
    raise OperationalError("commit", None, Exception("away"))


def conflict(_: Callable[[], Any]) -> Any:
    raise CommitFailedException("another came first")


def answer_lost(commit: Callable[[], Any]) -> Any:
    commit()
    raise CommitStateUnknownException("no answer")


def refused_by_repetition(commit: Callable[[], Any]) -> Any:
    """Commit, then raise a conflict, as if a proxy had sent the request twice and the second copy had been refused."""
    commit()
    raise CommitFailedException("main has changed")


def killed_before(_: Callable[[], Any]) -> Any:
    raise Killed


def killed_after(commit: Callable[[], Any]) -> Any:
    commit()
    raise Killed


def fail_commit(monkeypatch: pytest.MonkeyPatch, failure: Failure) -> list[int]:
    """Make the catalog's first commit fail; return a list with the numbers of all commits so far."""
    original, seen = SqlCatalog.commit_table, list[int]()

    def commit_table(self: SqlCatalog, *arguments: Any) -> Any:
        seen.append(len(seen))
        if seen[-1] == 0:
            return failure(lambda: original(self, *arguments))
        return original(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    return seen


FAILURES = pytest.mark.parametrize(
    "failure", [before, conflict, answer_lost, refused_by_repetition, killed_before, killed_after]
)


@FAILURES
def test_a_snapshot_that_failed_or_lost_its_answer_is_there_once(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch, failure: Failure
) -> None:
    run_once(topic, folder.store, folder.pipeline())
    topic.copy_plain(300, 50, size=100)
    seen = fail_commit(monkeypatch, failure)
    with contextlib.suppress(StoreUnavailableError, Killed):
        run_once(topic, folder.store, folder.pipeline())
    assert seen
    run_once(topic, folder.store, folder.pipeline())
    folder.is_whole()
    assert folder.offsets() == list(range(350))
    assert len(folder.commits()) == 2


def test_a_run_goes_on_by_itself_where_the_catalog_was_away(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Runner(folder.pipeline(), Parts(folder.store, topic.manager), threads=1) as runner:
        fail_commit(monkeypatch, answer_lost)
        with pytest.raises(StoreUnavailableError, match=r"catalog or a store of the table logs\.events is unavailable"):
            list(runner.run_once())
        runner.resume()
        assert list(runner.run_once()) == []
    folder.is_whole()
    assert len(folder.commits()) == 1


def test_no_entry_is_written_while_the_catalog_is_away(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Any:
        return before(lambda: None)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "load_table", away)
        with pytest.raises(StoreUnavailableError):
            run_once(topic, folder.store, folder.pipeline())
        assert [info.key for info in folder.store.list("out/_tieredstore/kept/1/commits/")] == []
    run_once(topic, folder.store, folder.pipeline())
    folder.is_whole()


def test_of_two_drivers_one_enters_a_batch(topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(commit: Callable[[], Any]) -> Any:
        """Interrupt the first commit, run the second one completely, then resume the first."""
        run_once(topic, folder.store, folder.pipeline())
        return commit()

    run_once(topic, folder.store, folder.pipeline())
    topic.copy_plain(300, 50, size=100)
    fail_commit(monkeypatch, overtaken)
    with pytest.raises(FencedError):
        run_once(topic, folder.store, folder.pipeline())
    folder.is_whole()
    assert folder.offsets() == list(range(350))
    assert len(folder.commits()) == 2


def test_a_table_that_is_turned_on_later_gets_all_in_order(topic: StoredTopic, folder: Folder) -> None:
    for start in (300, 350, 400):
        run_once(topic, folder.store, folder.pipeline(table="none"))
        topic.copy_plain(start, 50, size=100)
    run_once(topic, folder.store, folder.pipeline())
    folder.is_whole()
    assert folder.commits() == [1, 4, 7, 10]
    # A dropped table is created again.
    folder.drop_table()
    run_once(topic, folder.store, folder.pipeline())
    folder.is_whole()


def test_a_generation_that_took_over_brings_the_one_before(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(table="none"))
    topic.copy_plain(300, 50, size=100)
    second = folder.pipeline(secor__generation="2")
    with Runner(second, Parts(folder.store, topic.manager), threads=1, take_over=1) as runner:
        list(runner.run_once())
    folder.is_whole()
    folder.drop_table()
    run_once(topic, folder.store, second)
    folder.is_whole()
    assert folder.offsets() == list(range(350))


def test_a_table_that_is_dropped_while_a_driver_runs_is_rebuilt_whole(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline())
    topic.copy_plain(300, 50, size=100)
    second = folder.pipeline(secor__generation="2")
    with Runner(
        second, Parts(folder.store, topic.manager), threads=1, take_over=1, clock=count(step=60).__next__
    ) as runner:
        list(runner.run_once())
        folder.drop_table()
        topic.copy_plain(350, 50, size=100)
        list(runner.run_once())
        folder.is_whole()
    assert folder.offsets() == list(range(400))


def test_a_dropped_table_is_rebuilt_with_rows_that_have_replaced_others(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    backfill(folder, topic)
    folder.drop_table()
    topic.copy_plain(300, 50, size=100)
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    folder.is_whole()
    assert folder.offsets() == list(range(350))
    # The table never had the replaced files, so it has lost none of them.
    drop(folder)
    assert folder.offsets() == list(range(300))


def dropped_after(folder: Folder, commit: Callable[[], Any]) -> Any:
    answer = commit()
    folder.drop_table()
    return answer


def dropped_before(folder: Folder, _: Callable[[], Any]) -> Any:
    folder.drop_table()
    raise NoSuchTableError("the catalog has no such table")


@pytest.mark.parametrize("dropped", [dropped_after, dropped_before])
def test_a_table_that_is_dropped_between_two_snapshots_is_rebuilt_whole(
    topic: StoredTopic,
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
    dropped: Callable[[Folder, Callable[[], Any]], Any],
) -> None:
    for start in (300, 350):
        run_once(topic, folder.store, folder.pipeline(table="none"))
        topic.copy_plain(start, 50, size=100)

    fail_commit(monkeypatch, partial(dropped, folder))
    run_once(topic, folder.store, folder.pipeline())
    folder.is_whole()
    assert folder.offsets() == list(range(400))


def backfill(folder: Folder, topic: StoredTopic, store: ObjectStore | None = None) -> None:
    """Replace the first generation by the second."""
    new = folder.pipeline(secor__generation="2")
    with closing(LogSource(new, topic.manager, TOPIC)) as source:
        list(Backfill(new, store or folder.store, source, replaces=1, threads=1).run(Selected(TOPIC)))


def test_files_that_give_way_leave_the_table_as_the_others_come(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    before_it = folder.offsets()
    backfill(folder, topic)
    folder.is_whole()
    assert folder.offsets() == before_it
    with folder.table() as table:
        # One snapshot has the whole replacement, so no reader sees a row twice or misses one.
        assert [one.summary.operation.value for one in table.snapshots()] == ["append", "overwrite"]
        assert all("/2_" in task.file.file_path for task in table.scan().plan_files())
    topic.copy_plain(300, 50, size=100)
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    folder.is_whole()
    assert folder.offsets() == list(range(350))


@FAILURES
def test_a_snapshot_of_a_replacement_is_there_once(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch, failure: Failure
) -> None:
    run_once(topic, folder.store, folder.pipeline())
    fail_commit(monkeypatch, failure)
    with contextlib.suppress(StoreUnavailableError, Killed):
        backfill(folder, topic)
    backfill(folder, topic)
    folder.is_whole()
    assert len(folder.commits()) == 2


def test_rows_that_others_have_rewritten_are_refused_before_anything_goes(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline())
    rewrite_by_another(folder)
    files = listed_offsets(folder.store)
    (key,) = listed(folder.store)
    deletions: list[Callable[[], None]] = [lambda: backfill(folder, topic), lambda: drop(folder)]
    for delete in deletions:
        with pytest.raises(ConfigError, match=rf"lost file://\S+{key}; .*drop the table in its catalog and restart"):
            delete()
        assert listed_offsets(folder.store) == files
    # New files are still added, and a dropped table is created again.
    topic.copy_plain(300, 50, size=100)
    run_once(topic, folder.store, folder.pipeline())
    assert folder.offsets() == list(range(350))
    folder.drop_table()
    run_once(topic, folder.store, folder.pipeline())
    backfill(folder, topic)
    folder.is_whole()


def drop(folder: Folder) -> None:
    list(drop_generation(folder.pipeline(), folder.store, dry_run=False))


@pytest.mark.parametrize("failure", [None, before, answer_lost, killed_before, killed_after])
def test_a_dropped_generation_leaves_the_table(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch, failure: Failure | None
) -> None:
    run_once(topic, folder.store, folder.pipeline())
    other = folder.pipeline(pipeline__name="other", output__key__prefix="beside/")
    run_once(topic, folder.store, other)
    assert len(folder.offsets()) == 600
    if failure is not None:
        fail_commit(monkeypatch, failure)
        with contextlib.suppress(StoreUnavailableError, Killed):
            drop(folder)
        assert len(listed_offsets(folder.store)) == 300
    drop(folder)
    assert listed_offsets(folder.store) == []
    # Rows of another pipeline stay.
    assert folder.offsets() == list(range(300))
    drop(folder)


def test_a_snapshot_that_comes_behind_a_drop_names_no_deleted_file(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(commit: Callable[[], Any]) -> Any:
        drop(folder)
        return commit()

    fail_commit(monkeypatch, overtaken)
    with pytest.raises(FencedError):
        run_once(topic, folder.store, folder.pipeline())
    assert listed_offsets(folder.store) == []
    assert folder.offsets() == []


def test_an_output_that_cannot_be_a_table_is_refused(topic: StoredTopic, folder: Folder) -> None:
    for changes, words in (
        ({"secor.file.reader.writer.factory": "json", "secor.compression.codec": "none"}, "needs parquet files"),
        ({"output.storage.backend.class": "memory"}, "in a folder or on S3"),
        ({"table.iceberg.name": "events"}, r"namespace\.table"),
        ({"table.iceberg.name": ""}, r"table\.iceberg\.name is missing"),
    ):
        with pytest.raises(ConfigError, match=words):
            folder.pipeline(**{name.replace(".", "__"): text for name, text in changes.items()})
    # No message contains a secret.
    secret = {"table__iceberg__catalog__uri": "nonsense+driver://me:hunter22@here/there"}
    with pytest.raises(StoreError) as refused:
        run_once(topic, folder.store, folder.pipeline(**secret))
    assert "hunter22" not in str(refused.value)
    assert "hunter22" not in repr(folder.pipeline(**secret))


def test_a_partitioned_table_is_refused(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline())
    with folder.table() as table:
        update: Any = table.update_spec()
        with update as spec:
            spec.add_identity("topic")
    with pytest.raises(ConfigError, match="is partitioned"):
        run_once(topic, folder.store, folder.pipeline())


def test_without_the_extra_the_sentence_names_it(
    topic: StoredTopic, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = folder.pipeline()
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigError, match=r"table=iceberg needs pyiceberg.*pip install .*\[iceberg\]"):
        run_once(topic, folder.store, pipeline)


def test_a_stop_while_the_catalog_is_silent_at_the_start_has_nothing_to_wait_for(
    folder: Folder, topic: StoredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def check(_: IcebergTable) -> None:
        asked.append(is_without_work(threading.current_thread()))

    monkeypatch.setattr(IcebergTable, "check", check)
    run_once(topic, folder.store, folder.pipeline())
    assert asked == [True]


EVERY = pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.soak)])
"""Let the process die at each ``step``-th operation in turn."""


@EVERY
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_dies_at_any_operation_of_the_store(
    tmp_path: Path, moment: Literal["before", "after"], step: int
) -> None:
    at, count = 0, None
    while count is None:
        # Start from an empty folder each time, because a growing log adds operations and the sweep would not end.
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


@pytest.mark.slow
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
    """Run in a child process that is killed (-9) when it commits a snapshot to the catalog."""
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
    # The store has all files, whether or not the table has them.
    assert listed_offsets(folder.store) == list(range(350))
    assert folder.offsets() == list(range(300 if moment == "before" else 350))
    for _ in range(2):
        run_once(topic, folder.store, folder.pipeline())
        folder.is_whole()
    assert folder.offsets() == list(range(350))
    assert len(folder.commits()) == 2


class Bucket(Folder):
    """Output on S3, with the table's files next to it."""

    def __init__(self, path: Path, server: S3Server) -> None:
        self._server, self.name = server, server.make_bucket()
        self.store = make_s3(server.endpoint_url, self.name)
        self._own = {
            "type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"s3://{self.name}/warehouse",
        }  # fmt: skip
        # Only readers of the table need these properties; the pipeline derives them from its output.
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
        with closing(PipelineBackup(bucket.pipeline(), bucket.store, [TOPIC]).records((TOPIC, 0), 0, 350)) as batches:
            assert [at for one in batches for at in one.column("offset").to_pylist()] == list(range(350))
        backfill(bucket, topic)
        bucket.is_whole()
        assert bucket.offsets() == list(range(350))
        assert list(verify_output(bucket.pipeline(secor__generation="2"), bucket.store)) == []
