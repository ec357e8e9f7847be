"""Reading Pinterest's raw layout: files of a real broker's disk, stored where Pinterest's uploader stores them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.support.golden.records import expected_rows, partitions_of, rows_of
from tests.support.golden.segments import case_path, segments
from tests.support.records.record_reader import read_records
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.problems import ProblemKind
from tieredstore.catalog.watermark import MoveBack, Watermark
from tieredstore.config import Settings, settings_from
from tieredstore.errors import ObjectNotFoundError, StoreError
from tieredstore.kafka.checkpoints import parse_leader_epochs
from tieredstore.kafka.logdir import discover
from tieredstore.model import IndexType
from tieredstore.partitions.selections import Subscribe
from tieredstore.places.opening import place_store
from tieredstore.places.record import entropy_bits
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker
from tieredstore.testing.segments import write_segment


def raw_settings(bits: int = 0, **others: str) -> Settings:
    names = {"endpoint.prefix.entropy.bits": str(bits), "endpoint.cluster": "kafkaCluster1", "key.prefix": "p/"}
    texts = {"storage.backend.class": "memory", "chunk.size": "4096", "endpoint.layout": "pinterest", **names}
    return settings_from({**texts, **others})


def put_raw(store: ObjectStore, log_dir: Path, bits: int = 0) -> None:
    """Store all closed segments of a disk as Pinterest's uploader does, with the other files that it writes."""
    for folder in log_dir.iterdir():
        topic, _, number = folder.name.rpartition("-")
        front = entropy_bits("kafkaCluster1", topic, int(number), bits)
        place = f"p/{front}/kafkaCluster1/{folder.name}" if bits else f"p/kafkaCluster1/{folder.name}"
        bases = sorted(path.name[:20] for path in folder.glob("*.log"))
        for base in bases:
            for ending in ("index", "timeindex", "log"):
                store.put(f"{place}/{base}.{ending}", (folder / f"{base}.{ending}").read_bytes())
        store.put(f"{place}/offset.wm", bases[-1].encode())
        store.put(f"{place}/_metadata", b"{}")


CASES = ["05-heuristic-lz4", "06-codec-zstd-logappendtime", "07-txn"]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "bits"), [*((case, 0) for case in CASES), ("01-none", 5)])
def test_real_segments_are_read_as_a_java_consumer_read_them(case: str, bits: int) -> None:
    store = MemoryObjectStore()
    put_raw(store, case_path(case) / "original", bits)
    settings = raw_settings(bits)
    topic = segments(case)[0].topic
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        for partition in partitions_of(case):
            assert rows_of(read_records(manager, topic, partition, isolation="read_uncommitted")) == expected_rows(
                case, partition
            )
        if case == "07-txn":
            read = rows_of(read_records(manager, topic, 0, isolation="read_committed"))
            assert read == expected_rows(case, 0, "read_committed")


def test_a_manifest_says_what_the_plugins_says() -> None:
    case = "07-txn"
    store = MemoryObjectStore()
    put_raw(store, case_path(case) / "original")
    settings = raw_settings()
    by_offset = {segment.base_offset: segment for segment in segments(case)}
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        catalog = load_catalog(manager)
        spans = catalog.lineage(segments(case)[0].topic, 0).spans
        assert [span.start for span in spans] == sorted(by_offset)
        for span in spans:
            folder = case_path(case) / "original" / f"{span.segment.topic_id_partition.topic}-0"
            original = folder / f"{span.start:020d}"
            described = span.segment
            assert described.segment_size_in_bytes == original.with_suffix(".log").stat().st_size
            with manager.fetch_index(described, IndexType.OFFSET) as stream:
                assert stream.read() == original.with_suffix(".index").read_bytes()
            with manager.fetch_index(described, IndexType.TIMESTAMP) as stream:
                assert stream.read() == original.with_suffix(".timeindex").read_bytes()
            transactions = original.with_suffix(".txnindex")
            with manager.fetch_index(described, IndexType.TRANSACTION) as stream:
                content = stream.read()
                assert content == (transactions.read_bytes() if transactions.exists() else b"")


def events(store: ObjectStore, folder: Path, *segments: tuple[int, int, int]) -> None:
    """Store segments, each given as (base offset, number of records, leader epoch), with one record per batch."""
    for base, count, epoch in segments:
        batches = [
            build_batch([Record(b"k", b"%d" % offset, offset)], offset, leader_epoch=epoch)
            for offset in range(base, base + count)
        ]
        write_segment(folder, batches, base_offset=base)
    put_raw(store, folder)


def offsets_read(store: ObjectStore, **settings: str) -> list[int]:
    chosen = raw_settings(**settings)  # type: ignore[arg-type]
    with RemoteStorageManager(chosen, store=place_store(store, chosen)) as manager:
        return [row["offset"] for row in rows_of(read_records(manager, "events", 0))]


def test_a_hole_between_segments_is_a_gap_and_not_passed_over(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    events(store, tmp_path, (0, 10, 0), (10, 10, 0), (20, 10, 1))
    store.delete(["p/kafkaCluster1/events-0/00000000000000000010.log"])
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        catalog = load_catalog(manager)
        assert [(gap.start, gap.stop) for gap in catalog.lineage("events", 0).gaps] == [(10, 20)]
        assert [problem.kind for problem in catalog.problems] == [ProblemKind.INCOMPLETE]


def test_leader_epochs_are_those_of_the_batches(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    batches = [
        build_batch(
            [Record(b"k", b"x" * 900, offset)], offset, leader_epoch=(2 if offset < 13 else 5 if offset < 30 else 9)
        )
        for offset in range(40)
    ]
    write_segment(tmp_path, batches, base_offset=0)
    events(store, tmp_path, (40, 5, 9), (45, 5, 11))
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        spans = load_catalog(manager).lineage("events", 0).spans
        assert [span.segment.segment_leader_epochs for span in spans] == [
            ((2, 0), (5, 13), (9, 30)), ((9, 40),), ((11, 45),)
        ]  # fmt: skip
        with manager.fetch_index(spans[-1].segment, IndexType.LEADER_EPOCH) as stream:
            assert parse_leader_epochs(stream.read()) == ((2, 0), (5, 13), (9, 30), (11, 45))


@pytest.mark.parametrize("ending", ["index", "timeindex"])
@pytest.mark.parametrize("other", [b"", b"\x00" * 24, b"\x7f" * 24, b"\x00" * 11, bytes([0, 0, 0, 5, 0, 0, 0, 7] * 3)])
def test_an_index_of_another_log_is_not_used(tmp_path: Path, ending: str, other: bytes) -> None:
    store = MemoryObjectStore()
    events(store, tmp_path, (0, 10, 0))
    store.put(f"p/kafkaCluster1/events-0/{0:020d}.{ending}", other)
    assert offsets_read(store) == list(range(10))


def test_a_log_that_is_damaged_is_named(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    events(store, tmp_path, (0, 10, 0), (10, 10, 0))
    key = f"p/kafkaCluster1/events-0/{0:020d}.log"
    store.put(key, store.get(key)[:-3])
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        assert [problem.kind for problem in load_catalog(manager).problems] == [ProblemKind.DAMAGED]


def test_a_manifest_is_a_few_small_reads_and_a_partition_one_listing(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    batches = [build_batch([Record(b"k", b"x" * 900, offset)], offset) for offset in range(40)]
    write_segment(tmp_path, batches, base_offset=0)
    put_raw(store, tmp_path)
    counting = CountingStore(store)
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(counting, settings)) as manager:
        assert len(load_catalog(manager, topic="events").lineage("events", 0).spans) == 1
    # The requests are: the layout's record, the indexes' last entries, and the log's first piece with its end.
    assert [operation.name for operation in counting.operations].count("list") == 1
    assert [operation.name for operation in counting.operations].count("get") == 1 + 3


def test_an_open_transaction_is_undecided_where_its_segment_ends() -> None:
    case = "07-txn"
    store = MemoryObjectStore()
    folder = case_path(case) / "original"
    put_raw(store, folder)
    first = discover(next(folder.iterdir())).segments[0]
    assert first.base_offset == 0
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        spans = load_catalog(manager).lineage(segments(case)[0].topic, 0).spans
        snapshot = next(folder.iterdir()) / f"{spans[0].stop:020d}.snapshot"
        assert snapshot.exists()
        with manager.fetch_index(spans[0].segment, IndexType.PRODUCER_SNAPSHOT) as stream:
            assert stream.read()


def test_at_a_cut_within_a_segment_what_is_open_there_is_undecided(tmp_path: Path) -> None:
    """A later leader continued the log from within the segment. The segment's records after that offset belong to an
    abandoned log, and so does the producer snapshot made at its end.
    """
    store, settings = MemoryObjectStore(), raw_settings()
    who = Producer(7, 0, 0, transactional=True)
    batches = [
        build_batch([Record(b"k")] * 10, 0, leader_epoch=3),
        build_batch([Record(b"k")] * 10, 10, producer=who, leader_epoch=3),
        build_end_marker(20, who, commit=True),
        build_batch([Record(b"k")] * 9, 21, leader_epoch=3),
    ]
    write_segment(tmp_path, batches, base_offset=0)
    put_raw(store, tmp_path)
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        query = LogQuery(Subscribe(("events",)))
        where = survey_logs(manager, query).logs["events", 0].stored_partition
        for at, end in ((25, 25), (20, 10), (15, 10)):
            mark = Watermark(where, at, 4, moved_back=(MoveBack(30, at, 4, 0),))
            store.put("p/!tieredstore/watermarks/events/0.json", mark.to_bytes())
            assert survey_logs(manager, query).logs["events", 0].end == end


def test_deleting_takes_the_log_first_and_writes_are_refused(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    events(store, tmp_path, (0, 10, 0), (10, 10, 0))
    settings = raw_settings()
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        segment = load_catalog(manager).lineage("events", 0).spans[0].segment
        manifest = next(info for info in manager.store.list("p/events") if info.key.endswith("manifest"))
        with pytest.raises(StoreError, match="no manifests"):
            manager.store.replace(manifest.key, b"", "etag")
        with pytest.raises(StoreError, match="no manifests"):
            manager.store.put(manifest.key, b"")
        manager.delete_log_segment_data(segment)
    left = [info.key.rpartition("/")[2] for info in store.list("p/kafkaCluster1/")]
    assert left == [f"{10:020d}.{ending}" for ending in ("index", "log", "timeindex")] + ["_metadata", "offset.wm"]


def test_a_manifest_is_gone_once_another_log_has_its_place() -> None:
    store = MemoryObjectStore()
    put_raw(store, case_path("07-txn") / "original")
    settings = raw_settings()
    manifest = next(info.key for info in place_store(store, settings).list("p/") if info.key.endswith("-manifest"))
    log = next(info for info in store.list("p/") if info.key.endswith(".log"))
    place_store(store, settings).get(manifest)
    store.delete([log.key])
    store.put(log.key, b"another log")
    for ask in (place_store(store, settings).get, place_store(store, settings).head):
        with pytest.raises(ObjectNotFoundError, match="another log has been written in its place"):
            ask(manifest)


def test_listings_are_sorted_and_begin_behind_a_key() -> None:
    store = MemoryObjectStore()
    for topic in ("a", "a-b", "a-1", "b"):
        for partition in (0, 1, 10, 2):
            for base in (0, 100):
                for ending in ("index", "timeindex", "log"):
                    store.put(f"p/kafkaCluster1/{topic}-{partition}/{base:020d}.{ending}", b"x" * 12)
    seen = place_store(store, raw_settings())
    keys = [info.key for info in seen.list("p/")]
    assert keys == sorted(keys)
    assert len(keys) == 4 * 4 * 2 * 3
    for at in range(0, len(keys), 7):
        assert [info.key for info in seen.list("p/", keys[at])] == keys[at + 1 :]
    for prefix in ("p/a-", "p/a", "p/b-", keys[0][:12], keys[0].rpartition("/")[0] + "/", keys[3]):
        wanted = [key for key in keys if key.startswith(prefix)]
        assert [info.key for info in seen.list(prefix)] == wanted
        assert [info.key for info in seen.list(prefix, wanted[1 % len(wanted)])] == wanted[1 % len(wanted) + 1 :]


def test_the_store_can_be_pickled(tmp_path: Path) -> None:
    seen = place_store(FilesystemObjectStore(tmp_path), raw_settings(3))
    assert repr(pickle.loads(pickle.dumps(seen))) == repr(seen)
