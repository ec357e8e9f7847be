"""Retention is shorter than the roll, so each segment is marked deleted as soon as it is closed. Nothing is lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.golden.records import rows_of
from tests.support.records.record_reader import read_records
from tests.support.uploader.uploader_disk import STORE, BrokerDisk, SaidSettling, uploader_of, watermark_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.remote import RemoteStorageManager
from tieredstore.uploader import Uploader


class Life:
    """A partition whose first record begins a hanging transaction, and an uploader that starts and stops.

    With links, the broker may also delete files while no uploader runs. Without links, it deletes only files that the
    running uploader has seen.
    """

    def __init__(self, folder: Path, seed: int, *, links: bool) -> None:
        self.source = random.Random(seed)
        self.log_dirs = [folder / "logs", folder / "logs2"]
        for log_dir in self.log_dirs:
            log_dir.mkdir(parents=True)
        self.disk = BrokerDisk(self.log_dirs[0])
        self.store, self.settling = MemoryObjectStore(), SaidSettling()
        self.settling.stable = 0
        self.links = folder / "links" if links else None
        if self.links is not None:
            self.links.mkdir(parents=True)
        self.expected: dict[int, bytes] = {}
        self.has_moved = False
        self.roll()
        self.uploader = self.started()

    def started(self) -> Uploader:
        log_dirs = ",".join(map(str, self.log_dirs))
        return uploader_of(
            self.disk.log_dir, self.store, self.settling, hold_dir=str(self.links or ""), log_dirs=log_dirs
        )

    def roll(self) -> None:
        """Close a segment, and at once mark it deleted."""
        base = self.disk.end
        self.disk.grow()
        self.expected |= dict(enumerate(self.disk.values(base, self.disk.epochs[-1][0]), base))
        if len(self.disk.bases) > 1:
            self.disk.mark_deleted(len(self.disk.bases) - 1)

    def lead(self) -> None:
        if self.disk.end > self.disk.epochs[-1][1]:
            self.disk.lead(self.disk.epochs[-1][0] + 1)

    def look(self) -> None:
        uploader = self.uploader
        uploader.ask_leadership()
        uploader.disk.touch(self.disk.folder)
        uploader.sweep()
        uploader.inquiries._answers.clear()  # pyright: ignore[reportPrivateUsage]
        uploader.ask_topics()
        uploader.ask_settled()

    def delete(self) -> None:
        self.look()
        self.disk.delete()
        if self.links is None:
            self.ship()

    def ship(self) -> None:
        self.has_moved = False
        self.look()
        assert self.uploader.run_once() == []

    def restart(self) -> None:
        if self.links is not None:
            self.look()
        elif self.has_moved:
            # Only this process holds the segments marked deleted before the move.
            self.ship()
        self.uploader.close()
        if self.links is not None:
            self.disk.delete()
        self.uploader = self.started()

    def move(self) -> None:
        """Move to the other log directory. Check while both directories have the partition, while neither has, or
        afterwards.
        """
        self.look()
        there = self.log_dirs[self.disk.log_dir == self.log_dirs[0]]
        future = self.disk.copy_to(there.with_name("future"))
        moved = BrokerDisk(there, self.disk.partition, self.disk.epochs, self.disk.end, self.disk.bases)
        order = self.source.randrange(3)
        if order:
            future.folder.rename(moved.folder)
            if order == 1:
                self.look()
        self.disk.leave()
        if not order:
            self.look()
            future.folder.rename(moved.folder)
        for path in self.disk.log_dir.glob("*-delete"):
            shutil.rmtree(path)
        self.disk, self.has_moved = moved, True

    def go(self, steps: int) -> None:
        ways = [self.roll, self.roll, self.roll, self.lead, self.look, self.ship, self.delete, self.restart, self.move]
        for _ in range(steps):
            self.source.choice(ways)()
        self.roll()
        self.ship()
        self.uploader.close()

    def check(self) -> None:
        active = self.disk.bases[-1]
        watermark = watermark_of(self.store)
        assert (watermark.next_offset, watermark.holes, watermark.moved_back) == (active, (), ())
        with RemoteStorageManager(settings_from(STORE), store=self.store) as manager:
            rows = rows_of(read_records(manager, "events", 0, 0, active))
        assert [(row["offset"], row["key"]) for row in rows] == [
            (offset, value) for offset, value in self.expected.items() if offset < active
        ]


@pytest.mark.parametrize("links", [False, True], ids=["held", "linked"])
@pytest.mark.parametrize("seed", range(3))
def test_retention_shorter_than_the_roll_takes_nothing_unshipped(tmp_path: Path, seed: int, links: bool) -> None:
    life = Life(tmp_path, seed, links=links)
    life.go(25)
    life.check()


@pytest.mark.soak
@pytest.mark.parametrize("links", [False, True], ids=["held", "linked"])
def test_retention_shorter_than_the_roll_takes_nothing_unshipped_in_many_lives(tmp_path: Path, links: bool) -> None:
    for seed in range(30):
        life = Life(tmp_path / str(seed), seed, links=links)
        life.go(60)
        life.check()
