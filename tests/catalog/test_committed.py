"""Committed segments, as seen by a long-lived process while others commit and delete."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.catalog_stores import MadeSegment, partition_of, run_of
from tests.support.stores.doubles import CountingStore, FaultyStore, ScriptedStore
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.committed import CommittedSegments, SegmentIdentity
from tieredstore.errors import StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.model import TopicIdPartition

EVENTS = partition_of()
PREFIX = "a/"
AGE_S = 10.0


class Bucket:
    """A store with concurrent writers, one process's view of its segments, and that process's clock."""

    def __init__(self, **options: int) -> None:
        self.store = CountingStore(MemoryObjectStore())
        self.now_s = 0.0
        self.committed = CommittedSegments(
            self.store, PREFIX, max_age_s=AGE_S, clock=lambda: self.now_s, max_segments=options.get("max_segments", 100)
        )

    def put(self, *segments: MadeSegment) -> None:
        for segment in segments:
            segment.put(self.store.inner, PREFIX)

    def delete(self, segment: MadeSegment, *suffixes: Suffix) -> None:
        self.store.inner.delete([segment.key(suffix, PREFIX) for suffix in suffixes or Suffix])

    def finds(self, segment: MadeSegment) -> bool:
        copy = self.committed.find(identity_of(segment))
        assert copy is None or copy.segment_id == segment.metadata.remote_log_segment_id
        return copy is not None

    def requests(self, question: Callable[[], object]) -> dict[str, int]:
        """Return the number of requests that ``question`` makes, by the name of the operation."""
        self.store.reset()
        question()
        return dict(Counter(operation.name for operation in self.store.operations))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def segment() -> MadeSegment:
    return MadeSegment(EVENTS, 0, 9)


def identity_of(segment: MadeSegment) -> SegmentIdentity:
    return SegmentIdentity.of_stored(segment.metadata)


def test_one_listing_answers_for_a_partition_and_each_manifest_is_read_once(bucket: Bucket) -> None:
    segments = run_of(20, EVENTS)
    bucket.put(*segments)
    for expected in ({"list": 1, "get": 20}, {}):
        assert bucket.requests(lambda: [bucket.finds(segment) for segment in segments]) == expected
    bucket.now_s = AGE_S
    assert bucket.requests(lambda: [bucket.finds(segment) for segment in segments]) == {"list": 1}
    assert all(bucket.finds(segment) for segment in segments)


def test_a_segment_without_a_copy_costs_no_request_while_the_listing_is_new(bucket: Bucket) -> None:
    segments = run_of(3, EVENTS)
    assert bucket.requests(lambda: bucket.finds(segments[0])) == {"list": 1}
    assert bucket.requests(lambda: [bucket.finds(segment) for segment in segments]) == {}


def test_a_commit_of_another_process_is_noticed_at_that_age(bucket: Bucket, segment: MadeSegment) -> None:
    assert not bucket.finds(segment)
    bucket.put(segment)
    bucket.now_s = AGE_S - 0.1
    assert not bucket.finds(segment)
    bucket.now_s = AGE_S
    assert bucket.finds(segment)


def test_a_deletion_of_another_process_is_noticed_at_that_age(bucket: Bucket) -> None:
    first, second = run_of(2, EVENTS)
    bucket.put(first, second)
    assert bucket.finds(first)
    bucket.delete(first)
    bucket.delete(second)
    assert not bucket.finds(second)  # the manifest was listed, but is read only now, after its deletion
    bucket.now_s = AGE_S
    assert not bucket.finds(first)


def test_a_segment_that_was_tried_is_asked_for_anew_and_the_others_are_not(bucket: Bucket) -> None:
    first, second = run_of(2, EVENTS)
    assert not bucket.finds(first)
    bucket.put(first)
    bucket.committed.recheck(identity_of(first))
    assert bucket.requests(lambda: bucket.finds(second)) == {}
    assert bucket.requests(lambda: bucket.finds(first)) == {"list": 1, "get": 1}
    assert bucket.finds(first)
    assert bucket.requests(lambda: bucket.finds(first)) == {}


def test_a_change_of_a_partition_that_is_not_known_is_nothing(bucket: Bucket, segment: MadeSegment) -> None:
    bucket.committed.recheck(identity_of(segment))
    assert not bucket.finds(segment)


def test_segments_before_the_first_requested_one_are_not_listed() -> None:
    keys: list[str] = []

    def note(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in infos:
            keys.append(info.key)
            yield info

    store = ScriptedStore(MemoryObjectStore()).change("list", change=note)
    segments = run_of(10, EVENTS)
    for segment in segments:
        segment.put(store, PREFIX)
    committed = CommittedSegments(store, PREFIX, clock=lambda: 0.0)
    for asked, listed in ((8, 2), (9, 2), (0, 2 + 10), (5, 2 + 10)):
        assert committed.find(identity_of(segments[asked])) is not None
        assert len(keys) == 3 * listed


def test_partitions_side_by_side_keep_their_listings(bucket: Bucket) -> None:
    partitions = [run_of(3, partition_of(partition=number)) for number in range(4)]
    for segments in partitions:
        bucket.put(*segments)
    rounds = [segments[number] for number in range(3) for segments in partitions]
    assert bucket.requests(lambda: [bucket.finds(segment) for segment in rounds]) == {"list": 4, "get": 12}
    assert bucket.requests(lambda: [bucket.finds(segment) for segment in rounds]) == {}


def test_the_least_recently_used_partition_is_forgotten_and_listed_again() -> None:
    bucket = Bucket(max_segments=12)  # room for two partitions: a partition counts as six, its segments plus one
    first, second, third = (run_of(5, partition_of(partition=number)) for number in range(3))
    bucket.put(*first, *second, *third)
    for segments in (first, second, first, third):
        assert bucket.finds(segments[0])
    assert bucket.requests(lambda: bucket.finds(third[0])) == {}
    assert bucket.requests(lambda: bucket.finds(first[0])) == {}
    assert bucket.requests(lambda: bucket.finds(second[0])) == {"list": 1, "get": 1}


def test_partitions_without_a_segment_take_room_too() -> None:
    bucket = Bucket(max_segments=12)
    empty = [run_of(1, partition_of(partition=number))[0] for number in range(13)]
    assert not any(bucket.finds(segment) for segment in empty)
    assert bucket.requests(lambda: bucket.finds(empty[-1])) == {}
    assert bucket.requests(lambda: bucket.finds(empty[0])) == {"list": 1}


def test_a_partition_larger_than_all_room_is_still_answered_for() -> None:
    bucket = Bucket(max_segments=2)
    segments = run_of(20, EVENTS)
    bucket.put(*segments)
    assert all(bucket.finds(segment) for segment in segments)
    assert bucket.requests(lambda: bucket.finds(segments[7])) == {}


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
def test_a_copy_that_lost_an_object_does_not_count_and_is_named_once(
    bucket: Bucket, segment: MadeSegment, suffix: Suffix, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put(segment)
    assert bucket.finds(segment)
    bucket.delete(segment, suffix)
    for _ in range(3):
        bucket.now_s += AGE_S
        assert not bucket.finds(segment)
        assert not bucket.finds(segment)
    expected = (
        f"stored segment {segment.metadata.remote_log_segment_id.id} lost its .{suffix.value} and is treated as not"
    )
    assert [message.startswith(expected) for message in caplog.messages] == [True]
    bucket.put(segment)
    bucket.now_s += AGE_S
    assert bucket.finds(segment)


def test_a_damaged_manifest_does_not_count_and_is_named_once(
    bucket: Bucket, segment: MadeSegment, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put(segment)
    bucket.store.inner.put(segment.key(prefix=PREFIX), b"{}")
    for expected in ({"list": 1, "get": 1}, {}):
        assert bucket.requests(lambda: bucket.finds(segment)) == expected
    bucket.now_s = AGE_S
    assert bucket.requests(lambda: bucket.finds(segment)) == {"list": 1, "get": 1}  # possibly repaired by now
    assert ["is damaged" in message for message in caplog.messages] == [True]
    bucket.put(segment)
    bucket.now_s += AGE_S
    assert bucket.finds(segment)


def test_a_second_copy_stands_in_for_one_that_does_not_count(bucket: Bucket) -> None:
    lost, whole = (MadeSegment(EVENTS, 0, 9, number=number) for number in range(2))
    bucket.put(lost, whole)
    bucket.delete(lost, Suffix.LOG)
    assert bucket.finds(whole)


@pytest.mark.parametrize(
    "other",
    [
        MadeSegment(EVENTS, 0, 8),
        MadeSegment(EVENTS, 0, 9, epochs=((1, 0),)),
        MadeSegment(partition_of(partition=1), 0, 9),
        MadeSegment(partition_of("events-2"), 0, 9),
    ],
)
def test_a_segment_of_another_identity_is_another_one(bucket: Bucket, other: MadeSegment) -> None:
    bucket.put(other)
    assert not bucket.finds(MadeSegment(EVENTS, 0, 9))
    assert bucket.finds(other)


def test_offsets_that_a_jvm_wrote_in_its_locales_digits_are_known(bucket: Bucket) -> None:
    plain, arabic = run_of(2, EVENTS)
    bucket.put(plain)
    digits = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    for suffix in Suffix:
        folder, _, name = arabic.key(suffix, PREFIX).rpartition("/")
        content = arabic.manifest() if suffix is Suffix.MANIFEST else b"x"
        bucket.store.inner.put(f"{folder}/{name[:20].translate(digits)}{name[20:]}", content)
    assert bucket.finds(arabic)
    assert bucket.finds(plain)


@pytest.mark.parametrize("number", [0, 1], ids=["the listing", "the manifest"])
def test_a_request_that_fails_is_raised_and_made_again(number: int, segment: MadeSegment) -> None:
    store = FaultyStore(MemoryObjectStore(), number)
    segment.put(store.inner)
    committed = CommittedSegments(store)
    with pytest.raises(StoreUnavailableError):
        committed.find(identity_of(segment))
    assert committed.find(identity_of(segment)) is not None


def test_many_threads_share_a_partitions_one_listing(bucket: Bucket) -> None:
    partitions: list[TopicIdPartition] = [partition_of(partition=number) for number in range(3)]
    segments = [segment for partition in partitions for segment in run_of(8, partition)]
    bucket.put(*segments)
    start = threading.Barrier(len(segments))
    answers: list[bool] = []

    def ask(segment: MadeSegment) -> None:
        start.wait()
        # Begin with the partition's lowest offset, so that no thread must list again from an earlier key.
        first = MadeSegment(segment.where, 0, 9)
        answers.append(bucket.finds(first) and bucket.finds(segment))

    threads = [threading.Thread(target=ask, args=(segment,)) for segment in segments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * len(segments)
    assert bucket.store.requests["list"] == 3
    assert bucket.store.requests["get"] == len(segments)


STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "delete", "lose", "wait", "ask", "ask", "try"]), st.integers(0, 3)),
    max_size=60,
)


@given(STEPS)
def test_an_answer_was_true_at_an_instant_no_longer_ago_than_the_age(steps: list[tuple[str, int]]) -> None:
    """Other processes commit and delete at will; after ``recheck``, the answer is the segment's current state."""
    bucket = Bucket(max_segments=6)
    segments = [*run_of(2, EVENTS), *run_of(2, partition_of(partition=1))]
    history = [[(0.0, False)] for _ in segments]
    tried = dict.fromkeys(range(4), False)
    for step, number in steps:
        segment, states = segments[number], history[number]
        bucket.now_s += 1
        if step in {"commit", "delete", "lose"}:
            bucket.put(segment)
            if step != "commit":
                bucket.delete(segment, *([Suffix.LOG] if step == "lose" else Suffix))
            states.append((bucket.now_s, step == "commit"))
            tried[number] = False
        elif step == "wait":
            bucket.now_s += 4
        elif step == "try":
            bucket.committed.recheck(identity_of(segment))
            tried[number] = True
        else:
            since = bucket.now_s - AGE_S
            before = [state for changed_s, state in states if changed_s <= since][-1:]
            possible = {*before, *(state for changed_s, state in states if changed_s > since)}
            assert bucket.finds(segment) in ({states[-1][1]} if tried[number] else possible)
