"""Tests of key rotation from two key pairs to one, in a golden bucket. Stores fail, processes die, and others write
at the same time.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.golden.keys import PAIRS
from tests.support.golden.segments import segments, settings_text
from tests.support.golden.stored import metadata_of
from tests.support.ops.tools import assert_read_back, content, die_at, golden_store, outcomes
from tests.support.paths import GOLDEN
from tests.support.records.small_segments import memory_settings
from tests.support.stores.doubles import (
    CountingStore,
    DelegatingObjectStore,
    Moment,
    Operation,
    OperationName,
    ScriptedStore,
)
from tests.support.stores.operation_sweep import OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.wrappers.stack import LimitedStore, MeteredStore
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.config import Settings, settings_from
from tieredstore.errors import AccessDeniedError, ConfigError, StoreUnavailableError, UnknownKeyError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import SegmentManifest, WrappedDataKey
from tieredstore.ops.keys.rotation import Rotation, RotationStep
from tieredstore.ops.keys.use import NeedReason, RotationNotes, cached_until_ms, needs_of
from tieredstore.ops.listing import ListedSegment, load_stream
from tieredstore.ops.steps import Outcome
from tieredstore.remote import RemoteStorageManager
from tieredstore.transform.keyring import KeyPair, KeyRing

CASE = "08-keyring"
BOTH = KeyRing("key2", PAIRS)
NEW_ALONE = KeyRing("key2", {"key2": PAIRS["key2"]})


@pytest.fixture
def store() -> ObjectStore:
    """Return the plugin's objects. Some segments use key1, the others key2."""
    return golden_store(CASE)


def manifests(store: ObjectStore) -> dict[str, bytes]:
    return content(store, ".rsm-manifest")


def encryptions(store: ObjectStore) -> list[WrappedDataKey]:
    found = (SegmentManifest.from_bytes(raw).encryption for raw in manifests(store).values())
    return [encryption for encryption in found if encryption is not None]


def keys_in_use(store: ObjectStore) -> Counter[str]:
    return Counter(encryption.key_id for encryption in encryptions(store))


def run(store: ObjectStore, ring: KeyRing = BOTH, *, dry_run: bool = False, parallel: int = 4) -> list[RotationStep]:
    return list(Rotation(store, ring, dry_run=dry_run, parallel=parallel).run(list_segments(store)))


def run_alone(store: ObjectStore) -> list[RotationStep]:
    return run(store, parallel=1)


def assert_completes(store: ObjectStore, ring: KeyRing) -> None:
    """Assert that, after a failure and one more run, this ring opens all data keys, and all use the new pair."""
    assert not outcomes(run(store)).keys() - {Outcome.ROTATED, Outcome.ACTIVE}
    assert keys_in_use(store) == {"key2": ALL}
    assert_opened(store, ring)


def assert_opened(store: ObjectStore, ring: KeyRing) -> None:
    assert [len(ring.unwrap(one.key_id, one.wrapped)) for one in encryptions(store)] == [32] * ALL


OLD = [segment for segment in segments(CASE) if b'"key1:' in segment.stored("rsm-manifest").read_bytes()]
assert 0 < len(OLD) < len(segments(CASE))
ALL = len(segments(CASE))


def new_pair_alone() -> Settings:
    """Return the settings without the old pair, and without the names of its files."""
    texts = {name: value for name, value in settings_text(CASE).items() if ".key1." not in name}
    return settings_from(texts | {"encryption.key.pairs": "key2", "encryption.key.pair.id": "key2"})


def test_all_is_read_with_the_new_pair_alone_and_one_text_of_each_manifest_has_changed(store: ObjectStore) -> None:
    before, others = manifests(store), {info.key: info.etag for info in store.list() if "manifest" not in info.key}
    old = [encryption.text.encode() for encryption in encryptions(store)]
    assert outcomes(run(store)) == {Outcome.ROTATED: len(OLD), Outcome.ACTIVE: ALL - len(OLD)}
    assert keys_in_use(store) == {"key2": ALL}
    new = [encryption.text.encode() for encryption in encryptions(store)]
    texts = zip(before.values(), old, new, strict=True)
    assert list(manifests(store).values()) == [raw.replace(was, now) for raw, was, now in texts]
    assert {info.key: info.etag for info in store.list() if "manifest" not in info.key} == others
    with RemoteStorageManager(new_pair_alone(), store=store) as manager:
        for segment in segments(CASE):
            assert_read_back(manager, metadata_of(segment), segment)


def test_a_segment_costs_one_read_and_one_replacement_and_a_second_run_writes_nothing(store: ObjectStore) -> None:
    counted = CountingStore(store)
    run(counted)
    assert dict(counted.requests) == {"list": 1, "get": ALL, "replace": len(OLD)}
    counted.reset()
    without_keys = KeyRing("key2", {"key2": KeyPair(PAIRS["key2"].public, PAIRS["key2"].public)})
    assert outcomes(run(counted, without_keys)) == {Outcome.ACTIVE: ALL}
    assert dict(counted.requests) == {"list": 1, "get": ALL}


def test_a_dry_run_says_what_would_happen_and_writes_nothing(store: ObjectStore) -> None:
    before = manifests(store)
    planned = run(store, dry_run=True)
    assert manifests(store) == before
    assert planned == run(store)


@pytest.mark.parametrize(
    ("change", "outcome", "reason"),
    [
        (lambda raw: raw.replace(b'"key1:', b'"gone:'), None, "'gone', which is not on the ring"),
        (lambda raw: raw.replace(b'"key1:', b'"key3:'), None, "'key3' does not decrypt"),
        (lambda _: b"{", Outcome.DAMAGED, "not JSON"),
        (lambda _: OLD[1].stored("rsm-manifest").read_bytes(), Outcome.DAMAGED, ""),
    ],
    ids=["missing", "wrong", "damaged", "of another segment"],
)
def test_segments_that_cannot_be_rotated_are_named_and_the_rest_is_rotated(
    store: ObjectStore, change: Callable[[bytes], bytes], outcome: Outcome | None, reason: str
) -> None:
    key = f"{OLD[0].main_path}.rsm-manifest"
    store.put(key, changed := change(store.get(key)))
    ring = KeyRing("key2", PAIRS | {"key3": PAIRS["key2"]})
    steps = {step.item.main_path: step for step in run(store, ring) if isinstance(step.item, SegmentObjects)}
    failures = {Outcome.UNKNOWN_KEY, Outcome.WRONG_KEY, Outcome.DAMAGED}
    assert [path for path, step in steps.items() if step.outcome in failures] == [OLD[0].main_path]
    failure = steps[OLD[0].main_path]
    assert failure.outcome is (outcome or failure.outcome)
    assert reason in str(failure.reason)
    assert store.get(key) == changed
    assert outcomes(steps.values())[Outcome.ROTATED] == len(OLD) - 1


def test_plain_segments_and_leftovers_are_passed_over() -> None:
    store = MemoryObjectStore()
    plain = segments("01-none")[0]
    for suffix in Suffix:
        store.put(f"{plain.main_path}.{suffix.value}", plain.stored(suffix.value).read_bytes())
    store.put(f"{OLD[0].main_path}.log", b"a copy under way")
    assert outcomes(run(store)) == {Outcome.PLAIN: 1}


def meddling(store: ObjectStore, act: Callable[[ObjectStore, str], None], times: int) -> ObjectStore:
    """Return a store that calls ``act`` between reading and replacing a manifest, the first ``times`` times."""
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


@pytest.mark.parametrize("name", ["get", "replace"])
def test_a_manifest_that_the_store_refuses_is_named_and_the_rest_is_rotated(
    store: ObjectStore, name: OperationName
) -> None:
    refusing = ScriptedStore(store).on(name, f"{OLD[0].main_path}*", AccessDeniedError("the object is archived"))
    steps = run(refusing)
    assert outcomes(steps) == {Outcome.REFUSED: 1, Outcome.ROTATED: len(OLD) - 1, Outcome.ACTIVE: ALL - len(OLD)}
    assert [step.reason for step in steps if step.reason] == [
        f"{OLD[0].main_path}.rsm-manifest: the object is archived"
    ]


def test_a_manifest_that_changes_again_and_again_is_reported(store: ObjectStore) -> None:
    steps = run(meddling(store, _touched, 99))
    assert outcomes(steps)[Outcome.CHANGED] == len(OLD)
    assert "changed by another process" in str(next(step.reason for step in steps if step.reason))
    assert keys_in_use(store)["key1"] == len(OLD)


def test_two_rotations_at_once_end_with_all_rotated(store: ObjectStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [outcome for steps in pool.map(lambda _: run(store), range(2)) for outcome in steps]
    assert not outcomes(both).keys() - {Outcome.ROTATED, Outcome.ACTIVE}
    assert keys_in_use(store) == {"key2": ALL}
    assert outcomes(run(store)) == {Outcome.ACTIVE: ALL}


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whichever_request_fails_a_second_run_completes_the_work(moment: Moment) -> None:
    for _, store, faulty in OperationSweep(partial(golden_store, CASE), run_alone).fail(moment):
        with pytest.raises(StoreUnavailableError):
            run_alone(faulty)
        assert_opened(store, BOTH)
        assert_completes(store, BOTH)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_operation_a_second_run_completes_the_work(moment: Moment, tmp_path: Path) -> None:
    for number in OperationSweep(partial(golden_store, CASE), run_alone).numbers:
        store = FilesystemObjectStore(shutil.copytree(GOLDEN / CASE / "store", tmp_path / str(number)))
        die_at(store, number, moment, run_alone)
        assert_completes(store, NEW_ALONE)


def test_each_replacement_follows_a_recent_note_of_the_replaced_pair(store: ObjectStore) -> None:
    """A rotation may be killed at any time, and a second run finds nothing to rotate. Only the note then tells how long
    readers may have the old manifests in their caches."""
    now_s, noted_s, ages_s = 0.0, dict[str, float](), list[float]()

    def note(operation: Operation) -> None:
        noted_s[operation.keys[0]] = now_s

    def replace(_: Operation) -> None:
        nonlocal now_s
        ages_s.append(now_s - noted_s["p/!tieredstore/keys/rotated/key1"])
        now_s += 4

    scripted = ScriptedStore(store).on("put", do=note).on("replace", do=replace)
    notes = RotationNotes(scripted, "p/", lambda: now_s)
    list(Rotation(scripted, BOTH, dry_run=False, parallel=1, notes=notes).run(list_segments(scripted)))
    assert ages_s == [(4.0 * number) % 12 for number in range(len(OLD))]
    notes.at_end()
    assert noted_s == {"p/!tieredstore/keys/rotated/key1": now_s}


def test_a_replaced_pair_is_needed_until_caches_expire_and_a_margin_longer(store: ObjectStore) -> None:
    RotationNotes(store, "").before_write("key1")
    noted_ms = store.head("!tieredstore/keys/rotated/key1").modified_ms
    assert noted_ms is not None
    now_ms = noted_ms
    later = ScriptedStore(store).change("now_ms", change=lambda _: now_ms)
    for passed_ms, until_ms in {0: noted_ms + 311_000, 310_999: noted_ms + 311_000, 311_000: None}.items():
        now_ms = noted_ms + passed_ms
        assert cached_until_ms(later, "", "key1", 1000) == until_ms


def test_a_machine_that_was_suspended_notes_a_replaced_pair_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, suspended_s = time.clock_gettime, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + suspended_s)
    scripted = ScriptedStore(store)
    notes = RotationNotes(scripted, "")
    for _ in range(2):
        notes.before_write("key1")
        assert len(scripted.keys_of("put")) == 1
    suspended_s = 3600.0
    notes.before_write("key1")
    assert len(scripted.keys_of("put")) == 2


def test_a_pair_that_is_replaced_while_its_use_is_looked_up_is_needed_by_caches(store: ObjectStore) -> None:
    def listed() -> Iterator[ListedSegment]:
        notes = RotationNotes(store, "")
        list(Rotation(store, BOTH, dry_run=False, notes=notes).run(list_segments(store)))
        yield from load_stream(store, list_segments(store))

    needs = list(needs_of(store, "", listed(), "key1", cached_ms=3_600_000))
    assert [need.reason for need in needs] == [NeedReason.CACHED]
    assert list(needs_of(store, "", (), "key3", cached_ms=3_600_000)) == []


@pytest.fixture(params=["bare", "metered", "limited", "delegating", "managed"])
def unconditional(request: pytest.FixtureRequest, store: ObjectStore) -> Iterator[ObjectStore]:
    """Yield a store that says, through any wrapper, that it does not support conditions."""
    bare = ScriptedStore(store, conditional_writes=False)
    if request.param == "managed":
        with RemoteStorageManager(memory_settings(), store=bare) as manager:
            yield manager.store
        return
    wrap = {"bare": lambda inner: inner, "metered": MeteredStore, "limited": LimitedStore}
    yield wrap.get(request.param, DelegatingObjectStore)(bare)


def test_a_store_without_atomic_conditions_is_refused_by_name(store: ObjectStore, unconditional: ObjectStore) -> None:
    before = manifests(store)
    with pytest.raises(ConfigError, match=r"key rotation needs .*memory://"):
        run(unconditional)
    assert manifests(store) == before


def test_a_reader_that_met_an_unknown_pair_looks_at_the_manifest_again(store: ObjectStore) -> None:
    with RemoteStorageManager(new_pair_alone(), store=store) as manager:
        for _ in range(2):
            with pytest.raises(UnknownKeyError):
                manager.open(metadata_of(OLD[0])).read()
        run(store)
        assert manager.open(metadata_of(OLD[0])).read() == OLD[0].original("log").read_bytes()
