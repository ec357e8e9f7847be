"""Random tests of copies, rotations, deletions and garbage collections at once. Each process may die anywhere.

No object that a manifest refers to is ever deleted. All other objects are deleted in the end.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import SOAK
from tests.support.golden.keys import PAIRS
from tests.support.records.small_segments import memory_settings, new_metadata, write_segment
from tests.support.stores.stepped_actors import HOUR_MS, Actor, AgingStore, KilledError, WorldClock
from tieredstore.backends.base import ObjectStore, admin_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.errors import StoreUnavailableError, TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.ops.bucket import Bucket as StoreBucket
from tieredstore.ops.copies.copying import BucketCopy, CopyStep
from tieredstore.ops.garbage.collection import GarbageCollection, delete_objects, find_garbage, least_age_ms
from tieredstore.ops.garbage.holds import Holds, LegalHold, place_hold
from tieredstore.ops.garbage.removal import Removal
from tieredstore.ops.keys.rotation import Rotation
from tieredstore.ops.steps import Outcome
from tieredstore.remote.copy.writer import SegmentWriter, WriteOptions
from tieredstore.remote.layout import KeyLayout
from tieredstore.transform.keyring import KeyRing

RINGS = [KeyRing(name, PAIRS) for name in PAIRS]
PREFIX = "cluster/"
LOG = b"batch" * 50
MAX_AGE_MS = 12 * HOUR_MS
CALL_LIMIT_MS = 2 * HOUR_MS
FOREIGN = {
    "cluster/!tieredstore/layout.json": b"{}",
    "cluster/readme.log": b"not a segment's",
    "elsewhere/events-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAA.log": b"another cluster's",
}
MOST_ACTORS = 4
ORIGIN_SEGMENTS = 2


def collect(store: ObjectStore) -> None:
    """Collect in one thread, since nothing can run between two of its calls of the store."""
    now_ms = admin_of(store).now_ms()
    assert now_ms is not None
    min_age_ms, holds = least_age_ms(MAX_AGE_MS), Holds(store, PREFIX)
    collection = GarbageCollection(store, PREFIX, min_age_ms=min_age_ms, upload_max_age_ms=MAX_AGE_MS, dry_run=False)
    for garbage in find_garbage(store, PREFIX, Scope()):
        collection.collect(now_ms - min_age_ms, holds, garbage)


def write_origin(folder: Path) -> ObjectStore:
    """Return another bucket, whose segments are copied into the tested one."""
    store, files = MemoryObjectStore(), write_segment(folder, LOG)
    options = WriteOptions(chunk_size=100, key_ring=RINGS[0])
    with ThreadPoolExecutor(1) as pool:
        for number in range(ORIGIN_SEGMENTS):
            metadata = new_metadata(len(LOG), start=100 * number)
            SegmentWriter(store, KeyLayout(""), options, pool=pool).copy(metadata, files)
    return store


class Bucket(RuleBasedStateMachine):
    """A bucket and up to four processes that use it. A step may let a day pass."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = WorldClock()
        self.store = AgingStore(self.clock)
        for key, content in FOREIGN.items():
            self.store.put(key, content)
        self.store.leave("cluster/!tieredstore/state/0", self.clock.now_ms)
        self.actors: list[Actor] = []
        self.copied: dict[str, Actor] = {}
        self.doomed: set[str] = set()
        self.pool = ThreadPoolExecutor(1)
        self.folder = tempfile.TemporaryDirectory()
        self.files = write_segment(Path(self.folder.name), LOG)
        self.offsets = itertools.count(1000, 100)
        self.origin = write_origin(Path(self.folder.name))
        self.origin_content = {info.key: self.origin.get(info.key) for info in self.origin.list()}
        self.copies: list[Actor] = []
        self.removals: list[Actor] = []
        self.collections: list[Actor] = []
        self.crowded: list[Actor] = []

    def _start(self, work: Callable[[ObjectStore], object]) -> Actor:
        self.actors = [actor for actor in self.actors if not actor.is_over][-MOST_ACTORS:]
        actor = Actor(self.store, work, call_limit_ms=CALL_LIMIT_MS)
        self.actors.append(actor)
        return actor

    def _has_room(self) -> bool:
        return sum(not actor.is_over for actor in self.actors) < MOST_ACTORS

    def _committed(self) -> list[SegmentObjects]:
        listed = list_segments(self.store, PREFIX)
        return [objects for objects in listed if objects.find(Suffix.MANIFEST) is not None]

    @precondition(lambda self: self._has_room())
    @rule(ring=st.sampled_from(RINGS))
    def copy(self, ring: KeyRing) -> None:
        metadata = new_metadata(len(LOG), start=next(self.offsets))
        options = WriteOptions(chunk_size=100, key_ring=ring, max_age_s=MAX_AGE_MS / 1000)

        def work(store: ObjectStore) -> RemoteLogSegmentMetadata:
            layout = KeyLayout(PREFIX, masked=False)
            SegmentWriter(store, layout, options, pool=self.pool, clock=self.clock.seconds).copy(metadata, self.files)
            return metadata

        self.copied[KeyLayout(PREFIX, masked=False).key(metadata, Suffix.MANIFEST)] = self._start(work)

    @precondition(lambda self: self._has_room())
    @rule(ring=st.sampled_from(RINGS))
    def copy_whole(self, ring: KeyRing) -> None:
        self.copy(ring)
        self.actors[-1].finish()

    def _at_work(self, actors: list[Actor]) -> bool:
        return any(not actor.is_over for actor in actors)

    @precondition(lambda self: self._has_room() and not self._at_work([*self.removals, *self.crowded]))
    @rule()
    def copy_from_origin(self) -> None:
        """Copy, except while the same segments are removed or two collections run, as docs/how-to/mirror.md demands."""
        settings = memory_settings(100, prefix={"key.prefix": PREFIX})
        source = StoreBucket(memory_settings(100), self.origin)

        def work(store: ObjectStore) -> list[CopyStep]:
            target = StoreBucket(settings, store)
            return list(BucketCopy(source, target, parallel=1, clock=self.clock.seconds).run())

        self.copies.append(self._start(work))

    @precondition(
        lambda self: self._has_room() and not (self._at_work(self.copies) and self._at_work(self.collections))
    )
    @rule()
    def collect(self) -> None:
        beside = [actor for actor in self.collections if not actor.is_over]
        self.collections.append(self._start(collect))
        if beside:
            self.crowded += [*beside, self.collections[-1]]

    @precondition(lambda self: self._has_room() and self._committed())
    @rule(number=st.integers(0, 99), ring=st.sampled_from(RINGS))
    def rotate(self, number: int, ring: KeyRing) -> None:
        objects = self._committed()[number % len(self._committed())]
        self._start(lambda store: list(Rotation(store, ring, parallel=1).run([objects])))

    @precondition(lambda self: self._has_room() and self._committed())
    @rule(number=st.integers(0, 99), by_broker=st.booleans())
    def remove(self, number: int, by_broker: bool) -> None:
        objects = self._committed()[number % len(self._committed())]
        manifest = f"{objects.main_path}.{Suffix.MANIFEST.value}"
        if manifest in self.origin_content and self._at_work(self.copies):
            return
        self.doomed.add(f"{PREFIX}{manifest}")
        if by_broker:
            self._start(lambda store: delete_objects(store, objects))
        else:
            self._start(lambda store: list(Removal(store, PREFIX, dry_run=False, parallel=1).run([objects], None)))
        if manifest in self.origin_content:
            self.removals.append(self.actors[-1])

    @precondition(lambda self: any(not actor.is_over for actor in self.actors))
    @rule(number=st.integers(0, MOST_ACTORS - 1), count=st.integers(1, 6))
    def step(self, number: int, count: int) -> None:
        actor = self.actors[number % len(self.actors)]
        for _ in range(count):
            actor.step()
            self.nothing_that_is_referred_to_is_deleted()

    @precondition(lambda self: any(not actor.is_over for actor in self.actors))
    @rule(number=st.integers(0, MOST_ACTORS - 1), inside=st.booleans())
    def kill(self, number: int, inside: bool) -> None:
        self.actors[number % len(self.actors)].kill(inside=inside)

    @rule(hours=st.sampled_from([1, 2, 5, 11, 13, 23, 25, 200]))
    def wait(self, hours: int) -> None:
        self.clock.now_ms += hours * HOUR_MS

    @invariant()
    def nothing_that_is_referred_to_is_deleted(self) -> None:
        for objects in self._committed():
            assert not objects.missing, objects.main_path

    @invariant()
    def what_was_reported_as_copied_stays(self) -> None:
        keys = {info.key for info in self.store.list(PREFIX)}
        for manifest, actor in self.copied.items():
            if actor.is_over and actor.error is None and manifest not in self.doomed:
                assert manifest in keys
        for actor in self.copies:
            for step in cast("list[CopyStep]", actor.result or []):
                manifest = f"{PREFIX}{step.item.main_path}.{Suffix.MANIFEST.value}"
                if step.outcome in {Outcome.COPIED, Outcome.THERE} and manifest not in self.doomed:
                    assert manifest in keys
                assert step.error is None or isinstance(step.error, StoreUnavailableError), step

    @invariant()
    def nobody_ends_by_a_fault_of_ours(self) -> None:
        for actor in self.actors:
            assert actor.error is None or isinstance(actor.error, KilledError | TieredStoreError), actor.error

    def teardown(self) -> None:
        try:
            for actor in self.actors:
                actor.kill(inside=False)
            self.clock.now_ms += 25 * HOUR_MS
            collect(self.store)
            assert {objects.missing for objects in list_segments(self.store, PREFIX)} <= {()}
            assert [write.key for write in self.store.abandoned] == ["cluster/!tieredstore/state/0"]
            assert {key: self.store.get(key) for key in FOREIGN} == FOREIGN
            assert {info.key: self.origin.get(info.key) for info in self.origin.list()} == self.origin_content
            self.what_was_reported_as_copied_stays()
        finally:
            self.pool.shutdown()
            self.folder.cleanup()


Bucket.TestCase.settings = settings(
    max_examples=1500 if SOAK else 25,
    stateful_step_count=60 if SOAK else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestBucket = Bucket.TestCase


@pytest.mark.parametrize("hours", [11, 13, 25])
def test_a_copy_that_is_frozen_while_garbage_is_collected_commits_whole_or_not_at_all(
    hours: int, tmp_path: Path
) -> None:
    """The copy is frozen, as on a suspended machine, while a collection runs. The test freezes it before each of its
    calls in turn.
    """
    files = write_segment(tmp_path, LOG)
    for frozen_at in range(8):
        clock = WorldClock()
        world = AgingStore(clock)
        metadata = new_metadata(len(LOG))
        options = WriteOptions(chunk_size=100, max_age_s=MAX_AGE_MS / 1000)

        def work(
            store: ObjectStore,
            options: WriteOptions = options,
            clock: WorldClock = clock,
            metadata: RemoteLogSegmentMetadata = metadata,
        ) -> None:
            with ThreadPoolExecutor(1) as pool:
                layout = KeyLayout(PREFIX, masked=False)
                SegmentWriter(store, layout, options, pool=pool, clock=clock.seconds).copy(metadata, files)

        # Only the write of the manifest has a time limit. If the copy is frozen before another call, the attempt's age
        # alone must stop the copy.
        actor = Actor(world, work, call_limit_ms=CALL_LIMIT_MS if frozen_at == 5 else 1000 * HOUR_MS)
        for _ in range(frozen_at):
            actor.step()
        clock.now_ms += hours * HOUR_MS
        collect(world)
        actor.finish()
        assert [objects.missing for objects in list_segments(world, PREFIX)] == ([()] if actor.error is None else [])
        if hours == 25 and 1 <= frozen_at < 6:
            assert actor.error is not None, frozen_at


def test_a_manifest_may_be_under_way_when_its_attempt_has_become_too_old(tmp_path: Path) -> None:
    """An attempt stops committing at one age, and its objects are garbage at a higher one. The difference is the
    time that one call may take.
    """
    clock = WorldClock()
    world = AgingStore(clock)
    files, metadata = write_segment(tmp_path, LOG), new_metadata(len(LOG))

    def work(store: ObjectStore) -> None:
        options = WriteOptions(chunk_size=100, max_age_s=MAX_AGE_MS / 1000)
        with ThreadPoolExecutor(1) as pool:
            layout = KeyLayout(PREFIX, masked=False)
            SegmentWriter(store, layout, options, pool=pool, clock=clock.seconds).copy(metadata, files)

    actor = Actor(world, work, call_limit_ms=MAX_AGE_MS)
    for _ in range(3):
        actor.step()
    for _ in range(2):
        clock.now_ms += MAX_AGE_MS // 2
        actor.step()
    # The attempt starts its commit at the highest allowed age. The commit's call then takes the longest allowed time.
    clock.now_ms += MAX_AGE_MS - 1
    collect(world)
    actor.step()
    (objects,) = list_segments(world, PREFIX)
    assert objects.missing == ()
    # The attempt notices that its call took too long.
    actor.finish()
    assert isinstance(actor.error, StoreUnavailableError)
    assert list(list_segments(world, PREFIX)) == []


def test_a_hold_stops_a_collection() -> None:
    clock = WorldClock()
    world = AgingStore(clock)
    metadata = new_metadata(1)
    key = KeyLayout(PREFIX, masked=False).key(metadata, Suffix.LOG)
    world.put(key, b"x")
    place_hold(world, PREFIX, LegalHold("case", topic=metadata.topic_id_partition.topic))
    clock.now_ms += 100 * HOUR_MS
    collect(world)
    assert world.get(key) == b"x"
