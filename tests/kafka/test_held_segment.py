from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.open_files import open_below
from tieredstore.errors import BatchCorruptError, InvalidSegmentError
from tieredstore.kafka.checkpoints import LeaderEpochs, join_epochs, parse_leader_epochs
from tieredstore.kafka.held_segment import OpenSegment, SegmentIncompleteError, describe_open, open_segment
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT as CHECKPOINT
from tieredstore.kafka.logdir import PARTITION_METADATA, FoundSegment, RecordsDeletedError, describe, discover_deleted
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import PARTITION, write_segment

EPOCHS: LeaderEpochs = ((0, 0), (2, 4), (3, 6))
Opener = Callable[[int], OpenSegment]


def batch(offset: int, epoch: int) -> bytes:
    return build_batch([Record(b"value", timestamp_ms=1000 + offset)] * 2, offset, leader_epoch=epoch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make segments at offsets 0, 4 and 8, the last one active. Epochs 0, 2 and 3 begin at offsets 0, 4 and 6."""
    write_segment(tmp_path, [batch(0, 0), batch(2, 0)], leader_epochs=EPOCHS)
    write_segment(tmp_path, [batch(4, 2), batch(6, 3)], base_offset=4, leader_epochs=EPOCHS)
    write_segment(tmp_path, [batch(8, 3)], base_offset=8, leader_epochs=EPOCHS)
    return tmp_path / "events-0"


@pytest.fixture
def opened(folder: Path) -> Iterator[Opener]:
    held: list[OpenSegment] = []

    def open_at(base_offset: int) -> OpenSegment:
        (segment,) = (segment for segment in discover_deleted(folder) if segment.base_offset == base_offset)
        held.append(open_segment(segment))
        return held[-1]

    yield open_at
    for segment in held:
        segment.close()


def mark_deleted(folder: Path, base_offset: int, next_base_offset: int) -> None:
    """Rename a segment's files as the broker does before it deletes them."""
    names = [f"{base_offset:020d}{suffix}" for suffix in (".log", ".index", ".timeindex", ".txnindex")]
    for name in [*names, f"{next_base_offset:020d}.snapshot"]:
        if (folder / name).exists():
            (folder / name).rename(folder / f"{name}.deleted")


def test_an_open_segment_is_described_as_its_files_are(folder: Path, opened: Opener) -> None:
    held = opened(4)
    by_name, by_file = describe(held.place), describe_open(held, PARTITION.topic_id, EPOCHS, check_crcs=True)
    for name in ("topic_id", "base_offset", "end_offset", "size_in_bytes", "max_timestamp_ms", "segment_leader_epochs"):
        assert getattr(by_file, name) == getattr(by_name, name)
    assert by_file.files.leader_epoch_index == by_name.files.leader_epoch_index
    for name in ("log_segment", "offset_index", "time_index", "producer_snapshot_index"):
        assert getattr(by_file.files, name).read_bytes() == getattr(by_name.files, name).read_bytes()


def test_an_open_segment_outlives_its_names(folder: Path, opened: Opener) -> None:
    held = opened(0)
    expected = describe_open(held, PARTITION.topic_id, EPOCHS)
    log = held.log.read_bytes()
    for path in folder.iterdir():
        path.unlink()
    assert os.fstat(held.log.descriptor).st_nlink == 0
    assert describe_open(held, PARTITION.topic_id, EPOCHS) == expected
    with held.log.open() as reader:
        assert (reader.seek(3), reader.read(4), reader.seek(-2, os.SEEK_END), reader.read()) == (
            3, log[3:7], len(log) - 2, log[-2:],
        )  # fmt: skip


def test_a_segment_marked_deleted_is_found_and_opened(folder: Path, opened: Opener) -> None:
    mark_deleted(folder, 0, 4)
    assert [(s.base_offset, s.next_base_offset, s.is_deleted) for s in discover_deleted(folder)] == [
        (0, 4, True), (4, 8, False), (8, None, False),
    ]  # fmt: skip
    assert describe_open(opened(0), PARTITION.topic_id, EPOCHS).end_offset == 3


@pytest.mark.parametrize("renamed", [0, 1, 2, 3, 4])
def test_names_may_change_while_a_segment_is_opened(folder: Path, renamed: int) -> None:
    before = discover_deleted(folder)[0]
    mark_deleted(folder, 0, 4)
    after = discover_deleted(folder)[0]
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".deleted"))
    for name in names[renamed:]:
        (folder / name).rename(folder / name.removesuffix(".deleted"))
    for segment in (before, after):
        open_segment(segment).close()


def renaming_open(renames: list[tuple[Path, Path]], *steps: tuple[int, int]) -> Callable[..., int]:
    """Return an ``os.open`` that makes the next renames of each step (number of the call, most renames) before it opens
    the file.
    """
    real, opens = os.open, itertools.count()

    def open_(path: Any, *args: Any, **options: Any) -> int:
        at = next(opens)
        for due_at, most in steps:
            for _ in range(min(most, len(renames)) if at == due_at else 0):
                before, after = renames.pop(0)
                before.rename(after)
        return real(path, *args, **options)

    return open_


def test_files_from_before_and_after_a_compaction_are_not_opened_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker marks the old files as deleted, then gives the new files their names. It does so in two steps, each
    before the uploader opens a file. The second step may also come after the last index is open.
    """
    mixed = 0
    for number, (first_at, count, rest_at) in enumerate(itertools.product(range(5), range(7), (*range(6), 8))):
        write_segment(tmp_path / str(number), [batch(0, 0)], leader_epochs=((0, 0),))
        write_segment(tmp_path / str(number), [batch(2, 0)], base_offset=2, leader_epochs=((0, 0),))
        folder = tmp_path / str(number) / "events-0"
        segment = discover_deleted(folder)[0]
        plain = [folder / f"{0:020d}.{suffix}" for suffix in ("log", "index", "timeindex")]
        new = [path.with_name(f"{path.name}.swap") for path in plain]
        for path, swap in zip(plain, new, strict=True):
            swap.write_bytes(path.read_bytes())
        old_files = {path.stat().st_ino for path in plain}
        old = ((path, path.with_name(f"{path.name}.deleted")) for path in plain)
        renames = [*old, *zip(new, plain, strict=True)]

        monkeypatch.setattr(os, "open", renaming_open(renames, (first_at, count), (rest_at, len(renames))))
        try:
            held = open_segment(segment)
        except SegmentIncompleteError:
            mixed += 1
        else:
            files = (held.log, held.offset_index, held.time_index)
            assert len({os.fstat(file.descriptor).st_ino in old_files for file in files}) == 1
            held.close()
        monkeypatch.undo()
        for before, after in renames:
            before.rename(after)
        open_segment(segment).close()
    assert mixed


def test_a_whole_log_rolled_and_marked_at_once_ends_with_its_batches(folder: Path, opened: Opener) -> None:
    for base, following in ((0, 4), (4, 8), (8, 10)):
        mark_deleted(folder, base, following)
    assert [s.next_base_offset for s in discover_deleted(folder)] == [4, 8, None]
    assert describe_open(opened(8), PARTITION.topic_id, EPOCHS).end_offset == 9


def test_what_was_cut_off_behind_or_compacted_is_no_segment(folder: Path) -> None:
    """Truncation and compaction also mark segments as deleted. Their records are no longer part of the log."""
    mark_deleted(folder, 8, 10)
    (folder / f"{4:020d}.log.deleted").write_bytes(b"")
    assert [(s.base_offset, s.next_base_offset, s.is_deleted) for s in discover_deleted(folder)] == [
        (0, 4, False), (4, None, False),
    ]  # fmt: skip


def test_a_listing_during_retention_leaves_no_segment_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both logs are renamed during the listing. It has the first one's old name and the second one's new name."""
    before, listdir, listings = {path.name for path in folder.iterdir()}, os.listdir, list[set[str]]()
    mark_deleted(folder, 0, 4)
    mark_deleted(folder, 4, 8)

    def listed(path: Path) -> list[str]:
        names = set(listdir(path))
        first = {name for name in before if name.startswith(f"{0:020d}")}
        listings.append(names if listings else (names - {f"{name}.deleted" for name in first}) | first)
        return sorted(listings[-1])

    monkeypatch.setattr(os, "listdir", listed)
    assert [(s.base_offset, s.next_base_offset, s.is_deleted) for s in discover_deleted(folder)] == [
        (0, 4, True), (4, 8, True), (8, None, False),
    ]  # fmt: skip
    assert len(listings) == 2


@pytest.mark.parametrize("missing", [f"{0:020d}.index", f"{0:020d}.timeindex", f"{4:020d}.snapshot", f"{0:020d}.log"])
def test_files_that_do_not_exist_yet_are_awaited(folder: Path, missing: str) -> None:
    segment = discover_deleted(folder)[0]
    (folder / missing).unlink()
    before = open_below(folder)
    with pytest.raises(SegmentIncompleteError, match=missing):
        open_segment(segment)
    assert open_below(folder) == before


def test_an_index_that_is_not_trimmed_yet_is_waited_for(folder: Path) -> None:
    segment = discover_deleted(folder)[0]
    with segment.path("timeindex").open("ab") as index:
        index.write(bytes(120))
    with pytest.raises(SegmentIncompleteError, match="has not closed"):
        open_segment(segment)


@pytest.mark.parametrize("cut", [((2, 5), (3, 6)), ((3, 6),), ((3, 8),), ((7, 40),), ()])
def test_epochs_that_the_broker_has_cut_are_those_of_the_batches(
    folder: Path, opened: Opener, cut: LeaderEpochs
) -> None:
    described = describe_open(opened(4), PARTITION.topic_id, cut)
    assert described.segment_leader_epochs == ((2, 4), (3, 6))
    # The segment's batches show only these epochs, because earlier history is lost with the checkpoint.
    assert parse_leader_epochs(described.files.leader_epoch_index) == ((2, 4), (3, 6))


def test_by_name_a_segment_below_the_start_of_the_log_has_been_deleted(folder: Path) -> None:
    (folder / CHECKPOINT).write_text("0\n1\n3 8\n")
    with pytest.raises(RecordsDeletedError, match="events-0 at offset 0: its log begins at 8"):
        describe(discover_deleted(folder)[0])
    (folder / CHECKPOINT).write_text("0\n0\n")
    with pytest.raises(InvalidSegmentError, match="has no epoch"):
        describe(discover_deleted(folder)[0])


@pytest.mark.parametrize(
    ("kept", "checkpoint", "joined"),
    [
        (EPOCHS, EPOCHS, EPOCHS),
        (EPOCHS, ((3, 9),), EPOCHS),
        (EPOCHS, ((3, 9), (4, 12)), (*EPOCHS, (4, 12))),
        # an unclean election: epoch 3's records are lost
        (EPOCHS, ((0, 0), (2, 4), (5, 5)), ((0, 0), (2, 4), (5, 5))),
        (EPOCHS, ((5, 5),), ((0, 0), (2, 4), (5, 5))),
        (EPOCHS, (), ()),
        ((), EPOCHS, EPOCHS),
        (((3, 8),), EPOCHS, EPOCHS),
    ],
)
def test_epochs_are_kept_that_a_checkpoint_forgets(
    kept: LeaderEpochs, checkpoint: LeaderEpochs, joined: LeaderEpochs
) -> None:
    assert join_epochs(kept, checkpoint) == joined


def test_records_are_damaged_only_where_checksums_are_looked_at(folder: Path, opened: Opener) -> None:
    path = folder / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    held = opened(0)
    describe_open(held, PARTITION.topic_id, EPOCHS)
    with pytest.raises(BatchCorruptError, match="is damaged"):
        describe_open(held, PARTITION.topic_id, EPOCHS, check_crcs=True)


def test_a_segment_that_reaches_into_the_next_is_refused(folder: Path, opened: Opener) -> None:
    held = opened(0)
    shorter = FoundSegment(folder, "events", 0, 0, 3)
    with pytest.raises(InvalidSegmentError, match="but the next segment begins at 3"):
        describe_open(
            OpenSegment(shorter, held.log, held.offset_index, held.time_index, None, held.producer_snapshot),
            PARTITION.topic_id,
            EPOCHS,
        )


def test_a_folder_of_no_segments_has_none(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != PARTITION_METADATA:
            path.unlink()
    assert discover_deleted(folder) == ()
