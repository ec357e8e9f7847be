"""Tests of copies between stores: verbatim, under other keys, and in another encoding. Stores fail or give wrong
answers, and processes die. The source never changes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.segments import segments, settings_text
from tests.support.golden.stored import metadata_of
from tests.support.ops.tools import assert_no_half, assert_read_back, content, die_at, golden_store, outcomes
from tests.support.records.small_segments import ENC, ZSTD
from tests.support.stores.catalog_stores import MadeSegment, partition_of, run_of
from tests.support.stores.doubles import CountingStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError, ObjectArchivedError, StoreError, StoreUnavailableError
from tieredstore.format.data_key_field import with_data_key
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import SegmentManifest
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.copies.copying import BucketCopy, CopyStep, Pair, pair_up
from tieredstore.ops.copies.recoding import CopyWay
from tieredstore.ops.steps import Outcome
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.key_ring import key_ring_of

KEYRING = "08-keyring"
MADE = run_of(2, partition_of())
ALL = Scope()


def bucket(store: ObjectStore, texts: Mapping[str, str] | None = None, prefix: str = "") -> Bucket:
    own = {"storage.backend.class": "memory", "chunk.size": "1024", "key.prefix": prefix}
    return Bucket(settings_from({**own, **(texts or {})}), store)


def golden_texts(case: str, *, alone: str | None = None) -> dict[str, str]:
    """Return the settings of a case. ``alone`` is the only key pair that they name."""
    texts = {name: text for name, text in settings_text(case).items() if not name.startswith("storage.")}
    if alone is None:
        return texts
    kept = {name: text for name, text in texts.items() if "key.pairs." not in name or f".{alone}." in name}
    return {**kept, "encryption.key.pairs": alone, "encryption.key.pair.id": alone}


def made(segments: Iterable[MadeSegment] = MADE) -> ObjectStore:
    store = MemoryObjectStore()
    for segment in segments:
        segment.put(store)
    return store


def run(source: Bucket, target: Bucket, scope: Scope = ALL, **options: Any) -> list[CopyStep]:
    return list(BucketCopy(source, target, **options).run(scope))


def errors(steps: Iterable[CopyStep]) -> list[str]:
    return [str(step.error) for step in steps if step.error is not None]


def assert_all_read_back(target: Bucket, case: str) -> None:
    """Assert that logs and indexes of all segments, under any id, have the bytes that the broker had."""
    with RemoteStorageManager(target.settings, store=target.store) as manager:
        for segment in segments(case):
            where = metadata_of(segment).topic_id_partition
            (objects,) = [
                objects
                for objects in list_segments(target.store, target.prefix, Scope(where.topic, None, where.partition))
                if objects.start_offset == segment.base_offset
            ]
            assert_read_back(manager, load_segment(target.store, objects).metadata, segment)


@pytest.mark.parametrize("case", ["01-none", "04-zstd-enc", "07-txn", KEYRING, "10-prefix-masked-custommeta"])
def test_where_nothing_changes_the_same_bytes_stand_under_the_same_ids(case: str) -> None:
    source = golden_store(case)
    before, texts = content(source), golden_texts(case)
    target = MemoryObjectStore()
    steps = run(bucket(source, texts), bucket(target, texts))
    assert outcomes(steps) == {Outcome.COPIED: len(segments(case))}
    assert {step.way for step in steps} == {CopyWay.VERBATIM}
    assert content(target) == content(source) == before
    assert sum(step.sent for step in steps) == sum(map(len, before.values()))


def test_a_segment_committed_between_two_pages_of_the_listing_is_copied() -> None:
    segment = MADE[0]
    source, target = ScriptedStore(MemoryObjectStore()), MemoryObjectStore()
    source.change("list", change=lambda infos: (info for info in infos if info.key != segment.key(Suffix.INDEXES)))
    segment.put(source)
    assert outcomes(run(bucket(source), bucket(target))) == {Outcome.COPIED: 1}
    assert {info.key for info in target.list()} == {segment.key(suffix) for suffix in Suffix}


def test_under_another_prefix_nothing_else_changes() -> None:
    source, target = made(), MemoryObjectStore()
    run(bucket(source), bucket(target, prefix="backup/"))
    assert content(target) == {f"backup/{key}": data for key, data in content(source).items()}
    both = made()
    run(bucket(both), bucket(both, prefix="backup/"))
    assert content(both) == {**content(source), **content(target)}


def test_without_keys_and_with_a_target_of_other_chunks_what_both_say_alike_stays() -> None:
    """The settings of source and target are equal, but the segments were written with other settings. A copy keeps the
    segments' encoding.
    """
    source, target = golden_store("04-zstd-enc"), MemoryObjectStore()
    steps = run(bucket(source), bucket(target))
    assert {step.way for step in steps} == {CopyWay.VERBATIM}
    assert content(target) == content(source)


def test_a_second_run_sends_nothing() -> None:
    source, target = made(), MemoryObjectStore()
    run(bucket(source), bucket(target))
    counted = CountingStore(target)
    steps = run(bucket(source), bucket(counted))
    assert outcomes(steps) == {Outcome.THERE: len(MADE)}
    # The only head request is for the record of the key layout.
    assert dict(counted.requests) == {"now_ms": 1, "list": 1, "get": len(MADE), "head": 1}
    assert sum(step.sent for step in steps) == 0


def test_a_dry_run_says_what_would_be_sent_and_writes_nothing() -> None:
    source, target = made(), MemoryObjectStore()
    planned = run(bucket(source), bucket(target), dry_run=True)
    assert content(target) == {}
    assert planned == run(bucket(source), bucket(target))
    transcoding = bucket(MemoryObjectStore(), ZSTD)
    assert outcomes(run(bucket(source), transcoding, dry_run=True)) == {Outcome.COPIED: len(MADE)}
    assert content(transcoding.store) == {}


def test_a_scope_leaves_the_rest() -> None:
    source = made([*MADE, *run_of(1, partition_of(partition=1)), *run_of(1, partition_of("other"))])
    target = MemoryObjectStore()
    run(bucket(source), bucket(target), scope=Scope("events", partition=0))
    assert content(target) == content(made())


ENCODINGS: dict[str, dict[str, str]] = {
    "chunks": {"chunk.size": "70000"},
    "compression": {"compression.enabled": "true"},
    "encryption": ENC,
    "all": {**ENC, **ZSTD, "chunk.size": "300000"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("case", ["01-none", "07-txn"])
def test_transcoded_segments_have_the_same_records_and_indexes(case: str, name: str) -> None:
    source, target = bucket(golden_store(case), golden_texts(case)), MemoryObjectStore()
    before = content(source.store)
    other = bucket(target, {**golden_texts(case), **ENCODINGS[name]}, "copy/")
    steps = run(source, other)
    assert outcomes(steps) == {Outcome.COPIED: len(segments(case))}, errors(steps)
    assert {step.way for step in steps} == {CopyWay.TRANSCODED}
    assert content(source.store) == before
    assert_all_read_back(other, case)
    for objects in list_segments(target, "copy/"):
        manifest = load_segment(target, objects).manifest
        assert manifest.chunk_index.original_chunk_size == other.settings.chunk_size
        assert manifest.compression == other.settings.compression_enabled
        assert (manifest.encryption is not None) == (other.settings.encryption is not None)
    stored = content(target)
    assert outcomes(run(source, other)) == {Outcome.THERE: len(segments(case))}
    assert content(target) == stored


def test_encrypted_segments_are_written_plain_only_on_request() -> None:
    case = "04-zstd-enc"
    source, target = bucket(golden_store(case), golden_texts(case)), MemoryObjectStore()
    plain = {name: text for name, text in golden_texts(case).items() if not name.startswith("encryption.")}
    with pytest.raises(ConfigError, match="--decrypt"):
        run(source, bucket(target, plain))
    assert content(target) == {}
    run(source, bucket(target, plain), decrypt=True)
    assert_all_read_back(bucket(target, plain), case)


def test_for_another_ring_data_keys_are_wrapped_anew_and_data_stay() -> None:
    source, target = bucket(golden_store(KEYRING), golden_texts(KEYRING)), MemoryObjectStore()
    alone = bucket(target, golden_texts(KEYRING, alone="key2"))
    steps = run(source, alone)
    old = [segment for segment in segments(KEYRING) if b'"key1:' in segment.stored("rsm-manifest").read_bytes()]
    assert Counter(step.way for step in steps) == {
        CopyWay.REWRAPPED: len(old),
        CopyWay.VERBATIM: len(segments(KEYRING)) - len(old),
    }
    assert_all_read_back(alone, KEYRING)
    stored = content(target)
    different = {key for key, data in content(source.store).items() if stored[key] != data}
    assert different == {f"{segment.main_path}.rsm-manifest" for segment in old}
    assert outcomes(run(source, alone)) == {Outcome.THERE: len(segments(KEYRING))}
    assert content(target) == stored


@pytest.mark.slow
def test_new_data_keys_encrypt_every_segment_again() -> None:
    """A segment gets a new data key, even if an attacker has read the old one from its manifest."""
    texts, store = golden_texts(KEYRING), golden_store(KEYRING)
    source, target = bucket(store, texts), MemoryObjectStore()
    ring = key_ring_of(source.settings)
    assert ring is not None

    def data_keys(there: ObjectStore) -> set[bytes]:
        manifests = [SegmentManifest.from_bytes(raw) for raw in content(there, ".rsm-manifest").values()]
        wrapped = [manifest.encryption for manifest in manifests if manifest.encryption is not None]
        return {ring.unwrap(one.key_id, one.wrapped) for one in wrapped}

    steps = run(source, bucket(target, texts), new_data_keys=True)
    assert {(step.outcome, step.way) for step in steps} == {(Outcome.COPIED, CopyWay.TRANSCODED)}
    assert len(data_keys(target)) == len(segments(KEYRING))
    assert not data_keys(target) & data_keys(store)
    assert_all_read_back(bucket(target, texts), KEYRING)
    assert outcomes(run(source, bucket(target, texts), new_data_keys=True)) == {Outcome.THERE: len(steps)}
    # A copy under the old data key does not count.
    verbatim = MemoryObjectStore()
    run(source, bucket(verbatim, texts))
    assert "with the source's data key" in errors(run(source, bucket(verbatim, texts), new_data_keys=True))[0]


def test_segments_whose_pair_the_source_has_not_are_named_and_the_others_copied() -> None:
    source = bucket(golden_store(KEYRING), golden_texts(KEYRING, alone="key2"))
    target = bucket(MemoryObjectStore(), {**golden_texts(KEYRING, alone="key2"), "chunk.size": "70000"})
    steps = run(source, target)
    assert outcomes(steps)[Outcome.FAILED] > 0
    assert outcomes(steps)[Outcome.COPIED] > 0
    assert all("'key1', which is not on the ring" in error for error in errors(steps))


def test_a_segment_that_was_rotated_in_the_target_exists_there() -> None:
    source, target = bucket(golden_store(KEYRING), golden_texts(KEYRING)), MemoryObjectStore()
    run(source, bucket(target, golden_texts(KEYRING, alone="key2")))
    both = bucket(target, golden_texts(KEYRING))
    assert outcomes(run(source, both)) == {Outcome.THERE: len(segments(KEYRING))}
    old = bucket(target, golden_texts(KEYRING, alone="key1"))
    (error, *_) = errors(run(source, old))
    assert "with a key pair which the target's settings do not list" in error


def test_damaged_segments_are_named_and_leftovers_passed_over() -> None:
    segments = [*MADE, *run_of(3, partition_of(partition=1)), MadeSegment(partition_of(partition=2), 0, 9)]
    source = made(segments)
    source.put(segments[2].key(), b"{")
    source.delete([segments[3].key(Suffix.LOG)])
    source.put(segments[4].key(Suffix.INDEXES), b"short")
    source.delete([segments[5].key()])
    target = MemoryObjectStore()
    steps = run(bucket(source), bucket(target))
    assert outcomes(steps) == {Outcome.COPIED: 2, Outcome.FAILED: 3, Outcome.LEFTOVER: 1}
    assert [step.error.exit_code for step in steps if step.error is not None] == [4, 4, 4]
    assert content(target) == content(made())


@pytest.mark.parametrize("texts", [{}, ZSTD], ids=["verbatim", "transcoded"])
@pytest.mark.parametrize("suffix", Suffix)
def test_archived_segments_are_named_and_the_others_copied(suffix: Suffix, texts: dict[str, str]) -> None:
    source, target = ScriptedStore(made()), MemoryObjectStore()
    source.on(("get", "get_into"), MADE[0].key(suffix), ObjectArchivedError("restore it"))
    steps = run(bucket(source), bucket(target, texts))
    assert outcomes(steps) == {Outcome.FAILED: 1, Outcome.COPIED: 1}
    assert errors(steps) == ["restore it"]
    assert_no_half(target)
    assert outcomes(run(bucket(made()), bucket(target, texts))) == {Outcome.COPIED: 1, Outcome.THERE: 1}


@pytest.mark.parametrize("read_back", [True, False])
@pytest.mark.parametrize("texts", [{}, ZSTD], ids=["verbatim", "transcoded"])
def test_a_target_that_archives_at_once_gets_no_second_segment(texts: dict[str, str], *, read_back: bool) -> None:
    target = ScriptedStore(MemoryObjectStore()).on(("get", "get_into"), "*.log", ObjectArchivedError("restore it"))
    with pytest.raises(StoreError, match="archives what is written to it"):
        run(bucket(made()), bucket(target, texts), read_back=read_back, parallel=1)
    assert len([key for key in target.keys_of("put") if key.endswith(".log")]) == 1


def test_other_bytes_under_the_same_ids_are_left_alone() -> None:
    for suffix, error in (
        (Suffix.LOG, "with other bytes"),
        (Suffix.INDEXES, "with other bytes"),
        (Suffix.MANIFEST, "differs from the source"),
    ):
        target = MemoryObjectStore()
        target.put(MADE[0].key(suffix), b"x" * len(made().get(MADE[0].key(suffix))))
        before = content(target)
        steps = run(bucket(made()), bucket(target))
        assert outcomes(steps) == {Outcome.COPIED: 1, Outcome.FAILED: 1}
        assert error in errors(steps)[0]
        assert steps[0].error is not None
        assert steps[0].error.exit_code == 5
        assert {key: content(target)[key] for key in before} == before


def test_records_that_stand_in_another_encoding_are_left_alone() -> None:
    target = MemoryObjectStore()
    run(bucket(made()), bucket(target, ZSTD))
    before = content(target)
    steps = run(bucket(made()), bucket(target, ENC))
    assert outcomes(steps) == {Outcome.FAILED: len(MADE)}
    assert "written with other settings" in errors(steps)[0]
    assert content(target) == before


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
def test_a_transcoded_copy_that_lost_bytes_is_named(suffix: Suffix) -> None:
    target = MemoryObjectStore()
    run(bucket(made()), bucket(target, ZSTD))
    key = next(info.key for info in target.list() if info.key.endswith(suffix.value))
    target.put(key, target.get(key)[:-1])
    before = content(target)
    steps = run(bucket(made()), bucket(target, ZSTD))
    assert outcomes(steps) == {Outcome.FAILED: 1, Outcome.THERE: 1}
    assert f"but its .{suffix.value} has another size than its manifest says" in errors(steps)[0]
    assert content(target) == before


def test_a_copy_that_lost_an_object_is_mended() -> None:
    target = MemoryObjectStore()
    run(bucket(made()), bucket(target))
    target.delete([MADE[0].key(Suffix.LOG)])
    steps = run(bucket(made()), bucket(target))
    assert outcomes(steps) == {Outcome.COPIED: 1, Outcome.THERE: 1}
    assert content(target) == content(made())


def test_one_place_and_a_store_without_conditions_are_refused() -> None:
    store = made()
    with pytest.raises(ConfigError, match="the same place"):
        run(bucket(store), bucket(store))

    with pytest.raises(ConfigError, match="mirror needs a store"):
        run(bucket(store), bucket(ScriptedStore(MemoryObjectStore(), conditional_writes=False)))


def test_a_folder_is_one_place_as_a_root_and_as_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    outer, inner = FilesystemObjectStore(tmp_path), FilesystemObjectStore(tmp_path / "kafka")
    MADE[0].put(inner)
    with pytest.raises(ConfigError, match="the same place"):
        run(bucket(inner), bucket(outer, ZSTD, "kafka/"))
    assert len(content(inner)) == 3


@pytest.mark.parametrize(("prefix", "copies"), [("kafka", "kafka-z"), ("kafka-z", "kafka"), ("", "z")])
def test_prefixes_whose_keys_mix_are_refused(prefix: str, copies: str) -> None:
    """Under the shorter prefix, the segments of the other look like another topic, which each run would copy too."""
    store = MemoryObjectStore()
    MADE[0].put(store, prefix)
    before = content(store)
    with pytest.raises(ConfigError, match=r"continues that of the other without a slash"):
        run(bucket(store, prefix=prefix), bucket(store, prefix=copies))
    assert content(store) == before


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "shorter": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "empty": lambda _: b"",
    "other": lambda data: bytes([data[0] ^ 1]) + data[1:],
}


@pytest.mark.parametrize("texts", [{}, ZSTD], ids=["verbatim", "transcoded"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", list(Suffix))
def test_a_store_that_writes_something_else_is_found_out(suffix: Suffix, change: str, texts: dict[str, str]) -> None:
    target = MemoryObjectStore()
    lying = ScriptedStore(target).change("put", f"*{suffix.value}", change=CHANGES[change])
    with pytest.raises(StoreError, match="does not return the bytes that were written"):
        run(bucket(made()), bucket(lying, texts), parallel=1)
    assert [objects for objects in list_segments(target) if Suffix.MANIFEST not in objects.missing] == []
    assert outcomes(run(bucket(made()), bucket(target, texts))) == {Outcome.COPIED: len(MADE)}


WAYS: dict[str, dict[str, str]] = {"verbatim": {}, "transcoded": {"chunk.size": "600"}}


def assert_complete(target: ObjectStore, texts: Mapping[str, str]) -> None:
    """Assert that each segment exists once and whole, and that nothing else has a manifest."""
    committed = [objects for objects in list_segments(target) if Suffix.MANIFEST not in objects.missing]
    assert [objects.missing for objects in committed] == [(), ()]
    assert [objects.start_offset for objects in committed] == [segment.start for segment in MADE]
    if not texts:
        assert content(target) == content(made())
    with RemoteStorageManager(bucket(target, texts).settings, store=target) as manager:
        for objects, segment in zip(committed, MADE, strict=True):
            assert manager.open(load_segment(target, objects).metadata).read() == segment.log


def assert_completes(source: ObjectStore, target: ObjectStore, texts: Mapping[str, str]) -> None:
    """Assert that another run, after any failure, completes the copy of each segment."""
    steps = run(bucket(source), bucket(target, texts))
    assert not outcomes(steps).keys() - {Outcome.COPIED, Outcome.THERE}, errors(steps)
    assert_complete(target, texts)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("texts", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whichever_request_fails_a_second_run_completes_the_work(
    moment: Moment, texts: dict[str, str], side: str
) -> None:
    others: list[ObjectStore] = []

    def copy(store: ObjectStore) -> None:
        others.append(MemoryObjectStore() if side == "source" else made())
        source, target = (store, others[-1]) if side == "source" else (others[-1], store)
        run(bucket(source), bucket(target, texts), parallel=1)

    for _, store, faulty in OperationSweep(made if side == "source" else MemoryObjectStore, copy).fail(moment):
        with contextlib.suppress(StoreUnavailableError):
            copy(faulty)
        source, target = (store, others[-1]) if side == "source" else (others[-1], store)
        assert_no_half(target)
        assert_completes(source, target, texts)
        assert content(source) == content(made())


@pytest.mark.parametrize("texts", WAYS.values(), ids=list(WAYS))
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", pytest.param("during", marks=pytest.mark.soak), "after"])
def test_killed_at_any_operation_a_second_run_completes_the_work(
    moment: Moment, texts: dict[str, str], tmp_path: Path
) -> None:
    def folder(name: object) -> ObjectStore:
        (tmp_path / str(name)).mkdir()
        return FilesystemObjectStore(tmp_path / str(name))

    def copy(target: ObjectStore) -> None:
        run(bucket(source), bucket(target, texts), parallel=1)

    source = folder("source")
    for segment in MADE:
        segment.put(source)
    for number in OperationSweep(lambda: folder("quiet"), copy).numbers:
        target = folder(number)
        die_at(target, number, moment, copy)
        assert_completes(source, target, texts)
    assert content(source) == content(made())


def test_existing_equal_objects_are_not_sent_again() -> None:
    source, target = made(), MemoryObjectStore()
    target.put(MADE[0].key(Suffix.LOG), MADE[0].log)
    counted = CountingStore(target)
    steps = run(bucket(source), bucket(counted))
    assert MADE[0].key(Suffix.LOG) not in counted.keys_of("put")
    assert steps[0].sent == len(MADE[0].index) + len(MADE[0].manifest())
    assert_complete(target, {})


def aged(store: ObjectStore, hours: float | None) -> ObjectStore:
    """Return a store whose objects all have this age, or no modification time."""
    modified_ms = None if hours is None else -round(hours * 3_600_000)
    return (
        ScriptedStore(store)
        .change("list", change=lambda infos: (replace(info, modified_ms=modified_ms) for info in infos))
        .change("now_ms", change=lambda _: 0)
    )


@pytest.mark.parametrize(("hours", "goes_on"), [(11.0, True), (12.5, False), (30.0, False), (None, False)])
def test_what_a_clean_up_may_be_about_to_take_is_not_gone_on_with(hours: float | None, goes_on: bool) -> None:
    target = MemoryObjectStore()
    target.put(MADE[0].key(Suffix.LOG), MADE[0].log)
    steps = run(bucket(made()), bucket(aged(target, hours)))
    assert outcomes(steps) == ({Outcome.COPIED: 2} if goes_on else {Outcome.COPIED: 1, Outcome.FAILED: 1})
    assert [step.error.exit_code for step in steps if step.error is not None] == ([] if goes_on else [75])
    assert (MADE[0].key() in content(target)) is goes_on


def test_the_age_of_what_is_gone_on_with_counts() -> None:
    """A copy has one hour left if it continues with objects of an attempt that is 11 hours old."""
    target = MemoryObjectStore()
    target.put(MADE[0].key(Suffix.LOG), MADE[0].log)
    times = iter([0.0, 0.0, 0.0, *([4000.0] * 50)])
    steps = run(bucket(made()), bucket(aged(target, 11.0)), clock=lambda: next(times), parallel=1)
    assert "has taken longer than 43200 s" in errors(steps)[0]
    assert MADE[0].key() not in content(target)


def test_two_copies_at_once_end_with_each_segment_once() -> None:
    source, target = made(), MemoryObjectStore()

    # A second copy runs completely before the first one writes an object.
    meddling = ScriptedStore(target).on("put", do=lambda _: run(bucket(source), bucket(target)), times=1)

    steps = run(bucket(source), bucket(meddling), parallel=1)
    assert outcomes(steps) == {Outcome.THERE: len(MADE)}
    assert_complete(target, {})


def test_who_is_always_one_object_behind_another_copy_ends_with_what_that_wrote() -> None:
    source, target = made(), MemoryObjectStore()

    def write(operation: Operation) -> None:
        """Write the same object, as another copy does, just before the tested copy writes it."""
        (key,) = operation.keys
        target.put(key, source.get(key), if_absent=True)

    ahead = bucket(ScriptedStore(target).on("put", do=write))
    assert outcomes(run(bucket(source), ahead, parallel=1)) == {Outcome.THERE: len(MADE)}
    assert_complete(target, {})


@pytest.mark.parametrize("stands", [True, False])
def test_a_manifest_that_was_written_too_late_stays_only_over_what_stands(stands: bool) -> None:
    """A late manifest stays if its objects exist, since another copy may rely on it. If a clean-up has deleted the
    objects, the manifest is deleted.
    """
    source, target = made(MADE[:1]), MemoryObjectStore()
    hours = [0.0]

    def pass_a_day(_: Operation) -> None:
        hours[0] = 25.0
        if not stands:
            target.delete([MADE[0].key(Suffix.LOG)])

    slow = ScriptedStore(target).on("put", f"*{Suffix.MANIFEST.value}", pass_a_day, moment="after")

    steps = run(bucket(source), bucket(slow), parallel=1, clock=lambda: hours[0] * 3600)
    assert outcomes(steps) == {Outcome.COPIED if stands else Outcome.FAILED: 1}
    assert (MADE[0].key() in content(target)) is stands


@pytest.mark.parametrize("texts", [{}, {"chunk.size": "70000"}], ids=["verbatim", "transcoded"])
def test_a_manifest_that_is_rotated_before_it_was_read_back_stays(texts: dict[str, str]) -> None:
    source, target = bucket(golden_store(KEYRING), golden_texts(KEYRING)), MemoryObjectStore()

    def rotate(operation: Operation) -> None:
        (key,) = operation.keys
        target.put(key, with_data_key(target.get(key), "key3", b"wrapped anew"))

    rotating = ScriptedStore(target).on("put", f"*{Suffix.MANIFEST.value}", rotate, moment="after")

    steps = run(source, bucket(rotating, {**golden_texts(KEYRING), **texts}))
    assert outcomes(steps) == {Outcome.COPIED: len(segments(KEYRING))}
    assert [objects.missing for objects in list_segments(target)] == [()] * len(segments(KEYRING))


def test_a_segment_that_is_deleted_meanwhile_is_gone() -> None:
    source, target = made(), MemoryObjectStore()

    def delete(_: Operation) -> None:
        source.delete([MADE[0].key(suffix) for suffix in Suffix])

    deleting = ScriptedStore(source).on("get", MADE[0].key(Suffix.LOG), delete)

    steps = run(bucket(deleting), bucket(target))
    assert outcomes(steps) == {Outcome.GONE: 1, Outcome.COPIED: 1}
    assert set(content(target)) == {MADE[1].key(suffix) for suffix in Suffix}


def test_two_listings_are_one() -> None:
    both = list(list_segments(made([*MADE, *run_of(2, partition_of(partition=10)), *run_of(1, partition_of("b"))])))
    some = [both[1], both[2], both[4]]
    assert list(pair_up(both, [])) == [Pair(objects) for objects in both]
    assert list(pair_up(both, some)) == [Pair(objects, (objects,) if objects in some else ()) for objects in both]
    assert list(pair_up(some, both)) == [Pair(objects, (objects,)) for objects in some]
    assert list(pair_up([], both)) == []
