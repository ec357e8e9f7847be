from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.segments import ALL_SEGMENTS, CASES, GoldenSegment, segments
from tests.support.paths import GOLDEN
from tests.support.work import least_traced_peak
from tieredstore.errors import BatchCorruptError, ConfigError, InvalidSegmentError, TieredStoreError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.logdir import FoundSegment, describe, discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import PARTITION, build_segment, write_segment


def batch(offset: int, timestamp: int = 1000) -> bytes:
    return build_batch([Record(b"value", timestamp_ms=timestamp), Record(b"value", timestamp_ms=timestamp + 5)], offset)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Make two closed segments, at offsets 0 and 4, of ``events-0``."""
    write_segment(tmp_path, [batch(0), batch(2)])
    write_segment(tmp_path, [batch(4), batch(6)], base_offset=4)
    return tmp_path


def found_in(log_dir: Path, base_offset: int) -> FoundSegment:
    (segment_file,) = (segment for segment in discover(log_dir).segments if segment.base_offset == base_offset)
    return segment_file


def manifest(segment: GoldenSegment) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(segment.stored("rsm-manifest").read_bytes())
    return read


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_golden_segments_are_described_as_the_broker_did(segment: GoldenSegment) -> None:
    described = describe(found_in(segment.directory, segment.base_offset))
    wrote = manifest(segment)
    expected = wrote["remoteLogSegmentMetadata"]
    metadata = described.to_metadata(Uuid.parse(segment.segment_id), 1, expected["eventTimestampMs"])
    assert str(metadata.remote_log_segment_id.id) == expected["remoteLogSegmentId"]["id"]
    assert metadata.topic_id_partition == TopicIdPartition(
        Uuid.parse(segment.topic_id), segment.topic, segment.partition
    )
    assert (metadata.start_offset, metadata.end_offset) == (expected["startOffset"], expected["endOffset"])
    assert metadata.max_timestamp_ms == expected["maxTimestampMs"]
    assert [[str(epoch), start] for epoch, start in metadata.segment_leader_epochs] == [
        [epoch, start] for epoch, start in expected["segmentLeaderEpochs"].items()
    ]
    assert metadata.txn_idx_empty is expected["txnIdxEmpty"]
    assert metadata.segment_size_in_bytes == wrote["chunkIndex"]["originalFileSize"]
    assert (metadata.broker_id, metadata.event_timestamp_ms) == (expected["brokerId"], expected["eventTimestampMs"])
    assert not described.active


@pytest.mark.parametrize("segment", [s for s in ALL_SEGMENTS if "encryption" not in manifest(s)], ids=str)
def test_golden_segments_have_the_index_bytes_that_the_broker_uploaded(segment: GoldenSegment) -> None:
    files = describe(found_in(segment.directory, segment.base_offset)).files
    transaction = files.transaction_index.read_bytes() if files.transaction_index else b""
    in_order = [path.read_bytes() for path in (files.offset_index, files.time_index, files.producer_snapshot_index)]
    assert b"".join([*in_order, files.leader_epoch_index, transaction]) == segment.stored("indexes").read_bytes()
    assert (files.transaction_index is None) == (manifest(segment)["segmentIndexes"]["transaction"] is None)


@pytest.mark.parametrize("case", CASES)
def test_all_segments_of_a_golden_log_directory_are_found_in_order(case: str) -> None:
    discovery = discover(GOLDEN / case / "original")
    assert [(s.topic, s.partition, s.base_offset) for s in discovery.segments] == [
        (s.topic, s.partition, s.base_offset) for s in segments(case)
    ]
    assert discovery.left_alone == ()


def test_one_log_file_is_one_segment_that_knows_the_next(log_dir: Path) -> None:
    (segment,) = discover(log_dir / "events-0" / f"{0:020d}.log").segments
    assert (segment.base_offset, segment.next_base_offset) == (0, 4)
    assert str(segment) == "events-0 at offset 0"


def test_a_relative_path_is_as_good(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log_dir / "events-0")
    assert [s.base_offset for s in discover(Path()).segments] == [0, 4]
    assert [s.base_offset for s in discover(Path(f"{4:020d}.log")).segments] == [4]


def test_topics_may_have_dashes_and_dots_and_a_log_directory_a_number(tmp_path: Path) -> None:
    log_dir = tmp_path / "data-0"
    for topic, partition in (("a-b.c_d", 12), ("a-1", 2), ("a-delete", 0)):
        write_segment(log_dir, [batch(0)], partition=TopicIdPartition(PARTITION.topic_id, topic, partition))
    discovery = discover(log_dir)
    assert [(s.topic, s.partition) for s in discovery.segments] == [("a-1", 2), ("a-b.c_d", 12), ("a-delete", 0)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("events-0.3f1c9a-delete", "marked delete"),
        ("events-0.3f1c9a-future", "marked future"),
        ("events-0.3f1c9a-stray", "marked stray"),
        ("lost+found", "not named"),
        ("events-007", "not named"),
        ("events", "not named"),
        ("__consumer_offsets-3", "internal topic"),
        ("__cluster_metadata-0", "internal topic"),
    ],
)
def test_other_directories_are_left_alone_and_said_so(log_dir: Path, name: str, reason: str) -> None:
    shutil.copytree(log_dir / "events-0", log_dir / name)
    discovery = discover(log_dir)
    assert len(discovery.segments) == 2
    ((path, said),) = ((left.path, left.reason) for left in discovery.left_alone)
    assert path == log_dir / name
    assert reason in said


def test_files_of_the_broker_are_not_taken_for_segments(log_dir: Path) -> None:
    for name in (f"{0:020d}.log.deleted", f"{0:020d}.log.cleaned", f"{0:020d}.log.swap", "1.log", f"{9:020d}.log.bak"):
        (log_dir / "events-0" / name).write_bytes(b"")
    (log_dir / "meta.properties").write_text("node.id=1")
    discovery = discover(log_dir)
    assert [s.base_offset for s in discovery.segments] == [0, 4]
    assert [left.path.suffix for left in discovery.left_alone] == [".cleaned", ".deleted", ".swap"]


def test_an_internal_topic_is_found_in_its_folder(log_dir: Path) -> None:
    shutil.copytree(log_dir / "events-0", log_dir / "__consumer_offsets-3")
    assert len(discover(log_dir / "__consumer_offsets-3").segments) == 2


def test_paths_that_are_no_log_directory_are_refused(log_dir: Path) -> None:
    (log_dir / "events-0").rename(log_dir / "nameless")
    with pytest.raises(ConfigError, match="not a directory or"):
        discover(log_dir / "absent")
    with pytest.raises(ConfigError, match="20 digits"):
        discover(log_dir / "nameless" / "partition.metadata")
    with pytest.raises(ConfigError, match="not <topic>-<partition>"):
        discover(log_dir / "nameless")


def test_a_directory_that_cannot_be_listed_is_an_error_that_names_it(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(ConfigError, match=f"{log_dir} cannot be listed: Permission denied"):
        discover(log_dir)


def test_a_partition_that_is_deleted_while_others_are_listed_is_no_error(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(log_dir / "events-0", log_dir / "gone-0")
    listed = os.listdir(log_dir)  # noqa: PTH208
    shutil.rmtree(log_dir / "gone-0")
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed if path == log_dir else real(path))
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)
    assert {segment.topic for segment in discover(log_dir).segments} == {"events"}


def test_finding_opens_no_log_and_describing_opens_one(log_dir: Path) -> None:
    (log_dir / "events-0" / f"{0:020d}.log").write_bytes(b"not a log at all, but long enough")
    assert len(discover(log_dir).segments) == 2
    assert describe(found_in(log_dir, 4)).end_offset == 7
    with pytest.raises(BatchCorruptError):
        describe(found_in(log_dir, 0))


def unlink(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def append(name: str, data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(data)

    return change


def replace_metadata_by_a_folder(folder: Path) -> None:
    (folder / "partition.metadata").unlink()
    (folder / "partition.metadata").mkdir()


FIRST, LAST = f"{0:020d}", f"{4:020d}"
# The segment, the change of its folder, and the error message.
INVALID: dict[str, tuple[int, Callable[[Path], object], str]] = {
    **{
        f"no {name}": (0, unlink(name), name)
        for name in (
            f"{FIRST}.index", f"{FIRST}.timeindex", f"{FIRST}.log", f"{LAST}.snapshot", "partition.metadata",
            "leader-epoch-checkpoint",
        )
    },
    "a file that cannot be read": (0, replace_metadata_by_a_folder, "cannot be read"),
    "a log that reaches into the next": (
        0, append(f"{FIRST}.log", batch(4)), "ends at offset 5, but the next segment begins at 4",
    ),
    "a batch before the base": (
        4, lambda folder: (folder / f"{LAST}.log").write_bytes(batch(3)), "offset 3, before its base offset",
    ),
    "a closed log that ends in zeros": (0, append(f"{FIRST}.log", bytes(5000)), "5000 bytes of zeros"),
    "no leader epoch": (
        0, lambda folder: (folder / "leader-epoch-checkpoint").write_bytes(b"0\n1\n3 4\n"), "has deleted the records",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_segment_is_refused_with_a_reason(log_dir: Path, case: str) -> None:
    base_offset, change, words = INVALID[case]
    segment = found_in(log_dir, base_offset)
    change(segment.directory)
    with pytest.raises(InvalidSegmentError, match=re.escape(words)):
        describe(segment)


ACTIVE: dict[str, Callable[[Path], object]] = {
    "preallocated index": append(f"{LAST}.index", bytes(24 * 100)),
    "preallocated timeindex": append(f"{LAST}.timeindex", bytes(24 * 100)),
    "its log is not read, since it may end anywhere": lambda folder: (
        (folder / f"{LAST}.index").write_bytes(bytes(10 * 1024 * 1024)), append(f"{LAST}.log", batch(8)[:-3])(folder),
    ),
    "a producer snapshot of another offset": lambda folder: (
        (folder / f"{8:020d}.snapshot").rename(folder / f"{7:020d}.snapshot")
    ),
    "no producer snapshot": unlink(f"{8:020d}.snapshot"),
}  # fmt: skip


@pytest.mark.parametrize("case", ACTIVE)
def test_the_last_segment_is_active_until_it_is_closed(log_dir: Path, case: str) -> None:
    segment = found_in(log_dir, 4)
    assert not describe(segment).active
    ACTIVE[case](segment.directory)
    described = describe(segment)
    assert described.active
    assert (described.end_offset, described.max_timestamp_ms, described.segment_leader_epochs) == (-1, -1, ())
    with pytest.raises(InvalidSegmentError, match="is active"):
        _ = described.files


def test_an_empty_last_log_is_active(log_dir: Path) -> None:
    (log_dir / "events-0" / f"{8:020d}.log").write_bytes(b"")
    for suffix in ("index", "timeindex"):
        (log_dir / "events-0" / f"{8:020d}.{suffix}").write_bytes(b"")
    assert describe(found_in(log_dir, 8)).active


def test_a_closed_segment_ends_before_the_next_even_if_compaction_emptied_it(tmp_path: Path) -> None:
    write_segment(tmp_path, [], end_offset=9)
    write_segment(tmp_path, [batch(10)], base_offset=10)
    described = describe(found_in(tmp_path, 0))
    assert (described.end_offset, described.size_in_bytes, described.max_timestamp_ms) == (9, 0, -1)
    assert described.segment_leader_epochs == ((0, 0),)
    assert not described.active


def test_the_greatest_timestamp_may_be_in_the_middle(tmp_path: Path) -> None:
    assert write_segment(tmp_path, [batch(0, 5), batch(2, 900), batch(4, 7)]).max_timestamp_ms == 905


def test_a_segment_behind_the_start_of_the_log_keeps_its_epoch(log_dir: Path) -> None:
    (log_dir / "events-0" / "leader-epoch-checkpoint").write_bytes(b"0\n1\n3 4\n")
    assert describe(found_in(log_dir, 4)).segment_leader_epochs == ((3, 4),)


def test_an_empty_transaction_index_is_a_file_and_empty(log_dir: Path) -> None:
    segment = found_in(log_dir, 0)
    assert (describe(segment).files.transaction_index, describe(segment).txn_idx_empty) == (None, True)
    segment.path("txnindex").write_bytes(b"")
    described = describe(segment)
    assert (described.files.transaction_index, described.txn_idx_empty) == (segment.path("txnindex"), True)
    segment.path("txnindex").write_bytes(bytes(34))
    assert not describe(segment).txn_idx_empty


def test_a_base_offset_beyond_63_bits_is_refused(log_dir: Path) -> None:
    (log_dir / "events-0" / f"{2**63}.log".zfill(24)).write_bytes(b"")
    with pytest.raises(InvalidSegmentError, match="at most 63 bits"):
        discover(log_dir)


def test_headers_are_found_across_the_pieces_in_which_a_log_is_read(tmp_path: Path) -> None:
    sizes = [200, 65_400, 100, 70_000, 65_535, 65_536, 10, 300_000, 1]
    batches = [build_batch([Record(bytes(size), timestamp_ms=size)], i) for i, size in enumerate(sizes)]
    described = write_segment(tmp_path, batches)
    assert (described.end_offset, described.max_timestamp_ms) == (8, 300_000)
    log = described.files.log_segment.read_bytes()
    assert [header.base_offset for header in read_batch_headers(log)] == list(range(9))


@pytest.mark.slow
def test_describing_a_big_segment_takes_little_memory(tmp_path: Path) -> None:
    build_segment(tmp_path, 16 * 1024 * 1024)
    segment = found_in(tmp_path, 0)
    assert least_traced_peak(lambda: describe(segment)) < 1024 * 1024


def test_every_failure_is_one_of_the_librarys(log_dir: Path) -> None:
    segment = found_in(log_dir, 0)
    for path in sorted(segment.directory.iterdir()):
        kept = path.read_bytes()
        path.write_bytes(b"\xff" * 50)
        with suppress(TieredStoreError):
            assert describe(segment).base_offset == 0
        path.write_bytes(kept)
