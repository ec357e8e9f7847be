"""One partition as the uploader sees it: its closed segments that are not shipped yet, and what keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tieredstore.catalog.watermark import Watermark
from tieredstore.kafka.checkpoints import LeaderEpochs, joined_epochs
from tieredstore.kafka.held_segment import OpenSegment, opened_again
from tieredstore.kafka.logdir import FoundSegment
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.uploader.closed_segment import ClosedSegment
from tieredstore.uploader.hold_dir import Kept
from tieredstore.uploader.watermark_store import StoredWatermark

_MAYBE_CUT: Final = (
    "it was deleted while no uploader ran, and the log has had other leaders since: it may have been cut before, and "
    "nothing here tells any more"
)


@dataclass(slots=True, eq=False)
class Partition:
    """Hold ``lock`` for ``segments``, ``epochs`` and ``watermark``; one worker at a time ships of it (``is_busy``).

    ``segments`` are in the order of offsets; ``first_active`` is the base of the active one when the partition was
    first seen. ``not_before_s`` is when it is looked at again, after a failure or while it waits for an answer;
    ``waits_for`` says for which. ``must_reload``: others may have moved the watermark.
    ``is_moving``: it is still in another log directory too, and what is held there is to come here.
    ``is_unheld``: nothing is held, and no links are kept, for nobody is to ship it.
    ``is_followed``: another broker leads, and this one may be next; ``followed_to`` is how far the watermark stood when
    it was last asked for.
    ``is_behind``: the object of the watermark stands before it, since ``behind_since_s``, which is only a moment;
    ``is_unsure``: it may, since a move has failed: ``unmoved`` is what it was to be moved from (with all that was
    shipped behind it) and to.
    """

    where: TopicIdPartition
    folder: Path
    is_moving: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    epochs: LeaderEpochs = ()
    segments: dict[int, ClosedSegment] = field(default_factory=dict[int, ClosedSegment])
    watermark: StoredWatermark | None = None
    first_active: int | None = None
    is_busy: bool = False
    is_dropped: bool = False
    is_unheld: bool = False
    is_followed: bool = False
    followed_to: int | None = None
    must_reload: bool = False
    is_behind: bool = False
    behind_since_s: float = 0.0
    is_unsure: bool = False
    unmoved: tuple[StoredWatermark, Watermark] | None = None
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
        # Of thousands of partitions there mostly is none, and they are asked for it several times a second.
        if not self.segments:
            return None
        with self.lock:
            for segment in self.segments.values():
                return segment
        return None

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
            if self.is_followed:
                shipped = self.followed_to or 0
            for base, place in closed.items():
                following = place.next_base_offset
                if base not in self.segments and (following is None or following > shipped):
                    self.segments[base] = ClosedSegment(place, now_s, epochs)
            self.segments = dict(sorted(self.segments.items()))
            if self.first_active is None and segments and not segments[-1].is_deleted:
                self.first_active = segments[-1].base_offset

    def _renew(self, base: int, segment: ClosedSegment, place: FoundSegment | None, first_live: int | None) -> None:
        is_same = place is not None and place.next_base_offset in (None, segment.next_offset)
        # Only who follows has its log cut; and who leads again since has seen a later epoch begin.
        may_be_new = self.is_followed or segment.epochs != self.epochs
        if place is not None and is_same and not (may_be_new and replace(segment, place=place).was_replaced):
            # The same one, perhaps under the names of what is deleted.
            if place.is_deleted != segment.place.is_deleted or place.directory is not segment.place.directory:
                segment.place = FoundSegment(
                    place.directory, place.topic, place.partition, base, segment.next_offset, place.is_deleted
                )
            if segment.epochs != self.epochs:
                # By whom it was written is told anew.
                segment.described = None
            segment.epochs, segment.absences = self.epochs, 0
        elif place is None and first_live is not None and base < first_live:
            # As retention leaves it behind: only what is held can be shipped.
            segment.absences += 1
            segment.place = FoundSegment(
                segment.place.directory, *self.name, base, segment.next_offset, is_deleted=True
            )
            if self.is_followed and segment.may_be_cut(self.epochs):
                segment.lost = _MAYBE_CUT
        elif self.is_busy and segment is self.first:
            segment.is_cut = True
        else:
            segment.give_up()
            del self.segments[base]

    def adopt(self, links: Iterable[Kept], now_s: float) -> None:
        """The links that an earlier process has left: of what the broker has deleted since, and of what is still there.

        What was cut off from the end of the log, or replaced, is removed.
        """
        with self.lock:
            self.is_unheld = False
            live = [base for base, segment in self.segments.items() if not segment.place.is_deleted]
            first_live = min(live, default=self.first_active)
            for kept in links:
                segment = self.segments.get(kept.base_offset)
                if segment is None and (first_live is None or kept.base_offset < first_live):
                    self._adopt(kept, now_s)
                elif (
                    segment is not None
                    and (segment.place.is_deleted or kept.is_log_of(segment.place.path("log")))
                    and segment.next_offset in (None, kept.next_offset)
                ):
                    segment.kept = kept
                else:
                    kept.remove()
            self.segments = dict(sorted(self.segments.items()))

    def _adopt(self, kept: Kept, now_s: float) -> None:
        place = FoundSegment(self.folder, *self.name, kept.base_offset, kept.next_offset, is_deleted=True)
        epochs = joined_epochs(kept.epochs, self.epochs) if self.epochs else kept.epochs
        lost = _MAYBE_CUT if kept.may_be_cut(self.epochs) else None
        self.segments[kept.base_offset] = ClosedSegment(place, now_s, epochs, kept=kept, lost=lost)

    def inherit(self, earlier: Partition) -> None:
        """Take over what is held of the same partition's other folder, since the broker has moved it here."""
        with earlier.lock, self.lock:
            first_live = next(iter(self.segments), self.first_active)
            for base, segment in list(earlier.segments.items()):
                if (first_live is None or base < first_live) and (segment.held or segment.kept):
                    segment.place = FoundSegment(self.folder, *self.name, base, segment.next_offset, is_deleted=True)
                    self.segments[base] = earlier.segments.pop(base)
            self.segments = dict(sorted(self.segments.items()))
            self.is_moving = self.is_unheld = False

    def shipped_to(self, next_offset: int) -> None:
        """Let go what lies before ``next_offset``."""
        with self.lock:
            # They are in order: a step looks at those that go, and not at the thousands that wait.
            while (segment := self.first) is not None and segment.place.base_offset < next_offset:
                end = segment.next_offset
                if end is not None and end > next_offset:
                    break
                segment.give_up()
                del self.segments[segment.place.base_offset]

    def ends_by(self, next_offset: int) -> bool:
        """Whether nothing that is closed lies behind that offset."""
        with self.lock:
            last = next(reversed(self.segments.values()), None)
        return last is None or (last.next_offset is not None and last.next_offset <= next_offset)

    def forget_watermark(self) -> None:
        """Others may have moved it, or the store is another one: what it was moved to is looked for there."""
        value = None
        if self.unmoved is not None:
            value = self.unmoved[1]
        elif self.is_behind and self.watermark is not None:
            value = self.watermark.value
        if value is not None:
            self.unmoved, self.is_unsure = (StoredWatermark(value, None), value), True
        self.must_reload, self.watermark, self.is_behind = False, None, False

    def forget_cut(self) -> None:
        """Let go what was cut off while it was being shipped."""
        with self.lock:
            for base, segment in list(self.segments.items()):
                if segment.is_cut:
                    segment.give_up()
                    del self.segments[base]

    def drop(self) -> None:
        """The partition is not here any more: let all go, or have the worker that ships of it do so."""
        with self.lock:
            self.is_dropped = True
            if not self.is_busy:
                self.give_up()

    def follow(self) -> None:
        """Another broker leads: what it has not shipped is held here, and what is held is looked at twice."""
        with self.lock:
            if not self.is_busy and not self.is_followed:
                self.is_followed, self.followed_to = True, None

    def lead(self) -> None:
        """It is led."""
        with self.lock:
            self.is_followed, self.followed_to = False, None

    def passed(self, next_offset: int, holes: Sequence[tuple[int, int]] = ()) -> None:
        """The leader's uploader has shipped all before that offset, but for ``holes``; their ends are inclusive.

        What it could not ship, and the broker here has deleted as well, is held on: it may fill them.
        """
        with self.lock:
            # A worker may have taken it just before it was followed, and reads of what it holds.
            if self.is_followed and not self.is_busy:
                self.followed_to = next_offset
                filling = (base for base, segment in self.segments.items() if segment.may_fill(holes))
                self.shipped_to(min(next_offset, next(filling, next_offset)))

    def held_again(self, holes: Sequence[tuple[int, int]]) -> list[OpenSegment]:
        """What is held of a follower's that may fill these, opened once more: for the caller to close."""
        with self.lock:
            held = [segment.held for segment in self.segments.values() if self.is_followed and segment.may_fill(holes)]
            return [opened_again(segment) for segment in held if segment is not None]

    def fills_nothing(self, base: int) -> None:
        """What is held from that offset on is not what is missing, or cannot be read either."""
        with self.lock:
            if base in self.segments:
                self.segments[base].fills_nothing = True

    def unhold(self) -> None:
        """Close all files, and go on knowing of the segments: nobody is to ship the partition."""
        with self.lock:
            self.is_followed = False
            if self.is_busy or self.is_unheld:
                return
            for segment in self.segments.values():
                segment.described = None
                segment.give_up()
            self.is_unheld = True

    def settled(self, high_watermark: int) -> None:
        """All before that offset is replicated, which the links to it say from now on."""
        with self.lock:
            for segment in self.segments.values():
                end = segment.next_offset
                if segment.is_settled or end is None or end > high_watermark:
                    continue
                if segment.kept is not None:
                    segment.kept.settle()
                # Once for each, unless the disk was too full for it.
                segment.is_settled = segment.kept is None or segment.kept.is_settled

    def let_go(self) -> None:
        """Close all files that are held; the links to them stay."""
        with self.lock:
            for segment in self.segments.values():
                segment.let_go()
            self.segments.clear()

    def give_up(self) -> None:
        """Let all go, the links too."""
        with self.lock:
            for segment in self.segments.values():
                segment.give_up()
            self.segments.clear()

    def pending(self, is_of_interest: Callable[[ClosedSegment], bool]) -> list[ClosedSegment]:
        """The segments for which that holds."""
        with self.lock:
            return [segment for segment in self.segments.values() if is_of_interest(segment)]
