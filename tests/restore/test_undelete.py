"""Topics deleted by mistake are restored completely, in the right order, and never over anything newer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.places.test_raw_reading import raw_settings
from tests.support.ops import tools
from tests.support.ops.tools import assert_no_half
from tests.support.servers.s3_server import S3Server
from tests.support.stores.catalog_stores import MadeSegment, partition_of, run_of
from tests.support.stores.doubles import Moment, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tests.support.stores.s3_stores import impatient_store, options_for
from tests.support.stores.versioned_store import START_MS, VersionedStore
from tieredstore.api.outcomes import Outcome
from tieredstore.api.scopes import Scopes
from tieredstore.backends.base import ObjectStore, ObjectVersion
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.catalog.listing import Scope
from tieredstore.config import settings_from
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    PartlyDoneError,
    ResourceNotFoundError,
    StoreError,
    TieredStoreError,
)
from tieredstore.format.keys import Suffix
from tieredstore.model import Uuid
from tieredstore.ops import steps
from tieredstore.ops.garbage.collection import GarbageCollection
from tieredstore.ops.garbage.holds import LOOK_AGAIN_S, LegalHold, list_holds, place_hold, release_hold
from tieredstore.places.endpoints import Endpoint, RulesProvider
from tieredstore.places.opening import place_store
from tieredstore.places.routed import Place, RoutedStore
from tieredstore.restore.undelete import DeletionTimes, plan_undelete

HOUR_MS = 3_600_000
OTHER_ID = Uuid(b"another topic id")
SEGMENTS = run_of(3, partition_of())
ALWAYS = DeletionTimes()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits of this thread, in seconds, instead of sleeping. Other threads still sleep."""
    waited: list[float] = []
    sleep, own = time.sleep, threading.get_ident()
    monkeypatch.setattr(time, "sleep", lambda s: waited.append(s) if threading.get_ident() == own else sleep(s))
    return waited


def content(store: ObjectStore, suffix: str = "") -> dict[str, bytes]:
    """Return the store's objects by key, except holds."""
    return {key: data for key, data in tools.content(store, suffix).items() if "!tieredstore/holds/" not in key}


def stored(segments: list[MadeSegment] = SEGMENTS) -> VersionedStore:
    store = VersionedStore()
    for segment in segments:
        segment.put(store)
    return store


def deleted(segments: list[MadeSegment] = SEGMENTS) -> VersionedStore:
    """Return a store whose segments were deleted, one after the other."""
    store = stored(segments)
    for segment in segments:
        delete(store, segment)
    return store


def delete(store: VersionedStore, segment: MadeSegment) -> None:
    store.clock_ms += HOUR_MS
    store.delete([segment.key(suffix) for suffix in Suffix])


def undelete(
    store: ObjectStore, *topics: str, times: DeletionTimes = ALWAYS, dry_run: bool = False, **which: Any
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    plan = plan_undelete(store, "", Scopes(topics or ["events"], **which), times)
    (plan.show if dry_run else plan.apply)(outcomes.append)
    return [one for one in outcomes if one.code != "held"]


def rows_of(outcomes: list[Outcome]) -> list[tuple[int | None, str]]:
    return [(one.base_offset, one.code) for one in outcomes]


ALL = [(0, "undeleted"), (10, "undeleted"), (20, "undeleted")]


def test_a_deleted_topic_comes_back_byte_for_byte_and_then_nothing_is_left_to_do() -> None:
    store = deleted()
    planned = undelete(store, dry_run=True)
    assert rows_of(planned) == ALL
    assert [one.reason for one in planned] == [f"deleted 2026-11-23T{hour}:00:00Z" for hour in (11, 12, 13)]
    assert content(store) == {}
    assert rows_of(undelete(store)) == ALL
    assert content(store) == content(stored())
    assert undelete(store) == []


def test_the_manifest_comes_last() -> None:
    store = ScriptedStore(deleted(SEGMENTS[:1]))
    undelete(store)
    removed = [key.rpartition(".")[2] for key in store.keys_of("remove_marker")]
    assert removed == ["indexes", "log", "rsm-manifest"]
    # When the manifest reappears, readers already find the segment's other objects.
    names = [operation.name for operation in store.operations]
    assert names == ["list_versions", "put", *["remove_marker", "head"] * 3, *["head"] * 3]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_run_that_is_killed_anywhere_shows_no_half_and_is_completed(moment: Moment) -> None:
    sweep = OperationSweep(deleted, undelete)
    assert len(sweep.operations) == 29
    for number, inner, store in sweep.die(moment):
        with pytest.raises(Killed):
            undelete(store)
        assert_no_half(inner)
        undelete(inner)
        assert content(inner) == content(stored()), number


def test_a_store_that_fails_once_anywhere_is_asked_again_by_the_next_run() -> None:
    for number, inner, store in OperationSweep(deleted, undelete).fail():
        with pytest.raises(TieredStoreError, match="told to fail here"):
            undelete(store)
        assert_no_half(inner)
        undelete(inner)
        assert content(inner) == content(stored()), number


def collect(store: ObjectStore) -> None:
    """Run a garbage collection that considers everything old."""
    collection = GarbageCollection(
        store, "", min_age_ms=2 * HOUR_MS, upload_max_age_ms=HOUR_MS, as_of_ms=START_MS + 999 * HOUR_MS, dry_run=False
    )
    assert [step for step in collection.run(Scope()) if step.outcome is not steps.Outcome.HELD] == []


def test_a_garbage_collection_takes_nothing_that_is_half_back(waits: list[float]) -> None:
    """The undeletion is killed at each operation in turn, then repeated; a collection runs after both."""
    for number, inner, store in OperationSweep(deleted, undelete).die("before"):
        with pytest.raises(Killed):
            undelete(store)
        collect(inner)
        undelete(inner)
        collect(inner)
        assert content(inner) == content(stored()), number
    assert set(waits) == {LOOK_AGAIN_S}, "a collection that runs has looked at the holds before"


def test_a_collection_that_began_before_the_hold_is_noticed() -> None:
    inner = deleted()
    log = SEGMENTS[1].key(Suffix.LOG)
    store = ScriptedStore(inner).on("remove_marker", SEGMENTS[1].key(), lambda _: inner.delete([log]))
    with pytest.raises(PartlyDoneError, match="1 of 4 items failed"):
        undelete(store)
    assert rows_of(undelete(inner)) == [(10, "undeleted")]
    assert content(inner) == content(stored())


def test_a_hold_on_the_topic_comes_first_and_stays() -> None:
    store, outcomes = deleted(), list[Outcome]()
    plan = plan_undelete(store, "", Scopes(["events"]))
    for act, status in ((plan.show, "planned"), (plan.apply, "done")):
        outcomes.clear()
        act(outcomes.append)
        assert (outcomes[0].code, outcomes[0].status, outcomes[0].name) == ("held", status, "undelete-events")
    assert list(list_holds(store, "")) == [LegalHold("undelete-events", "events", reason="restore undelete")]
    release_hold(store, "", "undelete-events")
    delete(store, SEGMENTS[0])
    place_hold(store, "", LegalHold("undelete-events", "other"))
    with pytest.raises(
        ConfigError, match="the hold undelete-events exists with another scope: release it, so that events can get"
    ):
        undelete(store)


def test_topics_with_long_names_have_holds_of_their_own() -> None:
    topics = [f"{'x' * 120}{end}" for end in "ab"]
    store = deleted([segment for topic in topics for segment in run_of(1, partition_of(topic))])
    assert rows_of(undelete(store, *topics)) == [(0, "undeleted")] * 2
    assert {hold.topic for hold in list_holds(store, "")} == {*topics}
    assert undelete(store, *topics) == []


def test_without_the_right_nothing_more_is_tried() -> None:
    store = ScriptedStore(deleted()).on("remove_marker", do=AccessDeniedError("s3:DeleteObjectVersion"))
    with pytest.raises(AccessDeniedError):
        undelete(store)
    assert content(store) == {}


def test_a_marker_that_cannot_be_removed_fails_its_segment_alone() -> None:
    store = ScriptedStore(deleted()).on("remove_marker", f"*/{10:020d}-*.log", StoreError("it has no id of its own"))
    with pytest.raises(PartlyDoneError, match="1 of 4 items failed; the first one: it has no id"):
        undelete(store)
    assert [key for key in content(store, ".rsm-manifest") if f"{10:020d}" in key] == []
    assert len(content(store, ".rsm-manifest")) == 2


def rewrite(store: VersionedStore) -> None:
    store.put(SEGMENTS[1].key(Suffix.LOG), b"another")


def delete_again(store: VersionedStore) -> None:
    store.delete([SEGMENTS[1].key(Suffix.LOG)])


@pytest.mark.parametrize("meanwhile", [rewrite, delete_again])
def test_nothing_newer_is_overwritten_or_mistaken(meanwhile: Callable[[VersionedStore], None]) -> None:
    inner = deleted()
    key = SEGMENTS[1].key(Suffix.LOG)
    store = ScriptedStore(inner).on("remove_marker", key, lambda _: meanwhile(inner))
    with pytest.raises(PartlyDoneError, match="1 of 4 items failed"):
        undelete(store)
    if meanwhile is rewrite:
        assert content(inner)[key] == b"another"
    assert SEGMENTS[1].key() not in content(inner)


def test_markers_over_markers_and_versions_under_versions() -> None:
    store = stored()
    for _ in range(3):
        for segment in SEGMENTS:
            store.replace(segment.key(), segment.manifest(), store.head(segment.key()).etag or "")
    newest = content(store)
    # The broker may delete segments again that retention has already deleted; for each, the first deletion counts.
    for _ in range(3):
        for segment in SEGMENTS:
            delete(store, segment)
    assert [one.reason for one in undelete(store, dry_run=True)] == [
        f"deleted 2026-11-23T{hour}:00:00Z" for hour in (11, 12, 13)
    ]
    assert rows_of(undelete(store)) == ALL
    assert content(store) == newest


def test_an_object_that_was_deleted_and_written_again_is_left_alone() -> None:
    store = deleted()
    for segment in SEGMENTS:
        segment.put(store)
    delete(store, SEGMENTS[2])
    assert rows_of(undelete(store)) == [(20, "undeleted")]
    assert content(store) == content(stored())


def hour(number: int) -> int:
    return START_MS + number * HOUR_MS


@pytest.mark.parametrize(
    ("times", "back"),
    [
        (DeletionTimes(since_ms=hour(2)), [10, 20]),
        (DeletionTimes(since_ms=hour(2) + 1), [20]),
        (DeletionTimes(until_ms=hour(2)), [0]),
        (DeletionTimes(hour(2), hour(3)), [10]),
        (DeletionTimes(hour(9)), []),
    ],
)
def test_times_of_deletion_limit_it(times: DeletionTimes, back: list[int]) -> None:
    assert [one.base_offset for one in undelete(deleted(), times=times)] == back


@pytest.mark.parametrize("suffix", Suffix)
def test_no_segment_comes_back_without_one_of_its_objects(suffix: Suffix) -> None:
    store = deleted()
    store.history.forget(SEGMENTS[1].key(suffix))
    outcomes = undelete(store)
    assert rows_of(outcomes) == [(0, "undeleted"), (10, "gone"), (20, "undeleted")]
    assert outcomes[1].reason == f"deleted 2026-11-23T12:00:00Z; no version of .{suffix.value} is left"
    assert [key for key in content(store) if f"{10:020d}" in key] == []


def test_what_a_killed_copy_left_does_not_come_back() -> None:
    store = VersionedStore()
    store.put(SEGMENTS[0].key(Suffix.LOG), b"half a copy")
    delete(store, SEGMENTS[0])
    SEGMENTS[1].put(store)
    assert rows_of(undelete(store)) == [(0, "gone")]


def test_a_segment_that_is_deleted_in_part_comes_back() -> None:
    for suffix in Suffix:
        store = stored()
        store.clock_ms += HOUR_MS
        store.delete([SEGMENTS[1].key(suffix)])
        assert rows_of(undelete(store)) == [(10, "undeleted")]
        assert content(store) == content(stored())


def test_a_topic_that_was_created_again_is_said_and_stays_as_it_is() -> None:
    store = deleted()
    again = run_of(2, partition_of(topic_id=OTHER_ID))
    for segment in again:
        segment.put(store)
    other, *outcomes = undelete(store)
    assert (other.code, other.topic_id) == ("exists", OTHER_ID)
    assert rows_of(outcomes) == ALL
    assert content(store) == content(stored([*SEGMENTS, *again]))


def test_of_several_deleted_topics_of_a_name_one_is_chosen() -> None:
    store = deleted([*SEGMENTS, *run_of(2, partition_of(topic_id=OTHER_ID))])
    with pytest.raises(ConfigError, match=rf"choose one by --topic-id: .*{OTHER_ID} \(deleted 2026-11-23T15:00:00Z\)"):
        undelete(store)
    assert rows_of(undelete(store, topic_id=OTHER_ID)) == ALL[:2]
    # The times of the deletions also decide between the two topics.
    assert rows_of(undelete(store, times=DeletionTimes(until_ms=hour(4)))) == [(None, "exists"), *ALL]


def test_only_the_named_topics_and_partitions() -> None:
    others = [
        *run_of(1, partition_of("events-2")),
        *run_of(1, partition_of(partition=1)),
        *run_of(1, partition_of("e")),
    ]
    store = deleted([*SEGMENTS, *others])
    assert [(one.topic, one.partition) for one in undelete(store, "events", partitions=1)] == [("events", 1)]
    assert {one.topic for one in undelete(store, "e", "events-*")} == {"e", "events-2"}
    assert rows_of(undelete(store)) == ALL


def test_nothing_left_is_an_error_and_says_why(minio: S3Server) -> None:
    with pytest.raises(ResourceNotFoundError, match="nothing is left of other, deleted or not: check the name"):
        undelete(deleted(), "other")
    with (
        closing(impatient_store(options_for(minio, minio.make_bucket()))) as store,
        pytest.raises(ResourceNotFoundError, match="versioning is off in the bucket, so deleted objects are gone"),
    ):
        undelete(store)


def test_a_topic_comes_back_at_its_place_alone() -> None:
    """An earlier place of the topic has other deleted segments, or no versions."""
    rules = {"endpoint.rules": "moved", "endpoint.rules.moved.topics": "events", "endpoint.rules.moved.prefix": "x/"}
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "64", **rules})
    for topic, before in (("event*", deleted()), ("events", MemoryObjectStore())):
        now = Place(Endpoint(prefix="x/"), deleted(), "")
        store = RoutedStore([Place(Endpoint(), before, ""), now], RulesProvider(settings))
        assert rows_of(undelete(store, topic)) == ALL
        assert content(now.store) == content(stored())
        assert content(before) == {}
    here, there = Place(Endpoint(), deleted(), ""), Place(Endpoint(prefix="x/"), VersionedStore(), "")
    with pytest.raises(ResourceNotFoundError, match=r"check the name, key\.prefix and endpoint\.rules"):
        undelete(RoutedStore([here, there], RulesProvider(settings)))


def test_a_store_without_versions_refuses_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"memory://.*: the store cannot list versions of deleted objects"):
        undelete(MemoryObjectStore())


# The raw layout


def raw_store(bits: int = 0) -> tuple[VersionedStore, ObjectStore]:
    inner = VersionedStore()
    return inner, place_store(inner, raw_settings(bits))


def put_raw(store: ObjectStore, start: int) -> None:
    segment = MadeSegment(partition_of(), start, start + 9)
    for ending in ("index", "timeindex", "log"):
        store.put(f"p/{segment.path}.{ending}", b"" if ending != "log" else segment.log)


def undelete_raw(store: ObjectStore) -> list[Outcome]:
    outcomes: list[Outcome] = []
    plan_undelete(store, "p/", Scopes(["events"])).apply(outcomes.append)
    return [one for one in outcomes if one.code != "held"]


def delete_raw(inner: VersionedStore, store: ObjectStore) -> None:
    inner.clock_ms += HOUR_MS
    store.delete(info.key for info in list(store.list("p/events-")))
    inner.clock_ms += HOUR_MS
    assert list(store.list("p/events-")) == []


def raw_files(inner: VersionedStore) -> set[str]:
    return {info.key.rpartition("/")[2] for info in inner.list() if "kafkaCluster1" in info.key}


@pytest.mark.parametrize("bits", [0, 4])
def test_the_raw_layout_ends_with_the_log_and_names_it_again(bits: int) -> None:
    inner, store = raw_store(bits)
    put_raw(store, 0)
    put_raw(store, 10)
    before = raw_files(inner)
    delete_raw(inner, store)
    outcomes = undelete_raw(store)
    assert rows_of(outcomes) == ALL[:2]
    assert raw_files(inner) == before | {"_metadata"}
    (metadata,) = [inner.get(info.key) for info in inner.list() if info.key.endswith("_metadata")]
    assert [f'"baseOffset":{start}}}'.encode() in metadata for start in (0, 10, 20)] == [True, True, False]


def test_two_logs_of_the_raw_layout_do_not_mix() -> None:
    inner, store = raw_store()
    for start in (0, 10, 20):
        put_raw(store, start)
    delete_raw(inner, store)
    put_raw(store, 0)
    assert rows_of(undelete_raw(store)) == [(10, "superseded"), (20, "superseded")]
    # If both are deleted, the later one is restored.
    delete_raw(inner, store)
    assert rows_of(undelete_raw(store)) == [(0, "undeleted"), (10, "superseded"), (20, "superseded")]


def test_what_retention_took_from_a_raw_log_comes_back_before_the_rest() -> None:
    inner, store = raw_store()
    put_raw(store, 0)
    delete_raw(inner, store)
    put_raw(store, 10)
    assert rows_of(undelete_raw(store)) == [(0, "undeleted")]


# Real servers


@pytest.fixture(params=["minio", "seaweedfs"])
def bucket(request: pytest.FixtureRequest) -> tuple[S3Server, str]:
    server: S3Server = request.getfixturevalue(request.param)
    name = server.make_bucket()
    server.plain.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return server, name


@pytest.fixture
def s3_store(bucket: tuple[S3Server, str]) -> Any:
    with closing(impatient_store(options_for(*bucket))) as store:
        yield store


def test_servers_bring_a_topic_back(s3_store: S3ObjectStore) -> None:
    for segment in SEGMENTS:
        segment.put(s3_store)
    etag = s3_store.head(SEGMENTS[0].key()).etag or ""
    s3_store.replace(SEGMENTS[0].key(), SEGMENTS[0].manifest(), etag)
    before = list(s3_store.list())
    for _ in range(2):
        s3_store.delete(info.key for info in before)
    assert list(s3_store.list()) == []
    assert rows_of(undelete(s3_store)) == ALL
    # Removing the markers keeps etag and time, so that catalogs recognize the segments.
    assert [info for info in s3_store.list() if "!tieredstore/holds/" not in info.key] == before
    assert undelete(s3_store) == []


def test_servers_list_versions_page_by_page(bucket: tuple[S3Server, str]) -> None:
    with closing(impatient_store(replace(options_for(*bucket), page_size=2))) as store:
        for number in range(7):
            store.put("p/many", f"{number}".encode())
        store.put("p/one", b"1")
        store.delete(["p/many", "p/one"])
        store.put("q", b"beside")
        found = list(store.versions().list("p/"))
        many = [one for one in found if one.key == "p/many" and not one.is_marker]
        assert len(many) == 7
        assert len({one.id for one in found}) == len(found) == 10
        assert {one.key for one in found if one.is_latest} == {"p/many", "p/one"}
        (marker,) = [one for one in found if one.is_marker and one.key == "p/many"]
        store.versions().remove_marker(marker)
        store.versions().remove_marker(marker)
        assert store.get("p/many") == b"6"
        assert store.head("p/many").etag == many[0].etag


def test_a_marker_of_a_suspended_bucket_is_refused(bucket: tuple[S3Server, str], s3_store: S3ObjectStore) -> None:
    """The marker has the version id ``null``: removing it might remove a concurrent writer's object of the same id."""
    server, name = bucket
    for segment in SEGMENTS:
        segment.put(s3_store)
    server.plain.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    assert "versioning is suspended" in (s3_store.versions().obstacle() or "")
    s3_store.delete([SEGMENTS[0].key()])
    with pytest.raises(PartlyDoneError, match="copy the version below it by hand"):
        undelete(s3_store)
    with pytest.raises(StoreError, match="is a version with data"):
        s3_store.versions().remove_marker(ObjectVersion("k", "7", 0))
