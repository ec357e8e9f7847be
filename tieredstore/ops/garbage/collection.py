"""Garbage collection: deletes the remains of broken copies and deletions, and segments that no reader will ever need.

There are two kinds of garbage: objects of a segment without a manifest, and unfinished writes. Both look like the
objects of a running copy. Only their age shows that no copy is running. An attempt older than ``upload.max.age.ms``
never writes its manifest. So objects that are older than twice this time, by the store's clock, belong to no running
attempt.

With access to the brokers, there is a third kind: segments with a manifest that the brokers deleted, or never finished
copying.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final, Self

from tieredstore.backends.base import DRAFT_PREFIX, AbandonedWrite, ObjectStore, find_abandoned_writes, store_time_ms
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.metadata_topic import SegmentState
from tieredstore.errors import ConfigError, ObjectNotFoundError, StoreError
from tieredstore.format.keys import ObjectKey, Suffix, object_key, parse_key
from tieredstore.model import TopicIdPartition, can_be_topic
from tieredstore.ops.brokers import BrokersView
from tieredstore.ops.garbage.holds import Holds
from tieredstore.ops.steps import Outcome, Step
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.manifest_object import delete_manifest_first

AGES_APART: Final = 2
"""The minimum age of garbage, as a multiple of the longest time of an upload (``upload.max.age.ms``). A
multiple above 1 leaves a safety margin.
"""


class Forgotten(enum.StrEnum):
    """The reason why no broker will ever read a segment, although it has a manifest."""

    DELETED = "the brokers have deleted the segment"
    UNFINISHED = "the brokers never finished the segment's copy"
    NEVER_NAMED = "the brokers' records do not name the segment"
    OTHER_CLUSTER = "the brokers' records name no segment of its topic, so it may be of another cluster"


def written_ms(objects: SegmentObjects) -> int | None:
    """Return when the youngest object was written, by the store's clock; None if unknown."""
    times = [info.modified_ms for _, info in objects.objects]
    return None if None in times else max(time for time in times if time is not None)


@dataclass(frozen=True, slots=True)
class Garbage:
    """Objects without a manifest, a segment that brokers have forgotten, or an unfinished write.

    ``name`` is the path of the segment, or the key of the unfinished write. ``modified_ms`` is the time at which the
    newest object was modified. ``modified_ms`` and ``size`` are None if unknown.
    """

    what: SegmentObjects | AbandonedWrite
    name: str
    partition: TopicIdPartition
    first_offset: int
    size: int | None
    modified_ms: int | None
    forgotten: Forgotten | None = None

    @classmethod
    def of_objects(cls, objects: SegmentObjects, forgotten: Forgotten | None = None) -> Self:
        """Create an item for a segment that has no manifest, or that the brokers have ``forgotten``."""
        where = objects.segment_id.topic_id_partition
        youngest = written_ms(objects)
        return cls(objects, objects.main_path, where, objects.start_offset, objects.stored_size, youngest, forgotten)

    @classmethod
    def of_write(cls, write: AbandonedWrite, place: ObjectKey) -> Self:
        """Create an item for an unfinished write. ``place`` is the write's key in the layout of segments."""
        where = place.segment_id.topic_id_partition
        return cls(write, write.key, where, place.start_offset, write.size, write.started_ms)

    @property
    def is_write(self) -> bool:
        """True for an unfinished write, which no listing shows."""
        return isinstance(self.what, AbandonedWrite)


_FORGOTTEN: Final = {
    None: Forgotten.NEVER_NAMED,
    SegmentState.DELETE_SEGMENT_FINISHED: Forgotten.DELETED,
    SegmentState.COPY_SEGMENT_STARTED: Forgotten.UNFINISHED,
}
"""The reason why the brokers no longer need a segment, by the segment's state (None: no state). In all other states,
the brokers list the segment or are deleting it. They restart an interrupted deletion themselves."""

_ANY_NAME: Final = f"{0:020d}-{'A' * 22}.{Suffix.LOG.value}"


def least_age_ms(upload_max_age_ms: int) -> int:
    """Return the smallest safe ``min_age_ms`` for copies that commit within ``upload_max_age_ms``."""
    return AGES_APART * upload_max_age_ms


def trusted_time_ms(
    store: ObjectStore, min_age_ms: int, upload_max_age_ms: int, *, young: str = "objects of running copies"
) -> int:
    """Return the earlier of the store's time and this machine's, to plan a garbage collection. Raise StoreError if the
    store's time is so far ahead that objects of a running copy (``young``) would look older than ``min_age_ms``. Raise
    ConfigError for a store without a clock.
    """
    now_ms = store_time_ms(store)
    ahead_ms = now_ms - int(time.time() * 1000)
    if ahead_ms > max(upload_max_age_ms, min_age_ms - upload_max_age_ms):
        raise StoreError(
            f"the clock of {store.identity} is {ahead_ms / 3_600_000:.1f} h ahead of this machine's, so {young} "
            "may look old: correct the wrong clock, or give a greater minimum age"
        )
    return now_ms - max(0, ahead_ms)


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """Deletes garbage. With ``dry_run``, deletes nothing. Memory does not grow with the listing.

    Only keys of segments under ``prefix`` count. Manifests and legal holds are checked again right before each
    deletion. If a run is stopped or killed, the next run deletes the rest.

    With ``brokers``, segments that the brokers no longer need are garbage too. The brokers may have no record of a
    segment. Such segments are only reported. With ``unknown_too``, they are deleted, unless the brokers have no record
    of the whole topic id. The brokers may then be those of another cluster. Ages are counted up to ``as_of_ms`` of the
    store's clock. The default is the start of the run.
    """

    store: ObjectStore
    prefix: str
    _: KW_ONLY
    min_age_ms: int
    upload_max_age_ms: int
    brokers: BrokersView | None = None
    unknown_too: bool = False
    as_of_ms: int | None = None
    dry_run: bool = True
    parallel: int = READERS

    def run(self, scope: Scope) -> Iterator[Step[Garbage]]:
        """Yield a step for each piece of garbage in scope.

        Raise ConfigError for an unsafe ``min_age_ms``, and for a store without a clock. A refused deletion is a step.
        Any other error of the store ends the run.
        """
        if self.min_age_ms < least_age_ms(self.upload_max_age_ms):
            raise ConfigError(
                f"a minimum age of {_hours(self.min_age_ms)} is too short: copies may take "
                f"{_hours(self.upload_max_age_ms)} (upload.max.age.ms), and an object younger than {AGES_APART} times "
                "that time may belong to a running copy"
            )
        now_ms = store_time_ms(self.store) if self.as_of_ms is None else self.as_of_ms
        older_than_ms, holds = now_ms - self.min_age_ms, Holds(self.store, self.prefix)
        garbage = find_garbage(self.store, self.prefix, scope, self.brokers)
        with ThreadPool(self.parallel, "tieredstore-gc") as pool:
            work = partial(self.collect, older_than_ms, holds)
            yield from in_parallel(pool, work, garbage, at_once=4 * self.parallel)

    def collect(self, older_than_ms: int, holds: Holds, garbage: Garbage) -> Step[Garbage]:
        """Delete one piece of garbage, unless it is too young, under a legal hold, or has a manifest by now.
        Thread-safe.
        """
        if garbage.modified_ms is None:
            return Step(garbage, Outcome.YOUNG, "the age of the objects is unknown")
        if garbage.modified_ms > older_than_ms:
            return Step(garbage, Outcome.YOUNG)
        is_kept = garbage.forgotten is Forgotten.NEVER_NAMED and not self.unknown_too
        if garbage.forgotten is not None and (is_kept or garbage.forgotten is Forgotten.OTHER_CLUSTER):
            return Step(garbage, Outcome.UNKNOWN, garbage.forgotten.value)
        hold = holds.on(garbage.partition, garbage.first_offset, None)
        if hold is not None:
            return Step(garbage, Outcome.HELD, f"legal hold {hold.name!r}")
        try:
            return self._remove(garbage)
        except StoreError as error:
            if error.retryable:
                raise
            return Step(garbage, Outcome.REFUSED, str(error))

    def _remove(self, garbage: Garbage) -> Step[Garbage]:
        if isinstance(garbage.what, SegmentObjects) and garbage.forgotten is not None:
            if not self.dry_run:
                delete_objects(self.store, garbage.what)
            return Step(garbage, Outcome.DELETED, garbage.forgotten.value)
        if isinstance(garbage.what, SegmentObjects):
            return Step(garbage, self._objects_removed(garbage.what))
        if not garbage.what.removable:
            return Step(garbage, Outcome.LEFT, "only the store itself can remove it")
        if self.dry_run or self.store.discard(garbage.what):
            return Step(garbage, Outcome.DELETED)
        return Step(garbage, Outcome.GONE, "another process deleted it, or is working on it")

    def _objects_removed(self, objects: SegmentObjects) -> Outcome:
        # Look for the manifest again, because hours may have passed since the listing.
        try:
            self.store.head(object_key(self.prefix, objects.main_path, Suffix.MANIFEST))
        except ObjectNotFoundError:
            pass
        else:
            return Outcome.REFERENCED
        if not self.dry_run:
            self.store.delete([info.key for _, info in objects.objects])
        return Outcome.DELETED


def find_garbage(
    store: ObjectStore, prefix: str, scope: Scope, brokers: BrokersView | None = None
) -> Iterator[Garbage]:
    """Yield segments without a manifest, segments that the brokers have forgotten, and then unfinished writes.

    Garbage of any age is yielded. Objects are skipped if Kafka does not allow the topic's name, because they belong to
    another program.
    """
    listed = list_segments(store, prefix, scope)
    for objects in listed if brokers is None else brokers.read_behind(listed):
        if not can_be_topic(objects.segment_id.topic_id_partition.topic):
            continue
        if objects.find(Suffix.MANIFEST) is None:
            yield Garbage.of_objects(objects)
        elif brokers is not None and (forgotten := _FORGOTTEN.get(brokers.state_of(objects.segment_id))) is not None:
            is_known = brokers.knows_topic(objects.segment_id.topic_id_partition)
            yield Garbage.of_objects(objects, forgotten if is_known else Forgotten.OTHER_CLUSTER)
    for write in find_abandoned_writes(store, scope.listing_prefix(prefix)):
        place = _place(prefix, write)
        if place is None or not can_be_topic(place.segment_id.topic_id_partition.topic):
            continue
        if scope.holds(place.segment_id, place.start_offset):
            yield Garbage.of_write(write, place)


def _hours(duration_ms: int) -> str:
    return f"{duration_ms / 3_600_000:g} h"


def _place(prefix: str, write: AbandonedWrite) -> ObjectKey | None:
    """Return the write's key in the layout of segments. A store in a folder names its drafts (unfinished files) outside
    this layout. For a draft, return the key of a segment in the same folder.
    """
    folder, slash, name = write.key.rpartition("/")
    if name.startswith(DRAFT_PREFIX):
        return parse_key(prefix, f"{folder}{slash}{_ANY_NAME}")
    return parse_key(prefix, write.key)


def delete_objects(store: ObjectStore, objects: SegmentObjects) -> None:
    """Delete a segment's objects, the manifest first. Then readers never see half a segment.

    Delete the manifest even if the listing lacks it, because a copy may have committed the segment since then.
    """
    keys = [info.key for _, info in objects.objects]
    if objects.find(Suffix.MANIFEST) is None:
        keys.append(f"{keys[0].rpartition('.')[0]}.{Suffix.MANIFEST.value}")
    delete_manifest_first(store, keys)
