"""A restore reads the current rows of a pipeline's Iceberg table, even if another program has moved or deleted rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from tests.support.pipelines.iceberg_tables import SMALL, Folder, rewrite_by_another
from tests.support.pipelines.pipeline_runs import TOPIC, listed, run_once
from tests.support.records.stored_records import StoredTopic
from tieredstore.errors import ConfigError, ResourceNotFoundError, StoreError
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.record_sources import LogSource, Selected
from tieredstore.pipelines.upkeep.topic_backup import PipelineBackup

pytestmark = pytest.mark.slow  # most of them, by pyiceberg


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def rows_of(folder: Folder, **changes: str) -> tuple[list[int], list[str]]:
    """Return the offsets that a restore reads from the table, and its warnings. Assert that no hole is left."""
    backup = PipelineBackup(folder.pipeline(**changes), folder.store, [TOPIC])
    ((where, (start, stop)),) = backup.spans().items()
    assert not backup.holes(where, start, stop)
    batches: list[Any] = list(backup.records(where, start, stop))
    parts = [(start, 123), (123, 123), (123, stop)]
    again: list[Any] = [batch for part in parts for batch in backup.records(where, *part)]
    offsets, halves = ([at for one in those for at in one.column("offset").to_pylist()] for those in (batches, again))
    assert offsets == halves
    assert all(value.startswith(b"%d" % at) for at, value in zip(offsets, values_of(batches), strict=True))
    return offsets, list(backup.lacks)


def values_of(batches: list[Any]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def remove_old_files(folder: Folder) -> None:
    folder.store.delete(listed(folder.store))


def delete_rows(folder: Folder) -> None:
    with folder.table() as table:
        table.delete("offset >= 100 and offset < 110")


def add_deletes(folder: Folder, kind: str, equality_ids: list[int] | None = None) -> None:
    """Add a delete file for the first ten rows of the data file with offset 100; other engines write such files."""
    with folder.table() as table:
        (task,) = table.scan("offset == 100").plan_files()
        path = folder.output.parent / "warehouse" / f"{kind}.parquet"
        fields = [("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545)]
        schema = pa.schema([
            pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
            for name, kind, number in fields
        ])  # fmt: skip
        pq.write_table(pa.table([[task.file.file_path] * 10, list(range(10))], schema=schema), path)
        file = DataFile.from_args(
            content=DataFileContent[kind], file_path=f"file://{path}", file_format=FileFormat.PARQUET,
            partition=Record(), record_count=10, file_size_in_bytes=path.stat().st_size, equality_ids=equality_ids,
        )  # fmt: skip
        file.spec_id = 0
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(file)


def enlarge_file(folder: Folder, size: int) -> None:
    """Write to the table's metadata that its only file has this size."""
    size_at = [field.name for field in DATA_FILE_TYPE[2].fields].index("file_size_in_bytes")
    with folder.table() as table:
        (small,), (large,) = table.scan().plan_files(), table.scan().plan_files()
        large.file[size_at] = size
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
            snapshot.delete_data_file(small.file)
            snapshot.append_data_file(large.file)


LEFT = [*range(100), *range(110, 300)]
DELETED = "10 committed records are not in the table: they were deleted there, quarantined, or are lost"


def test_a_restore_reads_the_rows_that_the_table_has_now(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    assert rows_of(folder) == (list(range(300)), [])
    rewrite_by_another(folder)
    assert rows_of(folder) == (list(range(300)), [])
    delete_rows(folder)
    assert rows_of(folder) == (LEFT, [DELETED])
    remove_old_files(folder)
    assert rows_of(folder) == (LEFT, [DELETED])
    # For a restore that does not read the table, all files are missing.
    backup = PipelineBackup(folder.pipeline(table="none"), folder.store, [TOPIC])
    assert backup.holes((TOPIC, 0), 0, 300) == [(0, 300)]


def test_a_restore_reads_a_large_file_in_parts(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    for change, expected in ((rewrite_by_another, (list(range(300)), [])), (delete_rows, (LEFT, [DELETED]))):
        change(folder)
        enlarge_file(folder, 1 << 30)
        assert rows_of(folder) == expected
    backup = PipelineBackup(folder.pipeline(), folder.store, [TOPIC])
    assert len(list(backup.records((TOPIC, 0), 0, 300))) >= 1 << 6, "at most 16 MiB of the file are read at once"


def test_a_restore_leaves_out_rows_that_a_delete_file_names(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    add_deletes(folder, "POSITION_DELETES")
    offsets, lacks = rows_of(folder)
    assert (offsets, lacks) == ([*range(86), *range(96, 300)], [DELETED])


def test_a_row_that_is_twice_in_the_table_is_restored_once(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline())
    run_once(topic, folder.store, folder.pipeline(pipeline__name="other", output__key__prefix="beside/"))
    assert len(folder.offsets()) == 600
    assert rows_of(folder) == (list(range(300)), [])


def replace_offsets(folder: Folder, topic: StoredTopic, start: int, stop: int, old: int = 1, /, **changes: str) -> None:
    new = folder.pipeline(secor__generation=str(old + 1), **changes)
    with closing(LogSource(new, topic.manager, TOPIC)) as source:
        list(Backfill(new, folder.store, source, replaces=old, threads=1).run(Selected(TOPIC, start, stop)))


@pytest.mark.parametrize("deleted", [110, 290])
def test_a_restore_reads_rows_of_the_table_whose_files_another_generation_replaced(
    topic: StoredTopic, folder: Folder, deleted: int
) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    replace_offsets(folder, topic, 100, 200)
    assert rows_of(folder) == (list(range(300)), [])
    with folder.table() as table:
        table.delete(f"offset >= {deleted} and offset < {deleted + 10}")
    assert rows_of(folder) == ([*range(deleted), *range(deleted + 10, 300)], [DELETED])


def test_a_restore_from_the_table_lacks_rows_whose_generation_was_removed(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(**SMALL))
    replace_offsets(folder, topic, 100, 200)
    list(drop_generation(folder.pipeline(secor__generation="2"), folder.store, dry_run=False))
    backup = PipelineBackup(folder.pipeline(), folder.store, [TOPIC])
    ((start, stop),) = backup.holes((TOPIC, 0), 0, 300)
    assert start <= 100 < 200 <= stop
    assert list(backup.lacks) == []
    batches: list[Any] = list(backup.records((TOPIC, 0), 0, 300))
    assert [at for one in batches for at in one.column("offset").to_pylist()] == [*range(start), *range(stop, 300)]


def test_a_restore_from_the_table_lacks_a_part_of_a_window_whose_generation_was_removed(
    topic: StoredTopic, folder: Folder
) -> None:
    run_once(topic, folder.store, folder.pipeline())
    replace_offsets(folder, topic, 0, 300, 1, **SMALL)
    replace_offsets(folder, topic, 100, 200, 2)
    assert rows_of(folder) == (list(range(300)), [])
    list(drop_generation(folder.pipeline(secor__generation="3"), folder.store, dry_run=False))
    backup = PipelineBackup(folder.pipeline(), folder.store, [TOPIC])
    there = [at for one in backup.records((TOPIC, 0), 0, 300) for at in one.column("offset").to_pylist()]
    lost = {*range(300)} - {*there}
    assert {*range(100, 200)} <= lost < {*range(300)}
    for start, stop in ((0, 300), (0, min(lost)), (0, 150), (150, 300), (max(lost) + 1, 300)):
        holes = backup.holes((TOPIC, 0), start, stop)
        assert {at for hole in holes for at in range(*hole)} == lost & {*range(start, stop)}


def test_a_restore_from_files_lacks_those_that_another_generation_replaced(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline(table="none", **SMALL))
    replace_offsets(folder, topic, 100, 200)
    backup = PipelineBackup(folder.pipeline(table="none"), folder.store, [TOPIC])
    assert backup.spans() == {(TOPIC, 0): (0, 300)}
    ((start, stop),) = backup.holes((TOPIC, 0), 0, 300)
    assert start <= 100 < 200 <= stop
    assert list(backup.lacks) == [
        f"offsets {start} to {stop - 1} of {TOPIC}-0 are not in these files: generation 2 has replaced them"
    ]
    batches = [*backup.records((TOPIC, 0), 0, start), *backup.records((TOPIC, 0), stop, 300)]
    assert [at for one in batches for at in one.column("offset").to_pylist()] == [*range(start), *range(stop, 300)]


def drop_column(folder: Folder) -> None:
    with folder.table() as table, table.update_schema() as update:
        update.delete_column("headers")
        update.rename_column("key", "id")


def expire_files(folder: Folder) -> None:
    with folder.table() as table:
        remove_old_files(folder)
        assert list(table.scan().plan_files())


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda folder: add_deletes(folder, "EQUALITY_DELETES", [5]), ConfigError, "equality deletes, which pyiceberg"),
        (drop_column, ConfigError, r"unchanged \(key, headers: missing or of another type\): leave out table=iceberg"),
        (Folder.drop_table, ResourceNotFoundError, r"default has no table logs\.events: leave out table=iceberg"),
        (expire_files, StoreError, r"a file of the table logs\.events has disappeared"),
    ],
    ids=["equality deletes", "columns", "no table", "no files"],
)
def test_a_table_that_a_restore_cannot_read_is_refused(
    topic: StoredTopic, folder: Folder, change: Callable[[Folder], None], kind: type[Exception], words: str
) -> None:
    run_once(topic, folder.store, folder.pipeline())
    change(folder)
    with pytest.raises(kind, match=words):
        rows_of(folder)


def test_a_table_behind_the_commit_log_is_refused(topic: StoredTopic, folder: Folder) -> None:
    run_once(topic, folder.store, folder.pipeline())
    topic.copy_plain(300, 50, size=100)
    run_once(topic, folder.store, folder.pipeline(table="none"))
    with pytest.raises(ConfigError, match="entries up to 1 of the commit log, but not up to 5: run the pipeline once"):
        rows_of(folder)
    run_once(topic, folder.store, folder.pipeline())
    assert rows_of(folder) == (list(range(350)), [])
