"""The segment that is being verified, and how findings about it are put together."""

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
"""Findings of one segment that are listed; of more it is said that there are."""


class Level(enum.StrEnum):
    """How deep a segment is looked into; each level has all of those before it."""

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
    """What a segment is said to hold: ``end`` is inclusive, -1 where it is not known; ``epochs`` () likewise."""

    end: int
    epochs: LeaderEpochs = ()


@dataclass(frozen=True, slots=True)
class SoundSegment:
    """What an earlier run knows of a segment that it found sound."""

    extent: Extent
    log_size: int


@dataclass(frozen=True, slots=True)
class Subject:
    """One segment of a listing. ``level`` None: it is only looked at whether its objects are there.

    ``sound`` is what is known of it beforehand. ``next_start`` is where the next listed segment of the partition
    begins, None for the last one. ``shown`` makes a key as messages show it.
    """

    objects: SegmentObjects
    level: Level | None
    prefix: str
    shown: Callable[[str], str]
    next_start: int | None = None
    sound: SoundSegment | None = None

    def key(self, suffix: Suffix) -> str:
        """The key of one of its objects, there or not, as messages show it."""
        return self.shown(object_key(self.prefix, self.objects.main_path, suffix))

    def finding(
        self,
        kind: FindingKind,
        detail: str,
        suffix: Suffix | None = None,
        byte_range: ByteRange | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> Finding:
        """A finding about the segment, or about one of its objects."""
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
