"""From topic, partition and base offset to one segment of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.errors import ConfigError, CorruptDataError, ResourceNotFoundError, SegmentNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.model import RemoteLogSegmentMetadata, Uuid

_MOST_NAMED: Final = 20
"""How many segments an error names at most: each candidate costs a request."""


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """What names one segment; the ids where topic, partition and offset do not suffice."""

    topic: str
    partition: int
    base_offset: int
    topic_id: Uuid | None = None
    segment_id: Uuid | None = None

    def __str__(self) -> str:
        ids = (("topic id", self.topic_id), ("segment id", self.segment_id))
        chosen = "".join(f", {name} {uuid}" for name, uuid in ids if uuid is not None)
        return f"{self.topic} {self.partition} {self.base_offset}{chosen}"

    def matches(self, objects: SegmentObjects) -> bool:
        """Whether a segment of the partition has this address."""
        return objects.start_offset == self.base_offset and self.segment_id in {None, objects.segment_id.id}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several segments at an address; ``metadata`` is None where the manifest is absent or damaged."""

    objects: SegmentObjects
    metadata: RemoteLogSegmentMetadata | None


class AmbiguousSegmentError(ConfigError):
    """An address that ``count`` segments have; the first of them are ``candidates``."""

    def __init__(self, address: SegmentAddress, candidates: tuple[Candidate, ...], count: int) -> None:
        super().__init__(address, candidates, count)
        self.address, self.candidates, self.count = address, candidates, count

    def __str__(self) -> str:
        return f"{self.address} names {self.count} segments; choose one by its topic id or its segment id"


class SegmentAbsentError(SegmentNotFoundError):
    """An address that no segment has.

    ``others`` are ids of committed segments at the offset, where a segment id was given; ``near`` the base offsets of
    committed segments around it; ``leftovers`` says whether there are objects at the offset, without a manifest.
    """

    def __init__(
        self, address: SegmentAddress, others: tuple[Uuid, ...], near: tuple[int, ...], leftovers: bool
    ) -> None:
        super().__init__(address, others, near, leftovers)
        self.address, self.others, self.near, self.leftovers = address, others, near, leftovers

    def __str__(self) -> str:
        return self.sentence("an unfinished copy or delete left objects there")

    def sentence(self, about_leftovers: str) -> str:
        """Why there is no such segment, and what there is."""
        absent = f"there is no segment {self.address}"
        if self.others:
            return f"{absent}; at this offset there is {', '.join(map(str, self.others))}"
        if not self.near:
            return f"{absent}: the store holds none of {self.address.topic} {self.address.partition}"
        clause = f" ({about_leftovers})" if self.leftovers else ""
        return f"{absent}{clause}; segments near it begin at {', '.join(map(str, self.near))}"


def find_segment(
    store: ObjectStore, prefix: str, address: SegmentAddress, rules: ManifestRules = DEFAULT_RULES
) -> StoredSegment:
    """The one segment at ``address``, its manifest read: one listing of the partition and one request.

    Whole segments go first; if there is none, one that was committed and lost an object since is taken, so that its
    damage is met and not mistaken for absence. Raises SegmentAbsentError and AmbiguousSegmentError.
    """
    listed = _list_partition(store, prefix, address)
    committed = [objects for objects in _committed(listed) if address.matches(objects)]
    candidates = [objects for objects in committed if not objects.missing] or committed
    return load_segment(store, _only(store, address, candidates, listed), rules)


def find_objects(store: ObjectStore, prefix: str, address: SegmentAddress) -> SegmentObjects:
    """The objects of the one segment at ``address``, by one listing; no manifest is read.

    With a segment id whatever is left of the segment is found; without, only committed segments are.
    """
    listed = _list_partition(store, prefix, address)
    searched = listed if address.segment_id is not None else _committed(listed)
    return _only(store, address, [objects for objects in searched if address.matches(objects)], listed)


def _list_partition(store: ObjectStore, prefix: str, address: SegmentAddress) -> list[SegmentObjects]:
    """All that is stored of the partition (of every topic of this name, if no topic id was given)."""
    return list(
        list_segments(store, prefix, topic=address.topic, topic_id=address.topic_id, partition=address.partition)
    )


def _committed(listed: Iterable[SegmentObjects]) -> list[SegmentObjects]:
    return [objects for objects in listed if objects.find(Suffix.MANIFEST) is not None]


def _only(
    store: ObjectStore, address: SegmentAddress, candidates: Sequence[SegmentObjects], listed: Sequence[SegmentObjects]
) -> SegmentObjects:
    if not candidates:
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
    committed = _committed(listed)
    others: tuple[Uuid, ...] = ()
    if address.segment_id is not None:
        here = (objects for objects in committed if objects.start_offset == address.base_offset)
        others = tuple(objects.segment_id.id for objects in here)[:_MOST_NAMED]
    offsets = sorted({objects.start_offset for objects in committed})
    below = [offset for offset in offsets if offset < address.base_offset][-2:]
    above = [offset for offset in offsets if offset > address.base_offset][:2]
    leftovers = any(objects.start_offset == address.base_offset for objects in listed)
    return SegmentAbsentError(address, others, (*below, *above), leftovers)
