"""Planning from a listing: whole, incomplete, damaged, superseded segments; requests counted."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from tests.support.golden.segments import CASES, segments
from tests.support.golden.stored import metadata_of, settings_of
from tests.support.stores.catalog_stores import (
    OTHER_ID,
    TOPIC_ID,
    MadeSegment,
    commit_between_pages,
    manager_of,
    partition_of,
    run_of,
)
from tests.support.stores.doubles import CountingStore, Operation, ScriptedStore, gather
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.problems import ProblemKind
from tieredstore.catalog.watermark import MoveBack, ShippedSegment, Watermark, watermark_key
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    IndexesCorruptError,
    ObjectArchivedError,
    ResourceNotFoundError,
    StoreUnavailableError,
)
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import Uuid
from tieredstore.process.parallel import READERS
from tieredstore.remote import RemoteStorageManager

EVENTS = partition_of()


@pytest.fixture
def manager(store: CountingStore) -> Iterator[RemoteStorageManager]:
    with manager_of(store) as manager:
        yield manager


def extents(catalog: Catalog, topic: str = "events", partition: int = 0) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in catalog.lineage(topic, partition).spans]


@pytest.mark.parametrize("case", CASES)
def test_a_golden_store_gives_the_segments_that_the_broker_had(case: str) -> None:
    with RemoteStorageManager(settings_of(case)) as manager:
        catalog = load_catalog(manager)
    originals = segments(case)
    assert catalog.topics() == (originals[0].topic,)
    assert catalog.problems == ()
    topic = originals[0].topic
    assert all(not catalog.lineage(topic, number).gaps for number in catalog.incarnation(topic).partitions)
    for partition in {segment.partition for segment in originals}:
        lineage = catalog.lineage(originals[0].topic, partition, Uuid.parse(originals[0].topic_id))
        expected = [segment for segment in originals if segment.partition == partition]
        assert [(s.start, s.stop - 1) for s in lineage.spans] == [(s.base_offset, s.end_offset) for s in expected]
        assert [s.segment.remote_log_segment_id for s in lineage.spans] == [
            metadata_of(segment).remote_log_segment_id for segment in expected
        ]
        assert (lineage.earliest_offset, lineage.end_offset) == (0, expected[-1].end_offset + 1)
        assert (lineage.superseded, lineage.covered) == ((), ())


def test_a_planning_takes_one_listing_and_a_request_for_each_manifest(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    stored = [segment.put(store) for segment in run_of(150, EVENTS)]
    store.reset()
    catalog = load_catalog(manager)
    assert store.requests == {"list": 1, "get": 150}
    assert sorted(store.keys_of("get")) == sorted(segment.key() for segment in stored)
    assert extents(catalog) == [(10 * i, 10 * i + 10) for i in range(150)]


def test_only_the_part_that_is_asked_for_is_read(store: CountingStore, manager: RemoteStorageManager) -> None:
    for topic, partition, topic_id in (
        ("a", 0, TOPIC_ID),
        ("a", 1, TOPIC_ID),
        ("a", 0, OTHER_ID),
        ("a-b", 0, TOPIC_ID),
    ):
        MadeSegment(partition_of(topic, partition, topic_id), 0, 9).put(store)
    store.reset()
    assert load_catalog(manager, topic="a", topic_id=TOPIC_ID, partition=1).incarnation("a").partitions == (1,)
    assert store.requests == {"list": 1, "get": 1}
    assert load_catalog(manager, topic="a").topics() == ("a",)
    assert load_catalog(manager).topics() == ("a", "a-b")


def test_a_segment_counts_only_if_its_three_objects_are_there(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    stored = [segment.put(store) for segment in run_of(4, EVENTS)]
    for segment, suffix in zip(stored[1:], Suffix, strict=True):
        store.delete([segment.key(suffix)])
    catalog = load_catalog(manager)
    assert extents(catalog) == [(0, 10)]
    assert [(problem.kind, problem.start_offset) for problem in catalog.problems] == [
        (ProblemKind.INCOMPLETE, 10 * i) for i in (1, 2, 3)
    ]
    assert [problem.detail for problem in catalog.problems] == [f"it has no .{suffix.value}" for suffix in Suffix]
    assert "of events-0" in str(catalog.problems[0])


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json"])
def test_a_damaged_manifest_is_a_problem_and_leaves_a_gap(
    damage: bytes, store: CountingStore, manager: RemoteStorageManager
) -> None:
    stored = [segment.put(store) for segment in run_of(3, EVENTS)]
    store.put(stored[1].key(), damage)
    catalog = load_catalog(manager)
    assert [(gap.start, gap.stop) for gap in catalog.lineage("events", 0).gaps] == [(10, 20)]
    assert [problem.kind for problem in catalog.problems] == [ProblemKind.DAMAGED]
    assert f"{stored[1].path}.rsm-manifest is damaged" in catalog.problems[0].detail


def test_an_archived_manifest_is_a_problem_and_the_rest_is_read() -> None:
    store = ScriptedStore(MemoryObjectStore())
    first, *_ = [segment.put(store) for segment in run_of(3, EVENTS)]
    store.on("get", first.key(), ObjectArchivedError("get it: restore the object from the archive first"))
    with manager_of(store) as manager:
        catalog = load_catalog(manager)
    assert extents(catalog) == [(10, 20), (20, 30)]
    (problem,) = catalog.problems
    assert (problem.kind, problem.is_loss) == (ProblemKind.ARCHIVED, True)
    assert problem.detail == "get it: restore the object from the archive first"


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
def test_one_partitions_archived_object_leaves_the_others_readable(suffix: Suffix) -> None:
    store = ScriptedStore(MemoryObjectStore())
    MadeSegment(partition_of(partition=1), 0, 9).put(store)
    MadeSegment(EVENTS, 0, 9, ((0, 0),)).put(store)
    ruler = MadeSegment(EVENTS, 10, 19, ((1, 10),)).put(store)
    store.on("get", ruler.key(suffix), ObjectArchivedError("restore it"))
    with manager_of(store) as manager:
        catalog = load_catalog(manager)
        assert extents(catalog, partition=1) == [(0, 10)]
        if suffix is Suffix.INDEXES:
            expected = r"the segments of the log of events-0 .* cannot be determined: restore it"
            with pytest.raises(ObjectArchivedError, match=expected):
                catalog.lineage("events", 0)
        else:
            # A segment that overlaps another one is compared with its log.
            MadeSegment(EVENTS, 15, 24, ((1, 10),)).put(store)
            assert extents(load_catalog(manager))[-1] == (20, 25)


def test_one_partitions_archived_watermark_leaves_the_others_readable() -> None:
    store = ScriptedStore(MemoryObjectStore())
    MadeSegment(partition_of(partition=1), 0, 9).put(store)
    # Both begin at offset 0, so the watermark decides which of the two logs is valid.
    for number, epoch in ((0, 1), (9, 0)):
        MadeSegment(EVENTS, 0, 9, ((epoch, 0),), number=number).put(store)
    store.on(("get", "get_into"), watermark_key("", EVENTS), ObjectArchivedError("restore it"))
    with manager_of(store) as manager:
        catalog = load_catalog(manager)
    assert extents(catalog, partition=1) == [(0, 10)]
    with pytest.raises(ObjectArchivedError, match=r"the segments of the log of events-0 .*: restore it"):
        catalog.lineage("events", 0)


def test_a_manifest_that_ends_before_its_key_begins_is_a_problem(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    # The manifest's metadata contradicts the key, which contains the base offset.
    segment = MadeSegment(EVENTS, 10, 19)
    segment.put(store)
    store.put(segment.key(), segment.manifest(start_offset=0, end_offset=9))
    catalog = load_catalog(manager)
    assert [problem.kind for problem in catalog.problems] == [ProblemKind.DAMAGED]
    assert catalog.topics() == ()


def test_a_manifest_too_long_to_be_one_is_not_fetched(store: CountingStore, manager: RemoteStorageManager) -> None:
    segment = MadeSegment(EVENTS, 0, 9).put(store)
    store.put(segment.key(), bytes(MAX_MANIFEST_SIZE + 1))
    store.reset()
    assert [problem.kind for problem in load_catalog(manager).problems] == [ProblemKind.DAMAGED]
    assert store.requests == {"list": 1}


def test_a_segment_deleted_while_the_listing_is_read_is_left_out(manager: RemoteStorageManager) -> None:
    stored = run_of(3, EVENTS)

    key = stored[1].key()
    vanishing = ScriptedStore(manager.store).on("get", key, lambda _: manager.store.delete([key]))
    for segment in stored:
        segment.put(vanishing)
    with manager_of(vanishing) as of_vanishing:
        catalog = load_catalog(of_vanishing)
    assert catalog.problems == ()
    assert extents(catalog) == [(0, 10), (20, 30)]


def test_a_segment_committed_between_two_pages_of_the_listing_is_whole() -> None:
    """A page ends at a segment's log. Then this segment and the next one are committed, before the next page."""
    first, torn, last = run_of(3, EVENTS)

    inner = MemoryObjectStore()
    for segment in (first, torn):
        segment.put(inner)
    inner.delete([torn.key(Suffix.INDEXES), torn.key(Suffix.MANIFEST)])
    with manager_of(commit_between_pages(ScriptedStore(inner), torn, last)) as manager:
        catalog = load_catalog(manager)
    assert extents(catalog) == [(0, 10), (10, 20), (20, 30)]
    assert catalog.problems == ()


def test_an_unavailable_store_is_an_error_not_an_empty_catalog() -> None:
    store = ScriptedStore(MemoryObjectStore()).on("get", do=StoreUnavailableError("down"))
    for segment in run_of(100, EVENTS):
        segment.put(store)
    with manager_of(store) as manager, pytest.raises(StoreUnavailableError):
        load_catalog(manager)


def test_older_epochs_are_settled_by_the_rulers_index_at_two_requests(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    MadeSegment(EVENTS, 0, 99, ((0, 0),)).put(store)
    MadeSegment(EVENTS, 100, 199, ((1, 100),)).put(store)
    ruler = MadeSegment(EVENTS, 200, 249, ((4, 200),), history=((0, 0), (1, 100), (4, 200))).put(store)
    store.reset()
    catalog = load_catalog(manager)
    assert extents(catalog) == [(0, 100), (100, 200), (200, 250)]
    assert store.requests == {"list": 1, "get": 3 + 2}
    assert store.keys_of("get")[-1] == ruler.key(Suffix.INDEXES)


def test_a_segment_that_was_left_behind_is_held_against_its_log_first_at_three_requests(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    MadeSegment(EVENTS, 0, 99, ((0, 0),)).put(store)
    left_behind = MadeSegment(EVENTS, 100, 199, ((1, 100),)).put(store)
    MadeSegment(EVENTS, 150, 249, ((4, 150),), history=((0, 0), (1, 100), (4, 120))).put(store)
    store.reset()
    catalog = load_catalog(manager)
    assert extents(catalog) == [(0, 100), (100, 120), (150, 250)]
    assert [(gap.start, gap.stop) for gap in catalog.lineage("events", 0).gaps] == [(120, 150)]
    assert [(cut.start, cut.stop) for cut in catalog.lineage("events", 0).superseded] == [(120, 200)]
    assert store.requests == {"list": 1, "get": 3 + 2 + 2 + 1, "get_into": 1}
    assert store.keys_of("get_into") == [left_behind.key(Suffix.LOG)]
    assert store.keys_of("get")[-1] == watermark_key("", EVENTS)


@pytest.mark.parametrize("listed", [0, 1, 2, 3])
@pytest.mark.parametrize("epochs", [((0, 20),), ((0, 20), (2, 25)), ((2, 20),)])
def test_a_ruler_that_is_uploaded_behind_the_listing_rules(listed: int, epochs: LeaderEpochs) -> None:
    """After two unclean elections, the last leader uploads the first leader's records again, then its own."""
    store = ScriptedStore(MemoryObjectStore())
    between = [MadeSegment(EVENTS, start, start + 9, ((1, start),), number=9) for start in (0, 10, 20)]
    again = [MadeSegment(EVENTS, start, start + 9, ((0, start),)) for start in (0, 10)]
    again.append(MadeSegment(EVENTS, 20, 29, epochs, history=((0, 0), *(entry for entry in epochs if entry[0]))))
    for segment in (*between, *again[:listed]):
        segment.put(store)

    def upload(_: Operation) -> None:
        for segment in again[listed:]:
            segment.put(store)
        shipped = ShippedSegment(str(again[2].metadata.remote_log_segment_id.id), 20, 29)
        mark = Watermark(EVENTS, 30, 2, segment=shipped, moved_back=(MoveBack(30, 0, 2, 0),))
        store.put(watermark_key("", EVENTS), mark.to_bytes())

    store.on("list", "events*", upload, moment="after", times=1)
    with manager_of(store) as manager:
        spans = load_catalog(manager, topic="events").lineage("events", 0).spans
    expected = [segment.metadata.remote_log_segment_id for segment in (again if listed else between)[: listed or 3]]
    assert [span.segment.remote_log_segment_id for span in spans] == expected


def test_one_partitions_damaged_index_leaves_the_others_readable(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    MadeSegment(partition_of(partition=1), 0, 9).put(store)
    MadeSegment(EVENTS, 0, 9, ((0, 0),)).put(store)
    ruler = MadeSegment(EVENTS, 10, 19, ((1, 10),)).put(store)
    store.put(ruler.key(Suffix.INDEXES), b"0\n1\n9 9\n"[: len(ruler.index)].ljust(len(ruler.index), b"\n"))
    catalog = load_catalog(manager)
    assert extents(catalog, partition=1) == [(0, 10)]
    with pytest.raises(CorruptDataError, match=r"the segments of the log of events-0 .* cannot be determined"):
        catalog.lineage("events", 0)
    assert catalog.incarnation("events").partitions == (0, 1)
    store.put(ruler.key(Suffix.INDEXES), b"")
    with manager_of(store) as another, pytest.raises(IndexesCorruptError):
        load_catalog(another).lineage("events", 0)


def test_what_is_not_there_is_named(store: CountingStore, manager: RemoteStorageManager) -> None:
    MadeSegment(EVENTS, 0, 9).put(store)
    catalog = load_catalog(manager)
    with pytest.raises(ResourceNotFoundError, match="no segment of a topic named 'orders'"):
        catalog.incarnation("orders")
    with pytest.raises(ResourceNotFoundError, match="partition 7 of topic events"):
        catalog.lineage("events", 7)
    with pytest.raises(ResourceNotFoundError, match=f"with the id {OTHER_ID} was found; there is {TOPIC_ID}"):
        catalog.lineage("events", 0, OTHER_ID)


def put_two_lives(store: CountingStore, first: tuple[int, int], second: tuple[int, int]) -> None:
    for topic_id, times in ((TOPIC_ID, first), (OTHER_ID, second)):
        for number, copied_ms in enumerate(times):
            where = partition_of(partition=number, topic_id=topic_id)
            MadeSegment(where, 0, 9, copied_ms=copied_ms).put(store)


@pytest.mark.parametrize(("first", "second", "current"), [((1, 5), (6, 9), OTHER_ID), ((7, 9), (1, 6), TOPIC_ID)])
def test_the_incarnation_copied_after_the_others_is_current(
    first: tuple[int, int], second: tuple[int, int], current: Uuid, store: CountingStore, manager: RemoteStorageManager
) -> None:
    put_two_lives(store, first, second)
    catalog = load_catalog(manager)
    assert [life.topic_id for life in catalog.incarnations("events")][-1] == current
    assert len(catalog.incarnations("events")) == 2
    assert catalog.lineage("events", 0).partition.topic_id == current
    assert catalog.lineage("events", 0, TOPIC_ID).partition.topic_id == TOPIC_ID


@pytest.mark.parametrize(
    ("first", "second"), [((1, 5), (5, 9)), ((1, 9), (2, 3)), ((-1, 5), (6, 9)), ((1, 5), (-1, 9))]
)
def test_incarnations_that_time_does_not_part_have_to_be_chosen_by_id(
    first: tuple[int, int], second: tuple[int, int], store: CountingStore, manager: RemoteStorageManager
) -> None:
    put_two_lives(store, first, second)
    catalog = load_catalog(manager)
    for ask in (lambda: catalog.incarnation("events").partitions, lambda: catalog.lineage("events", 0)):
        with pytest.raises(ConfigError, match="created more than once; choose one of the topic ids") as caught:
            ask()
        assert str(TOPIC_ID) in str(caught.value)
        assert str(OTHER_ID) in str(caught.value)
    assert catalog.lineage("events", 0, OTHER_ID).partition.topic_id == OTHER_ID


def test_a_catalog_is_a_value_that_can_be_sent_elsewhere(store: CountingStore, manager: RemoteStorageManager) -> None:
    for segment in run_of(3, EVENTS):
        segment.put(store)
    catalog = load_catalog(manager)
    assert pickle.loads(pickle.dumps(catalog)) == catalog


def test_strays_between_a_segments_objects_do_not_part_them(
    store: CountingStore, manager: RemoteStorageManager
) -> None:
    path = MadeSegment(EVENTS, 0, 9).put(store).path
    for stray in (".indexes.bak", ".indexes.log", ".j.log", ".log.rsm-manifest", ".log/x.log", ".m", "log", ""):
        store.put(path + stray, b"")
    catalog = load_catalog(manager)
    assert catalog.problems == ()
    assert extents(catalog) == [(0, 10)]


def test_objects_are_found_under_the_prefix_and_nowhere_else(store: CountingStore) -> None:
    MadeSegment(EVENTS, 0, 9).put(store, "here/x-")
    MadeSegment(EVENTS, 10, 19).put(store)
    with manager_of(store, "here/x-") as manager:
        assert extents(load_catalog(manager)) == [(0, 10)]


def test_manifests_are_read_by_all_readers() -> None:
    running, counts = list[Operation](), list[int]()

    def begin(operation: Operation) -> None:
        running.append(operation)
        counts.append(len(running))

    store = ScriptedStore(MemoryObjectStore()).on("get", do=begin).on("get", do=running.remove, moment="after")
    store.on("get", do=gather(READERS))
    for segment in run_of(100, partition_of()):
        segment.put(store)
    with manager_of(store) as manager:
        load_catalog(manager)
    assert max(counts) == READERS
