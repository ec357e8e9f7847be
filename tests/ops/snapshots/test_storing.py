"""Snapshots in the bucket: all writers together make one per hour, damaged ones are refused, and the newest stays."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from tests.support.golden.keys import PAIRS
from tests.support.stores.doubles import ScriptedStore
from tests.support.stores.stepped_actors import AgingStore, WorldClock
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    EncryptionError,
    NewerVersionError,
    ObjectNotFoundError,
    ResourceNotFoundError,
    UnknownKeyError,
)
from tieredstore.format.cluster_snapshot import (
    AclEntry,
    ClusterSnapshot,
    CommittedOffset,
    GroupOffsets,
    NotHeld,
    RegistrySchemas,
    SchemaReference,
    SchemaVersion,
    TopicSettings,
)
from tieredstore.ops.keys.rotation import Rotation
from tieredstore.ops.keys.use import KeyNeed, NeedReason, needs_of
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.ops.steps import Outcome
from tieredstore.transform.keyring import KeyRing

RING = KeyRing("key1", PAIRS)
NOON_MS = int(datetime(2026, 11, 28, 12, 20, tzinfo=UTC).timestamp()) * 1000
HOUR_MS = 3_600_000
FULL = ClusterSnapshot(
    "c1",
    NOON_MS,
    (TopicSettings("orders", "AAECAwQFBgcICQoLDA0ODw", 3, 1, {"retention.ms": "5"}, ("secret",)),),
    (AclEntry("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"),),
    (GroupOffsets("billing", "classic", (CommittedOffset("orders", 2, 2**62, "note"),)),),
    RegistrySchemas(
        "BACKWARD",
        {"orders-value": "NONE"},
        (SchemaVersion("orders-value", 1, 7, "AVRO", '"int"', (SchemaReference("n", "s", 1),), is_deleted=True),),
    ),
    (NotHeld("group", "shared", "it is a share group"),),
)


def at(moment_ms: int, cluster: str = "c1") -> ClusterSnapshot:
    return dataclasses.replace(FULL, taken_ms=moment_ms, cluster_id=cluster)


def stored_of(store: ObjectStore, ring: KeyRing | None = None) -> Snapshots:
    return Snapshots(store, "pre/", ring)


@pytest.mark.parametrize("ring", [None, RING], ids=["plain", "encrypted"])
def test_a_written_snapshot_is_read_back(ring: KeyRing | None) -> None:
    store = MemoryObjectStore()
    assert stored_of(store, ring).write(FULL, is_hourly=True)
    assert stored_of(store, ring).find() == FULL
    (info,) = store.list()
    assert info.key == "pre/!tieredstore/snapshots/c1/2026-11-28T12Z.json"
    assert info.size < 4096
    assert (b"billing" in store.get(info.key)) is False
    other_active = KeyRing("key2", PAIRS)
    assert stored_of(store, other_active).find() == FULL


def test_without_its_key_an_encrypted_snapshot_is_refused() -> None:
    store = MemoryObjectStore()
    stored_of(store, RING).write(FULL, is_hourly=True)
    with pytest.raises(UnknownKeyError, match="key1"):
        stored_of(store).find()
    with pytest.raises(UnknownKeyError, match="key1"):
        stored_of(store, KeyRing("key2", {"key2": PAIRS["key2"]})).find()


def test_of_many_uploaders_one_writes_the_hour() -> None:
    store = MemoryObjectStore()
    with ThreadPoolExecutor(8) as pool:
        wrote = list(
            pool.map(lambda at_ms: stored_of(store, RING).write(at(at_ms), is_hourly=True), range(NOON_MS, NOON_MS + 8))
        )
    assert sorted(wrote) == [False] * 7 + [True]
    assert stored_of(store, RING).find().taken_ms == NOON_MS + wrote.index(True)


def test_a_snapshot_is_found_by_time_and_by_cluster() -> None:
    snapshots = stored_of(MemoryObjectStore())
    with pytest.raises(ResourceNotFoundError, match="the bucket has no snapshot: "):
        snapshots.find()
    for hour in (0, 1, 5):
        snapshots.write(at(NOON_MS + hour * HOUR_MS), is_hourly=True)
    assert snapshots.find().taken_ms == NOON_MS + 5 * HOUR_MS
    assert snapshots.find(NOON_MS + HOUR_MS).taken_ms == NOON_MS + HOUR_MS
    assert snapshots.find(NOON_MS + HOUR_MS - 1).taken_ms == NOON_MS, "the one of that hour is later"
    assert snapshots.find(NOON_MS + 5 * HOUR_MS - 1).taken_ms == NOON_MS + HOUR_MS
    with pytest.raises(ResourceNotFoundError, match="at or before 2026-11-28T12:19:59Z"):
        snapshots.find(NOON_MS - 1)
    snapshots.write(at(NOON_MS, "a/b c"), is_hourly=True)
    with pytest.raises(ConfigError, match="2 clusters; name one: a/b c, c1"):
        snapshots.find()
    assert snapshots.find(cluster_id="a/b c").cluster_id == "a/b c"
    with pytest.raises(ResourceNotFoundError, match="of the cluster c2"):
        snapshots.find(cluster_id="c2")


def test_another_release_and_another_name_are_refused() -> None:
    store = MemoryObjectStore()
    snapshots = stored_of(store)
    snapshots.write(FULL, is_hourly=True)
    key = snapshots.key("c1", NOON_MS)
    body = store.get(key)
    store.put(snapshots.key("c1", NOON_MS + HOUR_MS), body)
    with pytest.raises(
        CorruptDataError, match="the snapshot c1 2026-11-28T13Z holds another snapshot: c1 2026-11-28T122000Z"
    ) as raised:
        snapshots.find()
    assert raised.value.__notes__ == ["choose an earlier snapshot by its time: `tieredstore restore snapshot --list`"]
    assert snapshots.find(NOON_MS) == FULL
    store.put(key, body.replace(b'"version":1', b'"version":2'))
    with pytest.raises(NewerVersionError, match=r"a cluster snapshot of version 2.*upgrade tieredstore"):
        snapshots.find(NOON_MS)


@pytest.mark.slow
@pytest.mark.parametrize("ring", [None, RING], ids=["plain", "encrypted"])
def test_a_flipped_bit_never_gives_another_snapshot(ring: KeyRing | None) -> None:
    store = MemoryObjectStore()
    snapshots = stored_of(store, ring)
    snapshots.write(FULL, is_hourly=True)
    key = snapshots.key("c1", NOON_MS)
    body = store.get(key)
    chosen = random.Random(48)
    refused = 0
    for _ in range(400):
        place = chosen.randrange(len(body))
        flipped = bytearray(body)
        flipped[place] ^= 1 << chosen.randrange(8)
        store.put(key, bytes(flipped))
        try:
            assert snapshots.find() == FULL
        except (CorruptDataError, EncryptionError, NewerVersionError):
            refused += 1
    assert refused > 380


def test_old_ones_expire_by_the_earlier_clock_and_the_newest_stays() -> None:
    clock = WorldClock()
    snapshots = stored_of(AgingStore(clock))
    for hour in range(4):
        clock.now_ms = NOON_MS + hour * HOUR_MS
        snapshots.write(at(clock.now_ms), is_hourly=True)
    clock.now_ms = NOON_MS
    snapshots.write(at(NOON_MS, "other"), is_hourly=True)
    clock.now_ms = NOON_MS + 3 * HOUR_MS
    assert [each.name for each in snapshots.expire(2 * HOUR_MS, clock.now_ms)] == ["2026-11-28T12Z"]
    later = NOON_MS + 1000 * HOUR_MS
    assert not snapshots.expire(2 * HOUR_MS, later), "this machine's clock is ahead"
    before, clock.now_ms = clock.now_ms, later
    assert not snapshots.expire(2 * HOUR_MS, before), "the store's clock is ahead"
    assert [each.name for each in snapshots.expire(2 * HOUR_MS, later)] == ["2026-11-28T13Z", "2026-11-28T14Z"]
    assert [(each.cluster_id, each.name) for each in snapshots.find_all()] == [
        ("c1", "2026-11-28T15Z"), ("other", "2026-11-28T12Z"),
    ]  # fmt: skip
    assert not snapshots.expire(0, later)


def test_a_clock_that_jumps_deletes_no_newest_one_and_an_unknown_clock_none() -> None:
    clock = WorldClock()
    store = AgingStore(clock)
    snapshots = stored_of(store)
    for jump in (0, -50 * HOUR_MS, 90 * HOUR_MS, -5 * HOUR_MS):
        clock.now_ms = NOON_MS + jump
        snapshots.write(at(clock.now_ms), is_hourly=True)
        snapshots.expire(HOUR_MS, clock.now_ms)
        assert "2026-12-02T06Z" in [each.name for each in snapshots.find_all()] or jump <= 0
    assert not stored_of(ScriptedStore(store).change("now_ms", change=lambda _: None)).expire(0, clock.now_ms)


def test_one_by_hand_has_a_name_of_its_own_and_the_latest_of_an_hour_is_found() -> None:
    snapshots = stored_of(MemoryObjectStore())
    assert snapshots.write(at(NOON_MS), is_hourly=False)
    assert not snapshots.write(at(NOON_MS + 999), is_hourly=False), "the same second"
    assert snapshots.find().taken_ms == NOON_MS
    assert snapshots.write(at(NOON_MS + 60_000), is_hourly=True)
    assert [each.name for each in snapshots.find_all()] == ["2026-11-28T12Z", "2026-11-28T122000Z"]
    assert snapshots.find().taken_ms == NOON_MS + 60_000, "the hourly snapshot is later, although its name sorts first"
    assert snapshots.find(NOON_MS).taken_ms == NOON_MS
    snapshots.write(dataclasses.replace(at(NOON_MS + HOUR_MS), schemas=None), is_hourly=True)
    assert snapshots.find(has_schemas=True).taken_ms == NOON_MS + 60_000


def test_a_topic_is_found_by_its_id_and_else_by_its_name() -> None:
    snapshots = stored_of(MemoryObjectStore())
    ids = [("c1", "A"), ("c2", "B"), ("c1", "B"), ("c1", None)]
    for hour, (cluster, topic_id) in enumerate(ids):
        topics = [] if topic_id is None else [TopicSettings("orders", topic_id, hour + 1, 1, {})]
        taken = dataclasses.replace(at(NOON_MS + hour * HOUR_MS, cluster), topics=tuple(topics))
        snapshots.write(taken, is_hourly=True)
    found = [snapshots.find_topic(*each) for each in (("orders", "A"), ("orders", "B"), ("orders", "C"), ("x", "A"))]
    assert [each and each.partition_count for each in found] == [1, 3, 3, None]


@pytest.mark.parametrize("look", [Snapshots.find, lambda snapshots: snapshots.find_topic("orders", "x")])
def test_a_snapshot_that_expires_after_the_listing_is_replaced_by_the_next(look: Callable[[Snapshots], object]) -> None:
    store = ScriptedStore(MemoryObjectStore())
    snapshots = stored_of(store)
    snapshots.write(FULL, is_hourly=True)

    def expire(_: object) -> None:
        snapshots.write(at(NOON_MS + HOUR_MS), is_hourly=True)
        store.delete([snapshots.key("c1", NOON_MS)])

    store.on("get", "*T12Z.json", do=expire, times=1)
    assert look(snapshots) in (at(NOON_MS + HOUR_MS), *FULL.topics)
    store.on("get", do=ObjectNotFoundError("listed, but not readable"))
    with pytest.raises(ObjectNotFoundError, match="listed, but not readable"):
        look(snapshots)


def test_a_key_pair_is_needed_by_the_snapshots_that_it_encrypts_and_by_damaged_ones() -> None:
    store = MemoryObjectStore()
    snapshots = stored_of(store, RING)
    snapshots.write(FULL, is_hourly=True)
    (stored,) = snapshots.find_all()
    assert list(needs_of(store, "pre/", (), "key1", cached_ms=0)) == [KeyNeed(stored.key, NeedReason.SNAPSHOT)]
    assert not list(needs_of(store, "pre/", (), "key2", cached_ms=0))
    store.put(stored.key, b"damaged")
    assert [need.reason for need in needs_of(store, "pre/", (), "key2", cached_ms=0)] == [NeedReason.SNAPSHOT]
    store.delete([stored.key])
    assert not snapshots.may_need(stored, "key1")


def test_a_rotation_writes_no_snapshot_again_that_was_read_damaged() -> None:
    """A bit may flip on the way from the store, and then the rotation would replace a sound snapshot."""
    store = MemoryObjectStore()
    snapshots = stored_of(store, RING)
    snapshots.write(FULL, is_hourly=True)
    (stored,) = snapshots.find_all()
    before = store.get(stored.key)

    def flip(body: bytes) -> bytes:
        at = body.index(b'"content":"') + 40
        return body[:at] + (b"A" if body[at : at + 1] != b"A" else b"B") + body[at + 1 :]

    flipping = ScriptedStore(store).change("get", change=flip)
    rotation = Rotation(flipping, KeyRing("key2", PAIRS), dry_run=False)
    (step,) = rotation.run_snapshots(Snapshots(flipping, "pre/", RING))
    assert (step.outcome, "checksum" in str(step.reason)) == (Outcome.DAMAGED, True)
    assert store.get(stored.key) == before
    (step,) = Rotation(store, KeyRing("key2", PAIRS), dry_run=False).run_snapshots(snapshots)
    assert step.outcome is Outcome.ROTATED
    assert snapshots.find() == FULL
