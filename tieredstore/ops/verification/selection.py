"""The segments to verify, each a :class:`Subject` with the level of its check.

A :class:`Selection` has all segments, a sample, new segments, or segments not checked before.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import ConfigError
from tieredstore.format.keys import Suffix, object_key
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import ByteRange
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import Finding, FindingKind

if TYPE_CHECKING:
    from tieredstore.ops.verification.state import VerifyState

MOST_FINDINGS: Final = 100
"""Maximum number of findings to list for one segment. If there are more, an additional finding says so."""

_MOST_WAITING: Final = 1000
"""Maximum number of segments in memory. After more uploads without a manifest in a row, the next one counts as the next
segment."""


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


@dataclass(frozen=True, slots=True)
class Sample:
    """A random share of the segments. The same ``seed`` always selects the same segments, even if other segments are
    added or deleted."""

    part: float
    seed: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ConfigError(f"a sample of {self.part:%} is empty: give more than 0% and at most 100%")

    def has(self, objects: SegmentObjects) -> bool:
        """Return True if the sample includes the segment."""
        digest = hashlib.blake2b(f"{self.seed}\0{objects.main_path}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.part * 2**64


@dataclass(frozen=True, slots=True)
class Selection:
    """The segments that a run at ``level`` checks.

    If a segment's manifest was written before ``since_ms`` (by the store's clock), the segment is only checked for
    presence. So are segments that begin before ``first_offset``, and those that the ``state`` knows to be sound.
    Segments outside the ``sample`` are checked at level listing.

    Raise ConfigError for a sample if ``level`` is listing.
    """

    level: Level = Level.LISTING
    sample: Sample | None = None
    since_ms: int | None = None
    state: VerifyState | None = None
    first_offset: int = 0

    def __post_init__(self) -> None:
        if self.sample is not None and self.level is Level.LISTING:
            raise ConfigError("a sample applies to the levels index and data: choose one of these")

    def subjects(self, listed: Iterable[SegmentObjects], bucket: Bucket) -> Iterator[Subject]:
        """Yield each segment with its level and the start of the next segment. The generator reads ahead, up to the
        next segment with a manifest.

        Objects without a manifest are no next segment: an upload that failed does not show that the log goes on.
        """
        waiting: list[Subject] = []
        for objects in listed:
            subject = self._add_known(Subject(objects, self._level_of(objects), bucket))
            if waiting and (_is_next(waiting[0], subject) or len(waiting) == _MOST_WAITING):
                yield _before(waiting[0], subject)
                yield from waiting[1:]
                waiting = []
            waiting.append(subject)
        if waiting:
            yield replace(waiting[0], is_last=True)
            yield from waiting[1:]

    def _level_of(self, objects: SegmentObjects) -> Level | None:
        manifest = objects.find(Suffix.MANIFEST)
        is_old = (
            manifest is not None and manifest.modified_ms is not None and manifest.modified_ms < (self.since_ms or 0)
        )
        if is_old or objects.start_offset < self.first_offset:
            return None
        return self.level if self.sample is None or self.sample.has(objects) else Level.LISTING

    def _add_known(self, subject: Subject) -> Subject:
        if self.state is None or subject.level is None:
            return subject
        sound = self.state.find(subject.objects, subject.level)
        return subject if sound is None else replace(subject, level=None, sound=sound)


def _is_next(last: Subject, following: Subject) -> bool:
    """Return True if ``following`` has a manifest, or is of another partition."""
    is_other = last.objects.segment_id.topic_id_partition != following.objects.segment_id.topic_id_partition
    return is_other or following.objects.find(Suffix.MANIFEST) is not None


def _before(last: Subject, following: Subject) -> Subject:
    """Return ``last`` with the base offset of the next segment."""
    if last.objects.segment_id.topic_id_partition != following.objects.segment_id.topic_id_partition:
        return replace(last, is_last=True)
    # Read the manifest of the segment before a selected segment. Its end offset shows if there is a gap between the
    # two.
    is_context = last.level is None and last.sound is None and following.level is not None
    level = Level.LISTING if is_context else last.level
    return replace(last, level=level, next_start=following.objects.start_offset)
