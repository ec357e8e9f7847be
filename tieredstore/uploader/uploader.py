"""The uploader: notices closed segments, holds them, asks who leads and what is settled, and ships in order."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings
from tieredstore.config.uploader import UploaderSettings
from tieredstore.errors import TieredStoreError
from tieredstore.model import TopicIdPartition
from tieredstore.process.closing import Closing
from tieredstore.process.health import Health
from tieredstore.uploader.closed_segment import ClosedSegment
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.environment import BrokerEnvironment, broker_environment
from tieredstore.uploader.filling import Filler
from tieredstore.uploader.folders import Folders
from tieredstore.uploader.following import Following
from tieredstore.uploader.hold_dir import HoldDir, locked
from tieredstore.uploader.holding import Held, Holds
from tieredstore.uploader.inquiries import Inquiries
from tieredstore.uploader.leadership import LeadershipView, leadership_of
from tieredstore.uploader.levels import levels_of
from tieredstore.uploader.once import Left, begin, ship_once
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.retention import Expired, RemoteRetention
from tieredstore.uploader.schedule import Schedule
from tieredstore.uploader.settling import BrokerSettling, DiskSettling, Settling
from tieredstore.uploader.shipper import Shipper, ShipperSettings
from tieredstore.uploader.steps import MOVED_ON, Step
from tieredstore.uploader.target import Target
from tieredstore.uploader.topics import TopicAdvice, TopicSelection
from tieredstore.uploader.tries import Tries, TryLimit
from tieredstore.uploader.uploads import Uploads

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

_logger: Final = logging.getLogger(__name__)

_RUN_S: Final = 1.0


class Uploader(Closing):
    """What ships the closed segments of a broker, in parts that are called one after the other or by many threads.

    Takes a lock on each log directory: of two uploaders for one the second is refused (ConfigError). Close it.
    """

    def __init__(
        self,
        settings: Settings,
        uploader: UploaderSettings,
        *,
        store: ObjectStore | None = None,
        settling: Settling | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``store`` is used in place of the settings' own, and stays its owner's; ``settling`` in place of a broker's.

        Nobody is asked anything yet. ConfigError for settings that cannot be used.
        """
        self.own = uploader
        self.environment: BrokerEnvironment = broker_environment(uploader)
        self.counts = Counts()
        self.health = _health()
        self._given_store, self._monotonic = store, monotonic
        with contextlib.ExitStack() as opened:
            for log_dir in self.environment.log_dirs:
                otherwise = f"another uploader ships from {log_dir}: end it before this one begins"
                opened.callback(os.close, locked(log_dir, otherwise))
            self._links = HoldDir(uploader.hold_dir, self.environment.log_dirs)
            opened.callback(self._links.close)
            self._broker = self._open_broker(opened)
            leadership = leadership_of(uploader.leadership, self.environment, self._broker)
            opened.callback(leadership.close)
            self.tries = Tries(monotonic)
            self._limit = TryLimit(uploader.upload_timeout_ms / 1000, uploader.concurrent_uploads)
            self.target = Target.open(settings, store, self.tries, self._limit)
            self._opened = opened.pop_all()
        self.leadership = LeadershipView(leadership, monotonic)
        self.topics = TopicAdvice(uploader, self._broker)
        self._selection = TopicSelection(uploader)
        made_id = self.target.made_topic_id
        self.folders = Folders(self.environment.log_dirs, self._selection.holds, monotonic, self._links, made_id)
        self._holds = Holds(uploader.hold_max_files, uploader.hold_min_free_percent, self._links)
        self.held = Held(0, 0, 0, 0)
        self._uploads = Uploads(self.tries, self.counts, broker_id=self.environment.broker_id, limit=self._limit)
        self.retention = RemoteRetention.of(uploader)
        self._following = Following(monotonic)
        self._filler = Filler(self._uploads, self.counts, uploader.check_crcs)
        self._shipper = Shipper(
            ShipperSettings(self.environment.broker_id, uploader.start, uploader.check_crcs),
            self._uploads,
            self.counts,
            self.folders.relist,
        )
        self.schedule = Schedule(lambda: self.folders.partitions, self.may_ship, monotonic)
        disk = DiskSettling(self.environment.log_dirs)
        self.inquiries = Inquiries(
            settling or (disk if self._broker is None else BrokerSettling(self._broker)),
            self.leadership,
            self._shippable,
            self._settled,
            self.health,
            monotonic,
        )
        self._was_led: frozenset[Partition] = frozenset()
        self._has_left = False

    # Parts, each bounded in time

    def sweep(self, *, only_touched: bool = False) -> Held:
        """Look at the folders, or at those that something was told of, and hold what is closed of what is led."""
        if only_touched:
            self.folders.sweep_touched()
        else:
            self.folders.sweep()
        partitions = self.folders.partitions
        self.leadership.watch({partition.name for partition in partitions})
        held = [partition for partition in partitions if self.leads(partition) or self._follow(partition)]
        self.held = self._holds.renew(held, self._monotonic())
        if not self._has_left and self.folders.is_whole:
            self._has_left = True
            self._links.leave((partition.where for partition in self.folders.partitions), self._selection.holds)
        if self.folders.failed:
            named = ", ".join(map(str, sorted(self.folders.failed)))
            self.health.fails("folders", f"cannot be listed: {named}")
        else:
            self.health.holds("folders")
        if (unfilled := self.counts.last_unfilled) is not None:
            self.health.fails("holes", f"{self.counts.holes} since the start; the last: {unfilled}")
        else:
            self.health.holds("holes")
        self.schedule.ring()
        return self.held

    def ask_leadership(self) -> bool:
        """Ask which partitions are led; whether there is one more, whose files are to be held.

        An error is told by ``health`` once the last answer does not hold any more.
        """
        was_known = self.leadership.is_known
        try:
            self.leadership.refresh()
        except TieredStoreError as error:
            if not self.leadership.is_known:
                self.health.fails("leadership", f"nobody says who leads: {error}")
            return False
        self.health.holds("leadership")
        has_new = self._relist_new()
        if has_new or not was_known:
            self.schedule.ring()
        return has_new

    def ask_settled(self) -> None:
        """Ask how far the partitions are settled of which something waits to be shipped."""
        for is_silent in (False, True):
            self.ask_leaders(is_silent=is_silent)

    def ask_leaders(self, *, is_silent: bool) -> None:
        """Ask of those alone of which nothing was heard the last time, or of the others."""
        if self.inquiries.ask(is_silent=is_silent):
            self.schedule.ring()

    def ask_topics(self) -> None:
        """Ask for the settings of topics that were not asked for yet."""
        try:
            self.topics.ask(partition.where.topic for partition in self.folders.partitions)
        except TieredStoreError as error:
            self.health.fails("topics", f"the settings of topics are not known: {error}")
            return
        self.health.holds("topics")
        if self.topics.has_news:
            self.topics.has_news = False
            self.schedule.ring()

    def fill_holes(self) -> None:
        """Fill holes of whichever partitions lie here, led or not, and learn which of its own others have filled."""
        before = set(self.counts.unfilled)
        try:
            left = self._filler.fill(self.target, self._known().values())
        except TieredStoreError as error:
            _logger.warning("holes cannot be looked for now: %s", error)
            return
        for where in before - set(left):
            self.counts.filled(where)

    def follow(self) -> None:
        """Ask how far others have shipped what they lead, now and then; the rest is held here."""
        try:
            self._following.release(self.target, self.folders.partitions)
        except TieredStoreError as error:
            _logger.debug("how far others have shipped is not known now: %s", error)

    def expire(self, *, only_check: bool = False) -> Iterator[Expired]:
        """Delete what is stored of partitions that are led past the bounds of uploader.retention, one by one.

        Nothing of topics that the broker tiers, or may: those have a retention of their own.
        """
        others = self.own.force_topics
        led = (where for where in self._known() if self.leadership.leads((where.topic, where.partition)))
        mine = (where for where in led if self.leadership.is_known and where.topic not in others)
        retention = replace(self.retention, is_dry=True) if only_check else self.retention
        return retention.apply(self.target, mine, self.counts)

    def ship(self, partition: Partition) -> Step | None:
        """Make one step of a partition that was taken from the schedule; None if it failed."""
        return self._steps(partition, goes_on=False)

    def ship_run(self, partition: Partition) -> Step | None:
        """Make steps of the same one for a moment, as long as they move on; what came of the last.

        What has been read of a partition is asked for once then, and its watermark is moved once.
        """
        return self._steps(partition, goes_on=True)

    def _steps(self, partition: Partition, *, goes_on: bool) -> Step | None:
        end_s = self._monotonic() + _RUN_S
        try:
            while True:
                target = self.target
                # A thread of its own for each call could be left behind; this one is watched.
                with self._watched(target, partition), target.manager.on_this_thread():
                    step = self._shipper.step(target, partition, self.inquiries.standing(partition))
                if not goes_on or step not in MOVED_ON or self._monotonic() > end_s:
                    break
                if not self.schedule.goes_on(partition):
                    break
        except Exception as error:
            if not isinstance(error, TieredStoreError | OSError):
                _logger.exception("%s: a try to ship ended by an error of its own", partition.where)
            self.schedule.failed(partition, error)
            self.health.fails("store", f"{partition.where}: {error}")
            return None
        self.schedule.done(partition, waits=step is Step.WAITS)
        if step in MOVED_ON:
            self.health.holds("store")
        return step

    def _watched(self, target: Target, partition: Partition) -> contextlib.AbstractContextManager[object]:
        """A step, with what it asks the store for beside the segment."""
        first = partition.first
        allowed_s = self._limit.allowed_s(target.settings, 0 if first is None else first.size_in_bytes)
        return self.tries.under_way(f"a step of {partition.where}", 2 * allowed_s)

    # Runs

    def run_once(self, *, tries: int = 5) -> list[Left]:
        """Ship what is closed and settled by now; of which partitions something was left, and why.

        What fails is tried so many times. Raises what keeps it from beginning, and StoreUnavailable when a thread does
        not come back from the store.
        """
        return self.tries.watched(lambda: ship_once(self, tries))

    def plan(self) -> list[tuple[Partition, list[ClosedSegment]]]:
        """What would be shipped of each partition that is led, sooner or later. Nothing is written."""
        self._links.is_read_only = True
        begin(self)
        led = [partition for partition in self.folders.partitions if self.leads(partition)]
        return self.tries.watched(lambda: [(entry, self._shipper.plan(self.target, entry)) for entry in led])

    def replace_target(self, settings: Settings) -> None:
        """Go on with other settings of the store; ConfigError, and all stays as it was, if they cannot be used.

        What is under way may end with the old ones.
        """
        old, self.target = self.target, Target.open(settings, self._given_store, self.tries, self._limit)
        for partition in self.folders.partitions:
            partition.must_reload, partition.not_before_s = True, 0.0
        self.schedule.ring()
        busy = [partition for partition in self.folders.partitions if partition.is_busy]
        old.close_later(lambda: any(partition.is_busy for partition in busy), self.own.upload_timeout_ms / 1000)

    def gauges(self) -> Mapping[str, float]:
        """What there is now, for the metrics."""
        return levels_of(self, self._monotonic())

    def close(self) -> None:
        """Let all files, the store, the client and the locks go."""
        for partition in self.folders.partitions:
            partition.let_go()
        self.target.close()
        self._opened.close()

    # What is known

    def leads(self, partition: Partition) -> bool:
        """Whether the partition is this broker's to ship, as far as is known."""
        return self.leadership.leads(partition.name) and partition.where.topic not in self.topics.refused

    def may_ship(self, partition: Partition) -> bool:
        """Whether there is something to ship of the partition, and it is this broker's to do so."""
        first = partition.first
        # First of all whether there is anything: of thousands of partitions there mostly is not.
        if first is None and not partition.is_unsure and not self._shipper.must_begin(partition):
            return False
        if partition.is_moving or partition.is_followed or not self.leads(partition):
            return False
        if not self.topics.knows(partition.where.topic):
            return False
        if first is None:
            return True
        return self.leadership.is_known or (self.leadership.was_ever_known and first.place.is_deleted)

    def _shippable(self) -> Iterator[Partition]:
        """Those of which :meth:`may_ship` holds, several times a second: thousands have nothing, and cost nothing."""
        begins = self.own.start == "latest"
        partitions = self.folders.partitions
        some = [one for one in partitions if one.segments or one.is_unsure or (begins and one.watermark is None)]
        return filter(self.may_ship, some)

    def _known(self) -> dict[TopicIdPartition, Partition]:
        """The partitions here of topics that are known to be the uploader's."""
        return {
            partition.where: partition
            for partition in self.folders.partitions
            if self.topics.knows(partition.where.topic) and partition.where.topic not in self.topics.refused
        }

    def _settled(self, partition: Partition, high_watermark: int) -> None:
        """The links that outlive the process say so too."""
        if self._links.is_working:
            partition.settled(high_watermark)

    def _follow(self, partition: Partition) -> bool:
        """Whether another broker leads the partition, and what it has not shipped is to be held."""
        if not self.leadership.is_known:
            return False
        if partition.where.topic not in self.topics.refused:
            partition.follow()
        else:
            partition.unhold()
        return partition.is_followed

    def _relist_new(self) -> bool:
        """List the folders of partitions that are led since now: who led them has moved their watermarks."""
        led, before = frozenset(filter(self.leads, self.folders.partitions)), self._was_led
        if self._broker is not None and not led <= before:
            self._broker.look_anew()
        for partition in led - before:
            partition.must_reload = True
            # Before it is led: what was held as a follower's may be other files by now.
            self.folders.relist(partition)
            partition.lead()
        for partition in before - led:
            partition.follow()
        self._was_led = led
        return not led <= before

    def _open_broker(self, opened: contextlib.ExitStack) -> BrokerState | None:
        if not self.environment.client:
            return None
        # With it comes librdkafka, which an uploader without a broker does without.
        from tieredstore.live.broker_state import BrokerState  # noqa: PLC0415

        return opened.enter_context(BrokerState(self.environment.client))


def _health() -> Health:
    health = Health(
        {"folders": "the log directories were not looked at yet", "leadership": "nobody was asked who leads yet"}
    )
    for condition in ("broker", "topics", "store", "holes"):
        health.fails(condition, "")
        health.holds(condition)
    return health
