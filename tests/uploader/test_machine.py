"""A state machine: a broker writes, deletes, moves and truncates, leaders change, and the store fails, in any order.

No segment that was pinned or on disk is missed. The watermark never passes an offset that is neither stored nor in a
hole. States change only as the tables in ``partition`` and ``segment`` allow.
"""

from __future__ import annotations

import enum
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.stores.doubles import FaultyStore, Operation
from tests.support.uploader.uploader_disk import (
    RECORDS,
    BrokerDisk,
    SaidSettling,
    extents,
    holes_of,
    logs_of,
    shipped_to,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import BrokerUnavailableError, ObjectNotFoundError
from tieredstore.limits import MAX_INT64
from tieredstore.model import TopicPartition
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Uploader
from tieredstore.uploader.leadership import Leadership
from tieredstore.uploader.partition import Partition, ProgressState, Role
from tieredstore.uploader.segment import Segment

NAME: Final = (PARTITION.topic, PARTITION.partition)
LONG_S: Final = 100.0
"""Time after which answers expire and failures are retried."""

MAYBE_CUT: Final = "records may have been truncated"


class SegmentState(enum.Enum):
    """The states in the docstring of ``tieredstore.uploader.segment``."""

    SEEN = "seen"
    HELD = "held"
    DOOMED = "doomed"
    ONLY_OURS = "only ours"
    GONE = "gone"
    LOST = "lost"


def state_of(segment: Segment) -> SegmentState:
    if segment.lost is not None:
        return LOST
    if segment.is_gone:
        return GONE
    if segment.absences and segment.is_pinned:
        return ONLY_OURS
    if segment.place.is_deleted:
        return DOOMED
    return HELD if segment.is_pinned else SEEN


SEEN, HELD, DOOMED, ONLY_OURS, GONE, LOST = SegmentState
NEXT_OF_SEGMENTS: Final = {
    # One rule may delete a segment and list the folder twice, so the machine may not see a state in between.
    SEEN: {HELD, DOOMED, ONLY_OURS, GONE, LOST},
    HELD: {SEEN, DOOMED, ONLY_OURS, LOST},
    DOOMED: {ONLY_OURS, GONE, LOST},
    ONLY_OURS: {DOOMED, GONE, LOST},
    GONE: {LOST},
    LOST: {SEEN},
}
UNKNOWN, SAVED, AHEAD, IN_DOUBT = ProgressState
NEXT_OF_PROGRESS: Final = {
    UNKNOWN: {SAVED, AHEAD, IN_DOUBT},
    SAVED: {AHEAD, UNKNOWN, IN_DOUBT},
    AHEAD: {SAVED, IN_DOUBT},
    IN_DOUBT: {SAVED, UNKNOWN, AHEAD},
}


class ScriptedLeadership(Leadership):
    """Leadership as the machine sets it. None means that no broker answers."""

    answer: ClassVar[Collection[TopicPartition] | None] = ()

    def led(self) -> Collection[TopicPartition]:
        if self.answer is None:
            raise BrokerUnavailableError("nobody says who leads")
        return self.answer


class UploaderMachine(RuleBasedStateMachine):
    """One partition and its uploader. No record below the high watermark, ``settling.high``, is ever truncated."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.disk = BrokerDisk(self.folder / "logs", segments=3)
        self.store = MemoryObjectStore()
        self.failing: int | None = None
        """Number of the next step's operations that succeed; later ones fail. An operation on the watermark counts as
        five."""
        self.faulty = FaultyStore(self.store, self._fails)
        self.settling = SaidSettling(high=2 * RECORDS)
        self.now_s = 0.0
        self.epoch = 0
        """The leader epoch, which only grows. After a truncation, the log's own epochs may all be earlier."""
        self.epoch_of = dict.fromkeys(self.disk.bases, 0)
        self.unpinned: set[int] = set()
        """Base offsets of segments that may be missing in the end. Some were deleted before they were stored, without a
        pin. Others were never known to be replicated, and no file shows if the log was truncated.
        """
        self.states: dict[Segment, SegmentState] = {}
        self.progress = UNKNOWN
        ScriptedLeadership.answer = (NAME,)
        self.uploader = self._start()

    def _fails(self, operation: Operation) -> bool:
        if self.failing is None:
            return False
        self.failing -= 5 if "watermarks" in operation.keys[0] else 1
        return self.failing < 0

    def _start(self) -> Uploader:
        uploader = uploader_of(
            self.disk.log_dir,
            self.faulty,
            self.settling,
            lambda: self.now_s,
            leadership=f"{ScriptedLeadership.__module__}.{ScriptedLeadership.__name__}",
        )
        uploader.sweep()
        uploader.ask_leadership()
        uploader.ask_topics()
        return uploader

    @property
    def partition(self) -> Partition | None:
        return next(iter(self.uploader.disk.partitions), None)

    @property
    def is_led(self) -> bool:
        return self.partition is not None and self.partition.role is Role.LED

    # The broker's rules

    @rule(count=st.integers(1, 3))
    def grow(self, count: int) -> None:
        for _ in range(count):
            self.epoch_of[self.disk.end] = self.disk.epochs[-1][0]
            self.disk.grow()

    @rule()
    def elect(self) -> None:
        if self.disk.epochs[-1][1] != self.disk.end:
            self._lead(1)

    def _lead(self, elections: int) -> None:
        self.epoch += elections
        self.disk.lead(self.epoch)

    @rule(behind=st.integers(0, 3))
    def replicate(self, behind: int) -> None:
        self.settling.high = max(self.settling.high, self.disk.end - behind * RECORDS)

    @precondition(lambda self: len(self.disk.bases) > 1)
    @rule(count=st.integers(1, 2), are_gone=st.booleans())
    def take_by_retention(self, count: int, are_gone: bool) -> None:
        # Retention deletes only replicated segments.
        old = [base for base in self.disk.bases[:-1] if base + RECORDS <= self.settling.high]
        self.disk.mark_deleted(min(count, len(old)))
        if are_gone:
            self._forget_unpinned(set(self.disk.bases))
            self.disk.delete()

    def _forget_unpinned(self, named: set[int]) -> None:
        segments = {} if self.partition is None else self.partition.segments
        pinned = {base for base, segment in segments.items() if segment.is_pinned}
        self.unpinned |= {base for base in self.epoch_of if base not in named | pinned and base >= self.stored_to}

    @precondition(lambda self: not self.is_led and self.settling.high < self.disk.end)
    @rule()
    def cut(self) -> None:
        """Let another broker lead for a while: unreplicated records are truncated, and others written instead."""
        base = max(self.settling.high, self.disk.bases[0])
        if -(-base // RECORDS) * RECORDS != base or base == self.disk.bases[0] or base >= self.disk.end:
            return
        self.disk.cut(base)
        self.epoch_of = {at: epoch for at, epoch in self.epoch_of.items() if at < base}
        self.disk.epochs = tuple(entry for entry in self.disk.epochs if entry[1] < base)
        self._lead(2)
        self.grow(1)

    # Leadership's rules

    @rule(answer=st.sampled_from([(), (NAME,), None]))
    def ask_leadership(self, answer: Collection[TopicPartition] | None) -> None:
        ScriptedLeadership.answer = answer
        self.now_s += LONG_S
        self.uploader.ask_leadership()

    # The uploader's rules

    @rule()
    def sweep(self) -> None:
        self.uploader.sweep()

    @precondition(lambda self: self.is_led)
    @rule(fails=st.one_of(st.none(), st.integers(0, 20)), answer_is_lost=st.booleans())
    def ship(self, fails: int | None, answer_is_lost: bool) -> None:
        self.faulty.moment = "after" if answer_is_lost else "before"
        self.failing = fails
        self.now_s += LONG_S
        self.uploader.ask_leadership()
        self.uploader.ask_settled()
        for partition in self.uploader.schedule.take_all(lambda _: True):
            self.uploader.ship(partition)
        self.failing = None

    @rule()
    def follow(self) -> None:
        self.now_s += 10 * LONG_S
        self.uploader.follow()

    @rule()
    def restart(self) -> None:
        """Restart the uploader, which loses pins that are only open files."""
        named = {base for base in self.epoch_of if self.disk.files(base)}
        self.unpinned |= {base for base in self.epoch_of if base not in named and base >= self.stored_to}
        self.uploader.close()
        self.states, self.progress = {}, UNKNOWN
        self.uploader = self._start()

    # Invariants

    @property
    def stored_to(self) -> int:
        return shipped_to(self.store)

    @invariant()
    def segments_are_in_order_and_change_as_the_table_has_it(self) -> None:
        segments = [] if self.partition is None else self.partition.pending()
        assert [segment.base_offset for segment in segments] == sorted(segment.base_offset for segment in segments)
        states = {segment: state_of(segment) for segment in segments}
        for segment, state in states.items():
            before = self.states.get(segment, state)
            assert state is before or state in NEXT_OF_SEGMENTS[before], (segment.place, before, state)
            if state is LOST and not segment.is_replicated:
                assert MAYBE_CUT in str(segment.lost)
        self.states = states

    @invariant()
    def progress_changes_as_the_table_has_it(self) -> None:
        state = UNKNOWN if self.partition is None else self.partition.progress.state
        assert state is self.progress or state in NEXT_OF_PROGRESS[self.progress], (self.progress, state)
        self.progress = state

    @invariant()
    def what_the_watermark_has_passed_is_stored_or_a_hole(self) -> None:
        with suppress(ObjectNotFoundError):
            covered: set[int] = set()
            for first, last in (*extents(self.store), *holes_of(self.store)):
                covered.update(range(first, last, RECORDS))
            assert covered.issuperset(range(min(covered, default=0), self.stored_to, RECORDS))
        for hole in watermark_of(self.store).holes if self.stored_to else ():
            bases = range(hole.first_offset, hole.last_offset, RECORDS)
            if MAYBE_CUT in hole.reason:
                self.unpinned.update(bases)
            assert self.unpinned.issuperset(bases), hole

    def teardown(self) -> None:
        try:
            self._heal()
        finally:
            self.uploader.close()
            shutil.rmtree(self.folder)

    def _heal(self) -> None:
        """Let every operation succeed; check that the store then has every closed segment outside ``unpinned``."""
        self.settling.high = MAX_INT64
        for _ in range(3):
            self.uploader.sweep()
            self.ask_leadership((NAME,))
        for _ in range(4 * len(self.epoch_of) + 4):
            self.ship(None, answer_is_lost=False)
            self.uploader.sweep()
        active = self.disk.bases[-1]
        # If no closed segment is left, there is nothing to ship, and the gap before the active segment is no hole yet.
        assert self.stored_to in (0, active) or self.disk.bases == [active]
        self.what_the_watermark_has_passed_is_stored_or_a_hole()
        kept = {base for base in self.epoch_of if base < active} - self.unpinned
        stored = {first: log for (first, _), log in zip(extents(self.store), logs_of(self.store), strict=True)}
        assert kept <= stored.keys()
        for base in kept:
            assert all(value in stored[base] for value in self.disk.values(base, self.epoch_of[base]))


TestUploader = UploaderMachine.TestCase
TestUploader.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
