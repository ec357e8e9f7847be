"""Two uploaders on one store, which both believe that they lead. Their operations, in any order, do no harm."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.golden.records import rows_of
from tests.support.stores.doubles import FaultyStore
from tests.support.uploader.uploader_disk import STORE, BrokerDisk, run_once, watermark_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.records import read_records
from tieredstore.remote import RemoteStorageManager

_DEADLINE_S: Final = 120.0


pytestmark = pytest.mark.usefixtures("soon")


class Turns:
    """Random turns of two uploaders. If one has finished, all turns are the other's."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._next = self._source.randrange(2)

    def wait(self, who: int) -> bool:
        """Wait for this uploader's turn. A FaultyStore calls this before an operation. The result False lets the
        operation succeed.
        """
        with self._changed:
            assert self._changed.wait_for(lambda: self._next == who or 1 - who in self._ended, _DEADLINE_S)
            self._next = self._source.randrange(2)
            self._changed.notify_all()
        return False

    def end(self, who: int) -> None:
        with self._changed:
            self._ended.add(who)
            self._changed.notify_all()


def same(disk: BrokerDisk) -> None:
    disk.grow(4)


def other_borders(disk: BrokerDisk) -> None:
    disk.end = 5
    disk.grow(5)


def later_leader(disk: BrokerDisk) -> None:
    disk.grow(3)
    disk.lead(1)
    disk.grow(3)


def unclean_leader(disk: BrokerDisk) -> None:
    disk.grow(2)
    disk.lead(1)
    disk.grow(3)


def at_once(disks: tuple[BrokerDisk, BrokerDisk], inner: MemoryObjectStore, seed: int) -> None:
    turns = Turns(seed)

    def run(who: int) -> None:
        try:
            run_once(disks[who].log_dir, FaultyStore(inner, fail_at=lambda _: turns.wait(who)))
        finally:
            turns.end(who)

    threads = [threading.Thread(target=run, args=(who,)) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DEADLINE_S)
        assert not thread.is_alive()


def ship_at_once(folder: Path, second_log: Callable[[BrokerDisk], None], seed: int) -> None:
    first, second = BrokerDisk(folder / "1"), BrokerDisk(folder / "2")
    first.grow(4)
    second_log(second)
    inner = MemoryObjectStore()
    at_once((first, second), inner, seed)
    # The leader finishes, whatever the other uploader did.
    assert run_once(second.log_dir, inner) == []
    watermark = watermark_of(inner)
    assert (watermark.next_offset, watermark.holes) == (second.bases[-1], ())
    if second_log is not unclean_leader:
        assert watermark.moved_back == ()
    with RemoteStorageManager(settings_from(STORE), store=inner) as manager:
        rows = rows_of(read_records(manager, "events", 0, 0, second.bases[-1], on_data_loss="report"))
    expected = {offset: value for base in first.bases for offset, value in enumerate(first.values(base, 0), base)}
    for base in second.bases[:-1]:
        epoch = max(epoch for epoch, began in second.epochs if began <= base or not epoch)
        expected |= dict(enumerate(second.values(base, epoch), base))
    earliest = rows[0]["offset"]
    assert earliest in {0, second.bases[0]}
    assert [(row["offset"], row["key"]) for row in rows] == [
        (offset, expected[offset]) for offset in range(earliest, second.bases[-1])
    ]


LOGS: Final = [same, other_borders, later_leader, unclean_leader]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("second_log", LOGS)
def test_two_at_once_do_no_harm(tmp_path: Path, second_log: Callable[[BrokerDisk], None], seed: int) -> None:
    ship_at_once(tmp_path, second_log, seed)


@pytest.mark.soak
@pytest.mark.parametrize("second_log", LOGS)
def test_two_at_once_do_no_harm_in_many_orders(tmp_path: Path, second_log: Callable[[BrokerDisk], None]) -> None:
    for seed in range(60):
        ship_at_once(tmp_path / str(seed), second_log, seed)
