"""Plan files and log directories that are damaged or not writable: one-sentence errors, and nothing half done."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tieredstore as ts
from tests.restore.logdir.log_dirs import CLUSTER, NEW_ID, fresh_bucket, make_log_dir, prepared, restore, tree
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import ConfigError, CorruptDataError, ObjectArchivedError, TieredStoreError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.cli.logdir import _logs_of  # pyright: ignore[reportPrivateUsage]
from tieredstore.restore.logdir.log_directory import MARKER, LogDirectory
from tieredstore.restore.logdir.prepared import PreparedRestore, new_plan
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

ORDERS = TopicIdPartition(Uuid(b"orders-in-bucket"), "orders", 0)
PLAN = prepared(ORDERS)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield one segment of 1 MiB."""
    batches = [build_batch([Record(bytes(1 << 16))], offset) for offset in range(16)]
    write_segment(tmp_path / "disk", batches, partition=ORDERS)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as opened:
        yield opened


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text[:40], "Invalid JSON"),
        (lambda text: text.replace('"start": 0', '"start": "0"'), "start is '0'"),
        (lambda text: text[1:], "it does not begin with its version"),
        (
            lambda text: text.replace(str(ORDERS.topic_id), "old"),
            "'old' is not a Kafka uuid",
        ),
        (lambda text: text.replace(str(NEW_ID), "new"), "'new' is not a Kafka uuid"),
    ],
)
def test_a_damaged_plan_is_named(tmp_path: Path, edit: Callable[[str], str], words: str) -> None:
    path = tmp_path / "restore.json"
    with new_plan(path) as file:
        PLAN.write(file)
    assert PreparedRestore.read(path) == PLAN
    path.write_text(edit(path.read_text()))
    with pytest.raises(CorruptDataError, match=f"^{path} is not a valid prepared restore: .*{words}"):
        PreparedRestore.read(path)


def test_a_plan_is_opened_before_the_work(tmp_path: Path) -> None:
    """If the plan could not be written after the work, the new topics would exist without a plan."""
    with pytest.raises(RuntimeError), new_plan(tmp_path / "restore.json"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    for path, words in ((tmp_path, "exists"), (tmp_path / "no" / "folder", "cannot be written: No such file")):
        with pytest.raises(ConfigError, match=words), new_plan(path):
            raise AssertionError
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        PreparedRestore.read(tmp_path)


def test_an_empty_plan_of_a_killed_command_is_named(tmp_path: Path) -> None:
    path = tmp_path / "restore.json"
    path.touch()
    words = "is empty: a restore prepare is running or was killed; if it was killed, delete this file"
    with pytest.raises(ConfigError, match=words), new_plan(path):
        raise AssertionError
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("recovery-point-offset-checkpoint", b"garbage\n", "recovery-point-offset-checkpoint: the checkpoint"),
        ("log-start-offset-checkpoint", b"0\n5\nx 0 1\n", "log-start-offset-checkpoint: the checkpoint"),
        ("meta.properties", b"cluster.id=\xff", "/logs: the meta.properties is not UTF-8 text"),
        ("meta.properties", b"node.id=one", "/logs: meta.properties has the broker id 'one'"),
        ("orders-0/partition.metadata", b"garbage", "orders-0: partition.metadata has the line"),
        ("orders-0", None, "orders-0/partition.metadata: Not a directory"),
    ],
)
def test_a_damaged_file_is_named_before_the_first_write(
    bucket: ts.Bucket, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    if content is None:
        (log_dir / name).rename(tmp_path / "aside")
    (log_dir / name).write_bytes(content or b"a file")
    before = tree(log_dir)
    with pytest.raises(TieredStoreError, match=words):
        restore(bucket, log_dir, PLAN)
    assert tree(log_dir) == before


def test_a_disk_that_becomes_full(bucket: ts.Bucket, tmp_path: Path) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ConfigError, match="File too large; correct this, and run the restore again"):
            restore(bucket, log_dir, PLAN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (log_dir / MARKER).exists()
    assert restore(bucket, log_dir, PLAN) == [("restored", 0, 15)]
    assert not (log_dir / MARKER).exists()


def test_the_disk_that_becomes_full_is_named(bucket: ts.Bucket, tmp_path: Path) -> None:
    """A failed write has no file name."""
    log_dirs = [make_log_dir(tmp_path / "empty", {}), make_log_dir(tmp_path / "full", {"orders": 1})]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ConfigError, match=f"^{log_dirs[1]}/orders-0: File too large"):
            restore(bucket, log_dirs, PLAN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("step", ["begin", "checkpoint"])
def test_the_disk_without_room_for_small_files_is_named(
    bucket: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log_dirs = [make_log_dir(tmp_path / "empty", {}), make_log_dir(tmp_path / "full", {"orders": 1})]
    real = getattr(LogDirectory, step)

    def fail(directory: LogDirectory, *more: Any) -> None:
        if directory.path == log_dirs[1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(directory, *more)

    with monkeypatch.context() as patched:
        patched.setattr(LogDirectory, step, fail)
        with pytest.raises(ConfigError, match=f"^{log_dirs[1]}: No space left on device"):
            restore(bucket, log_dirs, PLAN)
    assert restore(bucket, log_dirs, PLAN) == [("restored", 0, 15)]


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another restore ends, and deletes the lock file, after this one has opened it. A third one would make a new
    file, and lock that."""
    log_dir, lockf = make_log_dir(tmp_path / "logs", {"orders": 1}), fcntl.lockf
    another = LogDirectory(log_dir)

    def late(descriptor: int, command: int) -> None:
        another.close()
        lockf(descriptor, command)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "lockf", late)
        with pytest.raises(ConfigError, match="another restore is writing to it"):
            LogDirectory(log_dir)
    LogDirectory(log_dir).close()
    assert not (log_dir / ".lock").exists()


def test_a_read_only_disk(bucket: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})

    real: Any = os.open

    def refuse(path: object, *more: Any, **others: Any) -> int:
        if path == log_dir / ".lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return int(real(path, *more, **others))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=f"^{log_dir}/.lock: Read-only file system; correct this, and run"):
        restore(bucket, log_dir, PLAN)


def test_a_cluster_id_that_java_escapes(bucket: ts.Bucket, tmp_path: Path) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    properties = (log_dir / "meta.properties").read_text()
    (log_dir / "meta.properties").write_text(properties.replace(CLUSTER, "eu\\:payments\\=1"))
    assert restore(bucket, log_dir, replace(PLAN, cluster_id="eu:payments=1")) == [("restored", 0, 15)]


def test_a_user_who_may_not_give_the_group_away(
    bucket: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of the broker is not a member of the folder's group, and so may not give files to that group."""
    log_dir, groups = make_log_dir(tmp_path / "logs", {"orders": 1}), set[int]()

    def chown(path: Path, user: int, group: int) -> None:
        assert user == path.stat().st_uid
        groups.add(group)

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "chown", chown)
    restore(bucket, log_dir, PLAN)
    assert groups == {-1}


def test_prepare_names_what_is_not_in_the_log(
    bucket: ts.Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later segment lacks its indexes, so the log ends before that segment."""
    write_segment(tmp_path / "disk", [build_batch([Record(b"v")], 16)], partition=ORDERS, base_offset=16)
    bucket.upload(tmp_path / "disk")
    (lost,) = (tmp_path / "store").rglob("*00016-*.indexes")
    lost.unlink()
    (topic,) = bucket.topics("orders")
    assert _logs_of(bucket, topic, 2) == [(0, 16), (0, 0)]
    assert "orders-0: 1 segment incomplete or damaged, left out" in capsys.readouterr().err
    (damaged,) = (tmp_path / "store").rglob("*00016-*.rsm-manifest")
    damaged.write_bytes(b"{")
    (topic,) = bucket.topics("orders")
    _logs_of(bucket, topic, None)
    assert "orders-0: 1 segment incomplete or damaged, left out" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="orders has 1 partitions in the bucket: --partition-count 1 or more"):
        _logs_of(bucket, topic, 0)


def test_prepare_leaves_out_no_segment_that_is_archived(
    bucket: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path / "disk", [build_batch([Record(b"v")], 16)], partition=ORDERS, base_offset=16)
    bucket.upload(tmp_path / "disk")
    read = FilesystemObjectStore.get_small_batch

    def answer(store: FilesystemObjectStore, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        archived = ObjectArchivedError("restore the object from the archive first")
        answers = read(store, keys, most)
        return [archived if f"/{0:020}-" in key else one for key, one in zip(keys, answers, strict=True)]

    monkeypatch.setattr(FilesystemObjectStore, "get_small_batch", answer)
    (topic,) = bucket.topics("orders")
    with pytest.raises(ObjectArchivedError, match="restore the object from the archive first"):
        _logs_of(bucket, topic, None)


def test_after_an_unclean_election_the_log_is_prepared_and_not_what_it_left_behind(
    bucket: ts.Bucket, tmp_path: Path
) -> None:
    for disk, end, epoch in (("lost", 40, 0), ("won", 20, 1)):
        batches = [build_batch([Record(b"v")], offset, leader_epoch=epoch) for offset in range(16, end)]
        epochs = ((0, 0), (1, 16))[: epoch + 1]
        write_segment(tmp_path / disk, batches, partition=ORDERS, base_offset=16, leader_epochs=epochs)
        bucket.upload(tmp_path / disk)
    (topic,) = bucket.topics("orders")
    logs = _logs_of(bucket, topic, None)
    assert logs == [(0, 20)]
    plan = prepared(ORDERS).topics[0]
    start, stop = logs[0]
    plan = replace(plan, partitions=(replace(plan.partitions[0], start=start, stop=stop),))
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    outcomes = restore(bucket, log_dir, replace(PLAN, topics=(plan,)))
    assert outcomes == [("restored", 0, 15), ("restored", 16, 19)]
