"""How far partitions are settled of which something waits to be shipped: asked again and again, and kept while new."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.process.health import Health
from tieredstore.uploader.leadership import LeadershipView
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.settling import Answers, Settled, Settling, Standing, high_watermarks

_SOON_S: Final = 1.0


class Inquiries:
    """Two threads may ask, each of others; any number may look at what is known."""

    def __init__(
        self,
        settling: Settling,
        leadership: LeadershipView,
        shippable: Callable[[], Iterable[Partition]],
        settled: Callable[[Partition, int], None],
        health: Health,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``shippable`` are the partitions of which there is something to ship; ``settled`` is told of each how far."""
        self._settling, self._leadership, self._shippable = settling, leadership, shippable
        self._settled, self._health, self._monotonic = settled, health, monotonic
        self._answers = Answers(monotonic=monotonic)

    def ask(self, *, is_silent: bool) -> bool:
        """Ask of those alone of which nothing was heard the last time, or of the others; whether one has waited for it.

        A broker that is dead keeps all answers back for as long as one is waited for.
        """
        soon_s = self._monotonic() + _SOON_S
        waiting = [
            partition
            for partition in self._shippable()
            if partition.not_before_s <= soon_s
            and self._answers.is_silent(partition.name) is is_silent
            and (partition.waits_for is not None or not self._answers.are_new(partition.name))
        ]
        if not waiting or not self._leadership.is_known:
            return False
        names = [partition.name for partition in waiting]
        try:
            answers = self._settling.ask(waiting)
        except TieredStoreError as error:
            self._answers.take({}, names)
            if not self._answers.are_any:
                self._health.fails("broker", f"nobody says how far partitions are settled: {error}")
            return False
        self._answers.take(answers, names)
        self._health.holds("broker")
        for partition in waiting:
            settled = self._answers.of(partition.name)
            last_epoch = partition.epochs[-1][0] if partition.epochs else -1
            if settled is not None and settled.leader_epoch in (None, last_epoch):
                self._settled(partition, settled.high_watermark)
        return any(partition.waits_for is not None for partition in waiting)

    def standing(self, partition: Partition) -> Standing:
        """What is known of a partition when a step is made."""
        if self._leadership.is_known:
            return Standing(self._answers.of(partition.name))
        # Nobody can be asked: what the broker deletes is shipped as far as its own checkpoint says.
        high = (high_watermarks(partition.folder.parent) or {}).get(partition.name, 0)
        return Standing(Settled(high, high, None), only_deleted=True)
