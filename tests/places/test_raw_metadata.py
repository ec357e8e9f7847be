"""``_metadata`` of the raw layout, checked with a file of Pinterest's uploader and a model of its consumer."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.places.test_raw_reading import raw_settings
from tests.places.test_raw_writing import run_once, sweep_of
from tests.support.stores.doubles import OperationName, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep, copies_of
from tests.support.uploader.uploader_disk import BrokerDisk
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.errors import PreconditionFailedError, TieredStoreError
from tieredstore.kafka.logdir import LogSegment, describe, discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.ops.garbage.removal import Removal
from tieredstore.places.opening import place_store
from tieredstore.places.raw_metadata import NamedSegment, complete_entries, metadata_bytes, parse_metadata
from tieredstore.remote import RemoteStorageManager
from tieredstore.uploader.retention import RemoteRetention
from tieredstore.uploader.settings import uploader_settings_from
from tieredstore.uploader.target import Target

REAL: Final = Path(__file__).parent / "pinterest_raw"
"""A partition as Pinterest's uploader left it: six segments, 0 to 692."""
FOLDER: Final = "p/kafkaCluster1/events-0/"
KEY: Final = f"{FOLDER}_metadata"
# aiokafka has no types.
_records: Any = importlib.import_module("aiokafka.record.memory_records")


class PinterestsReader:
    """A model of Pinterest's consumer: it reads the named segments that have all three files."""

    def __init__(self, store: ObjectStore, folder: str = FOLDER) -> None:
        self._store, self._folder = store, folder

    @property
    def named(self) -> list[tuple[int, int]]:
        """Return times and base offsets from the entries of ``_metadata``, sorted."""
        document = json.loads(self._store.get(f"{self._folder}_metadata"))
        index = document["metadata"]["timeindex"]
        assert index["size"] == len(index["entries"])
        assert index["timeIndexType"] == "TOPIC_PARTITION"
        return sorted((entry["timestamp"], entry["baseOffset"]) for entry in index["entries"])

    def bases(self) -> list[int]:
        """Return the base offsets that the consumer reads. Fail if an entry has no log, which Pinterest forbids."""
        named = [base for _, base in self.named]
        assert named == sorted(set(named)), "segments are out of order, or one occurs twice"
        names = {info.key.removeprefix(self._folder) for info in self._store.list(self._folder)}
        assert {f"{base:020d}.log" for base in named} <= names
        return [base for base in named if {f"{base:020d}.{end}" for end in ("log", "index", "timeindex")} <= names]

    def records(self) -> Iterator[tuple[int, int]]:
        """Yield offset and timestamp of each record."""
        for base in self.bases():
            yield from self._of_segment(base)

    def offset_for_time(self, moment: int) -> int | None:
        """Return the offset of the first record at or after the time. Start at the last segment with an earlier time,
        or at the first segment.
        """
        before = [base for time, base in self.named if time < moment]
        for base in self.bases():
            if not before or base >= before[-1]:
                for offset, timestamp in self._of_segment(base):
                    if timestamp >= moment:
                        return offset
        return None

    def _of_segment(self, base: int) -> Iterator[tuple[int, int]]:
        batches = _records.MemoryRecords(self._store.get(f"{self._folder}{base:020d}.log"))
        while batches.has_next():
            for record in batches.next_batch():
                yield record.offset, record.timestamp


def real_bucket(*, names: Callable[[int], bool] = lambda _: True) -> MemoryObjectStore:
    """Return Pinterest's partition, with only the entries of ``_metadata`` that ``names`` selects."""
    store = MemoryObjectStore()
    for path in REAL.iterdir():
        store.put(f"{FOLDER}{path.name}", path.read_bytes())
    entries = parse_metadata((REAL / "_metadata").read_bytes())
    assert entries is not None
    kept = [entry for entry in entries if names(entry.base_offset)]
    where = TopicIdPartition(Uuid(bytes(16)), "events", 0)
    store.put(KEY, metadata_bytes(where, kept, None))
    return store


def log_segments(disk: BrokerDisk) -> list[LogSegment]:
    return [describe(segment) for segment in discover(disk.folder).segments[:3]]


def store_segments(store: ObjectStore, disk: BrokerDisk, *numbers: int) -> None:
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        for number in numbers:
            segment = log_segments(disk)[number]
            manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), 1, 1), segment.files)


def remove(store: ObjectStore, before: int) -> None:
    outer = place_store(store, raw_settings())
    for step in Removal(outer, "p/", dry_run=False).run(list_segments(outer, "p/"), before):
        assert step.reason is None


def is_in_step(store: MemoryObjectStore) -> bool:
    """Return True if ``_metadata`` names exactly the stored logs; fail if it names a missing one."""
    names = {info.key.removeprefix(FOLDER) for info in store.list(FOLDER)}
    logs = sorted(int(name[:20]) for name in names if name.endswith(".log"))
    return not logs if "_metadata" not in names else PinterestsReader(store).bases() == logs


# ---- the file


def test_a_file_of_pinterests_uploader_is_read_and_written_byte_for_byte() -> None:
    raw = (REAL / "_metadata").read_bytes()
    entries = parse_metadata(raw)
    assert entries is not None
    assert [entry.base_offset for entry in entries] == [0, 118, 246, 367, 493, 596]
    where = TopicIdPartition(Uuid(bytes(16)), "rawn", 0)
    assert metadata_bytes(where, entries, json.loads(raw)["loadHash"]) == raw
    assert b"loadHash" not in metadata_bytes(where, entries, None)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{}", b"[]", b'{"metadata":{}}', b'{"metadata":{"timeindex":{"entries":[{"timestamp":1}]}}}',
        b'{"metadata":{"timeindex":{"entries":[{"timestamp":-1,"baseOffset":0}]}}}',
        b'{"metadata":{"timeindex":{"entries":[{"timestamp":1,"baseOffset":"0"}]}}}',
        b'{"metadata":{"timeindex":{"entries":[{"timestamp":1,"baseOffset":9223372036854775808}]}}}',
        b'{"metadata":' * 10_000,
    ],
)  # fmt: skip
def test_a_damaged_list_is_none_and_is_made_again(raw: bytes, disk: BrokerDisk) -> None:
    assert parse_metadata(raw) is None
    store = MemoryObjectStore()
    store.put(KEY, raw)
    store_segments(store, disk, 0, 1)
    assert PinterestsReader(store).bases() == [0, 10]


def test_new_entries_stand_between_those_beside_them() -> None:
    """New entries get times between those of their neighbours, because Pinterest's consumer reads entries by time."""
    entries = [NamedSegment(100, 10), NamedSegment(200, 30), NamedSegment(200, 50)]
    whole = {0: 500, 10: 0, 20: 50, 30: 0, 40: 900, 50: 0, 60: 150, 70: 300}
    named = complete_entries(entries, set(whole), whole)
    assert [(entry.base_offset, entry.timestamp_ms) for entry in named] == [
        (0, 100), (10, 100), (20, 100), (30, 200), (40, 200), (50, 200), (60, 200), (70, 300),
    ]  # fmt: skip
    # An entry without a log is removed. An incomplete segment keeps its entry, but gets no new one.
    assert complete_entries(entries, {10, 30, 90}, {10: 1}) == (NamedSegment(100, 10), NamedSegment(200, 30))


# ---- kept


def test_shipped_segments_are_listed_with_the_times_of_the_brokers_files(disk: BrokerDisk) -> None:
    store = MemoryObjectStore()
    assert run_once(disk, store) == []
    reader = PinterestsReader(store)
    times = [(disk.folder / f"{base:020d}.log").stat().st_mtime_ns // 1_000_000 for base in (0, 10, 20)]
    assert reader.named == list(zip(times, (0, 10, 20), strict=True))
    records = list(reader.records())
    assert [offset for offset, _ in records] == list(range(30))
    for moment in {timestamp for _, timestamp in records} | {0, records[-1][1] + 1}:
        expected = next((offset for offset, timestamp in records if timestamp >= moment), None)
        assert reader.offset_for_time(moment) == expected


def test_a_bucket_that_was_named_in_part_is_completed() -> None:
    """The next stored segment adds all missing entries; the consumer then finds the right offset for each time."""
    for names in (lambda base: base in {0, 246}, lambda base: base > 300, lambda base: False):
        store = real_bucket(names=names)
        whole = list(PinterestsReader(real_bucket()).records())
        settings = raw_settings()
        with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
            segment = next(iter(list_segments(place_store(store, settings), "p/")))
            writer: Any = manager._writer  # pyright: ignore[reportPrivateUsage]
            writer.reach(segment.segment_id, 0)
        reader = PinterestsReader(store)
        assert list(reader.records()) == whole
        for moment in (0, whole[0][1], whole[300][1], whole[-1][1], whole[-1][1] + 1):
            expected = next((offset for offset, timestamp in whole if timestamp >= moment), None)
            assert reader.offset_for_time(moment) == expected
    assert store.get(f"{FOLDER}offset.wm") == (REAL / "offset.wm").read_bytes()


def test_killed_anywhere_while_segments_are_shipped(disk: BrokerDisk) -> None:
    """Wherever the uploader is killed, the named segments exist; the next run names all existing ones."""
    was_behind = False
    for number, store, faulty in sweep_of(disk, slice(1, None, 2)).fail(for_good=True):
        run_once(disk, faulty)
        was_behind = was_behind or not is_in_step(store)
        assert run_once(disk, store) == []
        assert is_in_step(store), number
        assert PinterestsReader(store).bases() == [0, 10, 20]
    assert was_behind


def test_killed_anywhere_while_segments_are_removed(disk: BrokerDisk) -> None:
    """Wherever ``rm`` is killed while it removes segments, each entry of ``_metadata`` still has its log."""
    store = MemoryObjectStore()
    store_segments(store, disk, 0, 1, 2)
    for _, stopped, faulty in OperationSweep(copies_of(store), lambda inner: remove(inner, 20)).fail(for_good=True):
        try:
            remove(faulty, 20)
        except (TieredStoreError, AssertionError):
            PinterestsReader(stopped).bases()
        remove(stopped, 20)
        assert PinterestsReader(stopped).bases() == [20]
        assert [offset for offset, _ in PinterestsReader(stopped).records()] == list(range(20, 30))


def test_retention_takes_the_names_too(disk: BrokerDisk) -> None:
    store = MemoryObjectStore()
    assert run_once(disk, store) == []
    own = {
        "leadership": "static",
        "log.dirs": str(disk.log_dir),
        "broker.id": "1",
        "retention.bytes": "1",
        "retention.dry.run": "false",
    }
    chosen = uploader_settings_from({f"uploader.{name}": text for name, text in own.items()})
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        where = next(iter(list_segments(manager.store, "p/"))).segment_id.topic_id_partition
        target: Any = type("Half", (), {"store": manager.store, "settings": settings, "manager": manager})
        counts: Any = type("Counts", (), {"expired_segments": 0, "expired_bytes": 0})
        half: Target = target
        assert [gone.status for gone in RemoteRetention.of(chosen).apply(half, [where], counts)] == ["done"]
    assert counts.expired_segments == 2
    assert PinterestsReader(store).bases() == [20]


# ---- by several writers at once


BEFORE: dict[str, tuple[OperationName, ...]] = {"head": ("head",), "get": ("get",), "write": ("put", "replace")}


def interrupted(store: ObjectStore, before: str, happens: Callable[[], object]) -> ObjectStore:
    """Return a store that runs ``happens`` once, before the first operation of the kind ``before`` on ``_metadata``."""
    return ScriptedStore(store).on(BEFORE[before], KEY, lambda _: happens(), times=1)


@pytest.mark.parametrize("before", ["head", "get", "write"])
@pytest.mark.parametrize("is_first", [False, True])
def test_two_who_store_segments_at_once(disk: BrokerDisk, before: str, *, is_first: bool) -> None:
    store = MemoryObjectStore()
    if not is_first:
        store_segments(store, disk, 0)
    store_segments(interrupted(store, before, lambda: store_segments(store, disk, 2)), disk, 1)
    assert PinterestsReader(store).bases() == [*range(0 if not is_first else 10, 30, 10)]


@pytest.mark.parametrize("before", ["head", "get", "write"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_segment_that_is_removed_before_it_is_named(disk: BrokerDisk, before: str, *, is_first: bool) -> None:
    store = MemoryObjectStore()
    if not is_first:
        store_segments(store, disk, 0)
    store_segments(interrupted(store, before, lambda: remove(store, 20)), disk, 1)
    assert is_in_step(store)
    store_segments(store, disk, 2)
    assert PinterestsReader(store).bases() == [20]


@pytest.mark.parametrize("before", ["head", "get", "write"])
def test_a_segment_that_is_stored_while_others_are_removed(disk: BrokerDisk, before: str) -> None:
    store = MemoryObjectStore()
    store_segments(store, disk, 0, 1)
    remove(interrupted(store, before, lambda: store_segments(store, disk, 2)), 10)
    assert PinterestsReader(store).bases() == [10, 20]


def test_the_object_is_replaced_by_its_etag_alone(disk: BrokerDisk) -> None:
    """If a store refuses every attempt, the error is reported, and no segment is deleted while its entry remains."""
    store = MemoryObjectStore()
    store_segments(store, disk, 0, 1)

    refusing = ScriptedStore(store).on("replace", do=PreconditionFailedError(KEY))
    with pytest.raises(TieredStoreError, match="20 times, another process changed it first"):
        remove(refusing, 10)
    assert PinterestsReader(store).bases() == [0, 10]
