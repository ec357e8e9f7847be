"""Finds one segment in a store by topic, partition, and base offset or id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.absence import absence
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.errors import ConfigError, CorruptDataError, ResourceNotFoundError, SegmentNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules
from tieredstore.model import Uuid, human_bytes

_MOST_NAMED: Final = 20
"""The maximum number of segments that an error names, because each costs a request."""


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """Identifies a segment of a partition by its base offset or its id."""

    topic: str
    partition: int
    segment: int | Uuid
    topic_id: Uuid | None = None

    def __post_init__(self) -> None:
        if type(self.partition) is not int:
            raise ConfigError(f"partition is of the type {type(self.partition).__name__}; give a number")
        if type(self.segment) not in (int, Uuid):
            kind = type(self.segment).__name__
            raise ConfigError(f"segment is of the type {kind}; give the offset it begins at, or its id")

    @property
    def place(self) -> str:
        """Topic and partition, with the topic's id if it was given."""
        return f"{self.topic}-{self.partition}" + ("" if self.topic_id is None else f" ({self.topic_id})")

    def __str__(self) -> str:
        return f"has the id {self.segment}" if isinstance(self.segment, Uuid) else f"begins at {self.segment}"

    def matches(self, objects: SegmentObjects) -> bool:
        """Return True if a segment of the partition has the base offset or the id of this address."""
        return self.segment in (objects.start_offset, objects.segment_id.id)


def find_segment(
    store: ObjectStore, prefix: str, address: SegmentAddress, rules: ManifestRules = DEFAULT_RULES
) -> StoredSegment:
    """Find the segment at ``address`` and read its manifest. Costs one listing of the partition and one request.

    Complete segments take precedence. If there is none, return a committed segment that lacks an object, because damage
    must not look like absence.

    Raise SegmentNotFoundError if no segment has the address, and ConfigError if several have it. Raise
    ResourceNotFoundError for an absent topic or partition.
    """
    listed = _list_partition(store, prefix, address)
    committed = [objects for objects in _select_committed(listed) if address.matches(objects)]
    candidates = [objects for objects in committed if not objects.missing] or committed
    return load_segment(store, _only(store, prefix, address, candidates, listed), rules)


def find_objects(store: ObjectStore, prefix: str, address: SegmentAddress) -> SegmentObjects:
    """Find the objects of the segment at ``address`` with one listing, without reading manifests.

    With a segment id, a segment without a manifest counts too. Otherwise only committed segments count.
    """
    listed = _list_partition(store, prefix, address)
    searched = listed if isinstance(address.segment, Uuid) else _select_committed(listed)
    return _only(store, prefix, address, [objects for objects in searched if address.matches(objects)], listed)


def _list_partition(store: ObjectStore, prefix: str, address: SegmentAddress) -> list[SegmentObjects]:
    """List all objects of the partition. Without a topic id, include every topic of this name."""
    return list(list_segments(store, prefix, Scope(address.topic, address.topic_id, address.partition)))


def _select_committed(listed: Iterable[SegmentObjects]) -> list[SegmentObjects]:
    return [objects for objects in listed if objects.find(Suffix.MANIFEST) is not None]


def _only(
    store: ObjectStore,
    prefix: str,
    address: SegmentAddress,
    candidates: Sequence[SegmentObjects],
    listed: Sequence[SegmentObjects],
) -> SegmentObjects:
    if not candidates:
        if not listed:
            missing = {address.topic: [address.partition]}
            raise absence(store, prefix, missing, topic_id=address.topic_id)
        raise _absence(address, listed)
    if len(candidates) > 1:
        raise _ambiguity(store, address, candidates)
    return candidates[0]


def _ambiguity(store: ObjectStore, address: SegmentAddress, candidates: Sequence[SegmentObjects]) -> ConfigError:
    lines = [_describe(store, objects) for objects in candidates[:_MOST_NAMED]]
    if len(candidates) > len(lines):
        lines.append(f"… and {len(candidates) - len(lines)} more")
    listing = "".join(f"\n  {line}" for line in lines)
    of = f"{len(candidates)} segments of {address.place} begin at {address.segment}"
    return ConfigError(f"{of}: give the id of one segment in place of the offset, or choose the topic id:{listing}")


def _describe(store: ObjectStore, objects: SegmentObjects) -> str:
    ids = f"{objects.segment_id.id}  of topic id {objects.segment_id.topic_id_partition.topic_id}"
    try:
        metadata = load_segment(store, objects).metadata
    except (CorruptDataError, ResourceNotFoundError):
        return f"{ids}  without a readable manifest, {human_bytes(objects.stored_size)} stored"
    last = "unknown" if metadata.end_offset < 0 else metadata.end_offset
    return f"{ids}  last offset {last}, {metadata.segment_size_in_bytes} bytes"


def _absence(address: SegmentAddress, listed: Sequence[SegmentObjects]) -> SegmentNotFoundError:
    """Return the error for an address without a segment. It names the nearest committed segments, and says if the
    store has objects at the offset without a manifest.
    """
    start, absent = address.segment, f"no segment of {address.place} {address}"
    if isinstance(start, Uuid):
        return SegmentNotFoundError(absent)
    if any(objects.start_offset == start for objects in listed):
        absent += " (an unfinished copy or delete left objects; address them by the id that ls shows)"
    offsets = sorted({objects.start_offset for objects in _select_committed(listed)})
    near = [offset for offset in offsets if offset < start][-2:] + [offset for offset in offsets if offset > start][:2]
    return SegmentNotFoundError(absent + (f"; nearest {', '.join(map(str, near))}" if near else ""))
