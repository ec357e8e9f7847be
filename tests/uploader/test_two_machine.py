"""A state machine: two brokers with one partition, and an uploader beside each. Both uploaders may believe that they
lead. Each may stop before any operation of the store, as a process that gets SIGSTOP does, and go on much later.

Elections are clean or unclean. A listing may miss a log while the broker renames it.

No replicated record disappears from both disks, all pins and the store, unless its offset is in a hole. Each offset
below the watermark is stored or in a hole. The watermark moves back only after an unclean election, and forgets holes
only if the store has their records.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.golden.records import rows_of
from tests.support.records.record_reader import read_records
from tests.support.uploader.stoppable_broker import NAME, Belief, StoppableBroker
from tests.support.uploader.uploader_disk import RECORDS, STORE, shipped_to, stored, watermark_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.watermark import Watermark
from tieredstore.config import settings_from
from tieredstore.errors import ObjectNotFoundError
from tieredstore.kafka.logdir import discover_deleted
from tieredstore.ops.garbage.removal import Removal
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader.disk import Disk

LONG_S: Final = 100.0
"""Time after which answers expire and failures are retried."""

MAYBE_CUT: Final = "records may have been truncated"
"""The reason of a hole of records that no file shows to be part of the log."""

BROKERS: Final = st.integers(0, 1)
SOON: Final = st.one_of(st.none(), st.integers(0, 12))


class TwoUploaders(RuleBasedStateMachine):
    """One partition on two brokers. ``truth`` has the leader epoch of each replicated segment, by base offset."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = MemoryObjectStore()
        self.brokers = [StoppableBroker(number, self.folder, self.store) for number in (0, 1)]
        self.leader, self.epoch, self.high = 0, 0, 0
        self.truth: dict[int, int] = {}
        self.lost: set[int] = set()
        """Base offsets of replicated segments that neither a disk, a pin nor the store has any more."""
        self.expired_to, self.has_begun = 0, False
        self.unclean: list[tuple[int, int]] = []
        """The epoch of each unclean election, and the offset from which the new leader has other records."""
        self.mark: Watermark | None = None
        """The watermark at the last check."""
        self._listing = mock.patch(f"{Disk.__module__}.{discover_deleted.__name__}", self._list_folder)
        self._listing.start()
        self._commit(2 * RECORDS)

    def _list_folder(self, folder: Path) -> Any:
        (broker,) = [broker for broker in self.brokers if broker.disk.folder == folder]
        with broker.hide_one():
            return discover_deleted(folder)

    @initialize(ships=st.booleans())
    def begin(self, ships: bool) -> None:
        if ships:
            self.believe(0, knows=True)
            self.brokers[0].ship()
            self._note_begin()

    def _commit(self, high: int) -> None:
        self.high = max(self.high, high)
        leader = self.brokers[self.leader]
        leader.high = self.high
        for base, epoch in leader.epoch_of.items():
            if base + RECORDS <= self.high:
                assert self.truth.setdefault(base, epoch) == epoch

    # The brokers' rules

    @rule(count=st.integers(1, 3))
    def grow(self, count: int) -> None:
        leader = self.brokers[self.leader]
        for _ in range(count):
            leader.epoch_of[leader.disk.end] = leader.disk.epochs[-1][0]
            leader.disk.grow()

    def _common(self) -> int:
        """Return the offset up to which both logs have the same records."""
        one, other = (broker.epoch_of for broker in self.brokers)
        return next(base for base in range(0, 1 << 30, RECORDS) if base not in one or one[base] != other.get(base))

    @rule(count=st.integers(1, 3), behind=st.integers(0, 1))
    def replicate(self, count: int, behind: int) -> None:
        """Let the follower truncate what differs, and copy segments."""
        leader, follower = self.brokers[self.leader], self.brokers[1 - self.leader]
        common = self._common()
        if common < follower.disk.end:
            follower.high = min(follower.high, common)
            follower.disk.cut(common)
            follower.epoch_of = {base: epoch for base, epoch in follower.epoch_of.items() if base < common}
        follower.disk.epochs = tuple(entry for entry in follower.disk.epochs if entry[1] < follower.disk.end)
        follower.disk.write_epochs()
        for _ in range(count):
            base = follower.disk.end
            if base >= leader.disk.end or not leader.disk.files(base):
                break
            epoch = follower.epoch_of[base] = leader.epoch_of[base]
            if epoch > follower.disk.epochs[-1][0]:
                follower.disk.epochs = (*follower.disk.epochs, (epoch, base))
            follower.disk.grow()
        self._commit(follower.disk.end - behind * RECORDS)
        follower.high = max(follower.high, min(self.high, follower.disk.end) - behind * RECORDS)

    @rule()
    def shrink_isr(self) -> None:
        """Drop the follower from the in-sync replicas, so that all records of the leader count as replicated."""
        self._commit(self.brokers[self.leader].disk.end)

    @precondition(lambda self: self._common() >= self.high)
    @rule()
    def elect(self) -> None:
        leader = self.brokers[1 - self.leader]
        self.leader, self.epoch = 1 - self.leader, self.epoch + 1
        if leader.disk.epochs[-1][1] == leader.disk.end:
            leader.disk.epochs = leader.disk.epochs[:-1]
        leader.disk.lead(self.epoch)

    @precondition(lambda self: RECORDS <= self._common() < self.high)
    @rule()
    def elect_unclean(self) -> None:
        """Elect the follower although it is not in sync. Records that only the former leader has are lost."""
        common = self._common()
        self.elect()
        self.unclean.append((self.epoch, common))
        self.brokers[self.leader].high = min(self.brokers[self.leader].high, common)
        self.truth = {base: epoch for base, epoch in self.truth.items() if base < common}
        self.lost = {base for base in self.lost if base < common}
        self.high = 0
        self._commit(common)

    @rule(stop_at=st.integers(0, 12), count=st.integers(1, 3), is_clean=st.booleans(), again_at=SOON)
    def depose(self, stop_at: int, count: int, is_clean: bool, again_at: int | None) -> None:
        """Suspend the leader's uploader while it ships. Elect the other broker, whose uploader ships. Then let the
        first uploader go on, which still believes that its broker leads.
        """
        self._resume()
        old = self.leader
        self.replicate(100, 0)
        self.grow(count)
        if is_clean:
            self.replicate(count, 0)
        self.shrink_isr()
        self.believe(old, knows=True)
        self.act(old, "sweep", None, None, is_lost=False)
        self.act(old, "ship", stop_at, None, is_lost=False)
        if self._common() >= self.high:
            self.elect()
        elif self._common() >= RECORDS:
            self.elect_unclean()
        self.grow(count)
        self.shrink_isr()
        self.believe(self.leader, knows=True)
        for what in ("sweep", "ship", "ship"):
            self.act(self.leader, what, None, None, is_lost=False)
        # Invariants are checked only after a rule. Check this one here too: the next check then compares with the
        # watermark as the second uploader has left it.
        self.the_watermark_forgets_nothing()
        self.go_on(old, again_at, 0.0)
        self.the_watermark_forgets_nothing()
        self.go_on(old, None, 0.0)
        self.act(old, "ship", None, None, is_lost=False)

    def elect_anyhow(self) -> None:
        """Elect the other broker, uncleanly if it lacks replicated records."""
        if self._common() >= self.high:
            self.elect()
        else:
            self.elect_unclean()

    def lose_log(self, number: int, base: int) -> None:
        """Remove a log from a broker's disk, as an operator or a broken disk does."""
        (self.brokers[number].disk.folder / f"{base:020d}.log").unlink()

    def work(self, number: int, *steps: str) -> None:
        """Let an uploader learn from the cluster who leads, and make these steps."""
        self.believe(number, knows=True)
        for what in steps:
            self.act(number, what, None, None, is_lost=False)

    def check(self) -> None:
        """Check the invariants, which are otherwise checked only after a rule."""
        self.the_watermark_forgets_nothing()
        self.what_the_watermark_has_passed_is_stored_or_a_hole()

    def check_holes(self) -> None:
        """Check that no hole names what the store has. A hole may do so if its segment is stored later."""
        assert not self._in_holes() & self._stored(), "a hole names what the store has"

    def _resume(self) -> None:
        for number, broker in enumerate(self.brokers):
            while broker.is_stopped:
                self.go_on(number, None, 0.0)

    @rule(number=BROKERS, index=st.integers(0, 2))
    def miss(self, number: int, index: int) -> None:
        """Let the next listing miss a log, because the broker is renaming the log."""
        self.brokers[number].misses = index

    @rule(number=BROKERS, count=st.integers(1, 2), are_gone=st.booleans())
    def take_by_retention(self, number: int, count: int, are_gone: bool) -> None:
        disk = self.brokers[number].disk
        old = [base for base in disk.bases[:-1] if base + RECORDS < min(self.high, self._common())]
        disk.mark_deleted(min(count, len(old)))
        if are_gone:
            disk.delete()
            self._note_lost()

    def _note_lost(self) -> None:
        self.lost |= self.truth.keys() - self._held_now()

    def _stored(self) -> set[int]:
        return {
            segment.metadata.start_offset
            for segment in stored(self.store)
            if segment.metadata.segment_leader_epochs[-1][0] == self.truth.get(segment.metadata.start_offset)
        }

    @rule(count=st.integers(1, 3))
    def expire(self, count: int) -> None:
        """Delete the oldest segments of the store, as its retention does."""
        bases = sorted(self._stored())[: count + 1]
        if len(bases) > 1 and bases[-1] <= self.stored_to:
            listed = list_segments(self.store, "", Scope.of(PARTITION))
            assert list(Removal(self.store, "", dry_run=False).run(listed, bases[-1]))
            self.expired_to = max(self.expired_to, bases[-1])

    # The uploaders' rules

    @rule(number=BROKERS, knows=st.booleans())
    def believe(self, number: int, knows: bool) -> None:
        """If ``knows``, let an uploader learn from the cluster who leads, and the leader's high watermark and epoch.
        Otherwise the uploader believes that its own broker leads, and takes watermark and epoch from its own broker.
        """
        broker = self.brokers[number]
        if not broker.is_stopped:
            Belief.leads[number] = not knows or number == self.leader
            own = broker.high, broker.disk.epochs[-1][0]
            broker.settling.high, broker.settling.epoch = (self.high, self.epoch) if knows else own
            broker.now_s += LONG_S
            broker.uploader.ask_leadership()

    @rule(number=BROKERS, stop_at=SOON, fail_at=SOON, is_lost=st.booleans())
    def ship(self, number: int, stop_at: int | None, fail_at: int | None, is_lost: bool) -> None:
        self.act(number, "ship", stop_at, fail_at, is_lost)

    @rule(
        number=BROKERS,
        what=st.sampled_from(["fill_holes", "follow", "sweep"]),
        stop_at=SOON,
        fail_at=SOON,
        is_lost=st.booleans(),
    )
    def act(self, number: int, what: str, stop_at: int | None, fail_at: int | None, is_lost: bool) -> None:
        broker = self.brokers[number]
        if broker.is_stopped:
            return
        held = self._held_now()
        broker.now_s += LONG_S if what == "ship" else 10 * LONG_S
        work = broker.ship if what == "ship" else getattr(broker.uploader, what)
        stop_at, fail_at = (-1 if number is None else number for number in (stop_at, fail_at))
        broker.run(work, stop_at, fail_at, "after" if is_lost else "before")
        self._nothing_lost(held)

    @rule(number=BROKERS, stop_at=SOON, passed_s=st.sampled_from([0.0, LONG_S, 1e6]))
    def go_on(self, number: int, stop_at: int | None, passed_s: float) -> None:
        broker = self.brokers[number]
        if broker.is_stopped:
            held = self._held_now()
            broker.now_s += passed_s
            broker.go_on(-1 if stop_at is None else stop_at)
            self._nothing_lost(held)

    @rule(number=BROKERS)
    def kill(self, number: int) -> None:
        """Kill the uploader, which loses its open files, and start it again."""
        self.brokers[number].kill()
        self.brokers[number].start()
        self._note_lost()

    def _note_begin(self) -> None:
        """When the store gets its first segment, excuse missing earlier segments that a disk lists, because
        uploaders take these for segments that were stored and deleted before. Earlier segments that only pins keep must
        still be stored.
        """
        if not self.has_begun and self.stored_to:
            self.has_begun, begin = True, min(self._stored() | self._in_holes(), default=0)
            for base, epoch in self.truth.items():
                listed = any(base in broker.disk.bases for broker in self.brokers)
                if base < begin and (listed or not any(broker.pins(base, epoch) for broker in self.brokers)):
                    self.lost.add(base)

    def _held_now(self) -> set[int]:
        """Return the base offsets of replicated segments that a disk, a pin or the store has."""
        rest = {base for base in self.truth if not any(one.holds(base, self.truth[base]) for one in self.brokers)}
        return self.truth.keys() - (rest - self._stored() if rest else rest)

    def _nothing_lost(self, held: set[int]) -> None:
        self._note_begin()
        self.lost |= self._in_holes(MAYBE_CUT)
        gone = {base for base in held - self._held_now() - self.lost if base >= self.expired_to}
        # Followers may let go of records that the watermark has passed, until it is moved back.
        unknown = {base for base in gone if base >= self._known_to()}
        self.lost |= unknown
        gone -= unknown
        assert not gone, f"the uploaders let go of {sorted(gone)}, which the store does not have"

    # Invariants

    @property
    def stored_to(self) -> int:
        return shipped_to(self.store)

    def _mark(self) -> Watermark | None:
        with suppress(ObjectNotFoundError):
            return watermark_of(self.store)
        return None

    def _known_to(self) -> int:
        """Return the lowest offset changed by an unclean election whose epoch is later than the watermark's."""
        mark = self._mark()
        epoch = -1 if mark is None else mark.leader_epoch
        return min((offset for later, offset in self.unclean if later > epoch), default=1 << 62)

    @invariant()
    def the_watermark_forgets_nothing(self) -> None:
        before, self.mark = self.mark, self._mark()
        if before is None or self.mark is None or self.mark == before:
            assert before is None or self.mark is not None
            return
        assert self.mark.leader_epoch >= before.leader_epoch
        moves = self.mark.moved_back[len(before.moved_back) :]
        assert self.mark.moved_back[: len(before.moved_back)] == before.moved_back
        back_to = min((move.to_offset for move in moves), default=1 << 62)
        assert self.mark.next_offset >= min(before.next_offset, back_to)
        holes = {base for hole in before.holes for base in range(hole.first_offset, hole.last_offset, RECORDS)}
        forgotten = holes - self._in_holes() - self._stored()
        assert not {base for base in forgotten if base < min(back_to, self._known_to())}

    @invariant()
    def what_the_watermark_has_passed_is_stored_or_a_hole(self) -> None:
        end = min(self.stored_to, self._known_to())
        assert end <= self.high
        named = self._stored() | self._in_holes()
        begin = max(min(named, default=0), self.expired_to)
        assert named.issuperset(range(begin, end, RECORDS)), (sorted(named), begin, end)

    def _in_holes(self, reason: str = "") -> set[int]:
        with suppress(ObjectNotFoundError):
            holes = [hole for hole in watermark_of(self.store).holes if reason in hole.reason]
            return {base for hole in holes for base in range(hole.first_offset, hole.last_offset, RECORDS)}
        return set()

    def teardown(self) -> None:
        try:
            self._heal()
        finally:
            for broker in self.brokers:
                broker.kill()
            self._listing.stop()
            shutil.rmtree(self.folder)

    def _heal(self) -> None:
        for broker in self.brokers:
            broker.misses = -1
        self._resume()
        for _ in range(2):
            self.replicate(len(self.brokers[self.leader].epoch_of), 0)
            self._ship_all()
            self.what_the_watermark_has_passed_is_stored_or_a_hole()
            self.elect()
        self._ship_all()
        self._check_end()

    def _ship_all(self) -> None:
        before = -1
        while before != (before := self.stored_to):
            for number in (0, 1):
                self.believe(number, knows=True)
                for what in ("sweep", "ship", "ship", "follow", "fill_holes"):
                    self.act(number, what, None, None, is_lost=False)

    def _check_end(self) -> None:
        active = self.brokers[self.leader].disk.bases[-1]
        # A segment may be closed and stored, and be active again after the next one was truncated.
        assert self.stored_to == 0 or self.stored_to >= active
        in_store = self._stored()
        wanted = {base for base in self.truth if self.expired_to <= base < self.stored_to}
        assert wanted - self.lost <= in_store, (sorted(wanted - self.lost), sorted(in_store))
        self.check_holes()
        if not in_store:
            return
        begin = max(min(in_store), self.expired_to)
        with RemoteStorageManager(settings_from(STORE), store=self.store) as manager:
            rows = rows_of(read_records(manager, *NAME, begin, self.stored_to, on_data_loss="report"))
        bases = sorted(base for base in in_store if base >= begin and base < self.stored_to)
        disk = self.brokers[0].disk
        expected = {
            offset: value for base in bases for offset, value in enumerate(disk.values(base, self.truth[base]), base)
        }
        assert {row["offset"]: row["key"] for row in rows} == expected
        assert len(rows) == len(expected)


TestTwoUploaders = TwoUploaders.TestCase
TestTwoUploaders.settings = settings(
    max_examples=examples(25),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
@pytest.mark.parametrize(("is_clean", "has_watermark"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("stop_at", range(16))
def test_a_deposed_leader_goes_on_after_each_operation(stop_at: int, is_clean: bool, has_watermark: bool) -> None:
    """Both brokers are deposed in turn."""
    machine = TwoUploaders()
    try:
        machine.begin(ships=has_watermark)
        for _ in range(2):
            machine.depose(stop_at, 2, is_clean, None)
            machine.check()
    finally:
        machine.teardown()


def test_two_unclean_elections_make_the_first_leaders_segments_valid_again() -> None:
    """Broker 0 ships nothing in its first epoch. Broker 1, elected uncleanly, ships other records of the same offsets.
    Broker 0, elected uncleanly again, ships its old records. No segment has records of its new epoch yet.
    """
    machine = TwoUploaders()
    try:
        machine.begin(ships=False)
        machine.depose(0, 2, is_clean=False, again_at=None)
        machine.check()
        machine.elect_unclean()
        machine.check()
    finally:
        machine.teardown()
