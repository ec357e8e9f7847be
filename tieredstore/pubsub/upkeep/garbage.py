"""``pubsub gc``: applies retention, deletes freed objects, and handles orphans (objects without a notification). Ages
are by the store's clock.

A dry run only reports. After a killed run, start the command again. Only one run per topic may run at a time, because
otherwise one run may delete an orphan for which another run has just added a notification.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from typing import Final

from pydantic import NonNegativeInt, TypeAdapter

from tieredstore.api import outcomes
from tieredstore.backends.base import ObjectInfo, store_time_ms
from tieredstore.errors import ConfigError, CorruptDataError, DataLossError, ObjectNotFoundError, TieredStoreError
from tieredstore.ops.garbage.collection import trusted_time_ms
from tieredstore.ops.steps import Outcome
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format.batches import read_index
from tieredstore.pubsub.format.notifications import Notification, parse_batch_key
from tieredstore.pubsub.produce.sink import list_finished_batch_queries, list_pending_keys
from tieredstore.pubsub.queue.queues import STORE, QueuedNotification
from tieredstore.pubsub.queue.topics import BatchLog, QueuedBatch, Topics
from tieredstore.versions import RETIRED

DAY_MS: Final = 86_400_000
_DELIVERIES: Final = 3
_ADOPTION_S: Final = 120.0
_AT_ONCE: Final = 1000
_MOST_RECORD_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class _Retired:
    """JSON object of batches, by offset and key, that retention has freed or was about to free at ``ms``. A later run
    deletes their objects."""

    ms: NonNegativeInt
    batches: tuple[tuple[int, str], ...]


_RETIRED: Final = TypeAdapter(_Retired)


@dataclass(slots=True)
class GarbageCollection:
    """One run over a topic. Orphans younger than ``min_age_ms`` are left alone. Ages are counted up to ``as_of_ms`` of
    the store's clock. The default is the start of the run. Raises ConfigError for a store without a clock.
    """

    log: BatchLog
    _: KW_ONLY
    min_age_ms: int = DAY_MS
    adopt: bool = False
    as_of_ms: int | None = None
    dry_run: bool = True
    warnings: list[str] = field(default_factory=list[str])
    _now_ms: int = field(default=0, init=False)
    _written_ms: dict[bytes, int] = field(default_factory=dict[bytes, int], init=False)
    """For retention by time: when each listed object was written, by the digest of its key."""

    def run(self) -> Iterator[outcomes.Outcome]:
        """Yield the outcome of each object once its step is done."""
        log = self.log
        self._now_ms = store_time_ms(log.store) if self.as_of_ms is None else self.as_of_ms
        self._warn()
        # List the objects before reading the queue. An old object that is listed then has its notification in the queue
        # already, or never gets one.
        objects = [info for info, _ in log.topics.objects(log.topic)]
        if log.settings.retention_ms is not None:
            self._written_ms = {_digest(info.key): info.modified_ms or 0 for info in objects}
        self._check_ends()
        partitions = range(log.queue.partitions)
        known, last = {_digest(key) for key in list_pending_keys(log)}, dict[int, int]()
        for partition in partitions:
            yield from self._expire(partition)
        for partition in partitions:
            for batch in log.walk(partition):
                known.add(_digest(batch.key))
                last[partition] = batch.offset
        yield from self._delete_retired(partitions, known)
        forgotten_ms = self._find_forgotten_ms()
        orphans = [info for info in objects if _digest(info.key) not in known]
        if orphans:
            # A query may have recorded or notified batches since the queue was read. Read the records before the
            # queue's new entries, because a query marks its record as done after it has notified the batches.
            known.update(_digest(key) for key in list_pending_keys(log))
            for partition in partitions:
                known.update(_digest(batch.key) for batch in log.walk(partition, last.get(partition)))
        for info in orphans:
            if _digest(info.key) not in known:
                yield self._end(info, forgotten_ms)
        if not self.dry_run:
            log.store.delete(list(list_finished_batch_queries(log, self._now_ms - self.min_age_ms)))

    def _check_ends(self) -> None:
        """Raise DataLossError if a group has read beyond the end of a queue in the store. The batches of the lost
        entries look like orphans."""
        log = self.log
        if self.adopt or log.topic.queue != STORE:
            return
        groups, find_end = log.topics.groups(log.topic), cache(log.queue.end)  # a topic may have many groups
        for group, states in groups.items():
            for state in states:
                if state.position is not None and state.position.offset > (end := find_end(state.partition)):
                    state_folder = log.topics.folder.key("groups", group, log.topic.name)
                    raise DataLossError(
                        f"queue {log.topic.name}/{state.partition} ends at offset {end}, but group {group} has read up "
                        f"to {state.position.offset}: its last entries are lost, and gc would delete their batches; "
                        f"publish them again by gc --adopt, or delete {state_folder}/"
                    )

    def _warn(self) -> None:
        forgets_ms, keeps_ms = self.log.queue.forgets_ms(), self.log.settings.retention_ms
        if forgets_ms is not None and (keeps_ms is None or forgets_ms < keeps_ms):
            kept = "forever" if keeps_ms is None else f"for {keeps_ms} ms (pubsub.retention.ms)"
            self.warnings.append(
                f"the queue of {self.log.topic.name} forgets notifications after {forgets_ms} ms, but objects are kept "
                f"{kept}: readers cannot find objects whose notifications are forgotten; raise the retention of "
                f"{self.log.topic.queue_name}"
            )

    # --- retention ---

    def _find_written_ms(self, key: str) -> int:
        """Return when an object was written, by the store's clock; 0 if it is missing."""
        if (written_ms := self._written_ms.get(_digest(key))) is not None:
            return written_ms
        try:
            return self.log.store.head(key).modified_ms or 0  # the object may be newer than the listing
        except ObjectNotFoundError:
            return 0

    def _expire(self, partition: int) -> Iterator[outcomes.Outcome]:
        expired, until = self._list_expired(partition)
        if not self.dry_run:
            self._free(partition, expired, until)
        for batch in expired:
            yield self._outcome(Outcome.FREED, batch.key, batch.size, partition, batch.offset)

    def _list_expired(self, partition: int) -> tuple[list[QueuedBatch], int]:
        """Return a partition's oldest batches beyond ``pubsub.retention.ms`` and ``pubsub.retention.bytes``, and the
        offset after them.

        A batch expires only if all earlier batches expire, so that the queue has one start and no gaps. If the queue
        frees several batches at once, they expire together."""
        log, settings, end = self.log, self.log.settings, self.log.queue.end(partition)
        least_ms = None if settings.retention_ms is None else self._now_ms - settings.retention_ms
        over = 0
        if settings.retention_bytes is not None:
            over = sum(batch.size for batch in log.walk(partition)) - settings.retention_bytes
        expired: list[QueuedBatch] = []
        if least_ms is None and over <= 0:
            return expired, log.queue.start(partition)
        for batch in log.walk(partition):
            # An append of the past or of the far future may come from a wrong clock, so the object must be old too.
            is_old = (
                least_ms is not None
                and not least_ms <= batch.appended_ms <= self._now_ms + DAY_MS
                and self._find_written_ms(batch.key) < least_ms
            )
            if not (is_old or over > 0):
                until = log.queue.freeable(batch.offset)
                return [one for one in expired if one.offset < until], until
            over -= batch.size
            expired.append(batch)
        return expired, end

    def _free(self, partition: int, expired: Sequence[QueuedBatch], until: int) -> None:
        """Free all batches of a partition before ``until``. For each thousand batches, first write a record of the
        batches, then free the batches in the queue."""
        log = self.log
        for first in range(0, len(expired), _AT_ONCE):
            some, rest = expired[first : first + _AT_ONCE], expired[first + _AT_ONCE :]
            document = {"ms": self._now_ms, "batches": [[batch.offset, batch.key] for batch in some]}
            log.store.put(self._record_key(partition, f"{some[0].offset:020}"), RETIRED.to_bytes(document))
            log.queue.free(partition, rest[0].offset if rest else until)

    def _list_retired(self, partition: int) -> Iterator[tuple[str, _Retired]]:
        """Yield the key and the content of each record of batches whose objects are not deleted yet."""
        for info in self.log.store.list(self._record_key(partition, "")):
            record = self.log.topics.folder.read(info.key, RETIRED, _RETIRED, _MOST_RECORD_BYTES)
            yield info.key, record if info.modified_ms is None else replace(record, ms=info.modified_ms)

    def _record_key(self, partition: int, name: str) -> str:
        return self.log.topics.folder.key("retired", self.log.topic.name, str(partition), name)

    def _delete_retired(self, partitions: range, known: set[bytes]) -> Iterator[outcomes.Outcome]:
        """Delete the objects of retired batches, except objects that the queue still has: ``known`` has their digests.
        Add the other objects to ``known``."""
        log, delay_ms = self.log, self.log.settings.delete_delay_ms
        due: list[tuple[int, str, _Retired]] = []
        referenced, kept = frozenset(known), set(known)
        for partition in partitions:
            start = log.queue.start(partition)
            for record, retired in self._list_retired(partition):
                if self._now_ms - retired.ms >= delay_ms:
                    due.append((partition, record, retired))
                    continue
                for offset, key in self._list_freed(retired, start, referenced):
                    # Retention freed this notification only recently, so keep the object until ``delete_delay_ms`` has
                    # passed, even if an earlier run freed another notification of the batch.
                    kept.add(_digest(key))
                    known.add(_digest(key))
                    yield self._outcome(Outcome.WAITING, key, None, partition, offset)
        for partition, record, retired in due:
            gone = self._list_freed(retired, log.queue.start(partition), kept)
            if not self.dry_run:
                log.store.delete([key for _, key in gone])
                log.store.delete([record])
            for offset, key in gone:
                known.add(_digest(key))
                yield self._outcome(Outcome.DELETED, key, None, partition, offset)

    def _list_freed(self, retired: _Retired, start: int, kept: AbstractSet[bytes]) -> list[tuple[int, str]]:
        """Return the offset and object key of each batch in ``retired``, except keys whose digest is in ``kept``.

        Leave out batches at or after the queue's start, because the run that recorded them was killed before it freed
        them.
        """
        path = self.log.topic.path
        return [
            (offset, key)
            for offset, key in retired.batches
            if offset < start and _digest(key) not in kept and parse_batch_key(key, path) is not None
        ]

    # --- orphans ---

    def _find_forgotten_ms(self) -> int | None:
        """Return the time before which the queue may have dropped the notifications of objects; None for a queue in the
        store."""
        if self.log.topic.queue == STORE:
            return None
        queue = self.log.queue
        firsts: list[int] = []
        moments: list[int] = []
        for partition in range(queue.partitions):
            start = queue.start(partition)
            entries = queue.read(partition, start)
            firsts.append(self._find_appended_ms(partition, entries[0]) if entries else self._now_ms)
            if start:
                moments.append(firsts[-1])
        # Even a queue that begins at offset 0 may have replaced an earlier queue. Objects that are older than this
        # queue's first entry may have had their notifications in that earlier queue.
        moments.append(min(firsts) - _DELIVERIES * self.log.settings.delivery_timeout_ms)
        return max(moments)

    def _find_appended_ms(self, partition: int, entry: QueuedNotification) -> int:
        """Return the time of an append, or a later time if the writer's clock was behind the store's."""
        written_ms = self._find_written_ms(self.log.batch_of(partition, entry).key)
        is_behind = entry.appended_ms < written_ms
        return written_ms + self.log.settings.delivery_timeout_ms if is_behind else entry.appended_ms

    def _end(self, info: ObjectInfo, forgotten_ms: int | None) -> outcomes.Outcome:
        """Delete an object that no notification names, or announce it in the queue, or keep it."""
        settings = self.log.settings
        written_ms = self._now_ms if info.modified_ms is None else info.modified_ms
        age_ms = self._now_ms - written_ms
        is_past = settings.retention_ms is not None and age_ms > settings.retention_ms + settings.delete_delay_ms
        if age_ms < self.min_age_ms:
            outcome = Outcome.YOUNG
        elif forgotten_ms is not None and written_ms < forgotten_ms and not is_past:
            outcome = Outcome.FORGOTTEN
        elif self.adopt and not is_past:
            outcome = self._adopt(info)
        else:
            outcome = Outcome.DELETED
            if not self.dry_run:
                self.log.store.delete([info.key])
        return self._outcome(outcome, info.key, info.size)

    def _adopt(self, info: ObjectInfo) -> Outcome:
        log = self.log
        try:
            index = read_index(partial(log.store.get, info.key), info.key, info.size)
        except MessageCorruptError:
            return Outcome.DAMAGED
        if not self.dry_run:
            notification = Notification(
                topic=log.topic.name, object_size=info.size - index.size, message_count=len(index), key=info.key,
                bucket=log.topics.bucket_name,
            )  # fmt: skip
            partition = zlib.crc32(info.key.encode()) % log.queue.partitions
            log.queue.append(partition, [notification.to_json()], Deadline.after(_ADOPTION_S))
        return Outcome.ADOPTED

    def _outcome(
        self, code: Outcome, key: str, size: int | None, partition: int | None = None, offset: int | None = None
    ) -> outcomes.Outcome:
        """Return an object's outcome. If a notification points to the object, ``partition`` and ``offset`` are the
        notification's place. Set ``stored_size`` only for a deletion, because only a deletion frees space."""
        status: outcomes.Status = ("planned" if self.dry_run else "done") if code.is_change else "kept"
        is_deleted = code is Outcome.DELETED
        return outcomes.Outcome(
            action="gc", status=status, code=code.value, kind="orphan" if offset is None else "batch",
            topic=self.log.topic.name, partition=partition, base_offset=offset, name=key,
            size=None if is_deleted else size, stored_size=size if is_deleted else None,
        )  # fmt: skip


def plan_gc(
    topics: Topics,
    names: Sequence[str] = (),
    *,
    min_age: timedelta = timedelta(days=1),
    adopt: bool = False,
    warn: Callable[[str], object] | None = None,
) -> outcomes.Plan:
    """Return the plan of a run over topics, one after the other. ``names`` may be globs; without names, the plan has
    all topics.

    ``warn`` is called if a queue drops notifications before its objects expire.

    Raise ConfigError if ``min_age`` is so short that a writer may still append the notification of an orphan. The plan
    raises StoreError if the store's clock is so far ahead that new batches would look old. At its end, it raises the
    errors of all topics that it refused, such as ConfigError if another cluster has a topic with the same objects, or
    CorruptDataError for a damaged definition.
    """
    age_ms = int(min_age.total_seconds() * 1000)
    damaged: list[TieredStoreError] = []
    chosen = topics.select(names, damaged.append)
    least_ms = _DELIVERIES * topics.batches.delivery_timeout_ms
    if chosen and age_ms < least_ms:
        raise ConfigError(
            f"a minimum age of {age_ms} ms is too short, since a writer may still append an orphan's notification: use "
            f"at least {least_ms} ms, {_DELIVERIES} times pubsub.delivery.timeout.ms"
        )

    def collect(dry_run: bool) -> Generator[outcomes.Outcome]:
        refused = [*damaged]
        for topic in chosen:
            as_of_ms = trusted_time_ms(topics.store, age_ms, topics.batches.delivery_timeout_ms, young="new batches")
            try:
                topics.check_alone(topic)
                # Look each topic up again, because a read partition may have been added after the plan was made.
                with BatchLog(topics, topics.get(topic.name)) as log:
                    run = GarbageCollection(log, min_age_ms=age_ms, adopt=adopt, as_of_ms=as_of_ms, dry_run=dry_run)
                    yield from run.run()
            except (ConfigError, CorruptDataError, DataLossError) as error:
                refused.append(error)
                continue
            if warn is not None:
                for warning in run.warnings:
                    warn(warning)
        if refused:
            raise type(refused[0])("; ".join(map(str, refused))) from refused[0]

    scope = ", ".join(names) or f"all topics of cluster {topics.batches.cluster}"
    return outcomes.Plan("gc", scope, collect)


def _digest(key: str) -> bytes:
    """Return a short hash to hold in memory instead of a key, because a topic may have millions of keys."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
