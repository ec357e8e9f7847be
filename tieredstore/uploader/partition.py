"""One partition of the uploader: its segments that are not uploaded yet, its progress, and its role."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tieredstore.catalog.watermark import Watermark
from tieredstore.kafka.checkpoints import LeaderEpochs, have_same_leaders
from tieredstore.kafka.logdir import FoundSegment
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.uploader.links import Link
from tieredstore.uploader.segment import Segment, is_stub
from tieredstore.uploader.watermarks import StoredWatermark

_MAYBE_CUT: Final = (
    "it was deleted while no uploader ran, and the log has had other leaders since: it may have been cut before, and "
    "nothing here tells any more"
)


class Role(enum.Enum):
    """The uploader's task for a partition. Only the leadership's answers change it, and the disk for *leaving*.

    ========  =================================================================================
    role      next
    ========  =================================================================================
    ignored   led here: led; led elsewhere: followed; its folder is gone: leaving
    followed  led here: led; the topic is refused: ignored; its folder is gone: leaving
    led       led elsewhere: followed; the topic is refused: ignored; its folder is gone: leaving
    leaving   a folder appears: led, followed or ignored; else it is forgotten
    ========  =================================================================================
    """

    IGNORED = "ignored"
    """Pins nothing."""
    FOLLOWED = "followed"
    """Another broker leads, and this one may be next: pinned from ``shipped`` on; while that is unknown, only
    segments about to be deleted.
    """
    LED = "led"
    """Pinned and uploaded."""
    LEAVING = "leaving"
    """This broker has no folder of it any more, but its topic exists: pinned segments stay, and fill holes, until
    the store has them.
    """


class ProgressState(enum.Enum):
    """The knowledge about a partition's object in the store."""

    UNKNOWN = "unknown"
    SAVED = "saved"
    AHEAD = "ahead"
    IN_DOUBT = "in doubt"


@dataclass(slots=True)
class Progress:
    """The progress of a partition (``value``), and the store's object that records it, as last seen.

    ==========  ======================  =========================================================================
    state       derived from            next
    ==========  ======================  =========================================================================
    in doubt    ``attempt``             load and advance: the attempt succeeded, failed, or others moved it: saved
    unknown     ``stored`` is None      load: saved, or ahead if the object is damaged or was never made
    ahead       ``unsaved_since_s``     save: saved, or in doubt; distrust: in doubt
    saved       else                    ship: ahead; distrust: unknown; a later leader moved it: unknown
    ==========  ======================  =========================================================================

    The first matching row is the state. ``attempt`` is the object seen before, with everything uploaded since, and its
    intended successor. ``must_reload``: others may have moved the object; the next step distrusts the known state.
    """

    value: Watermark | None = None
    stored: StoredWatermark | None = None
    unsaved_since_s: float | None = None
    attempt: tuple[StoredWatermark, Watermark] | None = None
    must_reload: bool = False

    @property
    def state(self) -> ProgressState:
        """Its state now."""
        if self.attempt is not None:
            return ProgressState.IN_DOUBT
        if self.stored is None:
            return ProgressState.UNKNOWN
        return ProgressState.SAVED if self.unsaved_since_s is None else ProgressState.AHEAD

    def load(self, stored: StoredWatermark) -> None:
        """Note the object read."""
        self.value, self.stored = stored.value, stored

    def advance(self, value: Watermark, now_s: float) -> None:
        """Note that everything before ``value`` is in the store; the object must follow."""
        self.value = value
        self.fall_behind(now_s)

    def fall_behind(self, now_s: float) -> None:
        """Note that the object lags behind the known value."""
        if self.unsaved_since_s is None:
            self.unsaved_since_s = now_s

    def forget(self) -> None:
        """Forget everything."""
        self.value, self.stored, self.unsaved_since_s = None, None, None

    def save(self, stored: StoredWatermark) -> None:
        """Note that the object is ``stored`` now."""
        self.value, self.stored, self.unsaved_since_s, self.attempt = stored.value, stored, None, None

    def doubt(self, wanted: Watermark) -> None:
        """Note that it is unknown if ``wanted`` replaced the object."""
        if self.stored is not None:
            self.attempt = StoredWatermark(self.value, self.stored.etag, self.stored.written), wanted
        self.forget()

    def distrust(self) -> None:
        """Note that others may have moved the object, or the store has changed: look there for uploads."""
        shipped = self.value if self.unsaved_since_s is not None else None
        wanted = self.attempt[1] if self.attempt is not None else shipped
        if wanted is not None:
            self.attempt = StoredWatermark(wanted, None), wanted
        self.must_reload = False
        self.forget()


@dataclass(slots=True)
class Turn:
    """A partition's state in the schedule: one worker at a time makes its steps (``is_busy``).

    ``not_before_s`` is the time of the next look: after consecutive ``failures``, the last of which is ``error``, or
    while it waits for an answer, described by ``waits_for``.
    """

    is_busy: bool = False
    not_before_s: float = 0.0
    failures: int = 0
    waits_for: str | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Partition:
    """A topic id and a number; ``folder`` is its present place, None if no log directory has it.

    The one thread that lists the folder holds ``listing``. Hold ``lock`` for ``segments``, which are in the order of
    offsets, and for their pins. One worker at a time uploads it (see ``turn``), and reads by its own descriptors, so
    unpinning need not wait for it. ``shipped`` is the store's progress, None if not asked yet; ``first_active`` the
    base of the active segment when it was first listed, None before. All offsets below ``replicated_to`` are
    replicated, as far as the present epochs reach.
    """

    where: TopicIdPartition
    folder: Path | None
    role: Role = Role.IGNORED
    lock: threading.RLock = field(default_factory=threading.RLock)
    listing: threading.Lock = field(default_factory=threading.Lock)
    epochs: LeaderEpochs = ()
    segments: dict[int, Segment] = field(default_factory=dict[int, Segment])
    progress: Progress = field(default_factory=Progress)
    shipped: int | None = None
    replicated_to: int = 0
    first_active: int | None = None
    turn: Turn = field(default_factory=Turn)

    @property
    def name(self) -> TopicPartition:
        """The partition as brokers name it."""
        return self.where.topic, self.where.partition

    @property
    def first(self) -> Segment | None:
        """The next segment."""
        # Most of thousands of partitions have none, and are asked several times a second.
        if not self.segments:
            return None
        with self.lock:
            return next(iter(self.segments.values()), None)

    @property
    def has_pins(self) -> bool:
        """True if any of its segments is pinned."""
        with self.lock:
            return any(segment.is_pinned for segment in self.segments.values())

    def has(self, segment: Segment) -> bool:
        """Return True if the segment is still part of the known log: it was not truncated since."""
        return self.segments.get(segment.base_offset) is segment

    # The state of the disk

    def lie_in(self, folder: Path | None) -> None:
        """Move to another folder, or to none: segments that were only named in the previous one are gone."""
        with self.lock:
            self.folder = folder
            for segment in self.pending():
                if not segment.is_pinned and segment.lost is None:
                    del self.segments[segment.base_offset]
                elif folder is None:
                    segment.place = replace(segment.place, is_deleted=True)

    def take(self, listed: Sequence[FoundSegment], epochs: LeaderEpochs, now_s: float) -> None:
        """Take a listing of the folder; ``epochs`` are the log's own with their truncated front restored."""
        live = [place.base_offset for place in listed if not place.is_deleted]
        if not live:
            # Each log has an active segment: this one is being created, or moved away.
            return
        with self.lock:
            has_changed, self.epochs = epochs != self.epochs, epochs
            if has_changed:
                self.replicated_to = 0
            named = {place.base_offset: place for place in listed}
            for base, segment in list(self.segments.items()):
                if not self._is_kept(segment, named.get(base), live[0], live[-1], has_changed=has_changed):
                    segment.unpin()
                    del self.segments[base]
            for base, place in named.items():
                end = place.next_base_offset
                if base in self.segments or end is None or end <= (self.shipped or 0):
                    continue
                if not is_stub(place):
                    self.segments[base] = Segment(place, now_s, epochs)
            self.segments = dict(sorted(self.segments.items()))
            if self.first_active is None:
                self.first_active = live[-1]

    def _is_kept(
        self, segment: Segment, named: FoundSegment | None, first_live: int, active: int, *, has_changed: bool
    ) -> bool:
        """Update a known segment; return False if it is truncated, or its offsets are now in other files."""
        base, end = segment.base_offset, segment.next_offset
        if has_changed and not have_same_leaders(segment.epochs, self.epochs, base, end - 1):
            return False
        # Names do not give the ends of deleted segments: those in between may be gone.
        if named is not None and (named.is_deleted or named.next_base_offset == end):
            # Only a follower's log is truncated, and a leader that was a follower in between has seen a later epoch
            # begin.
            may_be_other = not named.is_deleted and (self.role is Role.FOLLOWED or has_changed)
            if may_be_other and segment.was_replaced(named):
                return False
            if named.is_deleted != segment.place.is_deleted or named.directory is not segment.place.directory:
                segment.place = FoundSegment(named.directory, *self.name, base, end, named.is_deleted)
            segment.absences = 0
            return True
        if base < first_live:
            # Retention leaves it so: only pinned segments can be uploaded.
            segment.absences += 1
            segment.place = FoundSegment(segment.place.directory, *self.name, base, end, is_deleted=True)
            if self.role is not Role.LED and segment.may_be_cut(self.epochs):
                segment.lost = _MAYBE_CUT
            return True
        if named is not None and segment.is_log(named.path("log")):
            return False  # truncated in place
        # A log that is refilled from the front proves nothing about offsets after its end.
        return segment.is_pinned and end > active

    def adopt(self, links: Iterable[Link], now_s: float) -> None:
        """Pin by the links that an earlier process has left; the next listing shows which of them are useful."""
        with self.lock:
            for link in links:
                extent, is_deleted = (link.base_offset, link.next_offset), self.folder is None
                place = FoundSegment(self.folder or link.folder, *self.name, *extent, is_deleted=is_deleted)
                segment = Segment(place, now_s, link.epochs, link=link, is_replicated=link.is_replicated)
                self.segments[link.base_offset] = segment
                if self.folder is None:
                    self.epochs = link.epochs or self.epochs

    # The state of the store

    def release(self, next_offset: int) -> None:
        """Drop segments before ``next_offset``."""
        with self.lock:
            # They are in order: a step examines those it drops, not the thousands that wait.
            while (segment := self.first) is not None and segment.base_offset < next_offset:
                if segment.next_offset > next_offset:
                    break
                self.forget(segment)

    def forget(self, segment: Segment) -> None:
        """Drop one segment."""
        with self.lock:
            segment.unpin()
            if self.has(segment):
                del self.segments[segment.base_offset]

    def ship_to(self, next_offset: int) -> None:
        """Note that everything before that offset is in the store, or a hole of its watermark."""
        self.shipped = next_offset
        self.release(next_offset)

    def pass_to(self, next_offset: int, holes: Sequence[tuple[int, int]] = ()) -> None:
        """Note that the leader's uploader has uploaded everything before that offset, except ``holes``; their ends are
        inclusive.

        Segments that may fill them, because only this broker has them, stay.
        """
        with self.lock:
            if self.role is Role.FOLLOWED:
                self.shipped = next_offset
                filling = (base for base, segment in self.segments.items() if segment.may_fill(holes))
                self.release(min(next_offset, next(filling, next_offset)))

    def ends_by(self, next_offset: int) -> bool:
        """Return True if no closed segment is after that offset."""
        with self.lock:
            last = next(reversed(self.segments.values()), None)
        return last is None or last.next_offset <= next_offset

    def mark_replicated(self, high_watermark: int) -> None:
        """Note that everything before that offset is replicated: for later links, and in existing ones."""
        with self.lock:
            self.replicated_to = max(self.replicated_to, high_watermark)
            for segment in self.segments.values():
                if segment.next_offset > high_watermark:
                    break
                # Once for each, unless the disk was too full.
                if not segment.is_replicated or (segment.link is not None and not segment.link.is_replicated):
                    segment.mark_replicated()

    # Roles

    def lead(self) -> None:
        """Upload it from now on, from the store's progress."""
        with self.lock:
            self.role, self.progress.must_reload = Role.LED, True

    def change_store(self) -> None:
        """Ask for the store's progress again, without a pause: it may be another store."""
        self.progress.must_reload, self.turn.not_before_s = True, 0.0

    def follow(self) -> None:
        """Pin segments that its leader has not uploaded."""
        with self.lock:
            if self.role is not Role.FOLLOWED:
                self.role, self.shipped = Role.FOLLOWED, None

    def leave(self) -> None:
        """Keep existing pins, and add none."""
        with self.lock:
            self.role = Role.LEAVING

    def ignore(self) -> None:
        """Unpin all, but remember the segments: the partition is not to be uploaded."""
        with self.lock:
            self.role = Role.IGNORED
            for segment in self.segments.values():
                segment.described = None
                segment.unpin()

    def close(self) -> None:
        """Close all files; the links to them stay."""
        with self.lock:
            for segment in self.segments.values():
                segment.close()
            self.segments.clear()

    def abandon(self) -> list[Segment]:
        """Drop all without upload; return the pinned ones."""
        with self.lock:
            pinned = [segment for segment in self.segments.values() if segment.is_pinned]
            for segment in self.segments.values():
                segment.unpin()
            self.segments.clear()
            return pinned

    def pending(self) -> list[Segment]:
        """Return its segments, in order."""
        with self.lock:
            return list(self.segments.values())
