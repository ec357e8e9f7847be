"""One partition as the uploader sees it: its closed segments that are not shipped yet, and what keeps them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.kafka.held_segment import OpenSegment
from tieredstore.kafka.logdir import FoundSegment, LogSegment
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.uploader.watermark_store import StoredWatermark


@dataclass(slots=True)
class ClosedSegment:
    """A segment that the broker has closed. ``epochs`` are those of the partition when it was last seen by name.

    ``incomplete_since_s``: a file is not there yet. ``absences`` counts the listings in a row that did not show it.
    ``lost`` says why it cannot be shipped; what ``is_cut`` is no part of the log any more, and no loss.
    """

    place: FoundSegment
    noticed_s: float
    epochs: LeaderEpochs
    held: OpenSegment | None = None
    described: LogSegment | None = None
    incomplete_since_s: float | None = None
    absences: int = 0
    lost: str | None = None
    is_cut: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether its files were deleted before anybody held them.

        One listing does not tell: it may miss a file that is renamed meanwhile.
        """
        return self.held is None and self.absences > 1

    @property
    def size_in_bytes(self) -> int:
        """Bytes of its log; 0 if it is gone."""
        with contextlib.suppress(OSError):
            held = self.held
            return self.place.path("log").stat().st_size if held is None else held.size_in_bytes
        return 0

    def age_s(self, now_s: float) -> float:
        """How long it is closed: the broker writes its snapshot then. If that cannot be seen, how long it is known."""
        held = self.held
        with contextlib.suppress(OSError):
            if held is not None:
                return max(0.0, time.time() - os.fstat(held.producer_snapshot.descriptor).st_mtime)
        return now_s - self.noticed_s

    @property
    def next_offset(self) -> int | None:
        """Behind the segment; None where only its batches tell."""
        return self.place.next_base_offset

    def let_go(self) -> None:
        """Close its files."""
        held, self.held = self.held, None
        if held is not None:
            held.close()


@dataclass(slots=True, eq=False)
class Partition:
    """Hold ``lock`` for ``segments``, ``epochs`` and ``watermark``; one worker at a time ships of it (``is_busy``).

    ``segments`` are in the order of offsets; ``first_active`` is the base of the active one when the partition was
    first seen. ``not_before_s`` is when it is looked at again, after a failure or while it waits for an answer;
    ``waits_for`` says for which. ``must_reload``: others may have moved the watermark.
    ``is_behind``: the object of the watermark stands before it, since ``moved_s`` is only a moment ago.
    """

    where: TopicIdPartition
    folder: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    epochs: LeaderEpochs = ()
    segments: dict[int, ClosedSegment] = field(default_factory=dict[int, ClosedSegment])
    watermark: StoredWatermark | None = None
    first_active: int | None = None
    is_busy: bool = False
    is_dropped: bool = False
    must_reload: bool = False
    moved_s: float | None = None
    is_behind: bool = False
    not_before_s: float = 0.0
    failures: int = 0
    waits_for: str | None = None
    error: str | None = None

    @property
    def name(self) -> TopicPartition:
        """The partition as brokers name it."""
        return self.where.topic, self.where.partition

    @property
    def first(self) -> ClosedSegment | None:
        """The segment that is next."""
        with self.lock:
            return next(iter(self.segments.values()), None)

    @property
    def is_marked(self) -> bool:
        """Whether the broker is about to delete its first segment, or has deleted it."""
        first = self.first
        return first is not None and (first.is_gone or first.place.is_deleted)

    def take(self, listed: Iterable[FoundSegment], epochs: LeaderEpochs, now_s: float) -> None:
        """What a listing of the folder shows now, ``epochs`` the partition's own with what was cut from them.

        Segments that the broker cut off from the end, or replaced, are let go: their records are no part of the log
        any more. Those that retention took from its front stay, if their files are held.
        """
        with self.lock:
            self.epochs = epochs
            segments = list(listed)
            closed = {
                place.base_offset: place for place in segments if place.next_base_offset is not None or place.is_deleted
            }
            first_live = min((place.base_offset for place in segments if not place.is_deleted), default=None)
            for base, segment in list(self.segments.items()):
                self._renew(base, segment, closed.get(base), first_live)
            shipped = 0 if self.watermark is None or self.watermark.value is None else self.watermark.value.next_offset
            for base, place in closed.items():
                following = place.next_base_offset
                if base not in self.segments and (following is None or following > shipped):
                    self.segments[base] = ClosedSegment(place, now_s, epochs)
            self.segments = dict(sorted(self.segments.items()))
            if self.first_active is None and segments and not segments[-1].is_deleted:
                self.first_active = segments[-1].base_offset

    def _renew(self, base: int, segment: ClosedSegment, place: FoundSegment | None, first_live: int | None) -> None:
        if place is not None and place.next_base_offset in (None, segment.next_offset):
            # The same one, perhaps under the names of what is deleted.
            segment.place = FoundSegment(
                place.directory, place.topic, place.partition, base, segment.next_offset, place.is_deleted
            )
            segment.epochs, segment.absences = self.epochs, 0
        elif place is None and first_live is not None and base < first_live:
            # As retention leaves it behind: only what is held can be shipped.
            segment.absences += 1
            segment.place = FoundSegment(
                segment.place.directory, *self.name, base, segment.next_offset, is_deleted=True
            )
        elif self.is_busy and segment is self.first:
            segment.is_cut = True
        else:
            segment.let_go()
            del self.segments[base]

    def shipped_to(self, next_offset: int) -> None:
        """Let go what lies before ``next_offset``."""
        with self.lock:
            for base, segment in list(self.segments.items()):
                end = segment.next_offset
                if (end is not None and end <= next_offset) or (end is None and base < next_offset):
                    segment.let_go()
                    del self.segments[base]

    def forget_cut(self) -> None:
        """Let go what was cut off while it was being shipped."""
        with self.lock:
            for base, segment in list(self.segments.items()):
                if segment.is_cut:
                    segment.let_go()
                    del self.segments[base]

    def drop(self) -> None:
        """The partition is not here any more: let all go, or have the worker that ships of it do so."""
        with self.lock:
            self.is_dropped = True
            if not self.is_busy:
                self.let_go()

    def unhold(self) -> None:
        """Close all files, and go on knowing of the segments: the partition is another broker's to ship."""
        with self.lock:
            for segment in () if self.is_busy else self.segments.values():
                segment.described = None
                segment.let_go()

    def let_go(self) -> None:
        """Close all files that are held."""
        with self.lock:
            for segment in self.segments.values():
                segment.let_go()
            self.segments.clear()

    def pending(self, is_of_interest: Callable[[ClosedSegment], bool]) -> list[ClosedSegment]:
        """The segments for which that holds."""
        with self.lock:
            return [segment for segment in self.segments.values() if is_of_interest(segment)]
