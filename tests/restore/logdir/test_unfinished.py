"""A restore that stopped in the middle, followed by the same restore, by another restore, or by a broker's start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tieredstore as ts
from tests.restore.logdir.log_dirs import ALL, NEW_ID, fresh_bucket, make_log_dir, prepared, restore, tree, with_logs
from tieredstore.errors import BatchCorruptError, ConfigError, DataLossError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.logdir import partition_restore, restoring
from tieredstore.restore.logdir.log_directory import MARKER
from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedRestore
from tieredstore.restore.logdir.restoring import RestoreOptions
from tieredstore.restore.logdir.segment_copy import copy_span
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

ORDERS, SALES = (TopicIdPartition(Uuid(name * 2), name.decode().strip("-"), 0) for name in (b"orders--", b"sales---"))
CLEAN = ".kafka_cleanshutdown"


class StoppedError(BaseException):
    """Stands for kill -9."""


def write(disk: Path, partition: TopicIdPartition, base: int) -> None:
    batches = [build_batch([Record(b"v" * 100)] * 10, offset) for offset in range(base, base + 100, 10)]
    write_segment(disk, batches, partition=partition, base_offset=base)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ts.Bucket]:
    """Yield two topics of three segments with a hundred records each."""
    for partition in (ORDERS, SALES):
        for base in (0, 100, 200):
            write(tmp_path / "disk", partition, base)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as opened:
        yield opened


def stop_after(
    segments: int,
    bucket: ts.Bucket,
    log_dirs: Path | Sequence[Path],
    plan: PreparedRestore,
    options: RestoreOptions = ALL,
) -> None:
    """Start a restore that dies after this number of segments."""
    real, left = copy_span, segments

    def dying(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoppedError
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_restore, "copy_span", dying)
        with pytest.raises(StoppedError):
            restore(bucket, log_dirs, plan, options)
    several = [log_dirs] if isinstance(log_dirs, Path) else log_dirs
    assert all((log_dir / MARKER).exists() for log_dir in several)


TOPICS = {"orders": 1, "sales": 1}


def test_the_start_of_a_broker_in_between_takes_nothing(bucket: ts.Bucket, tmp_path: Path) -> None:
    """The broker deletes the mark of an orderly shutdown before it refuses the folder."""
    log_dir = make_log_dir(tmp_path / "logs", TOPICS)
    mark = (log_dir / CLEAN).read_bytes()
    stop_after(2, bucket, log_dir, prepared(ORDERS, SALES))
    assert not (log_dir / CLEAN).exists()
    assert restore(bucket, log_dir, prepared(ORDERS, SALES), dry_run=True)[-1][0] == "restored"
    restore(bucket, log_dir, prepared(ORDERS, SALES))
    assert (log_dir / CLEAN).read_bytes() == mark
    assert not (log_dir / MARKER).exists()


@pytest.mark.parametrize(("base", "start"), [(0, 100), (5, None)])
def test_an_empty_segment_of_the_broker_does_not_stay(
    bucket: ts.Bucket, tmp_path: Path, base: int, start: int | None
) -> None:
    """The restore of an earlier release left the segment until the end."""
    log_dir, options = make_log_dir(tmp_path / "logs", TOPICS), RestoreOptions(start=start)
    stop_after(1, bucket, log_dir, prepared(ORDERS), options)
    for suffix in ("log", "index", "timeindex"):
        (log_dir / "orders-0" / f"{base:020d}.{suffix}").touch()
    restore(bucket, log_dir, prepared(ORDERS), options)
    assert [int(path.stem) for path in sorted((log_dir / "orders-0").glob("*.log"))] == [*range(start or 0, 301, 100)]


def test_without_the_mark_the_way_out_is_named(bucket: ts.Bucket, tmp_path: Path) -> None:
    """A broker deletes the mark if it starts after the restore made its folder, and before the mark was moved there.
    It does so in all its directories."""
    log_dir, another = make_log_dir(tmp_path / "logs", TOPICS), make_log_dir(tmp_path / "another", {})
    (log_dir / MARKER).mkdir()
    for folder in (log_dir, another):
        (folder / CLEAN).unlink()
        with pytest.raises(ConfigError, match=f"remove the folder {log_dir / MARKER}, start its broker"):
            restore(bucket, [another, log_dir], prepared(ORDERS))
        (folder / CLEAN).touch()


def test_the_start_of_a_broker_in_between_takes_nothing_from_its_other_directories(
    bucket: ts.Bucket, tmp_path: Path
) -> None:
    """The broker deletes the mark of another directory, which has no partition to restore, before it refuses."""
    log_dir, another = make_log_dir(tmp_path / "logs", TOPICS), make_log_dir(tmp_path / "another", {})
    stop_after(2, bucket, [another, log_dir], prepared(ORDERS, SALES))
    assert not (another / CLEAN).exists()
    restore(bucket, [another, log_dir], prepared(ORDERS, SALES))
    assert (another / CLEAN).read_bytes() == (log_dir / CLEAN).read_bytes()
    assert not (another / MARKER).exists()


def test_a_lost_mark_of_another_directory_does_not_keep_the_restore_from_completing(
    bucket: ts.Bucket, tmp_path: Path
) -> None:
    """The broker has started between the folders of two directories, or after one of them was released. It cannot
    start again before the restore is complete."""
    log_dir, another = make_log_dir(tmp_path / "logs", TOPICS), make_log_dir(tmp_path / "another", {})
    stop_after(2, bucket, log_dir, prepared(ORDERS, SALES))
    (another / CLEAN).unlink()
    stop_after(1, bucket, [another, log_dir], prepared(ORDERS, SALES))
    restore(bucket, [another, log_dir], prepared(ORDERS, SALES))
    assert not [*tmp_path.glob(f"*/{MARKER}")]
    assert (log_dir / CLEAN).exists()


@pytest.mark.parametrize("plan", [prepared(ORDERS), prepared(ORDERS, SALES)])
def test_another_restore_does_not_end_it(bucket: ts.Bucket, tmp_path: Path, plan: PreparedRestore) -> None:
    log_dir = make_log_dir(tmp_path / "logs", TOPICS)
    restore(bucket, log_dir, prepared(ORDERS))
    stop_after(1, bucket, log_dir, prepared(SALES))
    before = tree(log_dir)
    with pytest.raises(ConfigError, match="has an unfinished restore of sales: complete it first"):
        restore(bucket, log_dir, replaced_ids(plan))
    assert tree(log_dir) == before


@pytest.mark.parametrize("damaged", [b"", b"[]", b'{"topics": {"id": 1}, "options": ""}', b"\xff"])
def test_a_damaged_description_of_an_unfinished_restore_is_told(
    bucket: ts.Bucket, tmp_path: Path, damaged: bytes
) -> None:
    log_dir = make_log_dir(tmp_path / "logs", TOPICS)
    stop_after(1, bucket, log_dir, prepared(ORDERS))
    (log_dir / MARKER / "work.json").write_bytes(damaged)
    before = tree(log_dir)
    with pytest.raises(
        ConfigError, match=r"unfinished restore, but its description is damaged .* another log directory"
    ):
        restore(bucket, log_dir, prepared(ORDERS))
    assert tree(log_dir) == before


def replaced_ids(plan: PreparedRestore) -> PreparedRestore:
    """Return the plan with other topic ids."""
    ids = (str(Uuid(b"replacing%7d" % number)) for number in range(len(plan.topics)))
    return replace(plan, topics=tuple(map(lambda topic, new: replace(topic, topic_id=new), plan.topics, ids)))


@pytest.mark.slow
@pytest.mark.parametrize("written", [1, 3])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ALL, RestoreOptions(stop=150)),
        (ALL, RestoreOptions(stop=5)),
        (ALL, RestoreOptions(start=250)),
        (ALL, RestoreOptions(producer_states="keep")),
        (RestoreOptions(start=100), ALL),
        (RestoreOptions(stop=150), ALL),
    ],
)
def test_it_can_be_completed_with_other_options(
    bucket: ts.Bucket, tmp_path: Path, first: RestoreOptions, then: RestoreOptions, written: int
) -> None:
    plan = prepared(ORDERS, SALES)
    stopped, log_dir = make_log_dir(tmp_path / "stopped", TOPICS), make_log_dir(tmp_path / "logs", TOPICS)
    stop_after(written, bucket, stopped, plan, first)
    restore(bucket, stopped, plan, then)
    restore(bucket, log_dir, plan, then)
    assert logs(stopped) == logs(log_dir)
    assert not (stopped / MARKER).exists()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(PreparedPartition((1,), 0, 0), id="the bucket has no log of it"),
        pytest.param(PreparedPartition((2,), 0, 300), id="the plan has it on broker 2, and it was moved since"),
    ],
)
def test_another_log_of_the_topic_is_never_emptied(bucket: ts.Bucket, tmp_path: Path, other: PreparedPartition) -> None:
    """A producer wrote to partition 1 before the broker was stopped."""
    log_dir, (topic,) = make_log_dir(tmp_path / "logs", {"orders": 2}), prepared(ORDERS).topics
    topic = replace(topic, partitions=(*topic.partitions, other))
    plan = replace(prepared(ORDERS), topics=(topic,))
    write(log_dir, TopicIdPartition(NEW_ID, "orders", 1), 0)
    before = tree(log_dir / "orders-1")
    stop_after(1, bucket, log_dir, plan, RestoreOptions(stop=150))
    restore(bucket, log_dir, plan)
    assert tree(log_dir / "orders-1") == before


def test_another_log_outside_of_the_window_is_refused(bucket: ts.Bucket, tmp_path: Path) -> None:
    """If this restore were killed, a restore with another window would empty the partition."""
    write(tmp_path / "more", replace(ORDERS, partition=1), 0)
    bucket.upload(tmp_path / "more")
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 2}), prepared(ORDERS, replace(ORDERS, partition=1))
    write(log_dir, TopicIdPartition(NEW_ID, "orders", 1), 0)
    before = tree(log_dir)
    with pytest.raises(ConfigError, match="orders-1 has another log already"):
        restore(bucket, log_dir, plan, RestoreOptions(start=250))
    assert tree(log_dir) == before


def logs(log_dir: Path) -> dict[str, bytes | set[bytes]]:
    """Return the files as a broker reads them, which takes a missing checkpoint entry of a partition for offset 0."""
    found = tree(log_dir)
    segments = {name: content for name, content in found.items() if "/" in name and content}
    checkpoints = [name for name in found if "/" not in name and name.endswith("-checkpoint")]
    entries = {name: {line for line in found[name].splitlines() if line.count(b" ") == 2} for name in checkpoints}
    moved = {name: {line for line in lines if line[-2:] != b" 0"} for name, lines in entries.items()}
    return segments | {name: lines for name, lines in moved.items() if lines}


def test_a_bucket_that_has_shrunk_meanwhile(bucket: ts.Bucket, tmp_path: Path) -> None:
    """The last segment is gone. The error names the loss, because the host of another broker may have restored this
    segment before.
    """
    log_dir, plan = make_log_dir(tmp_path / "logs", TOPICS), with_logs(prepared(ORDERS, SALES), bucket)
    stop_after(4, bucket, log_dir, plan)
    bucket.remove("orders", partitions=0, segment=200).apply()
    with pytest.raises(DataLossError, match=r"offsets 200 to 299 of orders-0 .* are in no segment any more, since"):
        restore(bucket, log_dir, plan)
    restore(bucket, log_dir, plan, RestoreOptions(stop=200))
    kept = [path for path in sorted((log_dir / "orders-0").glob("*.log")) if path.stat().st_size]
    assert [int(path.stem) for path in kept] == [0, 100]
    assert [header.base_offset for header in read_batch_headers(kept[1].read_bytes())][-1] == 190


def test_segments_that_are_copied_anew_meanwhile(bucket: ts.Bucket, tmp_path: Path) -> None:
    """A restored segment differs from the bucket's, so it is written again."""
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    stop_after(2, bucket, log_dir, plan)
    log = log_dir / "orders-0" / f"{100:020d}.log"
    log.write_bytes(log.read_bytes() + bytes(5))
    restore(bucket, log_dir, plan)
    restore(bucket, make_log_dir(tmp_path / "whole", {"orders": 1}), plan)
    assert logs(log_dir) == logs(tmp_path / "whole")


@pytest.mark.parametrize(("offset", "suffix"), [(100, "log"), (100, "index"), (100, "timeindex"), (200, "snapshot")])
def test_a_segment_that_is_damaged_meanwhile_is_written_again(
    bucket: ts.Bucket, tmp_path: Path, offset: int, suffix: str
) -> None:
    """The damaged file has the right size."""
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    stop_after(2, bucket, log_dir, plan)
    flip_bit(log_dir / "orders-0" / f"{offset:020d}.{suffix}")
    restore(bucket, log_dir, plan)
    restore(bucket, make_log_dir(tmp_path / "whole", {"orders": 1}), plan)
    assert logs(log_dir) == logs(tmp_path / "whole")


def test_a_missing_index_is_written_again(bucket: ts.Bucket, tmp_path: Path) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    stop_after(2, bucket, log_dir, plan)
    (log_dir / "orders-0" / f"{100:020d}.index").unlink()
    restore(bucket, log_dir, plan)
    restore(bucket, make_log_dir(tmp_path / "whole", {"orders": 1}), plan)
    assert logs(log_dir) == logs(tmp_path / "whole")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_damaged_log_is_not_taken_for_a_restored_one(bucket: ts.Bucket, tmp_path: Path, *, dry_run: bool) -> None:
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    restore(bucket, log_dir, plan)
    flip_bit(path := log_dir / "orders-0" / f"{100:020d}.log")
    with pytest.raises(BatchCorruptError, match=rf"^{path}: the record batch at .*; restore into a new topic$"):
        restore(bucket, log_dir, plan, dry_run=dry_run)


def test_a_segment_without_batches_has_no_log_to_check(tmp_path: Path) -> None:
    """Compaction may remove all batches of a segment."""
    write(tmp_path / "disk", ORDERS, 0)
    write_segment(tmp_path / "disk", [], partition=ORDERS, base_offset=100, end_offset=199)
    write(tmp_path / "disk", ORDERS, 200)
    log_dir, plan = make_log_dir(tmp_path / "logs", {"orders": 1}), prepared(ORDERS)
    with fresh_bucket(tmp_path / "store", [tmp_path / "disk"]) as opened:
        restore(opened, log_dir, plan)
        assert {code for code, *_ in restore(opened, log_dir, plan)} == {"there"}


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_bucket_that_grows_meanwhile(bucket: ts.Bucket, tmp_path: Path) -> None:
    """The hosts of two replicas write the same log, one before and one after the bucket grows."""
    plan = with_logs(prepared(ORDERS, brokers=(1, 2)), bucket)
    options = RestoreOptions(replicas=True)
    first, second = (make_log_dir(tmp_path / f"logs{one}", {"orders": 1}, broker=one) for one in (1, 2))
    restore(bucket, first, plan, options)
    write(tmp_path / "disk", ORDERS, 300)
    write(tmp_path / "disk", TopicIdPartition(ORDERS.topic_id, "orders", 1), 0)
    bucket.upload(tmp_path / "disk")
    restore(bucket, second, plan, options)
    assert logs(first) == logs(second)
    restore(bucket, second, plan, options)


def test_what_is_there_needs_no_space(bucket: ts.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = make_log_dir(tmp_path / "logs", TOPICS)
    size = 6 * (tmp_path / "disk" / "orders-0" / f"{0:020d}.log").stat().st_size
    stop_after(4, bucket, log_dir, prepared(ORDERS, SALES))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=restoring._MARGIN + size // 2))  # pyright: ignore[reportPrivateUsage]
    assert restore(bucket, log_dir, prepared(ORDERS, SALES))[-1] == ("restored", 200, 299)
