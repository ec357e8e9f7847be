"""Finds one segment in a store by topic, partition and base offset."""

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
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.model import RemoteLogSegmentMetadata, Uuid, human_bytes

_MOST_NAMED: Final = 20
"""The maximum number of segments that an error names, because each costs a request."""


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """Identifies a segment of a partition by its base offset, its segment id, or both."""

    topic: str
    partition: int
    base_offset: int | None = None
    topic_id: Uuid | None = None
    segment_id: Uuid | None = None

    def __post_init__(self) -> None:
        if type(self.partition) is not int:
            raise ConfigError(f"partition is of the type {type(self.partition).__name__}; give a number")
        if self.segment_id is None and type(self.base_offset) is not int:
            kind = type(self.base_offset).__name__
            raise ConfigError(f"segment is of the type {kind}; give the offset it begins at, or its id")

    @property
    def place(self) -> str:
        """Topic and partition, with the topic's id if it was given."""
        return f"{self.topic}-{self.partition}" + ("" if self.topic_id is None else f" ({self.topic_id})")

    def __str__(self) -> str:
        start = [] if self.base_offset is None else [f"begins at {self.base_offset}"]
        return " and ".join(start + ([] if self.segment_id is None else [f"has the id {self.segment_id}"]))

    def matches(self, objects: SegmentObjects) -> bool:
        """Return True if a segment of the partition has the base offset and the segment id of this address."""
        return self.base_offset in {None, objects.start_offset} and self.segment_id in {None, objects.segment_id.id}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several segments at an address. ``metadata`` is None if the manifest is absent or damaged."""

    objects: SegmentObjects
    metadata: RemoteLogSegmentMetadata | None

    def __str__(self) -> str:
        segment_id, metadata = self.objects.segment_id, self.metadata
        ids = f"{segment_id.id}  of topic id {segment_id.topic_id_partition.topic_id}"
        if metadata is None:
            return f"{ids}  without a readable manifest, {human_bytes(self.objects.stored_size)} stored"
        last = "unknown" if metadata.end_offset < 0 else metadata.end_offset
        return f"{ids}  last offset {last}, {metadata.segment_size_in_bytes} bytes"


class AmbiguousSegmentError(ConfigError):
    """The address fits several segments. ``count`` is their number, and ``candidates`` has the first of them."""

    def __init__(self, address: SegmentAddress, candidates: tuple[Candidate, ...], count: int) -> None:
        super().__init__(address, candidates, count)
        self.address, self.candidates, self.count = address, candidates, count

    def __str__(self) -> str:
        lines = [*map(str, self.candidates)]
        if self.count > len(lines):
            lines.append(f"… and {self.count - len(lines)} more")
        listing = "".join(f"\n  {line}" for line in lines)
        of = f"{self.count} segments of {self.address.place} begin at {self.address.base_offset}"
        return f"{of}: give the id of one segment in place of the offset, or choose the topic id:{listing}"


class SegmentAbsentError(SegmentNotFoundError):
    """No segment has the address.

    If a segment id was given, ``others`` are the ids of committed segments at the offset. ``near`` are base offsets of
    committed segments around the requested offset. ``leftovers`` is true if the store has objects at the offset without
    a manifest.
    """

    def __init__(
        self, address: SegmentAddress, others: tuple[Uuid, ...], near: tuple[int, ...], leftovers: bool
    ) -> None:
        super().__init__(address, others, near, leftovers)
        self.address, self.others, self.near, self.leftovers = address, others, near, leftovers

    def __str__(self) -> str:
        absent = f"no segment of {self.address.place} {self.address}"
        if self.others:
            return f"{absent}; segments at this offset: {', '.join(map(str, self.others))}"
        clause = (
            " (an unfinished copy or delete left objects; address them by the id that ls shows)"
            if self.leftovers
            else ""
        )
        return f"{absent}{clause}" + (f"; nearest {', '.join(map(str, self.near))}" if self.near else "")


def find_segment(
    store: ObjectStore, prefix: str, address: SegmentAddress, rules: ManifestRules = DEFAULT_RULES
) -> StoredSegment:
    """Find the segment at ``address`` and read its manifest. Costs one listing of the partition and one request.

    Complete segments take precedence. If there is none, return a committed segment that lacks an object, because damage
    must not look like absence.

    Raise SegmentAbsentError if no segment has the address, and AmbiguousSegmentError if several have it. Raise
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
    searched = listed if address.segment_id is not None else _select_committed(listed)
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
        named = tuple(_candidate(store, objects) for objects in candidates[:_MOST_NAMED])
        raise AmbiguousSegmentError(address, named, len(candidates))
    return candidates[0]


def _candidate(store: ObjectStore, objects: SegmentObjects) -> Candidate:
    try:
        return Candidate(objects, load_segment(store, objects).metadata)
    except (CorruptDataError, ResourceNotFoundError):
        return Candidate(objects, None)


def _absence(address: SegmentAddress, listed: Sequence[SegmentObjects]) -> SegmentAbsentError:
    start = address.base_offset
    if start is None:
        return SegmentAbsentError(address, (), (), leftovers=False)
    committed = _select_committed(listed)
    others: tuple[Uuid, ...] = ()
    if address.segment_id is not None:
        others = tuple(objects.segment_id.id for objects in committed if objects.start_offset == start)[:_MOST_NAMED]
    offsets = sorted({objects.start_offset for objects in committed})
    near = [offset for offset in offsets if offset < start][-2:] + [offset for offset in offsets if offset > start][:2]
    leftovers = any(objects.start_offset == start for objects in listed)
    return SegmentAbsentError(address, others, tuple(near), leftovers)
