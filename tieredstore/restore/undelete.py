"""Restore of segments that were deleted by mistake, from a bucket that keeps versions.

The restore works on stored keys, because a deleted segment of the raw layout has no key in the plugin's form. Readers
see a segment when its manifest exists (in the raw layout, its log). That file is therefore restored last, after a check
of each other file.

Until the last object is back, a garbage collection would delete the segment's other objects. These objects look like
leftovers of an old copy. Later, a garbage collection that asks brokers would delete the whole segment, because the
brokers have deleted the topic. The restore therefore first places a legal hold, which stays until the user releases it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from tieredstore.api.outcomes import Outcome, Plan, Status
from tieredstore.api.scopes import is_glob
from tieredstore.backends.base import BucketVersions, ObjectStore, ObjectVersion, admin_of
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ResourceNotFoundError,
    StoreError,
)
from tieredstore.format.keys import Suffix, listing_prefix, parse_key
from tieredstore.model import TopicIdPartition, Uuid, utc_text
from tieredstore.ops.garbage.holds import LOOK_AGAIN_S, LegalHold, find_hold, place_hold
from tieredstore.places.entropy import EntropyStore
from tieredstore.places.mapped import LaidOutStore
from tieredstore.places.raw_keys import FILES, RawKeys
from tieredstore.places.raw_metadata import MetadataKeeper
from tieredstore.places.raw_store import RawStore
from tieredstore.places.routed import places_of
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.api.scopes import Scopes

_PLUGIN_FILES: Final = (Suffix.INDEXES.value, Suffix.LOG.value, Suffix.MANIFEST.value)


@dataclass(frozen=True, slots=True)
class DeletionTimes:
    """Limits for the time of deletion, in ms since the epoch: ``since_ms`` (inclusive) and ``until_ms`` (exclusive)."""

    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, time_ms: int) -> bool:
        """Return True if the time is within the limits."""
        return (self.since_ms is None or time_ms >= self.since_ms) and (
            self.until_ms is None or time_ms < self.until_ms
        )


def plan_undelete(store: ObjectStore, prefix: str, scopes: Scopes, times: DeletionTimes = DeletionTimes()) -> Plan:
    """Return a plan that makes deleted segments of the topics in ``scopes`` visible again.

    An outcome has one of these codes:

    - ``undeleted``: the segment is visible again.
    - ``gone``: the segment stays deleted, because a file has no version left.
    - ``superseded``: the segment stays deleted, because the raw layout has a later log of the topic at these offsets.
    - ``changed``: a failure, because a file was written or deleted during the restore.
    - ``refused``: a failure, because the store refused to remove a delete marker, for example a marker without an id.
    - ``held``: a hold protects the topic.
    - ``exists``: another topic of the same name exists.

    The plan keeps the whole listing of versions in memory. If an ``apply`` is stopped or killed, no segment is partly
    visible, and the next ``apply`` completes the work.

    Raise ConfigError if the store cannot list versions, or if several deleted topics had the same name. Raise
    ResourceNotFoundError if nothing is left of a topic, neither existing nor deleted segments.
    """

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        named = (places_of(store, prefix, None if is_glob(topic) else topic) for topic in scopes.topics)
        places = {each: _Place.of(each.store, each.prefix) for each in chain.from_iterable(named)}
        # Leave out segments at an earlier place of their topic, because readers do not look there.
        found = [
            (place, [one for one in place.segments(scopes) if each in places_of(store, prefix, one.where.topic)])
            for each, place in places.items()
        ]
        everything = [one for _, segments in found for one in segments]
        if not everything:
            raise _nothing_left(places.values(), scopes)
        yield from _other_lives(everything, times)
        topics = dict.fromkeys(one.where.topic for one in everything if one.is_chosen(times) and not one.missing)
        for topic in topics:
            yield _hold(store, prefix, topic, dry_run=dry_run)
        if topics and not dry_run:
            time.sleep(LOOK_AGAIN_S)  # wait until each running garbage collection has read the legal holds again
        for place, segments in found:
            with closing(place.outcomes(segments, times, dry_run=dry_run)) as of_place:
                yield from of_place

    return Plan("undelete", str(scopes), outcomes)


@dataclass(slots=True)
class _File:
    """The versions and delete markers that the bucket has for one key."""

    key: str
    newest: ObjectVersion | None = None
    markers: list[ObjectVersion] = field(default_factory=list[ObjectVersion])

    def add(self, version: ObjectVersion) -> None:
        if version.is_marker:
            self.markers.append(version)
        elif self.newest is None:
            self.newest = version

    @property
    def is_deleted(self) -> bool:
        return self.newest is None or not self.newest.is_latest

    @property
    def hiding(self) -> list[ObjectVersion]:
        """The delete markers that are newer than the newest version, in the order of time.

        Some stores give times in seconds, so a delete marker of the same second may be older than the version. Removing
        such a marker does no harm.
        """
        newest = self.newest
        above = [one for one in self.markers if newest is None or one.is_latest or one.time_ms >= newest.time_ms]
        return sorted(above, key=lambda marker: marker.time_ms) if self.is_deleted else []

    @property
    def deleted_ms(self) -> int | None:
        """The time of the first deletion after the newest version, or None if the object exists. Later deletions had no
        effect."""
        return min((marker.time_ms for marker in self.hiding), default=None)


@dataclass(slots=True)
class _Segment:
    """The files of one segment by their endings, in the order of their restore."""

    where: TopicIdPartition
    base_offset: int
    segment_id: Uuid | None
    name: str
    files: dict[str, _File]

    @property
    def deleted_ms(self) -> int | None:
        """The time at which readers lost the segment; None if all of its files exist."""
        *_, last = times = [one.deleted_ms for one in self.files.values()]
        return last if last is not None else max((time for time in times if time is not None), default=None)

    def is_chosen(self, times: DeletionTimes) -> bool:
        return self.deleted_ms is not None and times.has(self.deleted_ms)

    @property
    def written_ms(self) -> int:
        newest = [one.newest.time_ms for one in self.files.values() if one.newest is not None]
        return max(newest, default=0)

    @property
    def missing(self) -> list[str]:
        return [ending for ending, one in self.files.items() if one.newest is None]

    @property
    def size(self) -> int:
        return sum(one.newest.size for one in self.files.values() if one.newest is not None and one.is_deleted)

    def outcome(self, code: str, status: Status, why: str = "", error: Exception | None = None) -> Outcome:
        reason = f"deleted {utc_text(self.deleted_ms or 0)}{why}"
        return Outcome(
            action="undelete", status=status, code=code, base_offset=self.base_offset, segment_id=self.segment_id,
            name=self.name, stored_size=self.size, reason=reason, error=error,
        ).of(self.where)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """One place of the bucket (a store and a prefix), accessed by stored keys."""

    store: ObjectStore
    prefix: str
    stored: ObjectStore
    versions: BucketVersions

    @classmethod
    def of(cls, store: ObjectStore, prefix: str) -> _Place:
        versions = admin_of(store).versions()
        if isinstance(versions, str):
            raise ConfigError(f"nothing can be brought back from {store.identity}: {versions}")
        return cls(store, prefix, store.inner if isinstance(store, LaidOutStore) else store, versions)

    def segments(self, scopes: Scopes) -> Iterator[_Segment]:
        """List all segments in scope by partition and offset. The list includes each deleted segment that has left a
        version or a delete marker."""
        found: dict[tuple[TopicIdPartition, str], _Segment] = {}
        for prefix, topics in self._listings(scopes):
            for version in self.versions.list(prefix):
                parsed = self._parse(version.key)
                if parsed is None or not _is_in_scope(parsed[0].where, topics, scopes):
                    continue
                new, ending = parsed
                segment = found.setdefault((new.where, new.name), new)
                segment.files[ending].add(version)
        yield from sorted(found.values(), key=_order)

    def _listings(self, scopes: Scopes) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the prefixes to list. For each prefix, also yield the topics that the restore takes from this
        listing."""
        has_bits = isinstance(self.store, LaidOutStore) and self.store.layout.bits
        if has_bits or any(map(is_glob, scopes.topics)):
            yield self.prefix, scopes.topics
            return
        for topic in dict.fromkeys(scopes.topics):
            if isinstance(self.store, RawStore):
                yield f"{self.prefix}{RawKeys(self.store.prefix, self.store.layout).cluster}/{topic}-", [topic]
            else:
                yield listing_prefix(self.prefix, topic, scopes.topic_id), [topic]

    def _parse(self, stored_key: str) -> tuple[_Segment, str] | None:
        """Return the segment of a stored key, still without object versions, and the ending of the file's name. Return
        None if the key belongs to no segment."""
        if isinstance(self.store, RawStore):
            keys = RawKeys(self.store.prefix, self.store.layout)
            file = keys.parse(stored_key)
            if file is None:
                return None
            where, base_offset, segment_id, ending = keys.where(file), file.base_offset, None, file.ending
            endings = FILES
        else:
            shown_key = self.store.outer_key(stored_key) if isinstance(self.store, EntropyStore) else stored_key
            parsed = None if shown_key is None else parse_key(self.prefix, shown_key)
            if parsed is None:
                return None
            where, segment_id = parsed.segment_id.topic_id_partition, parsed.segment_id.id
            base_offset, ending, endings = parsed.start_offset, parsed.suffix.value, _PLUGIN_FILES
        stem = stored_key.removesuffix(ending)
        files = {each: _File(f"{stem}{each}") for each in endings}
        return _Segment(where, base_offset, segment_id, stem[len(self.prefix) : -1], files), ending

    def outcomes(self, segments: Sequence[_Segment], times: DeletionTimes, *, dry_run: bool) -> Generator[Outcome]:
        chosen = [one for one in segments if one.is_chosen(times)]
        superseded = _find_superseded(segments) if isinstance(self.store, RawStore) else ()
        bring_back = partial(self._outcome, superseded, dry_run=dry_run)
        with (
            ThreadPool(READERS, "tieredstore-undelete") as pool,
            closing(in_parallel(pool, bring_back, chosen, at_once=4 * READERS)) as done,
        ):
            yield from done
        if isinstance(self.store, RawStore) and not dry_run:
            # Update ``_metadata`` for all partitions, because an earlier run may have been killed before its update.
            keeper = MetadataKeeper(self.store, self.prefix)
            for where in dict.fromkeys(one.where for one in segments):
                keeper.name_all(listing_prefix(self.prefix, where.topic, where.topic_id, where.partition))

    def _outcome(self, superseded: Collection[str], segment: _Segment, *, dry_run: bool) -> Outcome:
        if segment.missing:
            return segment.outcome("gone", "kept", f"; no version of .{', .'.join(segment.missing)} is left")
        if segment.name in superseded:
            return segment.outcome("superseded", "kept", "; a later log of the topic has these offsets")
        if dry_run:
            return segment.outcome("undeleted", "planned")
        try:
            for file in segment.files.values():
                self._bring_back(file)
            for file in segment.files.values():
                self._check(file)  # a deletion that began before the legal hold may have removed the file
        except (PreconditionFailedError, ObjectNotFoundError) as error:
            return segment.outcome("changed", "failed", error=error)
        except StoreError as error:
            # The next segment would fail in the same way, so stop here.
            if error.retryable or isinstance(error, AccessDeniedError):
                raise
            return segment.outcome("refused", "failed", error=error)
        return segment.outcome("undeleted", "done")

    def _bring_back(self, file: _File) -> None:
        """Make a file visible. Raise an error if readers then see another version than the one in the plan."""
        for marker in file.hiding:
            self.versions.remove_marker(marker)
        self._check(file)

    def _check(self, file: _File) -> None:
        seen = self.stored.head(file.key)
        if file.newest is None or seen.etag != file.newest.etag:
            raise PreconditionFailedError(
                f"{file.key!r} was written again during the restore: check the object, then run the command again"
            )


def _hold(store: ObjectStore, prefix: str, topic: str, *, dry_run: bool) -> Outcome:
    """Place a legal hold, which keeps all tools from deleting the topic. Raise ConfigError if a different legal hold
    has this name."""
    name = f"undelete-{topic}"
    if len(name) > 100:  # a hold's longest name; the digest tells long names apart
        name = f"{name[:91]}-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"
    hold = LegalHold(name, topic, reason="restore undelete")
    outcome = Outcome(
        action="undelete", status="planned" if dry_run else "done", code="held", topic=topic, name=hold.name,
        reason=f"gc and rm delete nothing of {topic} until `tieredstore holds release {hold.name}`",
    )  # fmt: skip
    if not dry_run:
        try:
            place_hold(store, prefix, hold)
        except PreconditionFailedError:
            there = find_hold(store, prefix, hold.name)
            if there is not None and there != hold:
                raise ConfigError(
                    f"the hold {hold.name} exists with another scope: release it, so that {topic} can get its own hold"
                ) from None
            return replace(outcome, status="kept")
    return outcome


def _nothing_left(places: Iterable[_Place], scopes: Scopes) -> ResourceNotFoundError:
    obstacles = dict.fromkeys(filter(None, (place.versions.obstacle() for place in places)))
    why = (
        "; ".join(obstacles)
        or "check the name, key.prefix and endpoint.rules; perhaps a rule of the bucket has removed the old versions"
    )
    return ResourceNotFoundError(f"nothing is left of {scopes}, deleted or not: {why}")


def _other_lives(segments: Iterable[_Segment], times: DeletionTimes) -> Iterator[Outcome]:
    """Yield an outcome for each existing topic with the same name as a deleted topic.

    Raise ConfigError if several deleted topics had the same name.
    """
    deleted: defaultdict[str, dict[Uuid, int]] = defaultdict(dict)
    existing: defaultdict[str, dict[Uuid, None]] = defaultdict(dict)
    for one in segments:
        topic, topic_id = one.where.topic, one.where.topic_id
        if one.deleted_ms is None:
            existing[topic][topic_id] = None
        elif times.has(one.deleted_ms) and not one.missing:
            deleted[topic][topic_id] = max(deleted[topic].get(topic_id, 0), one.deleted_ms)
    for topic, ids in deleted.items():
        if len(ids) > 1:
            shown = ", ".join(f"{topic_id} (deleted {utc_text(last_ms)})" for topic_id, last_ms in ids.items())
            raise ConfigError(f"several topics {topic} were deleted: choose one by --topic-id: {shown}")
        for other in existing[topic].keys() - ids:
            yield Outcome(
                action="undelete", status="kept", code="exists", topic=topic, topic_id=other, name=topic,
                reason="another topic of this name exists, so readers choose one by --topic-id",
            )  # fmt: skip


def _find_superseded(segments: Iterable[_Segment]) -> set[str]:
    """Return the names of deleted segments that a newer log has replaced. The newer log began after the segment's
    deletion, at or before the segment's offset.

    In the raw layout, a re-created topic has the same keys as the deleted topic. The logs of both topics must not mix.
    """
    names: set[str] = set()
    written_ms: dict[TopicIdPartition, int] = {}
    for one in segments:
        if one.missing:
            continue
        before_ms = written_ms.get(one.where, 0)
        if one.deleted_ms is not None and before_ms > one.deleted_ms:
            names.add(one.name)
            continue
        written_ms[one.where] = max(before_ms, one.written_ms)
    return names


def _is_in_scope(where: TopicIdPartition, topics: Iterable[str], scopes: Scopes) -> bool:
    return (
        any(fnmatch.fnmatchcase(where.topic, topic) for topic in topics)
        and (scopes.partitions is None or where.partition in scopes.partitions)
        and (scopes.topic_id is None or where.topic_id == scopes.topic_id)
    )


def _order(segment: _Segment) -> tuple[str, str, int, int, str]:
    where = segment.where
    return where.topic, str(where.topic_id), where.partition, segment.base_offset, segment.name
