"""Tests of exports into a folder that has files of other programs or of earlier exports."""

from __future__ import annotations

import errno
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.records.topic_buckets import Bucket
from tieredstore.errors import ConfigError, DataLossError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.query import export
from tieredstore.query.export import export_files, export_folder, plan_export
from tieredstore.query.topic_columns import ColumnTypes
from tieredstore.query.topic_read import ReadPlan
from tieredstore.query.writers import RowFormat
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.survey import survey_logs
from tieredstore.testing.segments import Record, build_batch
from tieredstore.values import Text

NOTE = "_tieredstore/export/orders.parquet.json"


@pytest.fixture
def bucket(bucket: Bucket) -> Bucket:
    bucket.write(10)
    return bucket


def exported(bucket: Bucket, folder: Path, plan: ReadPlan | None = None, **options: Any) -> int:
    plan = ReadPlan() if plan is None else plan
    with TopicReader(lambda: bucket.manager, LogQuery.of_topic("orders", **options)) as reader:
        snapshot = reader.snapshot()
        with export_folder(folder, reader.query, snapshot, plan, "parquet"):
            files = plan_export(snapshot, folder, "parquet")
            return sum(one.records for one in export_files(reader, snapshot, files, plan, at_once=1))


def test_files_of_other_kinds_are_not_mixed(bucket: Bucket, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (exported(bucket, out), exported(bucket, out)) == (10, 0)
    bucket.write(5)
    text = replace(ReadPlan(), types=ColumnTypes(value=Text()))
    with pytest.raises(ConfigError, match="have value binary, but this export has string: export into another folder"):
        exported(bucket, out, text)
    with pytest.raises(ConfigError, match="have isolation read_committed, but this export has read_uncommitted"):
        exported(bucket, out, isolation="read_uncommitted")
    assert exported(bucket, out) == 5
    (out / NOTE).write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        exported(bucket, out)
    (out / NOTE).write_text("")  # a killed run left it
    assert exported(bucket, out) == 0


def test_files_that_may_lack_lost_records_are_not_taken_for_whole_ones(bucket: Bucket, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    lost = bucket.write(5)
    bucket.write(5)
    assert exported(bucket, whole) == 20
    bucket.delete(lost)
    with pytest.raises(DataLossError):
        exported(bucket, out)
    assert exported(bucket, out, on_data_loss="report") == 15
    with pytest.raises(ConfigError, match=r"may lack records, because .*: set on_data_loss="):
        exported(bucket, out)
    assert exported(bucket, out, on_data_loss="report") == 0
    # Files of earlier runs have all records. Only later ones may lack some.
    assert exported(bucket, whole, on_data_loss="report") == 0
    with pytest.raises(ConfigError, match="may lack records"):
        exported(bucket, whole)


def test_offsets_of_a_topic_that_was_deleted_are_not_those_of_its_successor(bucket: Bucket, tmp_path: Path) -> None:
    out, successor = tmp_path / "out", Uuid.random()
    assert exported(bucket, out) == 10
    batch = build_batch([Record(b"new")], 0)
    bucket.copy(TopicIdPartition(successor, "orders", 0), [batch], range(1))
    with pytest.raises(ConfigError, match=f"of another topic orders, .* this export reads the id {successor}"):
        exported(bucket, out, topic_id=successor)
    assert exported(bucket, tmp_path / "new", topic_id=successor) == 1


def test_one_export_at_a_time_and_what_a_killed_one_left_is_removed(bucket: Bucket, tmp_path: Path) -> None:
    out = tmp_path / "out"
    query = LogQuery.of_topic("orders")
    with (
        export_folder(out, query, survey_logs(bucket.manager, query), ReadPlan(), "parquet"),
        pytest.raises(ConfigError, match="another export of orders"),
    ):
        exported(bucket, out)
    left = out / ".orders-0-00000000000000000000-00000000000000000004.parquet.part"
    left.write_bytes(b"of a killed one")
    assert exported(bucket, out) == 10
    assert not left.exists()


def test_a_full_disk_leaves_nothing_of_a_file(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any, file: Any) -> int:
        file.write(b"as much as there was room for")
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setitem(dict_of(export), "parquet", RowFormat(full, is_binary=True))
        with pytest.raises(OSError, match="No space left"):
            exported(bucket, out)
    assert [path.name for path in out.iterdir()] == ["_tieredstore"]
    assert exported(bucket, out) == 10


def test_a_full_disk_leaves_the_note_about_earlier_files(bucket: Bucket, tmp_path: Path) -> None:
    """Without the note, files of other types or of another isolation could follow."""
    out = tmp_path / "out"
    assert exported(bucket, out) == 10
    noted = (out / NOTE).read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            exported(bucket, out, on_data_loss="report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (out / NOTE).read_bytes() == noted
    with pytest.raises(ConfigError, match="have isolation read_committed"):
        exported(bucket, out, isolation="read_uncommitted")


def dict_of(module: Any) -> Any:
    """Return the writers by file ending, with a type that lets a test change them."""
    return module.WRITERS
