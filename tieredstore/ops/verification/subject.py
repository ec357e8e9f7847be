"""The segment being verified, and the assembly of findings about it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.catalog.listing import SegmentObjects
from tieredstore.format.keys import Suffix, object_key
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import ByteRange
from tieredstore.ops.verification.findings import Finding, FindingKind

MOST_FINDINGS: Final = 100
"""The most findings listed of one segment; one more says that there are others."""


class Level(enum.StrEnum):
    """The depth of a check; each level includes those before it."""

    LISTING = "listing"
    """The listing and the manifests."""

    INDEX = "index"
    """Every index, and the batches that the offset index leads to."""

    DATA = "data"
    """Every byte."""

    @property
    def depth(self) -> int:
        """0 for the first."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Extent:
    """A segment's claimed offsets: ``end`` is inclusive, -1 if unknown; ``epochs`` () if unknown."""

    end: int
    epochs: LeaderEpochs = ()


@dataclass(frozen=True, slots=True)
class SoundSegment:
    """An earlier run's facts of a sound segment."""

    extent: Extent
    log_size: int


@dataclass(frozen=True, slots=True)
class Subject:
    """One segment of a listing. ``level`` None: only the presence of its objects is checked.

    ``sound`` are facts from an earlier run. ``next_start`` is the start of the partition's next listed segment, None
    for the last one. ``shown`` formats a key for messages.
    """

    objects: SegmentObjects
    level: Level | None
    prefix: str
    shown: Callable[[str], str]
    next_start: int | None = None
    sound: SoundSegment | None = None

    def key(self, suffix: Suffix) -> str:
        """Return the key of one of its objects, present or not, as messages show it."""
        return self.shown(object_key(self.prefix, self.objects.main_path, suffix))

    def finding(
        self,
        kind: FindingKind,
        detail: str,
        suffix: Suffix | None = None,
        byte_range: ByteRange | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> Finding:
        """Make a finding about the segment, or about one of its objects."""
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
