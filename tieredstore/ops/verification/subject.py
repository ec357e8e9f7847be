"""The segment that is being verified, and the findings about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tieredstore.catalog.listing import SegmentObjects
from tieredstore.format.keys import Suffix, object_key
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import ByteRange
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import Finding, FindingKind

MOST_FINDINGS: Final = 100
"""Maximum number of findings to list for one segment. If there are more, an additional finding says so."""


class Level(enum.StrEnum):
    """The depth of a check. Each level includes the levels before it."""

    LISTING = "listing"
    """Check the listing and the manifests."""

    INDEX = "index"
    """Check every index, and the batches to which the offset index leads."""

    DATA = "data"
    """Check every byte."""

    @property
    def depth(self) -> int:
        """The number of the level, from 0."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class ClaimedOffsets:
    """The offsets that a segment claims. ``end`` is inclusive, -1 if unknown. ``epochs`` are empty if unknown."""

    end: int
    epochs: LeaderEpochs = ()


@dataclass(frozen=True, slots=True)
class SoundSegment:
    """Facts about a sound segment, found by an earlier run."""

    claimed: ClaimedOffsets
    log_size: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A segment of ``bucket`` to verify. If ``level`` is None, only the presence of its objects is checked.

    ``sound`` are facts from an earlier run. ``next_start`` is the base offset of the partition's next listed segment,
    None for the last one. ``is_last`` is True if the partition certainly has no later segment.
    """

    objects: SegmentObjects
    level: Level | None
    bucket: Bucket
    next_start: int | None = None
    is_last: bool = False
    sound: SoundSegment | None = None

    def key(self, suffix: Suffix) -> str:
        """Return the key of one of the segment's objects, as findings print it. The object may be missing."""
        return self.bucket.show_key(object_key(self.bucket.prefix, self.objects.main_path, suffix))

    def finding(
        self,
        kind: FindingKind,
        detail: str,
        suffix: Suffix | None = None,
        byte_range: ByteRange | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> Finding:
        """Create a finding about the segment, or about one of its objects."""
        return Finding(
            kind,
            self.objects.segment_id.topic_id_partition,
            detail,
            self.objects.start_offset,
            self.objects.segment_id.id,
            None if suffix is None else self.key(suffix),
            byte_range,
            offsets,
        )
