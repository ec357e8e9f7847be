"""Key rotation: the golden bucket of two key pairs, rotated to one; a store that fails, processes that die, others at
work at the same time."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.golden.segments import GoldenSegment, segments, settings_text
from tests.support.golden.stored import metadata_of, original_indexes
from tests.support.paths import GOLDEN
from tests.support.stores.doubles import CountingStore, FaultyStore, Moment, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.config import Settings, settings_from
from tieredstore.errors import ConfigError, StoreUnavailable, UnknownKey
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import SegmentManifest
from tieredstore.ops.keys.rotation import FAILURES, Rotation, RotationStep
from tieredstore.ops.steps import Outcome
from tieredstore.remote import RemoteStorageManager
from tieredstore.transform.keyring import KeyPair, KeyRing

CASE = "08-keyring"
FOLDER = GOLDEN / CASE / "store"
KEYS = GOLDEN / CASE / "keys"
PAIRS = {key: KeyPair.from_files(KEYS / f"{key}.public.pem", KEYS / f"{key}.private.pem") for key in ("key1", "key2")}
BOTH = KeyRing("key2", PAIRS)
NEW_ALONE = KeyRing("key2", {"key2": PAIRS["key2"]})


@pytest.fixture
def store() -> ObjectStore:
    return golden_store()


def golden_store() -> ObjectStore:
    """The plugin's objects: some segments under key1, the others under key2."""
    store = MemoryObjectStore()
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(FOLDER)), path.read_bytes())
    return store


def manifests(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list() if info.key.endswith(".rsm-manifest")}


def keys_in_use(store: ObjectStore) -> Counter[str]:
    encryptions = (SegmentManifest.from_bytes(raw).encryption for raw in manifests(store).values())
    return Counter(encryption.key_id for encryption in encryptions if encryption is not None)


def run(store: ObjectStore, ring: KeyRing = BOTH, *, dry_run: bool = False, parallel: int = 4) -> list[RotationStep]:
    return list(Rotation(store, ring, dry_run=dry_run, parallel=parallel).run(list_segments(store)))


def outcomes(steps: Iterable[RotationStep]) -> Counter[Outcome]:
    return Counter(step.outcome for step in steps)


OLD = [segment for segment in segments(CASE) if b'"key1:' in segment.stored("rsm-manifest").read_bytes()]
assert 0 < len(OLD) < len(segments(CASE))
ALL = len(segments(CASE))


def new_pair_alone() -> Settings:
    """The case's settings in which the old pair's files are not even named."""
    texts = {name: value for name, value in settings_text(CASE).items() if ".key1." not in name}
    return settings_from(texts | {"encryption.key.pairs": "key2", "encryption.key.pair.id": "key2"})


def assert_read_back(manager: RemoteStorageManager, segment: GoldenSegment) -> None:
    """The segment's log and indexes are the broker's."""
    with manager.open(metadata_of(segment)) as log:
        assert log.read() == segment.original("log").read_bytes()
    originals = original_indexes(segment)
    read = manager.fetch_indexes(metadata_of(segment), originals)
    assert {kind: file.read() for kind, file in read.items()} == originals


def test_all_is_read_with_the_new_pair_alone_and_one_text_of_each_manifest_has_changed(store: ObjectStore) -> None:
    before, others = manifests(store), {info.key: info.etag for info in store.list() if "manifest" not in info.key}
    assert outcomes(run(store)) == {Outcome.ROTATED: len(OLD), Outcome.ACTIVE: ALL - len(OLD)}
    assert keys_in_use(store) == {"key2": ALL}
    for key, raw in manifests(store).items():
        old, new = SegmentManifest.from_bytes(before[key]).encryption, SegmentManifest.from_bytes(raw).encryption
        assert old is not None
        assert new is not None
        assert raw == before[key].replace(old.text.encode(), new.text.encode())
    assert {info.key: info.etag for info in store.list() if "manifest" not in info.key} == others
    with RemoteStorageManager(new_pair_alone(), store=store) as manager:
        for segment in segments(CASE):
            assert_read_back(manager, segment)


def test_a_second_run_writes_nothing_and_costs_no_rsa(store: ObjectStore) -> None:
    run(store)
    counted = CountingStore(store)
    without_keys = KeyRing("key2", {"key2": KeyPair(PAIRS["key2"].public, PAIRS["key2"].public)})
    assert outcomes(run(counted, without_keys)) == {Outcome.ACTIVE: ALL}
    assert (counted.requests["get"], counted.requests["replace"]) == (ALL, 0)


def test_a_dry_run_says_what_would_happen_and_writes_nothing(store: ObjectStore) -> None:
    before = manifests(store)
    planned = run(store, dry_run=True)
    assert manifests(store) == before
    assert planned == run(store)


def test_a_segment_costs_one_listing_one_read_and_one_replacement(store: ObjectStore) -> None:
    counted = CountingStore(store)
    run(counted)
    assert dict(counted.requests) == {"list": 1, "get": ALL, "replace": len(OLD)}


def test_pairs_that_are_missing_or_wrong_are_named_and_the_rest_is_rotated(store: ObjectStore) -> None:
    first, second = (str(OLD[0].main_path), str(OLD[1].main_path))
    raw = store.get(f"{first}.rsm-manifest")
    store.put(f"{first}.rsm-manifest", raw.replace(b'"key1:', b'"gone:'))
    raw = store.get(f"{second}.rsm-manifest")
    store.put(f"{second}.rsm-manifest", raw.replace(b'"key1:', b'"key3:'))
    ring = KeyRing("key2", PAIRS | {"key3": PAIRS["key2"]})
    broken = next(segment for segment in segments(CASE) if segment not in OLD)
    store.put(f"{broken.main_path}.rsm-manifest", b"{")
    steps = {step.item.main_path: step for step in run(store, ring)}
    reasons = {path: step.reason for path, step in steps.items() if step.outcome in FAILURES}
    assert set(reasons) == {first, second, broken.main_path}
    assert "'gone', which is not on the ring" in str(reasons[first])
    assert "'key3' does not open" in str(reasons[second])
    assert "not JSON" in str(reasons[broken.main_path])
    assert outcomes(steps.values())[Outcome.ROTATED] == len(OLD) - 2


def test_a_manifest_of_another_segment_is_left_alone(store: ObjectStore) -> None:
    first, second = OLD[0].main_path, OLD[1].main_path
    store.put(f"{first}.rsm-manifest", store.get(f"{second}.rsm-manifest"))
    steps = {step.item.main_path: step for step in run(store)}
    assert steps[first].outcome is Outcome.DAMAGED
    assert outcomes(steps.values())[Outcome.ROTATED] == len(OLD) - 1


def test_plain_segments_and_leftovers_are_passed_over() -> None:
    store = MemoryObjectStore()
    plain = segments("01-none")[0]
    for suffix in Suffix:
        store.put(f"{plain.main_path}.{suffix.value}", plain.stored(suffix.value).read_bytes())
    store.put(f"{OLD[0].main_path}.log", b"a copy under way")
    assert outcomes(run(store)) == {Outcome.PLAIN: 1}


def meddling(store: ObjectStore, act: Callable[[ObjectStore, str], None], times: int) -> ObjectStore:
    """Return a store where somebody else acts between our look at a manifest and its replacement, so many times."""
    return ScriptedStore(store).on("replace", do=lambda operation: act(store, operation.keys[0]), times=times)


def test_a_manifest_that_vanishes_meanwhile_never_comes_back(store: ObjectStore) -> None:
    vanishing = meddling(store, lambda inner, key: inner.delete([key]), len(OLD))
    assert outcomes(run(vanishing)) == {Outcome.GONE: len(OLD), Outcome.ACTIVE: ALL - len(OLD)}
    assert len(manifests(store)) == ALL - len(OLD)


def _touched(inner: ObjectStore, key: str) -> None:
    inner.put(key, inner.get(key) + b" ")


def test_a_manifest_that_changes_is_looked_at_once_more(store: ObjectStore) -> None:
    assert outcomes(run(meddling(store, _touched, 1), parallel=1))[Outcome.ROTATED] == len(OLD)
    assert sum(raw.endswith(b" ") for raw in manifests(store).values()) == 1


def test_a_manifest_that_changes_again_and_again_is_reported(store: ObjectStore) -> None:
    steps = run(meddling(store, _touched, 99))
    assert outcomes(steps)[Outcome.CHANGED] == len(OLD)
    assert "changed by somebody else" in str(next(step.reason for step in steps if step.reason))
    assert keys_in_use(store)["key1"] == len(OLD)


def test_two_rotations_at_once_end_with_all_rotated(store: ObjectStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [outcome for steps in pool.map(lambda _: run(store), range(2)) for outcome in steps]
    assert not outcomes(both).keys() - {Outcome.ROTATED, Outcome.ACTIVE}
    assert keys_in_use(store) == {"key2": ALL}
    assert outcomes(run(store)) == {Outcome.ACTIVE: ALL}


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whichever_request_fails_a_second_run_completes_the_work(moment: Moment) -> None:
    for _, store, faulty in OperationSweep(golden_store, lambda store: run(store, parallel=1)).fail(moment):
        with pytest.raises(StoreUnavailable):
            run(faulty, parallel=1)
        for raw in manifests(store).values():
            encryption = SegmentManifest.from_bytes(raw).encryption
            assert encryption is not None
            assert len(BOTH.unwrap(encryption.key_id, encryption.wrapped)) == 32
        assert not outcomes(run(store)).keys() - {Outcome.ROTATED, Outcome.ACTIVE}
        assert keys_in_use(store) == {"key2": ALL}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_operation_a_second_run_completes_the_work(moment: Moment, tmp_path: Path) -> None:
    sweep = OperationSweep(golden_store, lambda store: run(store, parallel=1))
    for number in range(len(sweep.operations)):
        folder = tmp_path / str(number)
        shutil.copytree(FOLDER, folder)
        _die_at(FilesystemObjectStore(folder), number, moment)
        store = FilesystemObjectStore(folder)
        assert not outcomes(run(store)).keys() - {Outcome.ROTATED, Outcome.ACTIVE}
        for raw in manifests(store).values():
            encryption = SegmentManifest.from_bytes(raw).encryption
            assert encryption is not None
            assert len(NEW_ALONE.unwrap(encryption.key_id, encryption.wrapped)) == 32


def _die_at(store: ObjectStore, number: int, moment: Moment) -> None:
    """Rotate in a child that dies, without another word, at one of its store's operations."""

    def die() -> BaseException:
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            run(FaultyStore(store, fail_at=number, moment=moment, error=die), parallel=1)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in {0, 9}


def test_a_store_without_atomic_conditions_is_refused_by_name(store: ObjectStore) -> None:
    before = manifests(store)
    with pytest.raises(ConfigError, match=r"key rotation needs .*memory://"):
        run(ScriptedStore(store, conditional_writes=False))
    assert manifests(store) == before


def test_a_reader_that_met_an_unknown_pair_looks_at_the_manifest_again(store: ObjectStore) -> None:
    with RemoteStorageManager(new_pair_alone(), store=store) as manager:
        for _ in range(2):
            with pytest.raises(UnknownKey):
                manager.open(metadata_of(OLD[0])).read()
        run(store)
        assert manager.open(metadata_of(OLD[0])).read() == OLD[0].original("log").read_bytes()
