"""Tests of repairs from a good copy: each kind of damage, the order of writes, deaths, races, and bad good copies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.copies.test_copies import ALL, bucket, errors, golden_texts
from tests.support.ops.tools import content, die_at, findings_of, golden_store, outcomes
from tests.support.stores.clouds import Cloud, shared_cloud
from tests.support.stores.doubles import CountingStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep, copies_of
from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.errors import ConfigError, ObjectArchivedError, StoreUnavailableError
from tieredstore.format.data_key_field import with_data_key
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import SegmentManifest
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.copies.copying import CopyStep
from tieredstore.ops.copies.repairing import Repair
from tieredstore.ops.keys.rotation import Rotation
from tieredstore.ops.steps import Outcome
from tieredstore.remote.key_ring import key_ring_of

KEYRING = "08-keyring"
PLAIN = "02-zstd-onechunk"
FIRST, SECOND, *_ = [dict(objects.objects) for objects in list_segments(golden_store(PLAIN))]


def made(count: int = 2) -> ObjectStore:
    """Return a store with the first segments of the plain case."""
    store = MemoryObjectStore()
    for objects in (FIRST, SECOND)[:count]:
        for info in objects.values():
            store.put(info.key, golden_store(PLAIN).get(info.key))
    return store


def plain(store: ObjectStore | None = None) -> Bucket:
    return bucket(made() if store is None else store, golden_texts(PLAIN))


def key(suffix: Suffix, of: dict[Suffix, ObjectInfo] = FIRST) -> str:
    return of[suffix].key


def repair(source: Bucket, target: Bucket, *, dry_run: bool = False) -> list[CopyStep]:
    return list(Repair(source, target, dry_run=dry_run, parallel=1).run(ALL))


def flip(store: ObjectStore, key: str, place: float = 0.5) -> None:
    """Change one byte of an object, at this share of its length."""
    data = bytearray(store.get(key))
    data[int(len(data) * place)] ^= 0xFF
    store.put(key, bytes(data))


def shorten(store: ObjectStore, key: str) -> None:
    store.put(key, store.get(key)[:-5])


def delete(store: ObjectStore, key: str) -> None:
    store.delete([key])


def garble(store: ObjectStore, key: str) -> None:
    store.put(key, b"\0 no manifest")


def wrong_data_key(store: ObjectStore, key: str) -> None:
    """Damage the wrapped data key of a manifest that is otherwise whole."""
    raw = store.get(key)
    encryption = SegmentManifest.from_bytes(raw).encryption
    assert encryption is not None
    wrapped = bytes([encryption.wrapped[0] ^ 1]) + encryption.wrapped[1:]
    store.put(key, with_data_key(raw, encryption.key_id, wrapped))


Damage = Callable[[ObjectStore, str], None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damages",
    [
        {Suffix.LOG: flip},
        {Suffix.LOG: shorten},
        {Suffix.LOG: delete},
        {Suffix.INDEXES: flip},
        {Suffix.INDEXES: delete},
        {Suffix.MANIFEST: garble},
        {Suffix.MANIFEST: wrong_data_key},
        {Suffix.INDEXES: shorten, Suffix.LOG: flip, Suffix.MANIFEST: garble},
    ],
    ids=lambda damages: "+".join(f"{damage.__name__} {suffix.value}" for suffix, damage in damages.items()),
)
def test_damaged_objects_are_replaced_and_no_others(damages: dict[Suffix, Damage]) -> None:
    good, store = golden_store(KEYRING), golden_store(KEYRING)
    first, *others = list_segments(store)
    keys = {suffix: info.key for suffix, info in first.objects}
    for suffix, damage in damages.items():
        damage(store, keys[suffix])
    damaged, counted = content(store), CountingStore(store)
    source, target = bucket(good, golden_texts(KEYRING)), bucket(counted, golden_texts(KEYRING))

    planned = repair(source, target, dry_run=True)
    expected = {Outcome.REPAIRED: 1, **({Outcome.THERE: len(others)} if others else {})}
    assert outcomes(planned) == expected, errors(planned)
    assert content(store) == damaged
    counted.reset()
    steps = repair(source, target)
    assert [step.reason for step in steps] == [step.reason for step in planned]
    assert steps[0].reason == ", ".join(f".{suffix.value}" for suffix in damages)
    assert content(store) == content(good)
    writes = [key for operation in counted.operations if operation.name in {"put", "replace"} for key in operation.keys]
    assert sorted(writes) == sorted(keys[suffix] for suffix in damages)
    assert writes[-1] == keys[Suffix.MANIFEST] or Suffix.MANIFEST not in damages
    assert outcomes(repair(source, target)) == {Outcome.THERE: 1 + len(others)}


def test_a_good_copy_that_is_damaged_or_absent_changes_nothing() -> None:
    good, store = made(), made()
    for segment in (FIRST, SECOND):
        flip(store, key(Suffix.LOG, segment))
    flip(good, key(Suffix.LOG), 0.3)
    good.delete([key(suffix, SECOND) for suffix in Suffix])
    before = content(store)
    steps = repair(plain(good), plain(store))
    assert outcomes(steps) == {Outcome.FAILED: 2}
    assert "the source's copy is not sound, so nothing was replaced" in errors(steps)[0]
    assert "the source has no copy of it" in errors(steps)[1]
    assert content(store) == before


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_archived_object_is_named_and_the_other_segment_is_repaired(side: str) -> None:
    good, store = ScriptedStore(made()), ScriptedStore(made())
    for segment in (FIRST, SECOND):
        flip(store.inner, key(Suffix.LOG, segment))
    archive = good if side == "source" else store
    archive.on(("get", "get_into"), key(Suffix.LOG), ObjectArchivedError("restore it"))
    steps = repair(plain(good), plain(store))
    assert [step.outcome for step in steps] == [Outcome.FAILED, Outcome.REPAIRED]
    assert "restore it" in errors(steps)[0]


def test_a_good_copy_that_changes_after_it_was_verified_changes_nothing() -> None:
    good, store = ScriptedStore(made(1)), made(1)
    log = key(Suffix.LOG)
    flip(store, log)
    before = content(store)

    def change(_: Operation) -> None:
        flip(good.inner, log)

    # The repair reads the whole log for the last time when it replaces the damaged one.
    counted = CountingStore(made(1))
    repair(plain(counted), plain(copies_of(store)()))
    reads = sum(operation.name == "get" for operation in counted.operations if log in operation.keys)
    good.on("get", log, change, skip=reads - 1)
    (step,) = repair(plain(good), plain(store))
    assert "in the source has changed since it was verified" in str(step.error)
    assert content(store) == before


def test_a_segment_without_a_manifest_is_left_to_mirror() -> None:
    store = made()
    store.delete([key(Suffix.MANIFEST)])
    assert outcomes(repair(plain(), plain(store))) == {Outcome.LEFTOVER: 1, Outcome.THERE: 1}


@pytest.mark.slow
def test_a_rotated_manifest_stays_when_the_log_is_replaced() -> None:
    good, store = golden_store(KEYRING), golden_store(KEYRING)
    texts = golden_texts(KEYRING)
    pairs = texts["encryption.key.pairs"].split(",")
    rotated = {
        **texts,
        "encryption.key.pair.id": next(pair for pair in pairs if pair != texts["encryption.key.pair.id"]),
    }
    target = bucket(store, rotated)
    ring = key_ring_of(target.settings)
    assert ring is not None
    list(Rotation(store, ring, dry_run=False).run(list_segments(store)))
    before = content(store)
    damaged = next(key for key in before if key.endswith(".log"))
    flip(store, damaged)
    steps = repair(bucket(good, texts), target)
    assert steps[0].reason == ".log", errors(steps)
    assert content(store) == before


@pytest.mark.slow
def test_a_target_whose_settings_lack_the_pair_is_left_alone() -> None:
    good, store = golden_store(KEYRING), golden_store(KEYRING)
    before = content(store)
    pairs = golden_texts(KEYRING)["encryption.key.pairs"].split(",")
    for alone in pairs:
        steps = repair(bucket(good, golden_texts(KEYRING)), bucket(store, golden_texts(KEYRING, alone=alone.strip())))
        assert outcomes(steps).keys() <= {Outcome.THERE, Outcome.FAILED}
        assert all("cannot be verified" in error for error in errors(steps))
    assert content(store) == before


def test_of_two_repairs_at_once_one_repairs_and_the_other_finds_it_done() -> None:
    good, store = made(), made()
    for suffix in (Suffix.INDEXES, Suffix.LOG):
        delete(store, key(suffix)) if suffix is Suffix.INDEXES else flip(store, key(suffix))
    others: list[CopyStep] = []

    def overtake(_: Operation) -> None:
        others.extend(repair(plain(good), plain(store)))

    meddling = ScriptedStore(store).on({"put", "replace"}, do=overtake, times=1)
    steps = repair(plain(good), plain(meddling))
    assert outcomes(others) == {Outcome.REPAIRED: 1, Outcome.THERE: 1}
    assert outcomes(steps) == {Outcome.THERE: 2}
    assert content(store) == content(good)


def test_an_object_that_keeps_changing_is_left_alone() -> None:
    good, store = made(1), made(1)
    log = key(Suffix.LOG)
    flip(store, log)
    places = iter([0.2, 0.3, 0.4, 0.6])
    meddling = ScriptedStore(store).on("replace", do=lambda _: flip(store, log, next(places)))
    assert outcomes(repair(plain(good), plain(meddling))) == {Outcome.CHANGED: 1}
    assert store.get(log) != good.get(log)


def test_a_segment_that_is_deleted_during_its_repair_never_comes_back() -> None:
    store = made(1)
    flip(store, key(Suffix.LOG))
    deleting = ScriptedStore(store).on("replace", do=lambda _: store.delete([key(suffix) for suffix in Suffix]))
    assert outcomes(repair(plain(made(1)), plain(deleting))) == {Outcome.GONE: 1}
    assert content(store) == {}


def test_a_store_that_keeps_other_bytes_is_found_out() -> None:
    store = made(1)
    flip(store, key(Suffix.LOG))
    lying = ScriptedStore(store).change("replace", change=lambda data: data[:-1] + b"?")
    (step,) = repair(plain(made(1)), plain(lying))
    assert step.outcome is Outcome.FAILED
    assert "does not return the good copy's bytes" in str(step.error)


def damaged_everywhere(store: ObjectStore) -> ObjectStore:
    for name, data in content(made()).items():
        store.put(name, data)
    flip(store, key(Suffix.LOG))
    shorten(store, key(Suffix.INDEXES))
    garble(store, key(Suffix.MANIFEST))
    delete(store, key(Suffix.LOG, SECOND))
    return store


@pytest.mark.slow
def test_whichever_request_fails_a_second_run_completes_the_repair() -> None:
    def work(store: ObjectStore) -> None:
        repair(plain(), plain(store))

    sweep = OperationSweep(lambda: damaged_everywhere(MemoryObjectStore()), work)
    for moment in ("before", "during", "after"):
        for _, store, faulty in sweep.fail(moment):
            with contextlib.suppress(StoreUnavailableError):
                work(faulty)
            work(store)
            assert content(store) == content(made())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", pytest.param("during", marks=pytest.mark.soak), "after"])
def test_killed_at_any_operation_a_second_run_completes_the_repair(moment: Moment, tmp_path: Path) -> None:
    def folder(name: object) -> ObjectStore:
        (tmp_path / str(name)).mkdir()
        return damaged_everywhere(FilesystemObjectStore(tmp_path / str(name)))

    def work(store: ObjectStore) -> None:
        repair(plain(), plain(store))

    old, new = content(damaged_everywhere(MemoryObjectStore())), content(made())
    for number in OperationSweep(lambda: folder("quiet"), work).numbers:
        target = folder(number)
        die_at(target, number, moment, work)
        for name, data in content(target).items():
            assert data in {old.get(name), new[name]}, name
        work(target)
        assert content(target) == content(made())


@pytest.fixture(params=["s3", "gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return shared_cloud(request)


@pytest.mark.server
def test_every_cloud_is_repaired_and_keeps_what_another_process_wrote(cloud: Cloud) -> None:
    with contextlib.closing(cloud.make(cloud.endpoint_url, cloud.make_place())) as store:
        damaged_everywhere(store)
        log = key(Suffix.LOG)
        places = iter([0.2, 0.3, 0.4, 0.6])
        meddling = ScriptedStore(store).on("replace", log, do=lambda _: flip(store, log, next(places)))
        assert outcomes(repair(plain(), plain(meddling))) == {Outcome.CHANGED: 1, Outcome.REPAIRED: 1}
        steps = repair(plain(), plain(store))
        assert outcomes(steps) == {Outcome.REPAIRED: 1, Outcome.THERE: 1}, errors(steps)
        assert content(store) == content(made())
        assert not findings_of(plain(store))


def test_one_place_and_a_store_without_conditions_are_refused() -> None:
    store = made()
    for target, words in (
        (store, "the same place"),
        (CountingStore(MemoryObjectStore(), conditional_writes=False), "--repair needs"),
    ):
        with pytest.raises(ConfigError, match=words):
            repair(plain(store), bucket(target))
