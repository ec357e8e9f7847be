"""The key pairs that the segments of a store need."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tieredstore.backends.base import ObjectStore, admin_of, find_abandoned_writes
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.ops.listing import ListedSegment, SegmentTotals


def each_counted(listed: Iterable[ListedSegment], totals: dict[str | None, SegmentTotals]) -> Iterator[ListedSegment]:
    """Add each segment to the sums of the pair that wraps its data key; None for unencrypted ones.

    Segments with a damaged or missing manifest are not counted: their pair is unknown.
    """
    for segment in listed:
        if isinstance(segment.loaded, StoredSegment):
            encryption = segment.loaded.manifest.encryption
            key_id = None if encryption is None else encryption.key_id
            totals.setdefault(key_id, SegmentTotals()).add(segment.loaded)
        yield segment


class NeedReason(enum.StrEnum):
    """The reason why a pair may be needed."""

    WRAPPED = "wrapped"
    """It wraps the segment's data key."""

    DAMAGED = "damaged"
    """The segment's manifest is unreadable, so its pair is unknown."""

    UNCOMMITTED = "uncommitted"
    """Objects without a manifest, of a running or broken copy: it may still be committed under the pair."""

    UNFINISHED = "unfinished"
    """An unfinished write: its segment may still be committed under the pair."""

    CACHED = "cached"
    """A recent rotation took segments from it: readers may have cached their old manifests."""


@dataclass(frozen=True, slots=True)
class KeyNeed:
    """Something that needs a pair, or may: ``name`` is the segment's path, or the key of an unfinished write."""

    name: str
    reason: NeedReason
    detail: str = ""


def note_rotated(store: ObjectStore, prefix: str, key_id: str) -> None:
    """Note in the bucket that segments leave the pair now: readers need it until their caches expire."""
    store.put(_rotated_key(prefix, key_id), b"")


def cached_until_ms(store: ObjectStore, prefix: str, key_id: str, cached_ms: int) -> int | None:
    """Return the time from which readers that cache manifests for ``cached_ms`` no longer need the pair, by the store's
    clock.

    None if that has passed, if no rotation took segments from it, and if it is unknown: caches without expiry, a
    store without a clock.
    """
    try:
        rotated_ms = store.head(_rotated_key(prefix, key_id)).modified_ms
    except ObjectNotFoundError:
        return None
    now_ms = admin_of(store).now_ms()
    if rotated_ms is None or now_ms is None or cached_ms < 0:
        return None
    return rotated_ms + cached_ms if now_ms < rotated_ms + cached_ms else None


def _rotated_key(prefix: str, key_id: str) -> str:
    return f"{prefix}!tieredstore/keys/rotated/{key_id}"


def needs_of(
    store: ObjectStore, prefix: str, listed: Iterable[ListedSegment], key_id: str, *, cached_ms: int = -1
) -> Iterator[KeyNeed]:
    """Yield everything that needs the pair ``key_id``, or may: if nothing, the pair can be retired.

    Unfinished writes are looked for before anything is taken from ``listed``, a listing that begins then: a write
    committed in between is listed.
    """
    until_ms = cached_until_ms(store, prefix, key_id, cached_ms)
    if until_ms is not None:
        until = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        yield KeyNeed(_rotated_key(prefix, key_id), NeedReason.CACHED, f"until {until}")
    for write in find_abandoned_writes(store, prefix):
        yield KeyNeed(write.key, NeedReason.UNFINISHED)
    for segment in listed:
        path = segment.objects.main_path
        if isinstance(segment.loaded, CorruptDataError):
            yield KeyNeed(path, NeedReason.DAMAGED, str(segment.loaded))
        elif segment.loaded is None:
            yield KeyNeed(path, NeedReason.UNCOMMITTED)
        elif (wrapped := segment.loaded.manifest.encryption) is not None and wrapped.key_id == key_id:
            yield KeyNeed(path, NeedReason.WRAPPED)
