"""Log directories restored without a broker: their bytes, cuts, kills at every step, and refused restores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tieredstore as ts
from tests.restore.logdir.log_dirs import ALL, CLUSTER, fresh_bucket, make_log_dir, prepared, restore, tree, with_logs
from tests.support.paths import GOLDEN
from tests.support.stores.operation_sweep import numbers_to_sweep
from tieredstore.errors import BatchCorruptError, ConfigError, DataLossError, TieredStoreError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import LeaderEpochs, ProducerState
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import AtTime, TopicIdPartition, Uuid
from tieredstore.restore.logdir.log_directory import MARKER, unfinished_work
from tieredstore.restore.logdir.partition_restore import logs_in
from tieredstore.restore.logdir.prepared import PreparedRestore
from tieredstore.restore.logdir.restoring import RestoreOptions, restore_logs
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment

TXN = GOLDEN / "07-txn" / "original"
ORDERS = TopicIdPartition(Uuid(b"orders-in-bucket"), "orders", 0)
OTHER = replace(ORDERS, partition=1)


@pytest.fixture
def txn(tmp_path: Path) -> Iterator[ts.Bucket]:
    with fresh_bucket(tmp_path / "store", [TXN]) as bucket:
        yield bucket


def partition_of(bucket: ts.Bucket, topic: str = "txn") -> TopicIdPartition:
    (found,) = bucket.topics(topic)
    return TopicIdPartition(found.topic_id, topic, 0)


def batches(log: Path) -> list[tuple[int, int, int]]:
    """Check all checksums; return the first offset, last offset and leader epoch of each batch."""
    headers = read_batch_headers(log.read_bytes(), check_crc=True)
    return [(each.base_offset, each.last_offset, each.partition_leader_epoch) for each in headers]


def test_the_files_are_those_of_the_broker(txn: ts.Bucket, tmp_path: Path) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"txn": 1}), prepared(partition_of(txn))
    before = tree(log_dir)
    assert restore(txn, log_dir, plan, dry_run=True)[0] == ("restored", 0, 604)
    assert tree(log_dir) == before
    keep = RestoreOptions(producer_states="keep")
    assert {code for code, *_ in restore(txn, log_dir, plan, keep)} == {"restored"}
    original, restored = tree(TXN / "txn-0"), tree(log_dir / "txn-0")
    assert restored.pop("partition.metadata") != original.pop("partition.metadata")
    rolled = {f"{3047:020d}.{suffix}": b"" for suffix in ("index", "timeindex", "log")}
    assert restored == original | rolled | {"leader-epoch-checkpoint": b"0\n1\n0 0\n"}
    assert (log_dir / "replication-offset-checkpoint").read_text() == "0\n3\nother 0 77\norders 0 0\ntxn 0 3047\n"
    assert not (log_dir / MARKER).exists()
    assert not (log_dir / ".lock").exists()
    after = tree(log_dir)
    assert {code for code, *_ in restore(txn, log_dir, plan, keep)} == {"there"}
    assert tree(log_dir) == after


def test_dropped_producers_are_empty_snapshots(txn: ts.Bucket, tmp_path: Path) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"txn": 1})
    restore(txn, log_dir, prepared(partition_of(txn)))
    snapshots = {path.name: path.stat().st_size for path in (log_dir / "txn-0").glob("*.snapshot")}
    assert snapshots == {f"{offset:020d}.snapshot": 10 for offset in (605, 1209, 1815, 2420, 3047)}


@pytest.fixture
def thirds(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield a partition of three segments, with 100 records each in batches of ten, and a partition of one record. A
    record's time is its offset in seconds.
    """
    for base in (0, 100, 200):
        made = [
            build_batch([Record(b"v", None, at * 1000) for at in range(n, n + 10)], n)
            for n in range(base, base + 100, 10)
        ]
        write_segment(tmp_path / "disk", made, partition=ORDERS, base_offset=base)
    write_segment(tmp_path / "disk", [build_batch([Record(b"v", None, 5)], 0)], partition=OTHER)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as bucket:
        yield bucket


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        (RestoreOptions(start=150), (100, 300)),
        (RestoreOptions(start=AtTime(150_000), stop=200), (100, 200)),
        (RestoreOptions(stop=155), (0, 150)),
        (RestoreOptions(stop=AtTime(155_000)), (0, 150)),
        (RestoreOptions(stop=AtTime(200_000)), (0, 200)),
        (RestoreOptions(stop=300), (0, 300)),
    ],
)
def test_a_window(thirds: ts.Bucket, tmp_path: Path, options: RestoreOptions, bounds: tuple[int, int]) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    outcomes = restore(thirds, log_dir, plan, options)
    restored = [outcome for outcome in outcomes if outcome[0] == "restored"]
    assert (restored[0][1], restored[-1][2]) == (bounds[0], bounds[1] - 1)
    left_out = [(first, last) for code, first, last in outcomes if code == "left_out"]
    both = [(0, bounds[0] - 1), (bounds[1], 299)]
    assert left_out == [(first, last) for first, last in both if first <= last]
    found = discover(log_dir / "orders-0").segments
    assert describe(found[0]).base_offset == bounds[0]
    assert describe(found[-2]).end_offset == bounds[1] - 1
    assert found[-1].base_offset == bounds[1]
    assert f"orders 0 {bounds[1]}\n" in (log_dir / "replication-offset-checkpoint").read_text()
    starts = f"0\n1\norders 0 {bounds[0]}\n" if bounds[0] else "0\n0\n"
    assert (log_dir / "log-start-offset-checkpoint").read_text() == starts
    assert {code for code, *_ in restore(thirds, log_dir, plan, options)} - {"left_out"} == {"there"}


def test_the_sizes_are_those_of_what_is_written(thirds: ts.Bucket, tmp_path: Path) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), with_logs(prepared(ORDERS), thirds)
    for dry_run in (True, False):
        done = restore_logs(thirds.manager, [log_dir], plan, RestoreOptions(stop=155), dry_run=dry_run)
        sizes = {one.base_offset: one.stored_size for one in done if one.code == "restored"}
    assert sizes == logs_in(log_dir / "orders-0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (RestoreOptions(start=301), r"^offset 301 is beyond the end of orders-0 \(300\)"),
        (RestoreOptions(stop=301), r"^offset 301 is beyond the end of orders-0 \(300\)"),
        (RestoreOptions(stop=1_767_225_600_000), "a time in milliseconds since 1970 is written @1767225600000"),
        (RestoreOptions(start=300), "--from 300 leaves nothing to restore: orders-0 ends at 300"),
        (RestoreOptions(stop=0), "--to 0 leaves nothing to restore: orders-0 begins at 0"),
    ],
)
def test_a_window_beyond_the_log_is_refused(
    thirds: ts.Bucket, tmp_path: Path, options: RestoreOptions, words: str
) -> None:
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    before = tree(log_dir)
    with pytest.raises(ConfigError, match=words):
        restore(thirds, log_dir, prepared(ORDERS), options)
    assert tree(log_dir) == before


def test_a_log_outside_of_the_window_is_named(thirds: ts.Bucket, tmp_path: Path) -> None:
    """The start is beyond the end of partition 1. It is still valid, because the log of partition 0 is longer."""
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 2})
    outcomes = restore(thirds, log_dir, prepared(ORDERS, OTHER), RestoreOptions(start=250))
    assert outcomes == [("left_out", 0, 199), ("left_out", 0, 0), ("restored", 200, 299)]
    assert not list((log_dir / "orders-1").glob("*.restore"))


def test_an_empty_log_of_deleted_records_is_replaced(thirds: ts.Bucket, tmp_path: Path) -> None:
    """A topic's records were deleted, so its log is empty, but begins at offset 5. With this segment, a broker would
    return no record between 5 and 99."""
    log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
    for suffix in ("log", "index", "timeindex"):
        (log_dir / "orders-0" / f"{0:020d}.{suffix}").rename(log_dir / "orders-0" / f"{5:020d}.{suffix}")
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    restore(thirds, log_dir, prepared(ORDERS))
    assert [int(path.stem) for path in sorted((log_dir / "orders-0").glob("*.log"))] == [0, 100, 200, 300]
    assert (log_dir / "log-start-offset-checkpoint").read_text() == "0\n0\n"


def log_of(folder: Path, base: int, offsets: range, epochs: LeaderEpochs) -> Path:
    """Write a segment with a batch for each offset. The log is in ``folder``."""
    made = [build_batch([Record(b"%d" % at, None, at)], at) for at in offsets]
    write_segment(folder, made, partition=ORDERS, base_offset=base, leader_epochs=epochs)
    return folder


def test_a_part_of_a_segment_without_batches_hides_no_time(tmp_path: Path) -> None:
    """A broker takes the time of an empty segment from its file, and would return no offset for a time after it."""

    first = log_of(tmp_path / "one", 0, range(80, 100), ((0, 0),))
    second = log_of(tmp_path / "two", 60, range(80, 100), ((0, 0), (1, 80)))
    with fresh_bucket(tmp_path / "store", [first, second]) as bucket:
        log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
        assert restore(bucket, log_dir, prepared(ORDERS)) == [("restored", 0, 79), ("restored", 80, 99)]
    assert [int(path.stem) for path in sorted((log_dir / "orders-0").glob("*.log"))] == [80, 100]


def test_copies_of_two_leaders_are_one_log(tmp_path: Path) -> None:
    """The copies of two leaders overlap. The first copy is cut where the second leader's epoch begins."""

    first = log_of(tmp_path / "one", 0, range(100), ((0, 0),))
    second = log_of(tmp_path / "two", 60, range(60, 160), ((0, 0), (1, 80)))
    with fresh_bucket(tmp_path / "store", [first, second]) as bucket:
        log_dir = make_log_dir(tmp_path / "logs", {"orders": 1})
        assert restore(bucket, log_dir, prepared(ORDERS)) == [("restored", 0, 79), ("restored", 80, 159)]
    logs = sorted((log_dir / "orders-0").glob("*.log"))
    assert [at for log in logs for at in batches(log)] == [(at, at, 0) for at in range(160)]
    assert [describe(one).end_offset for one in discover(log_dir / "orders-0").segments] == [79, 159, -1]


@pytest.fixture
def crossing(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield a log with a transaction open since offset 2, and another transaction from offset 1 to 3."""
    one, two = Producer(1, 0, transactional=True), Producer(2, 0, transactional=True)
    made = [
        build_batch([Record(b"a")], 0),
        build_batch([Record(b"b")], 1, producer=two),
        build_batch([Record(b"c")], 2, producer=one),
        build_end_marker(3, two, commit=True),
    ]
    states = [ProducerState(1, 0, 0, 2, 0, 0, -1, 2)]
    write_segment(tmp_path / "disk", made, partition=ORDERS, producers=states)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as bucket:
        yield bucket


def test_open_transactions_are_refused_or_cut_off(crossing: ts.Bucket, tmp_path: Path) -> None:
    """A cut at offset 2 would leave the other transaction open, so the log is cut before both."""
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    refused(lambda: restore(crossing, log_dir, plan), ConfigError, "the first since offset 2")
    assert restore(crossing, log_dir, plan, RestoreOptions(open_transactions="cut")) == [
        ("left_out", 1, 3),
        ("restored", 0, 0),
    ]


def test_a_hole_is_named(tmp_path: Path) -> None:
    with fresh_bucket(tmp_path / "store", [TXN]) as bucket:
        bucket.remove("txn", partitions=0, segment=1209).apply()
        log_dir = make_log_dir(tmp_path / "logs", {"txn": 1})
        act = partial(restore, bucket, log_dir, prepared(partition_of(bucket)))
        refused(act, DataLossError, "offsets 1209 to 1814")
        assert not (log_dir / MARKER).exists()
        assert restore(bucket, log_dir, prepared(partition_of(bucket)), RestoreOptions(start=1815))[:2] == [
            ("left_out", 0, 1814),
            ("restored", 1815, 2419),
        ]


def test_damage_keeps_the_broker_away_until_a_run_without(txn: ts.Bucket, tmp_path: Path) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"txn": 1}), prepared(partition_of(txn))
    (log,) = (tmp_path / "store").rglob("00000000000000001209-*.log")
    content = log.read_bytes()
    log.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    refused(partial(restore, txn, log_dir, plan), BatchCorruptError, "the record batch at byte")
    assert (log_dir / MARKER).exists()
    log.write_bytes(content)
    assert {code for code, *_ in restore(txn, log_dir, plan)} == {"restored"}
    assert not (log_dir / MARKER).exists()


def refused(act: Callable[[], object], kind: type[TieredStoreError], words: str) -> None:
    with pytest.raises(kind) as caught:
        act()
    assert words in str(caught.value)


class KilledError(BaseException):
    """Error that acts like kill -9: no code catches it."""


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_killed_at_any_step_the_next_run_completes_it(
    thirds: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    plan, left, kinds = prepared(ORDERS, OTHER), 0, list[str]()
    # Do not sync: the process is killed, but not the machine, so written bytes stay. Syncing would take most of the
    # time.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    options = RestoreOptions(stop=300 if count == 1 else 100)

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def act(*arguments: Any, **keywords: Any) -> object:
            nonlocal left
            kinds.append(real.__name__)
            left -= 1
            if not left:
                raise KilledError
            return real(*arguments, **keywords)

        return act

    whole, log_dirs = make_disks(tmp_path / "whole", count)
    empty = tree(whole)

    def restore_dying() -> None:
        with monkeypatch.context() as patched:
            for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "rmdir"), (os, "chown")):
                patched.setattr(owner, name, dying(getattr(owner, name)))
            restore(thirds, log_dirs, plan, options)

    restore_dying()
    assert len(kinds) > 30
    for step in numbers_to_sweep(list(kinds)):
        left = step + 1
        root, log_dirs = make_disks(tmp_path / f"step{step}", count)
        with pytest.raises(KilledError):
            restore_dying()
        assert any((log_dir / MARKER).exists() for log_dir in log_dirs) or tree(root) in (empty, tree(whole))
        lost: set[str] = set()
        if any(map(unfinished_work, log_dirs)):
            # A broker that starts deletes the marks of an orderly shutdown, also in other directories, before it
            # refuses the folder.
            for mark in [log_dir / ".kafka_cleanshutdown" for log_dir in log_dirs]:
                if mark.exists():
                    mark.unlink()
                    lost.add(str(mark.relative_to(root)))
        restore(thirds, log_dirs, plan, options)
        assert tree(root) == {name: content for name, content in tree(whole).items() if name not in lost}


def make_disks(root: Path, count: int) -> tuple[Path, list[Path]]:
    """Make log directories of one broker, with partition 1 in the last one; return their parent folder, and the
    directories.

    The directories have a lock file, which a broker of Kafka 3.9 leaves behind after a crash.
    """
    root.mkdir()
    log_dirs = [make_log_dir(root / f"disk{number}", {"orders": 1}) for number in range(count)]
    (make_log_dir(root / "another", {"orders": 2}) / "orders-1").rename(log_dirs[-1] / "orders-1")
    shutil.rmtree(root / "another")
    if count > 1:
        shutil.rmtree(log_dirs[-1] / "orders-0")
    for log_dir in log_dirs:
        (log_dir / ".lock").touch()
    return root, log_dirs


def test_a_partition_in_none_of_the_directories_is_an_error(thirds: ts.Bucket, tmp_path: Path) -> None:
    root, (first, second) = make_disks(tmp_path / "root", 2)
    before, plan = tree(root), prepared(ORDERS, OTHER)
    refused(
        lambda: restore(thirds, first, plan), ConfigError,
        f"orders-1 of broker 1 has no folder in {first}: name all log directories of the broker (log.dirs)",
    )  # fmt: skip
    refused(lambda: restore(thirds, second, plan, dry_run=True), ConfigError, "orders-0 of broker 1 has no folder in")
    foreign = make_log_dir(tmp_path / "foreign", {}, broker=2)
    refused(
        lambda: restore(thirds, [first, second, foreign], plan), ConfigError,
        f"belong to several brokers: {first} (1), {second} (1), {foreign} (2); restore one broker at a time",
    )  # fmt: skip
    assert tree(root) == before


_HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_log_directory_that_is_not_ready_is_refused(
    txn: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = prepared(partition_of(txn))
    log_dir = make_log_dir(tmp_path / "logs", {"txn": 1})
    before = tree(log_dir)

    def attempt(options: RestoreOptions = ALL, of: PreparedRestore = plan) -> Callable[[], object]:
        return lambda: restore(txn, log_dir, of, options)

    refused(lambda: restore(txn, tmp_path, plan), ConfigError, "has no meta.properties")
    (log_dir / ".lock").touch()
    command = [sys.executable, "-c", _HOLDER, str(log_dir / ".lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        refused(attempt(), ConfigError, "a broker is running in")
        holder.kill()
    (log_dir / ".lock").unlink()
    (log_dir / ".kafka_cleanshutdown").rename(log_dir / "aside")
    refused(attempt(), ConfigError, "stop it by kafka-server-stop")
    (log_dir / "aside").rename(log_dir / ".kafka_cleanshutdown")
    refused(attempt(of=prepared(partition_of(txn), brokers=(1, 2))), ConfigError, "has 2 replicas")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
        refused(attempt(), ConfigError, "has 1.0 MiB free")
    assert tree(log_dir) == before
    (log_dir / "txn-0" / f"{0:020d}.log").write_bytes(b"a log of its own")
    refused(attempt(), ConfigError, "has another log already (16 B): restore into a new topic")
    (log_dir / "meta.properties").write_text("cluster.id=another\nnode.id=1\n")
    refused(attempt(), ConfigError, f"belongs to another cluster; the restore was prepared for the cluster {CLUSTER}")
