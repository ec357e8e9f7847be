"""The uploader: keeps closed segments by open files or hard links (pins). In partitions that this broker leads, it
uploads the settled segments in order. A settled segment is replicated and has no open transaction.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.api.outcomes import Outcome
from tieredstore.api.rows import Table
from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings
from tieredstore.errors import AlreadyClosedError, ConfigError, StoreError, TieredStoreError
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.process.closing import Closing
from tieredstore.process.forks import ForkSafeLock
from tieredstore.process.health import Health
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.stores import NamedStore, StoreLike, resolve_store, settings_of
from tieredstore.uploader.broker import BrokerEnvironment, broker_environment, check_log_dir, has_failed
from tieredstore.uploader.disk import Disk
from tieredstore.uploader.holes import Filler
from tieredstore.uploader.hourly_snapshots import HourlySnapshots
from tieredstore.uploader.leadership import LeadershipView, leadership_of
from tieredstore.uploader.links import Links, lock_folder
from tieredstore.uploader.metrics import Counts, lag_by_partition, lag_by_topic, levels_of
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.pins import INCOMPLETE_S, FollowedPartitions, Held, Pins
from tieredstore.uploader.retention import RemoteRetention
from tieredstore.uploader.roles import Roles
from tieredstore.uploader.schedule import Schedule
from tieredstore.uploader.settings import UploaderSettings, uploader_settings_from
from tieredstore.uploader.settled import BrokerSettling, DiskSettling, Inquiries, Settling
from tieredstore.uploader.shipping import MOVED_ON, Shipper, Step, Uploads
from tieredstore.uploader.target import Target, Tries, TryLimit
from tieredstore.uploader.topics import TopicAdvice, is_selected

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState
    from tieredstore.process.service import Service

_logger: Final = logging.getLogger(__name__)

_AGAIN_S: Final = 0.05
_RUN_S: Final = 1.0


_NOT_COMPARED: Final = frozenset({"kafka", "server_properties"})
"""Settings that a reload does not compare, because secrets may be renewed, and the broker's file is not read again."""


class Uploader(Closing):
    """Uploads the closed segments of a broker, each once and in order.

    :meth:`run` uploads until it is stopped. :meth:`run_once` uploads the segments closed by now. :meth:`plan` returns
    what would be uploaded. The other methods are parts of these three. An uploader locks each log directory: a second
    uploader for the same directory raises ConfigError. Close the uploader, or use it as a context manager. The class
    has more than twelve fields because it assembles the parts.

    Example::

        with tieredstore.Uploader("uploader.properties") as uploader:
            left = uploader.run_once()
    """

    def __init__(
        self,
        source: StoreLike,
        own: UploaderSettings | None = None,
        /,
        *,
        store: ObjectStore | None = None,
        settling: Settling | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set up from ``source``, which names the store and has the settings ``uploader.*``. ``own`` replaces the
        settings ``uploader.*`` of ``source``.

        ``store`` replaces the store of the settings; the caller closes it. ``settling`` replaces the broker as the
        source of high watermarks. The constructor makes no request. Raise ConfigError for invalid settings.
        """
        self._named: NamedStore | None = None
        if own is None:
            settings, self._named = resolve_store(source)
            if self._named is None:
                raise ConfigError(
                    "loaded settings have no uploader.*: pass the settings' file or a mapping to Uploader"
                )
            own = self._named.load_by(uploader_settings_from)
        else:
            settings = settings_of(source)
        self.own = uploader = own
        self._service: Service | None = None
        self._is_stopped = self._is_closed = False
        self._asking = ForkSafeLock()
        self.environment: BrokerEnvironment = broker_environment(uploader)
        self.counts: Counts = Counts()
        self.health: Health = _health(uploader)
        self._given_store, self._monotonic, self._sleep = store, monotonic, sleep
        with contextlib.ExitStack() as opened:
            log_dirs, failed, hold_dirs = _split_failed(self.environment.log_dirs, uploader.hold_dir)
            for log_dir in log_dirs:
                check_log_dir(log_dir)
                otherwise = f"another uploader ships from {log_dir}: stop it first"
                opened.callback(os.close, lock_folder(log_dir, otherwise))
            self._links = Links(hold_dirs, log_dirs)
            opened.callback(self._links.close)
            broker = self._open_broker(opened)
            leadership = leadership_of(uploader.leadership, self.environment, broker)
            opened.callback(leadership.close)
            self.tries: Tries = Tries(monotonic)
            self._limit = TryLimit(uploader.upload_timeout_ms / 1000, uploader.concurrent_uploads)
            self.snapshots: HourlySnapshots | None = self._open_snapshots(opened)
            self.target: Target = Target.open(settings, store, self.tries, self._limit)
            self._opened = opened.pop_all()
        self.leadership: LeadershipView = LeadershipView(leadership, monotonic)
        self.topics: TopicAdvice = TopicAdvice(uploader, broker)
        derived_id = self.target.manager.layout.derived_id
        is_wanted = partial(is_selected, uploader)
        self.disk: Disk = Disk(log_dirs, is_wanted, self._links, monotonic, derived_id, failed)
        self.roles: Roles = Roles(self.disk, self.leadership, self.topics, broker, monotonic)
        limits = uploader.hold_max_files, uploader.hold_min_free_percent
        self._pins = Pins(*limits, self._links, self.disk.has_changed)
        self.held: Held = Held(0, 0, 0, 0)
        uploads = Uploads(self.tries, self.counts, self.environment.broker_id, self._limit)
        self.retention: RemoteRetention = RemoteRetention.of(uploader)
        self._followed_partitions = FollowedPartitions(monotonic)
        self._filler = Filler(uploads, self.disk.relist, uploader.check_crcs)
        self._shipper = Shipper(uploads, self.disk.relist, uploader.start, uploader.check_crcs, monotonic)
        self.schedule: Schedule = Schedule(lambda: self.disk.partitions, self.may_ship, monotonic)
        by_disk = DiskSettling(self.environment.log_dirs)
        self.inquiries: Inquiries = Inquiries(
            settling or (by_disk if broker is None else BrokerSettling(broker)),
            self.leadership,
            lambda: filter(self.may_ship, self.disk.partitions),
            self.health,
            monotonic,
        )

    # Steps of the uploader's loop, each bounded in time

    def sweep(self, *, only_touched: bool = False) -> Held:
        """Check all folders, or only those with events. Assign roles, and open or link the files of closed segments
        (pin them). Raise AlreadyClosedError if the uploader is closed.
        """
        # A thread that waits for a silent store is abandoned, and may continue after the close.
        if self._is_closed:
            raise AlreadyClosedError("the uploader was closed; open another one to continue")
        self.disk.sweep(only_touched=only_touched)
        self.leadership.source.watch(self.disk.names)
        self.roles.assign()
        self.held = self._pins.renew(self.disk.partitions, self._monotonic())
        if self.disk.failed:
            named = ", ".join(map(str, sorted(self.disk.failed)))
            self.health.fails("folders", f"cannot be listed: {named}")
        elif unreadable := self._unreadable():
            self.health.fails("folders", next(iter(unreadable.values())))
        else:
            self.health.holds("folders")
        if (unfilled := self.counts.last_unfilled) is not None:
            self.health.fails("holes", f"{self.counts.holes} since the start; the last: {unfilled}")
        else:
            self.health.holds("holes")
        if not any(one.turn.failures for one in self.disk.partitions if one.role is Role.LED):
            self.health.holds("store")
            self.health.holds("segments")
        self.schedule.ring()
        return self.held

    def ask_leadership(self) -> bool:
        """Ask which partitions this broker leads. Return True if this broker leads a new partition, so that the caller
        opens its files before the broker deletes them.

        On an error the last answer stays valid for a while; then ``health`` reports the error.
        """
        was_known = self.leadership.is_known
        try:
            self.leadership.refresh()
        except TieredStoreError as error:
            if not self.leadership.is_known:
                self.health.fails("leadership", f"leadership is unknown: {error}")
            return False
        self.health.holds("leadership")
        has_new = self.roles.assign()
        if has_new or not was_known:
            self.schedule.ring()
        return has_new

    def ask_settled(self) -> None:
        """Ask for the high watermarks and last stable offsets of partitions with something to upload."""
        for is_silent in (False, True):
            self.ask_leaders(is_silent=is_silent)

    def ask_leaders(self, *, is_silent: bool) -> None:
        """If ``is_silent``, ask about the partitions that the last request brought no answer for. Otherwise, ask about
        all others."""
        if self.inquiries.ask(is_silent=is_silent):
            self.schedule.ring()

    def ask_topics(self) -> None:
        """Read the settings of topics that were not read yet. Assign roles if there are new answers."""
        try:
            partitions = self.disk.partitions
            ids = {one.where.topic: one.where.topic_id for one in partitions if one.folder is not None}
            has_news = self.topics.ask((one.where.topic for one in partitions), ids)
        except TieredStoreError as error:
            self.health.fails("topics", f"the settings of topics are unknown: {error}")
            return
        self.health.holds("topics")
        if has_news:
            self.roles.assign()
            self.schedule.ring()

    def fill_holes(self) -> None:
        """Fill holes (offsets not uploaded) of all local partitions in any role. Also record the partitions whose holes
        are all filled, by this or another uploader.
        """
        before = set(self.counts.unfilled)
        try:
            left = self._filler.fill(self.target, self._known_partitions().values())
        except TieredStoreError as error:
            if not self._is_closed:
                _logger.warning("cannot look for holes now: %s", error)
            return
        for where in before - set(left):
            self.counts.fill(where)

    def follow(self) -> None:
        """Release segments of followed partitions that other brokers have uploaded, and forget partitions that have
        left this broker."""
        try:
            self._followed_partitions.release(self.target, self.disk.partitions)
        except TieredStoreError as error:
            _logger.debug("the progress of other uploaders is unknown now: %s", error)
        self.roles.let_leave(self.counts)

    def expire(self, *, dry_run: bool = False) -> Iterator[Outcome]:
        """Delete stored segments of led partitions beyond the limits of uploader.retention; yield each partition's
        result.

        Skip topics that uploader.force.topics selects, because the broker may tier these topics with another retention.
        """
        retention = replace(self.retention, dry_run=True) if dry_run else self.retention
        return retention.apply(self.target, self._expirable(), self.counts)

    def _expirable(self) -> Iterator[TopicIdPartition]:
        """Yield the led partitions that the limits of uploader.retention concern."""
        for where, partition in self._known_partitions().items():
            # No thread asks for the leaders during a single run or a plan, so ask here before the last answer expires.
            if self._service is None and self.leadership.was_ever_known and not self.leadership.is_new:
                self.ask_leadership()
            if not self.leadership.is_known:
                _logger.warning("retention of stored segments stopped early: the partitions' leaders are unknown")
                return
            if partition.role is Role.LED and where.topic not in self.own.force_topics:
                yield where

    def ship(self, partition: Partition, *, goes_on: bool = False) -> Step | None:
        """Make one step of a partition taken from the schedule; return None if the step failed.

        With ``goes_on``, make consecutive steps until a step makes no progress, or for about a second, and return the
        last result. They read the partition's state once and save the upload watermark once.
        """
        end_s = self._monotonic() + _RUN_S
        try:
            while True:
                target = self.target
                # Let the manager run its calls on this thread, not on a thread of its own. If the store does not
                # answer, this thread can be abandoned, because another thread watches it.
                with self._watch(target, partition), target.manager.on_this_thread():
                    step = self._shipper.step(target, partition, self.inquiries.standing(partition))
                if not goes_on or step not in MOVED_ON or self._monotonic() > end_s:
                    break
                if not self.schedule.goes_on(partition):
                    break
        except Exception as error:
            if not isinstance(error, TieredStoreError | OSError):
                _logger.exception("%s: shipping failed with an unexpected error", partition.where)
            self.schedule.fail(partition, error)
            self.health.fails("store" if isinstance(error, StoreError) else "segments", f"{partition.where}: {error}")
            return None
        self.schedule.finish(partition, waits=step is Step.WAITS)
        if step in MOVED_ON:
            self.health.holds("store")
            self.health.holds("segments")
        return step

    def _watch(self, target: Target, partition: Partition) -> contextlib.AbstractContextManager[object]:
        """Limit the time of a step to twice the upload's limit, because a step makes further requests."""
        first = partition.first
        allowed_s = self._limit.time_for(target.settings, 0 if first is None else first.size_in_bytes)
        return self.tries.under_way(f"a step of {partition.where}", 2 * allowed_s)

    # Runs

    def run(self) -> int:
        """Upload until a signal, :meth:`stop` or an error; return the exit code. Call it once, on the main thread.

        SIGTERM and SIGINT let running work end. SIGHUP reads the settings' file again. The store's settings take effect
        at once. A warning names settings of the uploader that need a restart.
        """
        from tieredstore.uploader.service import uploader_service  # noqa: PLC0415  it imports this module

        if self.own.nice:
            os.nice(self.own.nice)
        is_of_file = self._named is not None and self._named.file is not None
        self._service = uploader_service(self, reload=self.reload if is_of_file else None)
        if self._is_stopped:
            self._service.stop()
        return self._service.run()

    def stop(self) -> None:
        """Ask :meth:`run` to end, and return at once. Call it from any thread, but not from a signal handler."""
        self._is_stopped = True
        if self._service is not None:
            self._service.stop()

    def reload(self) -> None:
        """Read the settings again, and use the store's settings. If the settings are invalid, change nothing and raise
        ConfigError.
        """
        if self._named is None:
            return
        new_own, new = self._named.load_by(uploader_settings_from), self._named.load()
        for name, field in UploaderSettings.model_fields.items():
            if name not in _NOT_COMPARED and getattr(new_own, name) != getattr(self.own, name):
                _logger.warning("%s has changed; the change takes effect at the next restart", field.alias)
        self.replace_target(new)

    def run_once(self, *, tries: int = 5) -> Table[Outcome]:
        """Upload everything that is closed, replicated and outside open transactions by now. Return the partitions with
        segments left to upload, and the log directories that cannot be listed, each with the reason.

        A failed step is tried up to ``tries`` times. Raise errors that prevent the start, and StoreUnavailableError
        if a thread does not return from the store.
        """
        return self.tries.watch(lambda: self._ship_once(tries))

    def plan(self) -> Table[Outcome]:
        """Return everything that a run would do, without writing.

        The result lists segments of led partitions to upload, segments that retention would delete, and refused topics.
        """
        with self._links.read_only():
            self._begin()
            return self.tries.watch(lambda: Table(self._plan()))

    def _plan(self) -> Iterator[Outcome]:
        for partition in self.disk.partitions:
            segments = self._shipper.plan(self.target, partition) if partition.role is Role.LED else ()
            for segment in segments:
                yield Outcome(
                    action="upload", status="planned", code="copied", base_offset=segment.place.base_offset,
                    last_offset=segment.next_offset - 1, size=segment.size_in_bytes,
                ).of(partition.where)  # fmt: skip
        yield from self.expire(dry_run=True)
        for topic, reason in self.topics.refused.items():
            yield Outcome(action="upload", status="kept", code="refused", topic=topic, reason=reason)

    def _begin(self) -> None:
        """Check disks, leadership and topics once. If a request fails, raise its error."""
        # Only the leaders of local partitions are requested, so find the local partitions first.
        self.disk.sweep()
        self.leadership.source.watch(self.disk.names)
        self.leadership.refresh()
        self.health.holds("leadership")
        end_s = self._monotonic() + INCOMPLETE_S
        while self.sweep().incomplete and self._monotonic() < end_s:
            self._sleep(_AGAIN_S)
        for _ in range(2):  # the second request asks why the first had no answer about a topic
            self.topics.ask(partition.where.topic for partition in self.disk.partitions)
        self.roles.assign()

    def _ship_once(self, tries: int) -> Table[Outcome]:
        self._begin()
        at_once = self.own.concurrent_uploads
        moved_on = True
        with ThreadPool(at_once, "tieredstore-uploader-once") as pool:
            while moved_on or self._is_failing(tries):
                self._sleep(0 if moved_on else _AGAIN_S)
                self._ask_again()
                self.ask_settled()
                ready = self.schedule.take_all(lambda partition: partition.turn.failures < tries)
                moved_on = any(list(in_parallel(pool, self._ship_out, ready, at_once=at_once)))
                self._ask_again()  # a failed step may have taken so long that the leaders are unknown
                self.sweep()
        self.fill_holes()
        self.roles.let_leave(self.counts)
        for _ in self.expire():
            pass
        led = (partition for partition in self.disk.partitions if partition.role is Role.LED)
        left = [_describe_left(partition) for partition in led if partition.first]
        unreadable = [
            Outcome(action="upload", status="failed", code="failed", topic=topic, partition=number, reason=sentence)
            for (topic, number), sentence in self._unreadable().items()
        ]
        failed = [
            Outcome(action="upload", status="failed", code="failed", name=str(path), reason="it cannot be listed")
            for path in sorted(self.disk.failed)
        ]
        return Table([*left, *unreadable, *failed])

    def _ship_out(self, partition: Partition) -> bool:
        """Make steps of one partition until nothing more may be uploaded. Return True if any step made progress."""
        moved_on = False
        self._ask_again()
        while self.ship(partition) in MOVED_ON:
            moved_on = True
            self._ask_again()
            if not self.schedule.take_again(partition):
                break
        return moved_on

    def _ask_again(self) -> None:
        """Ask for leaders and high watermarks before the last answers expire, because a run may take hours."""
        with self._asking:
            if not self.leadership.is_new:
                self.ask_leadership()
                self.ask_settled()

    def _is_failing(self, tries: int) -> bool:
        failing = (one for one in self.disk.partitions if 0 < one.turn.failures < tries and self.may_ship(one))
        # Do not retry an error that only a change of settings can solve.
        return any(not isinstance(one.turn.error, ConfigError) for one in failing)

    def replace_target(self, settings: Settings) -> None:
        """Use other settings of the store. If the settings are invalid, change nothing and raise ConfigError.

        Uploads that are in progress may end with the old settings.
        """
        old, self.target = self.target, Target.open(settings, self._given_store, self.tries, self._limit)
        for partition in self.disk.partitions:
            partition.change_store()
        self.schedule.ring()
        busy = [partition for partition in self.disk.partitions if partition.turn.is_busy]
        old.close_later(lambda: any(partition.turn.is_busy for partition in busy), self.own.upload_timeout_ms / 1000)

    def gauges(self) -> Mapping[str, float]:
        """Return the present values for the metrics."""
        return levels_of(self, self._monotonic())

    def lag_by_topic(self) -> Mapping[str, Mapping[str, float]]:
        """Return the lag of each topic that uploader.metrics.topics selects, for the metrics."""
        return lag_by_topic(self, self._monotonic())

    def lag(self) -> Mapping[str, object]:
        """Return the lag by partition, as ``/lag`` shows it."""
        return lag_by_partition(self, self._monotonic())

    def close(self) -> None:
        """Release all files, the store, the Kafka client and the locks."""
        self._is_closed = True
        for partition in self.disk.partitions:
            partition.close()
        self.target.close()
        self._opened.close()

    # State

    def may_ship(self, partition: Partition) -> bool:
        """Return True if the partition has something to upload and this broker may upload it."""
        # Check first if the partition has any work. This is called several times a second, and most of thousands of
        # partitions have none.
        has_work = partition.segments or partition.progress.is_unsaved or self._shipper.must_begin(partition)
        if not has_work:
            return False
        # Wait for the partition's first listing, because segments that an earlier process linked may no longer be part
        # of the log.
        if partition.role is not Role.LED or partition.first_active is None:
            return False
        if not self.topics.knows(partition.where.topic):
            return False
        first = partition.first
        if first is None:
            return True
        return self.leadership.is_known or (self.leadership.was_ever_known and first.place.is_deleted)

    def _unreadable(self) -> dict[TopicPartition, str]:
        """Return the partitions that this broker leads, but whose folders cannot be read, each with the reason."""
        return {
            name: sentence
            for name, sentence in self.disk.unreadable.items()
            if self.leadership.leads(name) and name[0] not in self.topics.refused
        }

    def _known_partitions(self) -> dict[TopicIdPartition, Partition]:
        """Return the local partitions of topics whose settings are known and which are not refused."""
        return {
            partition.where: partition
            for partition in self.disk.partitions
            if self.topics.knows(partition.where.topic) and partition.where.topic not in self.topics.refused
        }

    def _open_broker(self, opened: contextlib.ExitStack) -> BrokerState | None:
        if not self.environment.client:
            return None
        # Import the module only now, because it needs librdkafka, and an uploader without a broker does not.
        from tieredstore.live.broker_state import BrokerState  # noqa: PLC0415

        return opened.enter_context(BrokerState(self.environment.client))

    def _open_snapshots(self, opened: contextlib.ExitStack) -> HourlySnapshots | None:
        if not self.environment.client or not self.own.snapshots_enabled:
            return None
        hourly = HourlySnapshots(self.own, self.environment.client, lambda: self.target.manager, self.counts)
        return opened.enter_context(hourly)


def _split_failed(
    log_dirs: Sequence[Path], hold_dirs: Sequence[Path]
) -> tuple[Sequence[Path], Sequence[Path], Sequence[Path]]:
    """Return the log directories to ship from, those that have failed, and the folders for links on working disks. As a
    broker does, go on with the other log directories if some have failed. If all have failed, ship from all.
    """
    failed = [path for path in log_dirs if has_failed(path)]
    if not failed or len(failed) == len(log_dirs):
        return log_dirs, (), hold_dirs
    for path in failed:
        _logger.error("log directory %s has failed, and is left out until the uploader is restarted", path)
    working = [path for path in log_dirs if path not in failed]
    return working, failed, [path for path in hold_dirs if not has_failed(path)]


def _describe_left(partition: Partition) -> Outcome:
    """Describe why a partition has something left to upload."""
    error = partition.turn.error
    return Outcome(
        action="upload", status="kept" if error is None else "failed", code="waiting" if error is None else "failed",
        base_offset=None if partition.first is None else partition.first.base_offset,
        reason=str(error or partition.turn.waits_for or "its high watermark is not known yet"),
        error=error,
    ).of(partition.where)  # fmt: skip


def _health(own: UploaderSettings) -> Health:
    leader = "ZooKeeper" if own.leadership == "zookeeper" else "broker"
    return Health(
        {
            "folders": "the log directories were not checked yet",
            "leadership": "leadership was not queried yet",
            **dict.fromkeys(("broker", "topics", "store", "segments", "holes")),
        },
        servers={"leadership": leader, "broker": "broker", "topics": "broker", "store": "store"},
    )
