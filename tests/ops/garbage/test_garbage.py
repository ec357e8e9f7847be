"""Tests of garbage collection: which objects are garbage, and which stay at any age."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.servers.s3_server import S3Server
from tests.support.stores.catalog_stores import OTHER_ID, TOPIC_ID, MadeSegment, partition_of, run_of
from tests.support.stores.doubles import CountingStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tests.support.stores.s3_stores import impatient_store, options_for
from tests.support.stores.stepped_actors import HOUR_MS, AgingStore, WorldClock
from tieredstore.backends.base import AbandonedWrite, ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.listing import Scope
from tieredstore.errors import AccessDeniedError, ConfigError, CorruptDataError, StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.ops.garbage.collection import Garbage, GarbageCollection, least_age_ms
from tieredstore.ops.garbage.holds import LegalHold, place_hold, release_hold
from tieredstore.ops.steps import Outcome, Step

MAX_AGE_MS = 12 * HOUR_MS
MIN_AGE_MS = 24 * HOUR_MS
WHOLE, LEFT, OTHER = (
    MadeSegment(partition_of(), 0, 9),
    MadeSegment(partition_of(), 10, 19),
    MadeSegment(partition_of("other", 3), 0, 9),
)


@pytest.fixture
def world() -> AgingStore:
    """Return a store with a whole segment and two without manifests, all of them old enough to be garbage."""
    world = AgingStore(WorldClock())
    for segment in (WHOLE, LEFT, OTHER):
        segment.put(world)
    world.delete([LEFT.key(), OTHER.key()])
    world.clock.now_ms += MIN_AGE_MS + 1000
    return world


EVERYTHING = Scope()


def run(
    store: ObjectStore,
    scope: Scope = EVERYTHING,
    *,
    prefix: str = "",
    dry_run: bool = False,
    min_age_ms: int = MIN_AGE_MS,
) -> list[Step[Garbage]]:
    collection = GarbageCollection(
        store, prefix, min_age_ms=min_age_ms, upload_max_age_ms=MAX_AGE_MS, dry_run=dry_run, parallel=2
    )
    return list(collection.run(scope))


def outcomes(steps: Iterable[Step[Garbage]]) -> dict[str, Outcome]:
    return {step.item.name: step.outcome for step in steps}


def keys(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list()}


def keys_of(segment: MadeSegment) -> set[str]:
    return {segment.key(suffix) for suffix in Suffix}


DELETED = {LEFT.path: Outcome.DELETED, OTHER.path: Outcome.DELETED}


@pytest.mark.parametrize("topic", ["our notes", "täglich", "a" * 250, "..", "$logs"])
def test_names_that_kafka_cannot_have_are_left_alone(world: AgingStore, topic: str) -> None:
    strange = MadeSegment(partition_of(topic), 0, 9)
    strange.put(world)
    world.delete([strange.key()])
    world.leave(strange.key(Suffix.LOG), world.clock.now_ms)
    world.clock.now_ms += MIN_AGE_MS + 1000
    before = sorted(info.key for info in world.list() if strange.path in info.key)
    assert {step.item.partition.topic for step in run(world)} == {"events", "other"}
    assert sorted(info.key for info in world.list() if strange.path in info.key) == before != []
    assert [write.key for write in world.abandoned_writes()] == [strange.key(Suffix.LOG)]


def test_objects_without_a_manifest_are_deleted_and_a_dry_run_says_exactly_that(world: AgingStore) -> None:
    before = keys(world)
    planned = run(world, dry_run=True)
    assert keys(world) == before
    assert outcomes(planned) == DELETED
    assert run(world) == planned
    assert keys(world) == keys_of(WHOLE)
    assert run(world) == []


def test_a_leftover_costs_a_look_and_a_deletion(world: AgingStore) -> None:
    counted = CountingStore(world)
    run(counted)
    # One listing is of segments, the other of holds.
    assert counted.requests == {"now_ms": 1, "list": 2, "abandoned_writes": 1, "head": 2, "delete": 2}


def test_only_the_scope_is_collected(world: AgingStore) -> None:
    assert outcomes(run(world, Scope("other", TOPIC_ID, 3))) == {OTHER.path: Outcome.DELETED}
    assert run(world, Scope("events", OTHER_ID)) == []
    assert LEFT.key(Suffix.LOG) in keys(world)


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
def test_the_youngest_object_tells_the_age(world: AgingStore, suffix: Suffix) -> None:
    world.times[LEFT.key(suffix)] = world.clock.now_ms - MIN_AGE_MS + 1
    assert outcomes(run(world))[LEFT.path] is Outcome.YOUNG
    world.clock.now_ms += 1
    assert outcomes(run(world))[LEFT.path] is Outcome.DELETED


def test_a_least_age_below_twice_that_of_an_attempt_is_refused(world: AgingStore) -> None:
    assert least_age_ms(MAX_AGE_MS) == MIN_AGE_MS
    with pytest.raises(ConfigError, match=r"too short.*upload.max.age.ms"):
        run(world, min_age_ms=MIN_AGE_MS - 1)
    assert LEFT.key(Suffix.LOG) in keys(world)


def test_objects_without_an_age_stay(world: AgingStore) -> None:
    timeless = ScriptedStore(world).change("list", change=lambda infos: (replace(i, modified_ms=None) for i in infos))
    steps = run(timeless)
    assert [(step.outcome, step.reason) for step in steps] == [(Outcome.YOUNG, "the age of the objects is unknown")] * 2
    with pytest.raises(ConfigError, match="has no clock"):
        run(ScriptedStore(world).change("now_ms", change=lambda _: None))


def test_a_refused_deletion_is_a_step_and_the_rest_is_deleted(world: AgingStore) -> None:
    steps = run(ScriptedStore(world).on("delete", "*events*", AccessDeniedError("the object is locked")))
    assert outcomes(steps) == DELETED | {LEFT.path: Outcome.REFUSED}
    assert "is locked" in str(steps[0].reason)
    assert OTHER.key(Suffix.LOG) not in keys(world)


def test_a_manifest_that_came_meanwhile_is_seen_before_the_deletion(world: AgingStore) -> None:
    def commit(operation: Operation) -> None:
        """Write a manifest after the listing. A plugin without a time limit may do so."""
        if not operation.keys[0].endswith("holds/"):
            world.put(LEFT.key(), LEFT.manifest())

    late = ScriptedStore(world).on("list", do=commit, moment="after").on("head", LEFT.key(), commit)

    assert outcomes(run(late))[LEFT.path] is Outcome.REFERENCED
    assert keys(world) == keys_of(WHOLE) | keys_of(LEFT)


FOREIGN = (
    "!tieredstore/watermarks/events/0.json",
    "!tieredstore/layout.log",
    f"{LEFT.path}.log.bak",
    f"deeper/{LEFT.path}.log",
    f"events-{TOPIC_ID}/00/00000000000000000010-AAAAAAAAAAAAAAAAAAAAAA.log",
    f"events-{TOPIC_ID}/0/10-AAAAAAAAAAAAAAAAAAAAAA.log",
    "readme.log",
)


def test_objects_that_belong_to_no_segment_stay(world: AgingStore) -> None:
    for key in FOREIGN:
        world.inner.put(key, b"somebody's")
        world.times[key] = 0
    assert outcomes(run(world)) == DELETED
    assert keys(world) == keys_of(WHOLE) | set(FOREIGN)


def test_another_prefix_stays(world: AgingStore) -> None:
    MadeSegment(partition_of(), 30, 39).put(world, "clusters/a/")
    world.delete([MadeSegment(partition_of(), 30, 39).key(prefix="clusters/a/")])
    world.clock.now_ms += MIN_AGE_MS + 1
    assert len(run(world, prefix="clusters/b/")) == 0
    assert outcomes(run(world)) == DELETED
    assert list(outcomes(run(world, prefix="clusters/a/")).values()) == [Outcome.DELETED]


def test_damage_is_no_garbage(world: AgingStore) -> None:
    world.delete([WHOLE.key(Suffix.LOG)])
    world.put(LEFT.key(), b"{")
    world.clock.now_ms += MIN_AGE_MS + 1
    assert outcomes(run(world)) == {OTHER.path: Outcome.DELETED}


def test_unfinished_writes_of_segments_go_and_no_others(world: AgingStore) -> None:
    old, young = 1000, world.clock.now_ms
    mine = AbandonedWrite(WHOLE.key(Suffix.LOG), None, old, "1")
    others = [
        AbandonedWrite("!tieredstore/state/x.json", 5, old, "2"),
        AbandonedWrite("readme.log", 5, old, "3"),
        AbandonedWrite(f"events-{TOPIC_ID}/0/report.csv", 5, old, "4"),
    ]
    stay = [
        AbandonedWrite(LEFT.key(), 5, young, "5"),
        AbandonedWrite(LEFT.key(Suffix.LOG), 5, None, "6"),
        AbandonedWrite(LEFT.key(Suffix.INDEXES), 5, old, "7", removable=False),
    ]
    world.abandoned = [mine, *others, *stay]
    steps = [step for step in run(world) if step.item.is_write]
    assert [step.outcome for step in steps] == [
        Outcome.DELETED,
        Outcome.YOUNG,
        Outcome.YOUNG,
        Outcome.LEFT,
    ]
    assert world.abandoned == [*others, *stay]


@pytest.mark.parametrize(
    ("hold", "held"),
    [
        (LegalHold("h"), {LEFT.path, OTHER.path}),
        (LegalHold("h", "events"), {LEFT.path}),
        (LegalHold("h", "events", 1), set[str]()),
        (LegalHold("h", "events", 0, 500), {LEFT.path}),  # the end of the segment is unknown
        (LegalHold("h", "events", 0, 0, 9), set[str]()),
        (LegalHold("h", "events", 0, 0, 10), {LEFT.path}),
    ],
)
def test_a_hold_stops_the_collection(world: AgingStore, hold: LegalHold, held: set[str]) -> None:
    place_hold(world, "", hold)
    steps = run(world)
    assert {name for name, outcome in outcomes(steps).items() if outcome is Outcome.HELD} == held
    assert all(step.reason == "legal hold 'h'" for step in steps if step.outcome is Outcome.HELD)
    release_hold(world, "", "h")
    run(world)
    assert keys(world) == keys_of(WHOLE)


def test_a_hold_that_cannot_be_read_holds_everything(world: AgingStore) -> None:
    world.put("!tieredstore/holds/h.json", b"{")
    with pytest.raises(CorruptDataError, match="legal hold 'h' cannot be read, so nothing is deleted"):
        run(world)
    assert LEFT.key(Suffix.LOG) in keys(world)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whichever_request_fails_a_second_run_completes_the_work(moment: Moment) -> None:
    def new() -> AgingStore:
        world = AgingStore(WorldClock())
        for segment in run_of(3, partition_of()):
            segment.put(world)
            world.delete([segment.key()])
        WHOLE.put(world)
        world.leave(LEFT.key(Suffix.LOG), 0)
        world.clock.now_ms += MIN_AGE_MS + 1
        return world

    for _, world, store in OperationSweep(new, run).fail(moment):
        # The head request for an absent manifest cannot lose an answer, so this run may succeed.
        with suppress(StoreUnavailableError):
            run(store)
        assert keys_of(WHOLE) <= keys(world)
        run(world)
        assert keys(world) == keys_of(WHOLE)
        assert world.abandoned == []


def test_a_folder_s_hidden_files_go_those_of_living_writers_and_of_other_rooms_stay(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    for segment in (WHOLE, LEFT):
        segment.put(store)
    store.delete([LEFT.key()])
    store.put("!tieredstore/state.json", b"{}")
    hidden = [(tmp_path / WHOLE.path).parent, tmp_path / "!tieredstore", tmp_path]
    drafts = [folder / ".~tieredstore-0123456789abcdef01234567" for folder in hidden]
    for draft in drafts:
        draft.write_bytes(b"of a killed writer")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))

    def body() -> Iterator[bytes]:
        yield b"under way"
        for path in tmp_path.rglob(".~tieredstore-*"):
            os.utime(path, (1_600_000_000, 1_600_000_000))
        steps.extend(run(store))
        yield b"still"

    steps: list[Step[Garbage]] = []
    living = MadeSegment(partition_of(), 50, 59)
    store.put(living.key(Suffix.LOG), body())
    assert store.get(living.key(Suffix.LOG)) == b"under waystill"
    assert sorted(outcomes(steps).values()) == [Outcome.DELETED] * 2
    assert [draft.exists() for draft in drafts] == [False, True, True]
    assert keys(store) == keys_of(WHOLE) | {living.key(Suffix.LOG), "!tieredstore/state.json"}


@pytest.mark.parametrize("name", ["minio", "seaweedfs"])
def test_unfinished_uploads_of_a_real_server_are_aborted(name: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(name)
    bucket, prefix = server.make_bucket(), "clusters/a/"
    mine, elsewhere = LEFT.key(Suffix.LOG, prefix), LEFT.key(Suffix.LOG, "clusters/b/")
    for key in (mine, elsewhere):
        upload = server.plain.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        server.plain.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"part")
    with closing(impatient_store(options_for(server, bucket))) as store:
        WHOLE.put(store, prefix)
        OTHER.put(store, prefix)
        store.delete([OTHER.key(prefix=prefix)])
        assert outcomes(run(store, prefix=prefix)) == {OTHER.path: Outcome.YOUNG, mine: Outcome.YOUNG}
        scope = Scope("events", TOPIC_ID, 0)
        later = ScriptedStore(store).change("now_ms", change=lambda now_ms: now_ms + 2 * MIN_AGE_MS)
        assert outcomes(run(later, scope, prefix=prefix)) == {mine: Outcome.DELETED}
        assert outcomes(run(later, prefix=prefix)) == {OTHER.path: Outcome.DELETED}
        assert keys(store) == {WHOLE.key(suffix, prefix) for suffix in Suffix}
        assert list(store.abandoned_writes(mine)) == []
        assert [write.key for write in store.abandoned_writes(elsewhere)] == [elsewhere]
