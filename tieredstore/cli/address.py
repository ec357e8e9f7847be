"""From TOPIC PARTITION BASE_OFFSET to one segment of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.catalog import SegmentObjects, StoredSegment, list_segments, load_segment
from tieredstore.cli.opened import OpenedStore
from tieredstore.errors import ConfigError, ManifestCorrupt, ResourceNotFound, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.model import Uuid, human_bytes

_SHOWN: Final = 20


class AmbiguousSegment(ConfigError):
    """An address that several segments have; the sentence lists them."""


@dataclass(frozen=True, slots=True)
class Address:
    """What a command was given to name one segment."""

    topic: str
    partition: int
    base_offset: int
    topic_id: Uuid | None = None
    segment_id: Uuid | None = None

    @classmethod
    def parse(
        cls, topic: str, partition: int, base_offset: int, topic_id: str | None, segment_id: str | None
    ) -> Address:
        """The address of a command's arguments; ConfigError for ids that are none."""
        ids = [None if text is None else Uuid.parse(text) for text in (topic_id, segment_id)]
        return cls(topic, partition, base_offset, *ids)

    def __str__(self) -> str:
        ids = (("topic id", self.topic_id), ("segment id", self.segment_id))
        chosen = "".join(f", {name} {found}" for name, found in ids if found is not None)
        return f"{self.topic} {self.partition} {self.base_offset}{chosen}"

    def list_partition(self, opened: OpenedStore) -> list[SegmentObjects]:
        """All that is stored of the partition (of every topic of this name, if no topic id was given)."""
        return list(
            list_segments(
                opened.store,
                opened.layout.prefix,
                topic=self.topic,
                topic_id=self.topic_id,
                partition=self.partition,
            )
        )

    def matches(self, found: SegmentObjects) -> bool:
        """Whether a segment of the partition has this address."""
        return found.start_offset == self.base_offset and self.segment_id in {None, found.segment_id.id}


def resolve(opened: OpenedStore, address: Address) -> StoredSegment:
    """The one segment at ``address``, its manifest read: one listing of the partition and one request.

    Whole segments go first; if there is none, one that was committed and lost an object since is taken, so that its
    damage is met and not mistaken for absence. SegmentNotFound names near ones, AmbiguousSegment lists all.
    """
    listed = address.list_partition(opened)
    found = [segment for segment in listed if address.matches(segment) and segment.find(Suffix.MANIFEST) is not None]
    candidates = [segment for segment in found if not segment.missing] or found
    if not candidates:
        raise SegmentNotFound(_absent(address, listed))
    if len(candidates) > 1:
        raise _ambiguous(opened, address, candidates)
    return load_segment(opened.store, candidates[0])


def resolve_objects(opened: OpenedStore, address: Address) -> SegmentObjects:
    """The objects of the one segment at ``address``, by one listing; no manifest is read.

    With a segment id whatever is left of the segment is found; without, only committed segments are.
    """
    listed = address.list_partition(opened)
    found = [segment for segment in listed if address.matches(segment)]
    if address.segment_id is None:
        found = [segment for segment in found if segment.find(Suffix.MANIFEST) is not None]
    if not found:
        raise SegmentNotFound(_absent(address, listed))
    if len(found) > 1:
        raise _ambiguous(opened, address, found)
    return found[0]


def _ambiguous(opened: OpenedStore, address: Address, candidates: Sequence[SegmentObjects]) -> AmbiguousSegment:
    lines = [_line(opened, candidate) for candidate in candidates[:_SHOWN]]
    if len(candidates) > _SHOWN:
        lines.append(f"… and {len(candidates) - _SHOWN} more")
    listing = "".join(f"\n  {line}" for line in lines)
    return AmbiguousSegment(
        f"{address} names {len(candidates)} segments; choose one by --topic-id or --segment-id:{listing}"
    )


def _line(opened: OpenedStore, candidate: SegmentObjects) -> str:
    ids = f"--topic-id={candidate.segment_id.topic_id_partition.topic_id} --segment-id={candidate.segment_id.id}"
    try:
        metadata = load_segment(opened.store, candidate).metadata
    except (ManifestCorrupt, ResourceNotFound):
        return f"{ids}  without a readable manifest, {human_bytes(candidate.stored_size)} stored"
    end = "unknown" if metadata.end_offset < 0 else metadata.end_offset
    return f"{ids}  end offset {end}, {metadata.segment_size_in_bytes} bytes"


def _absent(address: Address, listed: Iterable[SegmentObjects]) -> str:
    """Why there is no such segment, and what there is."""
    segments = list(listed)
    here = [segment for segment in segments if segment.start_offset == address.base_offset]
    committed = [segment for segment in here if segment.find(Suffix.MANIFEST) is not None]
    if address.segment_id is not None and committed:
        ids = ", ".join(str(segment.segment_id.id) for segment in committed[:_SHOWN])
        return f"there is no segment {address}; at this offset there is {ids}"
    offsets = sorted({segment.start_offset for segment in segments if segment.find(Suffix.MANIFEST) is not None})
    if not offsets:
        return f"there is no segment {address}: the store holds none of {address.topic} {address.partition}"
    unfinished = " (an unfinished copy or delete left objects; --segment-id names it, see ls)" if here else ""
    return f"there is no segment {address}{unfinished}; segments near it begin at {_near(offsets, address.base_offset)}"


def _near(offsets: Sequence[int], wanted: int) -> str:
    below = [offset for offset in offsets if offset < wanted][-2:]
    above = [offset for offset in offsets if offset > wanted][:2]
    return ", ".join(str(offset) for offset in below + above)
