"""One partition of the uploader: its role, the upload's progress, and the segments not uploaded yet."""

from __future__ import annotations

import contextlib
import enum
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
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
    "the segment was deleted while no uploader ran, and the log has had other leaders since: the segment's records may "
    "have been truncated"
)


class Role(enum.Enum):
    """The uploader's task for a partition. The role changes when leadership changes, or when the partition's folder is
    gone.

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
    """Nothing is pinned."""
    FOLLOWED = "followed"
    """Another broker leads, but this broker may lead next. Segments from ``shipped`` on are pinned: open files or
    hard links keep them. While ``shipped`` is unknown, only segments that the broker is about to delete are
    pinned.
    """
    LED = "led"
    """This broker leads: segments are pinned (kept by open files or hard links) and uploaded."""
    LEAVING = "leaving"
    """The broker has no folder of the partition any more, but the topic exists. Segments kept by open files or hard
    links stay, and may fill holes, until the store has them.
    """


class ProgressState(enum.Enum):
    """The uploader's knowledge of a partition's watermark object in the store."""

    UNKNOWN = "unknown"
    SAVED = "saved"
    AHEAD = "ahead"
    IN_DOUBT = "in doubt"


@dataclass(slots=True)
class Progress:
    """A partition's upload progress (``value``), and the store's watermark object as last seen (``stored``).

    ==========  ======================  =========================================================================
    state       derived from            next
    ==========  ======================  =========================================================================
    in doubt    ``attempt``             load and advance: saved, whether or not the attempt succeeded
    unknown     ``stored`` is None      load: saved, or ahead if the object is damaged or was never made
    ahead       ``unsaved_since_s``     save: saved, or in doubt; distrust: in doubt
    saved       else                    ship: ahead; distrust: unknown; a later leader moved it: unknown
    ==========  ======================  =========================================================================

    The first row of the table whose condition (``derived from``) holds gives the state. ``attempt`` is a write of
    unknown outcome. ``attempt`` has two parts: the object before the write (with everything uploaded since), and the
    object to write. ``must_reload`` is true if another uploader may have moved the watermark. The next step then calls
    :meth:`distrust`.
    """

    value: Watermark | None = None
    stored: StoredWatermark | None = None
    unsaved_since_s: float | None = None
    attempt: tuple[StoredWatermark, Watermark] | None = None
    must_reload: bool = False

    @property
    def state(self) -> ProgressState:
        """The state, according to the table in the class's docstring."""
        if self.attempt is not None:
            return ProgressState.IN_DOUBT
        if self.stored is None:
            return ProgressState.UNKNOWN
        return ProgressState.SAVED if self.unsaved_since_s is None else ProgressState.AHEAD

    @property
    def is_unsaved(self) -> bool:
        """True if the watermark object in the store is behind the uploads, or may be."""
        return self.state in (ProgressState.AHEAD, ProgressState.IN_DOUBT)

    def load(self, stored: StoredWatermark) -> None:
        """Record the watermark object that was just read."""
        self.value, self.stored = stored.value, stored

    def advance(self, value: Watermark, now_s: float) -> None:
        """Record that the store has everything before ``value``. The watermark object must still be written."""
        self.value = value
        self.fall_behind(now_s)

    def fall_behind(self, now_s: float) -> None:
        """Record that the watermark object in the store has been behind ``value`` since ``now_s``."""
        if self.unsaved_since_s is None:
            self.unsaved_since_s = now_s

    def forget(self) -> None:
        """Forget the progress and the watermark object, but keep ``attempt``, a write of unknown outcome."""
        self.value, self.stored, self.unsaved_since_s = None, None, None

    def save(self, stored: StoredWatermark) -> None:
        """Record that ``stored`` is now the content of the watermark object."""
        self.value, self.stored, self.unsaved_since_s, self.attempt = stored.value, stored, None, None

    def doubt(self, wanted: Watermark) -> None:
        """Record that the write of ``wanted`` to the watermark object may have failed."""
        if self.stored is not None:
            self.attempt = StoredWatermark(self.value, self.stored.etag), wanted
        self.forget()

    def distrust(self) -> None:
        """Forget the watermark object, because another uploader may have changed it, or the settings now name another
        store.

        The next step reads the object and looks for uploaded segments.
        """
        shipped = self.value if self.unsaved_since_s is not None else None
        wanted = self.attempt[1] if self.attempt is not None else shipped
        if wanted is not None:
            self.attempt = StoredWatermark(wanted, None), wanted
        self.must_reload = False
        self.forget()


@dataclass(slots=True)
class Turn:
    """A partition's state in the schedule. While ``is_busy`` is true, a worker is uploading from the partition.

    After a failure, or while the next segment waits, no step begins before ``not_before_s``. ``waits_for`` is the
    condition that the next segment waits for. ``failures`` counts consecutive failures; ``error`` is the last error.
    """

    is_busy: bool = False
    not_before_s: float = 0.0
    failures: int = 0
    waits_for: str | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Partition:
    """A partition of a topic id. ``folder`` is its present folder, or None if no log directory has the partition.

    Hold ``listing`` to list the folder. Hold ``lock`` to use ``segments``, which are in offset order, and their pins.
    One worker at a time uploads (see ``turn``). The worker opens the files itself, so other threads may unpin a segment
    during its upload.

    The store has all offsets before ``shipped`` (None: not known yet), with one exception. Another broker's uploader
    may have been the first to store anything, and its log may have begun later than this broker's log. ``begun_at`` is
    then the first stored offset. Earlier segments that only exist because of pins stay pinned until they are uploaded.

    ``first_active`` is the base offset of the active segment in the first listing, and None before that listing. The
    leaders of the present epochs have replicated all offsets below ``replicated_to``.

    It has many fields, because all threads find a partition's state here; ``progress`` and ``turn`` are the worker's.
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
    begun_at: int = 0
    replicated_to: int = 0
    first_active: int | None = None
    turn: Turn = field(default_factory=Turn)

    @property
    def name(self) -> TopicPartition:
        """Topic name and partition number, as brokers name the partition."""
        return self.where.topic, self.where.partition

    @property
    def last_epoch(self) -> int:
        """The log's last leader epoch, or -1 if the log has no epochs."""
        return self.epochs[-1][0] if self.epochs else -1

    @property
    def first(self) -> Segment | None:
        """The first segment to upload."""
        # Workers ask several times a second, and most of thousands of partitions have no segments. So avoid the lock.
        if not self.segments:
            return None
        with self.lock:
            return next(iter(self.segments.values()), None)

    @property
    def has_pins(self) -> bool:
        """True if open files or hard links keep any segment."""
        with self.lock:
            return any(segment.is_pinned for segment in self.segments.values())

    def has(self, segment: Segment) -> bool:
        """Return True if the segment is still part of the log: no listing has shown that it was truncated."""
        return self.segments.get(segment.base_offset) is segment

    # Changes seen on disk

    def lie_in(self, folder: Path | None) -> None:
        """Record that the partition is now in another folder, or in none. Forget the segments that no pin keeps,
        because their files are gone."""
        with self.lock:
            self.folder = folder
            for segment in self.pending():
                if not segment.is_pinned and segment.lost is None:
                    del self.segments[segment.base_offset]
                elif folder is None:
                    segment.place = replace(segment.place, is_deleted=True)

    def take(self, listed: Sequence[FoundSegment], epochs: LeaderEpochs, now_s: float) -> bool:
        """Apply a listing of the folder. Return False, and change nothing, if each log in the listing is deleted.

        ``epochs`` are the log's leader epochs, including epochs that retention has removed from the broker's
        checkpoint.
        """
        live = [place.base_offset for place in listed if not place.is_deleted]
        if not live:
            # Every log has an active segment. Without one, the folder is still being created or is being moved away, so
            # do nothing yet.
            return False
        with self.lock:
            has_changed, before, self.epochs = epochs != self.epochs, self.epochs, epochs
            if has_changed:
                self.replicated_to = 0
                self._go_back(before, live[0])
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
        return True

    def _go_back(self, before: LeaderEpochs, first_live: int) -> None:
        """If an epoch after those known ``before`` begins below ``shipped``, no longer count its offsets as stored. An
        unclean election has replaced their records, perhaps with fewer, so that the log ends below ``shipped``.

        A log without epochs was emptied, so all its later records may be other ones.
        """
        began = [start for epoch, start in self.epochs if before and epoch > before[-1][0]]
        if self.shipped is not None:
            self.shipped = min([self.shipped, *began] if self.epochs else [self.shipped, first_live])

    def _is_kept(
        self, segment: Segment, named: FoundSegment | None, first_live: int, active: int, *, has_changed: bool
    ) -> bool:
        """Update a known segment. Return False if the log no longer has the segment: the log was truncated, or the
        segment's files were replaced.
        """
        base, end = segment.base_offset, segment.next_offset
        if has_changed and not have_same_leaders(segment.epochs, self.epochs, base, end - 1):
            return False
        # The listed end of a segment is the base offset of the next listed segment. For a deleted segment, this may be
        # after the true end, because the next segments may be gone.
        if named is not None and (named.is_deleted or named.next_base_offset == end):
            # Suspect a truncation only in a follower's log, or if the leader epoch is new, because this leader may have
            # been a follower in between.
            may_be_other = not named.is_deleted and (self.role is Role.FOLLOWED or has_changed)
            if may_be_other and segment.was_replaced(named):
                return False
            listed_end = named.next_base_offset or end
            if listed_end < end and (not segment.is_pinned or segment.is_log(named.path("log"))):
                # The known end is too high, because an earlier listing missed the next segment. Correct the end. But if
                # the segment is pinned, first check that the listed file is the pinned file, because a file that
                # replaced it may have fewer records.
                end, segment.described = listed_end, None
            segment.place = named if named.next_base_offset == end else replace(named, next_base_offset=end)
            if segment.link is not None and segment.link.next_offset > end:
                segment.take_link(segment.link)
            segment.absences = 0
            return True
        if base < first_live:
            # Retention deleted the segment, so it can be uploaded only if open files or links keep it.
            segment.absences += 1
            segment.place = FoundSegment(segment.place.directory, *self.name, base, end, is_deleted=True)
            if self.role is not Role.LED and segment.may_be_cut(self.epochs):
                segment.lost = _MAYBE_CUT
            return True
        if named is not None and segment.is_log(named.path("log")):
            # The log was truncated within this segment.
            return False
        # Keep a pinned segment beyond the log's end, because a broker that refills the log from the start may still
        # reach the segment's offsets.
        return segment.is_pinned and end > active

    def adopt(self, links: Iterable[Link], now_s: float) -> None:
        """Keep segments by the hard links that an earlier process made. The next listing shows which segments are
        still valid.
        """
        with self.lock:
            for link in links:
                extent, is_deleted = (link.base_offset, link.next_offset), self.folder is None
                place = FoundSegment(self.folder or link.folder, *self.name, *extent, is_deleted=is_deleted)
                segment = Segment(place, now_s, link.epochs, link=link, is_replicated=link.is_replicated)
                self.segments[link.base_offset] = segment
                if self.folder is None:
                    self.epochs = link.epochs or self.epochs

    def epoch_began_after(self, epoch: int) -> int | None:
        """Return the start of the first leader epoch after ``epoch``, or None if there is no such epoch.

        If retention has truncated the epoch checkpoint, the later epoch seems to begin at the log's present start. In
        this case, read the epoch's true start from the batches of earlier segments, which are marked deleted but still
        on disk.
        """
        later = [start for own, start in self.epochs if own > epoch >= 0]
        if not later or self.epochs[0][0] <= epoch:
            return later[0] if later else None
        for segment in self.pending():
            if segment.base_offset < later[0]:
                began = segment.first_later(epoch, self.lock)
                if began is not None:
                    return min(began, later[0])
        return later[0]

    # Changes in the store

    def release(self, next_offset: int) -> None:
        """Drop segments that end at or before ``next_offset``."""
        with self.lock:
            # Segments are in offset order and there may be thousands, so stop at the first segment that stays.
            whole = itertools.takewhile(lambda segment: segment.next_offset <= next_offset, self.segments.values())
            for segment in [segment for segment in whole if not self._is_early(segment)]:
                self.forget(segment)

    @property
    def has_early(self) -> bool:
        """True if this broker follows, and has segments from before the first stored segment that exist only because of
        its pins. A broker that leads uploads such segments in its next step.
        """
        first = self.first if self.begun_at and self.role is Role.FOLLOWED else None
        return first is not None and self._is_early(first)

    def _is_early(self, segment: Segment) -> bool:
        return self.begun_at > 0 and segment.may_fill([(0, self.begun_at - 1)])

    def keep_early(self, next_offset: int, begun_at: Callable[[], int]) -> None:
        """Keep pinned segments from before the first stored segment. Another broker's uploader may have been the first
        to store anything, without having these segments. Call this before :meth:`ship_to` and :meth:`pass_to`.

        Ask ``begun_at`` for the first stored offset only if the watermark was unknown until now, and only pins keep
        segments before ``next_offset``. Do not keep segments that the broker still has, because the store may have had
        them until retention deleted them from the store.
        """
        with self.lock:
            may_be = not self.shipped and any(one.may_fill([(0, next_offset - 1)]) for one in self.segments.values())
        if may_be:
            self.begun_at = begun_at()

    def forget(self, segment: Segment) -> None:
        """Unpin and drop one segment."""
        with self.lock:
            segment.unpin()
            if self.has(segment):
                del self.segments[segment.base_offset]

    def ship_to(self, next_offset: int) -> None:
        """Record that each offset before ``next_offset`` is in the store, or in a hole of the upload watermark."""
        self.shipped = next_offset
        self.release(next_offset)

    def pass_to(self, next_offset: int, holes: Sequence[tuple[int, int]] = ()) -> None:
        """Record that the leader's uploader has uploaded everything before ``next_offset`` except ``holes`` (inclusive
        ends).

        Keep segments that the broker has deleted if they may fill one of these holes, because perhaps no other broker
        has them.
        """
        with self.lock:
            if self.role is Role.FOLLOWED:
                self.shipped = next_offset
                filling = (base for base, segment in self.segments.items() if segment.may_fill(holes))
                self.release(min(next_offset, next(filling, next_offset)))

    def ends_by(self, next_offset: int) -> bool:
        """Return True if no closed segment ends after ``next_offset``."""
        with self.lock:
            last = next(reversed(self.segments.values()), None)
        return last is None or last.next_offset <= next_offset

    def mark_replicated(self, high_watermark: int) -> None:
        """Record that everything before ``high_watermark`` is replicated, also in the segments' hard links."""
        with self.lock:
            self.replicated_to = max(self.replicated_to, high_watermark)
            for segment in self.segments.values():
                if segment.next_offset > high_watermark:
                    break
                # Mark each segment once. Try again if a full or failed disk prevented the mark on the segment's link.
                with contextlib.suppress(OSError):
                    if not segment.is_replicated or (segment.link is not None and not segment.link.is_replicated):
                        segment.mark_replicated()

    # Changes of role

    def lead(self) -> None:
        """Begin to upload. The next step first reads the watermark object again."""
        with self.lock:
            self.role, self.progress.must_reload = Role.LED, True

    def change_store(self) -> None:
        """Make the next step read the watermark object again, because the settings may now name a different store.
        Cancel any pause before that step."""
        self.progress.must_reload, self.turn.not_before_s = True, 0.0

    def follow(self) -> None:
        """Begin to keep, by open files or links, the segments that the leader's uploader has not uploaded."""
        with self.lock:
            if self.role is not Role.FOLLOWED:
                self.role, self.shipped = Role.FOLLOWED, None

    def leave(self) -> None:
        """Keep the open files and links of segments, but add none."""
        with self.lock:
            self.role = Role.LEAVING

    def ignore(self) -> None:
        """Close the open files and remove the hard links of all segments, but remember the segments. The partition is
        then not uploaded."""
        with self.lock:
            self.role = Role.IGNORED
            for segment in self.segments.values():
                segment.described = None
                segment.unpin()

    def close(self) -> None:
        """Close all files; hard links stay."""
        with self.lock:
            for segment in self.segments.values():
                segment.close()
            self.segments.clear()

    def abandon(self) -> list[Segment]:
        """Drop all segments without uploading them. Return the segments that were held by open files or links."""
        with self.lock:
            pinned = [segment for segment in self.segments.values() if segment.is_pinned]
            for segment in self.segments.values():
                segment.unpin()
            self.segments.clear()
            return pinned

    def pending(self) -> list[Segment]:
        """Return the segments not uploaded yet, in offset order."""
        with self.lock:
            return list(self.segments.values())

    def lag(self) -> list[Segment] | None:
        """Return the segments that end after ``shipped``, in offset order.

        If there are segments but ``shipped`` is unknown, as after a restart, return None, because all segments may be
        in the store already.
        """
        with self.lock:
            if self.segments and self.shipped is None:
                return None
            return [segment for segment in self.segments.values() if segment.next_offset > (self.shipped or 0)]
