"""Pipelines in one process: a listing shows each record once despite failures, deaths and concurrent runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard

from tests.support.pipelines.pipeline_runs import (
    NUMBER,
    TOPIC,
    commit_unpublished,
    last_entry,
    listed,
    listed_offsets,
    offsets_of,
    pipeline_of,
    run_once,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import DyingStore, Killed, OperationSweep
from tieredstore.backends.base import ObjectStore, find_abandoned_writes
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    CommitLogCorruptError,
    ConfigError,
    DataLossError,
    FencedError,
    InvalidValueError,
    PreconditionFailedError,
    TieredStoreError,
)
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.log import commit_log
from tieredstore.pipelines.log.commit_log import changes_since
from tieredstore.pipelines.log.entries import OutputFile
from tieredstore.pipelines.run.generation import Generation, commit_log_of
from tieredstore.pipelines.run.source import query_of
from tieredstore.pipelines.upkeep.deletion import drop_generation
from tieredstore.pipelines.upkeep.inspection import partition_statuses
from tieredstore.pipelines.upkeep.output_files import read_records
from tieredstore.pipelines.upkeep.topic_backup import PipelineBackup
from tieredstore.reading.survey import survey_logs
from tieredstore.testing.batches import Record, build_batch

SMALL = pipeline_of(secor__max__file__size__bytes="9000", secor__offsets__per__partition="150")


def check_seen(store: ObjectStore, written: int) -> None:
    """Assert that a listing has all offsets below ``written``, no offset twice, and no uncommitted offset."""
    offsets = listed_offsets(store)
    assert len(offsets) == len(set(offsets))
    assert set(range(written)) <= set(offsets)
    positions = commit_log_of(SMALL, store).read().positions
    committed = positions[TOPIC, NUMBER].next_offset if positions else 0
    assert all(offset < committed for offset in offsets)


def drop_upload(store: ObjectStore, operation: Operation) -> None:
    """Lose the upload of the file to publish, as a store's rule does while a driver is suspended."""
    (upload,) = (file.prepared for file in last_entry(SMALL, store).files if file.key == operation.keys[0])
    assert store.discard(upload)


def test_who_slept_until_the_store_dropped_its_uploads_writes_them_again(
    topic: StoredTopic, store: ObjectStore
) -> None:
    asleep = ScriptedStore(store).on("publish", do=partial(drop_upload, store), skip=1, times=1)
    run_once(topic, asleep, SMALL)
    assert listed_offsets(store) == list(range(300))
    kinds = [entry.kind for entry in commit_log_of(SMALL, store).entries()]
    assert kinds == ["begin", "batch", "rewrite", "published"]
    assert list(verify_output(SMALL, store)) == []


def test_who_writes_dropped_uploads_again_while_its_generation_is_removed_is_fenced(
    topic: StoredTopic, store: ObjectStore
) -> None:
    def remove_generation(_: Operation) -> None:
        list(drop_generation(SMALL, store, dry_run=False))

    first = f"*{0:020}.parquet"
    asleep = ScriptedStore(store).on("publish", first, partial(drop_upload, store), times=1)
    asleep.on("publish", first, remove_generation, skip=1)
    with pytest.raises(FencedError):
        run_once(topic, asleep, SMALL)
    assert listed(store) == []


def test_a_backup_holds_every_record_once_and_goes_on(topic: StoredTopic, store: ObjectStore) -> None:
    entries = run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))
    assert sum(window.records for entry in entries for window in entry.windows) == 300
    keys = listed(store)
    assert keys[0] == f"out/{TOPIC}/base_offset=0/1_{NUMBER}_{0:020}.parquet"
    assert {key.split("/")[2] for key in keys} == {"base_offset=0", "base_offset=150"}
    assert [offsets_of(store, key)[0] for key in keys] == [int(key[-28:-8]) for key in keys]
    assert run_once(topic, store, SMALL) == []
    topic.copy_plain(300, 50, size=100)
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(350))
    assert list(verify_output(SMALL, store)) == []


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_each_operation_may_fail_and_the_next_run_completes(topic: StoredTopic, tmp_path: Path, moment: Moment) -> None:
    sweep = OperationSweep(MemoryObjectStore, lambda store: run_once(topic, store, SMALL))
    for _, inner, store in sweep.fail(moment):
        try:
            run_once(topic, store, SMALL)
        except TieredStoreError:
            check_seen(inner, 0)
        run_once(topic, inner, SMALL)
        check_seen(inner, 300)
        assert list(verify_output(SMALL, inner)) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_may_die_at_each_operation_and_another_with_other_sizes_goes_on(
    topic: StoredTopic, moment: Moment
) -> None:
    sweep = OperationSweep(MemoryObjectStore, lambda store: run_once(topic, store, SMALL))
    larger = pipeline_of(secor__max__file__size__bytes="20000", secor__message__parser__class="kafka-timestamp")
    for _, inner, store in sweep.die(moment):
        with pytest.raises(Killed):
            run_once(topic, store, SMALL)
        check_seen(inner, 0)
        run_once(topic, inner, larger)
        check_seen(inner, 0)
        # The records' times are 0 to 299 ms, and 0 is invalid, so record 0 may be bad.
        assert set(listed_offsets(inner)) >= set(range(1, 300))


def test_two_drivers_never_both_commit_and_the_loser_leaves_nothing(topic: StoredTopic, store: ObjectStore) -> None:
    with Runner(SMALL, Parts(store, topic.manager), threads=1) as first:
        next(first.run_once())
        with Runner(SMALL, Parts(store, topic.manager), threads=1) as second:
            second_run = second.run_once()
            topic.copy_plain(300, 50, size=100)
        run_once(topic, store, SMALL)
        topic.copy_plain(350, 50, size=100)
        with pytest.raises(FencedError):
            first.driver.log.append("batch", "")
        list(second_run)
    assert len(listed_offsets(store)) == len(set(listed_offsets(store)))


def test_a_zombie_publishes_nothing_behind_a_foreign_entry(topic: StoredTopic) -> None:
    store = MemoryObjectStore()
    zombie = Runner(SMALL, Parts(store, topic.manager), threads=1)
    with zombie:
        run = zombie.run_once()
        next(run)
        topic.copy_plain(300, 100, size=100)
        other = run_once(topic, store, SMALL)
        assert other
        before = listed(store)
        # The other run began where the zombie's records end. So the zombie has only its ``published`` entry left to
        # write.
        with pytest.raises(FencedError):
            list(run)
        with pytest.raises(FencedError):
            zombie.driver.log.check_alone()
        with pytest.raises(FencedError):
            zombie.driver.commit([])
        assert listed(store) == before


def test_uploads_that_the_store_dropped_are_written_again(topic: StoredTopic, store: ObjectStore) -> None:
    files = commit_unpublished(topic, store, SMALL)
    assert listed(store) == []
    for file in files[1:]:
        store.discard(file.prepared)
    other = pipeline_of(secor__max__file__size__bytes="20000", secor__offsets__per__partition="150")
    with pytest.raises(ConfigError, match="run once with the earlier settings"):
        run_once(topic, store, other)
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))
    assert list(verify_output(SMALL, store)) == []
    assert "rewrite" in {one.kind for one in commit_log_of(SMALL, store).entries()}


def test_a_window_that_is_gone_from_its_source_is_data_loss(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    topic.copy_plain(400, 100, size=100)
    with pytest.raises(DataLossError):
        run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))


def test_an_output_name_that_somebody_else_has_is_an_error_that_names_it(
    topic: StoredTopic, store: ObjectStore
) -> None:
    quiet = MemoryObjectStore()
    run_once(topic, quiet, SMALL)
    key = listed(quiet)[0]
    # Only a run without a log entry refuses foreign objects at its start, so begin the log first.
    Runner(SMALL, Parts(store, topic.manager)).driver.begin([TOPIC])
    store.put(key, b"another's")
    with pytest.raises(PreconditionFailedError, match=key.replace(".", r"\.")):
        run_once(topic, store, SMALL)
    store.delete([key])
    run_once(topic, store, SMALL)
    assert listed_offsets(store) == list(range(300))


def test_a_root_with_files_and_no_log_is_refused_and_a_generation_has_one_owner(
    topic: StoredTopic, store: ObjectStore
) -> None:
    store.put(f"out/{TOPIC}/base_offset=0/1_0_{7:020}.parquet", b"whose is it?")
    with pytest.raises(ConfigError, match="no commit log"):
        run_once(topic, store, SMALL)
    second = pipeline_of(secor__generation="2", secor__max__file__size__bytes="9000")
    run_once(topic, store, second)
    with pytest.raises(ConfigError, match="belongs to the pipeline 'kept'"):
        run_once(topic, store, pipeline_of(secor__generation="2", pipeline__name="other", output__key__prefix="out/"))


def test_who_looks_at_another_pipelines_generation_is_told_whose_it_is(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, pipeline_of())
    other = pipeline_of(pipeline__name="other")
    snapshot = survey_logs(topic.manager, query_of(other))
    with pytest.raises(ConfigError, match="belongs to the pipeline 'kept'"):
        list(verify_output(other, store))
    with pytest.raises(ConfigError, match="belongs to the pipeline 'kept'"):
        partition_statuses(other, store, snapshot)
    later = pipeline_of(pipeline__name="other", secor__generation="2")
    assert [one.next_offset for one in partition_statuses(later, store, snapshot)] == [0]


def test_bad_messages_go_aside_whole_or_stop_the_batch(topic: StoredTopic, store: ObjectStore) -> None:
    filing = {"secor__message__parser__class": "json"}
    with pytest.raises(InvalidValueError, match=r"secor\.consumer\.max_bad_messages is 10"):
        run_once(topic, store, pipeline_of(secor__consumer__max_bad_messages="10", **filing))
    assert listed(store) == []
    assert not list(store.list("out/_tieredstore/kept/1/staging/"))
    assert not list(find_abandoned_writes(store, "out/"))
    entries = run_once(topic, store, pipeline_of(secor__consumer__max_bad_messages="-1", **filing))
    assert listed(store) == []
    (window,) = entries[0].windows
    assert (window.records, window.quarantined) == (0, 300)
    assert offsets_of(store, window.files[0].key) == list(range(300))


ANY_TIMES = (-1, 0, 253_402_300_799_999, 253_402_300_800_000, 1_767_268_800_000_000, 2**62)
"""No timestamp, 1970, the last ms of the year 9999, the next ms, microseconds instead of milliseconds, and more."""


@pytest.mark.parametrize(
    ("factory", "columns", "bad"),
    [
        ("parquet", "", 0), ("orc", "", 0), ("avro", "", 0), ("text", "", 0), ("sequencefile", "", 0), ("json", "", 3),
        ("parquet", "json", 0), ("orc", "json", 0), ("avro", "json", 3), ("json", "json", 3),
    ],
)  # fmt: skip
def test_a_record_with_any_timestamp_is_written_or_bad(tmp_path: Path, factory: str, columns: str, bad: int) -> None:
    store, decoded = MemoryObjectStore(), {"columns": columns, "json__schema__*": "a BIGINT"} if columns else {}
    pipeline = pipeline_of(secor__file__reader__writer__factory=factory, secor__compression__codec="none", **decoded)
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        topic.copy(0, [build_batch([Record(b'{"a": 1}', timestamp_ms=time_ms) for time_ms in ANY_TIMES])])
        written = [window for entry in run_once(topic, store, pipeline) for window in entry.windows]
        assert [(one.records, one.quarantined) for one in written] == [(len(ANY_TIMES) - bad, bad)]
        assert list(verify_output(pipeline, store)) == []
        assert run_once(topic, store, pipeline) == []
    # The libraries of ORC and Avro do not read all times that they write.
    if factory in {"parquet", "text", "sequencefile"}:
        (key,) = (key for key in listed(store) if not key.rpartition("/")[2].startswith("."))
        rows = [row for one in read_records(pipeline, store, key) for row in one.to_pylist()]
        assert [row["timestamp"] for row in rows] == list(ANY_TIMES)


def test_a_commit_log_with_a_hole_or_other_bytes_is_refused(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    keys = [info.key for info in store.list("out/_tieredstore/kept/1/commits/")]
    content = store.get(keys[1])
    for damaged in (b"", b"[]", content[:-2], content.replace(b'"kind":"batch"', b'"kind":"other"')):
        store.put(keys[1], damaged)
        with pytest.raises(CommitLogCorruptError):
            run_once(topic, store, SMALL)
    store.put(keys[1], content)
    store.delete(keys[:1])
    with pytest.raises(CommitLogCorruptError, match="entries are missing"):
        run_once(topic, store, SMALL)


@pytest.mark.parametrize("gone", [0, 1, 10])
def test_a_hole_before_the_latest_snapshot_is_noticed_by_all_who_read_old_entries(
    topic: StoredTopic, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """A lifecycle rule of the bucket may delete old entries. Drivers go on from the snapshot and do not need them."""
    monkeypatch.setattr(commit_log, "SNAPSHOT_EVERY", 20)
    run_once(topic, store, SMALL)
    log = commit_log_of(SMALL, store)
    while log.read().number < 20:
        log.append("begin", "fingerprint")
    store.delete([f"{log.folder}commits/{gone:020}.json"])
    assert run_once(topic, store, SMALL) == []
    readers: list[Callable[[], object]] = [
        lambda: PipelineBackup(SMALL, store, [TOPIC]),
        lambda: list(verify_output(SMALL, store)),
        lambda: list(changes_since(commit_log_of(SMALL, store), -1)),
    ]
    for read in readers:
        with pytest.raises(CommitLogCorruptError, match="entries are missing"):
            read()


def test_an_entry_that_a_listing_leaves_out_is_read_all_the_same(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    stale = ScriptedStore(store)
    stale.change("list", change=lambda infos: (info for info in infos if not info.key.endswith(f"{1:020}.json")))
    numbers = [entry.number for entry in commit_log_of(SMALL, store).entries()]
    assert [entry.number for entry in commit_log_of(SMALL, stale).entries()] == numbers
    assert commit_log_of(SMALL, stale).read() == commit_log_of(SMALL, store).read()


def test_planted_faults_are_named_by_verify(topic: StoredTopic, store: ObjectStore) -> None:
    run_once(topic, store, SMALL)
    missing, short, other = listed(store)[:3]
    data = store.get(other)
    store.delete([missing])
    store.put(short, store.get(short)[:-1])
    store.put(other, bytes([data[0] ^ 1]) + data[1:])
    stranger = f"out/{TOPIC}/base_offset=0/1_9_{0:020}.parquet"
    store.put(stranger, b"x")
    problems = {problem.kind: problem.subject for problem in verify_output(SMALL, store)}
    assert problems == {"missing": missing, "size": short, "content": other, "stranger": stranger}


def test_a_new_root_without_a_slash_is_refused_and_one_that_was_begun_so_goes_on(
    topic: StoredTopic, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"output__key__prefix": "kafka", "secor__max__file__size__bytes": "9000"}
    with pytest.raises(ConfigError, match=r"'kafka', without a trailing slash.* to kafkaTOPIC/: set kafka/$"):
        run_once(topic, store, pipeline_of(**own))
    assert list(store.list()) == []
    with monkeypatch.context() as before:
        before.setattr(Generation, "check_root", lambda _: None)
        run_once(topic, store, pipeline_of(**own))
    topic.copy_plain(300, 50, size=100)
    run_once(topic, store, pipeline_of(**own))
    run_once(topic, store, pipeline_of(**own, secor__generation="2"))
    warnings = [record.getMessage() for record in caplog.records]
    assert [text.endswith("without a trailing slash, so files of a topic go to kafkaTOPIC/, where the "
            "existing files are") for text in warnings] == [True, True]  # fmt: skip
    for generation in ("1", "2"):
        assert list(verify_output(pipeline_of(**own, secor__generation=generation), store)) == []
        keys = [info.key for info in store.list(f"kafka{TOPIC}/") if f"/{generation}_" in info.key]
        assert sorted(at for key in keys for at in offsets_of(store, key)) == list(range(350))


TEXT: Final = pipeline_of(
    secor__file__reader__writer__factory="text", secor__compression__codec="zstd", max__file__records="100"
)
"""Pipeline that writes three files, each with a sidecar. Another compressor does not change sidecars."""


def last_files(store: ObjectStore) -> dict[str, OutputFile]:
    """Return the files of the last entry with files, by key."""
    return {file.key: file for file in last_entry(TEXT, store).files}


def committed_and_dropped(topic: StoredTopic, store: ObjectStore) -> dict[str, OutputFile]:
    """Return the files of a committed batch that has lost all uploads but the first."""
    committed = {file.key: file for file in commit_unpublished(topic, store, TEXT)}
    for key, file in committed.items():
        if f"{0:020}" not in key:
            assert store.discard(file.prepared)
    assert listed(store) == []
    return committed


class Packing:
    """Compressor of files. If ``other`` is set, it writes other bytes, like another version of the library."""

    def __init__(self) -> None:
        self.other = False
        self._compressor: Any = zstandard.ZstdCompressor

    def __call__(self, level: int) -> Any:
        return self._compressor(level=level, write_checksum=self.other)


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Packing:
    packing = Packing()
    monkeypatch.setattr(zstandard, "ZstdCompressor", packing)
    return packing


def check_outcome(store: ObjectStore, committed: dict[str, OutputFile]) -> None:
    """Assert that all files exist and match the log, and that rewritten files have other bytes than before."""
    assert listed(store) == sorted(committed)
    for key, file in last_files(store).items():
        data = store.get(key)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
        assert (file.sha256 == committed[key].sha256) == (f"{0:020}" in key or file.kind == "sidecar")
    assert list(verify_output(TEXT, store)) == []
    rows: list[Any] = [
        row for key in listed(store) if key.endswith(".zst") for one in read_records(TEXT, store, key)
        for row in one.to_pylist()
    ]  # fmt: skip
    assert [row["offset"] for row in rows] == list(range(300))


def test_other_bytes_get_an_entry_before_they_are_published(
    topic: StoredTopic, store: ObjectStore, packing: Packing
) -> None:
    committed = committed_and_dropped(topic, store)
    packing.other = True
    said: list[tuple[str, str, int, str]] = []

    def ask_log(operation: Operation) -> None:
        entry = last_entry(TEXT, store)
        (file,) = (file for file in entry.files if file.key == operation.keys[0])
        said.append((file.key, entry.kind, file.size, file.sha256))

    run_once(topic, ScriptedStore(store).on("publish", do=ask_log, moment="after"), TEXT)
    check_outcome(store, committed)
    assert sorted(said) == sorted(
        (key, "batch" if f"{0:020}" in key else "rewrite", file.size, file.sha256)
        for key, file in last_files(store).items()
    )
    data = [key for key in committed if key.endswith(".zst") and f"{0:020}" not in key]
    assert len(data) == 2
    assert all(last_files(store)[key].size != committed[key].size for key in data)


def test_whoever_dies_in_the_midst_of_it_leaves_what_the_next_one_completes(
    topic: StoredTopic, packing: Packing
) -> None:
    """The run that dies has another compressor. The next run has the first compressor again, but keeps every entry of
    the run that died.
    """
    entered: list[bool] = []
    has_died = True
    while has_died:
        store, packing.other = MemoryObjectStore(), False
        committed = committed_and_dropped(topic, store)
        packing.other, has_died = True, False
        dying = DyingStore(store, len(entered), "after")
        with suppress(Killed):
            run_once(topic, dying, TEXT)
        has_died = bool(dying.failed)
        files = last_files(store)
        entered.append(any(file.sha256 != committed[key].sha256 for key, file in files.items()))
        for key in listed(store):
            assert hashlib.sha256(store.get(key)).hexdigest() == files[key].sha256
        packing.other = False
        run_once(topic, store, TEXT)
        assert listed(store) == sorted(committed)
        assert list(verify_output(TEXT, store)) == []
        packed = {key: file for key, file in last_files(store).items() if file.sha256 != committed[key].sha256}
        assert packed.keys() == ({key for key in files if files[key].sha256 != committed[key].sha256})
    assert set(entered) == {False, True}
