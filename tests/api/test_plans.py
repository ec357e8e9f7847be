"""An applied plan touches no segment that is newer than the plan, outside its bounds, or held when it is applied.

Between making, showing and applying a plan, segments are uploaded, held and deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import tieredstore as ts
from tests.support.stores.catalog_stores import MadeSegment, partition_of
from tests.support.stores.stepped_actors import AgingStore, WorldClock
from tieredstore.api.outcomes import Plan
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.config import Settings
from tieredstore.errors import ConfigError
from tieredstore.ops.garbage.collection import delete_objects

SIZE: Final = 10
"""Number of offsets in each segment."""
PLACES: Final = st.tuples(st.integers(0, 1), st.integers(0, 5))
"""Strategy for a partition, and the number of one of its segments."""

Place = tuple[int, int]


class OfWorld(AgingStore):
    """The store of the running state machine."""

    current: ClassVar[AgingStore]

    @classmethod
    def from_settings(cls, settings: Settings) -> AgingStore:
        return cls.current


class Plans(RuleBasedStateMachine):
    """A bucket, one plan, and the segments that this plan may touch."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = WorldClock()
        self.store = OfWorld.current = AgingStore(self.clock)
        self.bucket = ts.open({"storage.backend.class": f"{__name__}:OfWorld", "chunk.size": 1024})
        self.written: dict[Place, int] = {}
        self.count = 0
        self.held: Place | None = None
        self.plan: Plan | None = None
        self.made_ms = 0
        self.allows: Callable[[Place], bool] = lambda _: False
        self.makes_no_hole = False

    def teardown(self) -> None:
        self.bucket.close()

    def stored(self) -> dict[Place, SegmentObjects]:
        return {
            (one.segment_id.topic_id_partition.partition, one.start_offset // SIZE): one
            for one in list_segments(self.store)
        }

    @rule(place=PLACES)
    def upload(self, place: Place) -> None:
        self.clock.now_ms += 1
        if place not in self.written:
            partition, number = place
            first, self.count = number * SIZE, self.count + 1
            where = partition_of(partition=partition)
            MadeSegment(where, first, first + SIZE - 1, number=self.count).put(self.store)
            self.written[place] = self.clock.now_ms

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.written)))
        delete_objects(self.store, self.stored()[place])
        del self.written[place]

    @precondition(lambda self: self.held is None)
    @rule(place=PLACES)
    def hold(self, place: Place) -> None:
        partition, number = place
        self.bucket.place_hold(
            "case", "events", partitions=partition, start=number * SIZE, stop=(number + 1) * SIZE
        )  # fmt: skip
        self.held = place

    @precondition(lambda self: self.held is not None)
    @rule()
    def release(self) -> None:
        self.bucket.release_hold("case").apply()
        self.held = None

    @precondition(lambda self: self.written)
    @rule(data=st.data(), kind=st.sampled_from(["topic", "partition", "stop", "segment"]))
    def make(self, data: st.DataObject, kind: str) -> None:
        self.clock.now_ms += 1
        self.made_ms = self.clock.now_ms
        partition, number = place = data.draw(st.sampled_from(sorted(self.written)))
        self.makes_no_hole = kind == "stop"
        match kind:
            case "topic":
                self.plan, self.allows = self.bucket.remove("events"), lambda _: True
            case "partition":
                self.plan = self.bucket.remove("events", partitions=partition)
                self.allows = lambda one: one[0] == partition
            case "stop":
                self.plan = self.bucket.remove("events", partitions=partition, stop=number * SIZE + 1)
                self.allows = lambda one: one[0] == partition and one[1] < number
            case _:
                self.plan = self.bucket.remove("events", partitions=partition, segment=number * SIZE)
                self.allows = lambda one: one == place

    @precondition(lambda self: self.plan is not None)
    @rule()
    def show(self) -> None:
        before = list(self.store.list())
        self.run(lambda plan: plan.show())
        assert list(self.store.list()) == before

    @precondition(lambda self: self.plan is not None)
    @rule()
    def apply(self) -> None:
        before = set(self.stored())
        is_done = self.run(lambda plan: plan.apply())
        gone = before - set(self.stored())
        may_go = {
            place
            for place, written_ms in self.written.items()
            if written_ms <= self.made_ms and self.allows(place) and not self.is_held(place)
        }
        assert gone <= may_go
        if not is_done:
            assert not gone
        elif not self.makes_no_hole:
            assert gone == may_go
        for place in gone:
            del self.written[place]

    def is_held(self, place: Place) -> bool:
        """Return True for the last segment that may have the held offsets. No checksum protects a segment's end."""
        held = self.held
        before = [one for one in self.written if held is not None and one[0] == held[0] and one <= held]
        return place == max(before, default=None)

    def run(self, act: Callable[[Plan], object]) -> bool:
        """Return True if ``act`` ran, or False if it was refused for an offset beyond the end of the remaining log."""
        assert self.plan is not None
        try:
            act(self.plan)
        except ConfigError as error:
            if "is beyond the end" not in str(error):
                raise
            return False
        return True


TestPlans = Plans.TestCase
TestPlans.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
