"""Finds the key pairs that the segments of a store need."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tieredstore.backends.base import ObjectStore, admin_of, find_abandoned_writes
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import ObjectNotFoundError
from tieredstore.ops.listing import ListedSegment, SegmentTotals
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.process.deadline import CALL_TIMEOUT_S, boot_clock_s
from tieredstore.process.forks import ForkSafeLock


def each_counted(listed: Iterable[ListedSegment], totals: dict[str | None, SegmentTotals]) -> Iterator[ListedSegment]:
    """Yield each segment, and add it to the totals of the pair that wraps its data key (None: not encrypted).

    Segments with an unreadable or missing manifest are not counted, because their pair is unknown.
    """
    for segment in listed:
        if isinstance(segment.loaded, StoredSegment):
            encryption = segment.loaded.manifest.encryption
            key_id = None if encryption is None else encryption.key_id
            totals.setdefault(key_id, SegmentTotals()).add(segment.loaded)
        yield segment


class NeedReason(enum.StrEnum):
    """Reasons for which a key pair may still be needed."""

    WRAPPED = "wrapped"
    """The pair wraps the segment's data key."""

    DAMAGED = "damaged"
    """The segment's manifest is unreadable, so its pair is unknown."""

    UNCOMMITTED = "uncommitted"
    """The segment has no manifest. If a copy is still running, it may commit the segment with this pair."""

    UNFINISHED = "unfinished"
    """A write is unfinished. Its segment may still be committed with this pair."""

    SNAPSHOT = "snapshots"
    """The pair wraps the data key of a cluster's snapshot, or the snapshot is damaged."""

    CACHED = "cached"
    """A rotation replaced the pair a short time ago, and readers may have cached the old manifests."""


@dataclass(frozen=True, slots=True)
class KeyNeed:
    """A segment, a snapshot, an unfinished write or a rotation that may still need a key pair.

    ``name`` is a segment's path, or the key of another object in the store.
    """

    name: str
    reason: NeedReason
    detail: str = ""


_FOREVER_MS: Final = 10**13
"""Longer cache retentions, such as Java's Long.MAX_VALUE, count as unlimited, because no calendar has their end."""

_RENEWED_S: Final = 10.0
_MARGIN_MS: Final = int(1000 * (_RENEWED_S + CALL_TIMEOUT_S))
"""Maximum time from a rotation's note to the rotation's last write. A rotation renews its note every ``_RENEWED_S``,
but a single write may take longer, because the store repeats it for up to ``CALL_TIMEOUT_S``.
"""


class RotationNotes:
    """Records in the bucket, for each replaced key pair, when a rotation last replaced it. Thread-safe.

    Readers need a replaced pair until their caches expire (see ``cached_until_ms``).
    """

    def __init__(self, store: ObjectStore, prefix: str, clock: Callable[[], float] = boot_clock_s) -> None:
        self._store, self._prefix, self._clock = store, prefix, clock
        self._lock = ForkSafeLock()
        self._noted_s: dict[str, float] = {}

    def before_write(self, key_id: str) -> None:
        """Note that this pair is about to be replaced, unless a note was written a short time ago.

        The note comes before the write, and again during a long rotation, because the rotation may be killed at any
        time.
        """
        with self._lock:
            now_s = self._clock()
            if now_s - self._noted_s.get(key_id, -math.inf) >= _RENEWED_S:
                self._note(key_id)
                self._noted_s[key_id] = now_s

    def at_end(self) -> None:
        """Note the present time for all replaced pairs, because readers may have cached old manifests until now."""
        for key_id in self._noted_s:
            self._note(key_id)

    def _note(self, key_id: str) -> None:
        self._store.put(_rotated_key(self._prefix, key_id), b"")


def cached_until_ms(store: ObjectStore, prefix: str, key_id: str, cached_ms: int) -> float | None:
    """Return the time until which readers may need a replaced key pair. Readers need the pair for the manifests in
    their caches.

    The time is by the store's clock.

    ``cached_ms`` is the time for which readers cache a manifest. -1 means forever. Return None if the caches have
    expired since the rotation, or if no rotation replaced the pair. Return ``math.inf`` if caches never expire or the
    store has no clock.
    """
    if not cached_ms:
        return None
    try:
        rotated_ms = store.head(_rotated_key(prefix, key_id)).modified_ms
    except ObjectNotFoundError:
        return None
    now_ms = admin_of(store).now_ms()
    if rotated_ms is None or now_ms is None or not 0 <= cached_ms <= _FOREVER_MS:
        return math.inf
    until_ms = rotated_ms + cached_ms + _MARGIN_MS
    return until_ms if now_ms < until_ms else None


def _rotated_key(prefix: str, key_id: str) -> str:
    return f"{prefix}!tieredstore/keys/rotated/{key_id}"


def needs_of(
    store: ObjectStore, prefix: str, listed: Iterable[ListedSegment], key_id: str, *, cached_ms: int
) -> Iterator[KeyNeed]:
    """Yield everything that needs, or may need, the pair ``key_id``. If nothing is yielded, the pair can be retired.

    Unfinished writes are looked up before the first segment is taken from ``listed``. So a write that is committed in
    the meantime appears in ``listed``. The note of a rotation is read last, because a rotation may replace the pair in
    the meantime.
    """
    for write in find_abandoned_writes(store, prefix):
        yield KeyNeed(write.key, NeedReason.UNFINISHED)
    snapshots = Snapshots(store, prefix, None)
    for stored in snapshots.find_all():
        if snapshots.may_need(stored, key_id):
            yield KeyNeed(stored.key, NeedReason.SNAPSHOT)
    for segment in listed:
        path = segment.objects.main_path
        if segment.loaded is None:
            yield KeyNeed(path, NeedReason.UNCOMMITTED)
        elif not isinstance(segment.loaded, StoredSegment):
            yield KeyNeed(path, NeedReason.DAMAGED, str(segment.loaded))
        elif (wrapped := segment.loaded.manifest.encryption) is not None and wrapped.key_id == key_id:
            yield KeyNeed(path, NeedReason.WRAPPED)
    until_ms = cached_until_ms(store, prefix, key_id, cached_ms)
    if until_ms is not None:
        if until_ms == math.inf:
            until = "readers restart (then run this with fetch.manifest.cache.retention.ms=0)"
        else:
            end = datetime.fromtimestamp(until_ms / 1000, UTC)
            until = end.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        yield KeyNeed(_rotated_key(prefix, key_id), NeedReason.CACHED, f"until {until}")
