"""One run of an uploader from its beginning to its end: what is closed and settled by now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.model import TopicIdPartition
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.uploader.holding import INCOMPLETE_S
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.steps import MOVED_ON

if TYPE_CHECKING:
    from tieredstore.uploader.uploader import Uploader

_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Left:
    """A partition of which something was left, and why."""

    where: TopicIdPartition
    reason: str
    has_failed: bool


def begin(uploader: Uploader) -> None:
    """See what is there, who leads and which topics are to be shipped; raises what cannot be asked."""
    # In this order: who leads may be asked of what lies here alone.
    uploader.folders.sweep()
    uploader.leadership.watch({partition.name for partition in uploader.folders.partitions})
    uploader.leadership.refresh()
    uploader.health.holds("leadership")
    end_s = time.monotonic() + INCOMPLETE_S
    while uploader.sweep().incomplete and time.monotonic() < end_s:
        time.sleep(_AGAIN_S)
    uploader.topics.ask(partition.where.topic for partition in uploader.folders.partitions)


def ship_once(uploader: Uploader, tries: int) -> list[Left]:
    """Ship what may be shipped now, fill holes, and expire; of which partitions something was left, and why."""
    begin(uploader)
    at_once = uploader.own.concurrent_uploads
    moved_on = True
    with ThreadPool(at_once, "tieredstore-uploader-once") as pool:
        while moved_on or _is_failing(uploader, tries):
            time.sleep(0 if moved_on else _AGAIN_S)
            uploader.ask_settled()
            ready = uploader.schedule.take_all(lambda partition: partition.failures < tries)
            moved_on = any(list(in_parallel(pool, lambda p: _ship_out(uploader, p), ready, at_once=at_once)))
            uploader.sweep()
    uploader.fill_holes()
    for _ in uploader.expire():
        pass
    left = [partition for partition in uploader.folders.partitions if uploader.leads(partition) and partition.first]
    return [
        Left(partition.where, partition.error or partition.waits_for or "it is not settled", partition.failures > 0)
        for partition in left
    ]


def _ship_out(uploader: Uploader, partition: Partition) -> bool:
    """Steps of one partition until it has nothing more that may be shipped; whether one moved on."""
    moved_on = False
    while uploader.ship(partition) in MOVED_ON:
        moved_on = True
        if not uploader.schedule.take_again(partition):
            break
    return moved_on


def _is_failing(uploader: Uploader, tries: int) -> bool:
    partitions = uploader.folders.partitions
    return any(0 < partition.failures < tries and uploader.may_ship(partition) for partition in partitions)
