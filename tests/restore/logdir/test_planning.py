"""The end of a restored log: cuts at times, and before open transactions, compared with a search by hand."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.errors import IndexesCorruptError
from tieredstore.kafka.checkpoints import ProducerState, format_leader_epochs, format_producer_snapshot
from tieredstore.model import AtTime, IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.layout import KeyLayout
from tieredstore.restore.logdir.planning import plan_spans
from tieredstore.restore.retention import select_deleted
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker

ORDERS = TopicIdPartition(Uuid(b"orders-in-bucket"), "orders", 0)


@dataclass(frozen=True)
class Part:
    """A segment with its ``batches``, and the ``span`` of offsets that the log reads from it: None for all. The
    snapshot at the segment's end has the open transactions ``open_since``; None if there is no snapshot.
    """

    first: int
    end: int
    batches: Sequence[bytes]
    span: tuple[int, int] | None = None
    max_timestamp_ms: int = -1
    open_since: Iterable[tuple[int, int]] | None = ()


class Stored:
    """Segments in memory."""

    layout = KeyLayout()

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts, spans = dict[int, Part](), list[Span]()
        for number, part in enumerate(parts):
            size, one = sum(map(len, part.batches)), RemoteLogSegmentId(ORDERS, Uuid(bytes([number]) * 16))
            segment = RemoteLogSegmentMetadata(one, part.first, part.end - 1, size, part.max_timestamp_ms)
            self._parts[part.first] = part
            spans.append(Span(segment, *(part.span or (part.first, part.end))))
        self.lineage = Lineage(ORDERS, ((0, 0),), tuple(spans))

    @contextmanager
    def fetch_log_segment(self, segment: RemoteLogSegmentMetadata, _: int) -> Generator[Any]:
        log = memoryview(b"".join(self._parts[segment.start_offset].batches))
        yield type("Stream", (), {"chunks": lambda _: iter([log])})()

    def fetch_indexes(self, segment: RemoteLogSegmentMetadata, _: object) -> dict[IndexType, io.BytesIO]:
        since = self._parts[segment.start_offset].open_since
        if since is None:
            return {}
        states = [ProducerState(one, 0, 0, first, 0, 0, -1, first) for one, first in since]
        return {IndexType.PRODUCER_SNAPSHOT: io.BytesIO(format_producer_snapshot(states))}

    def fetch_index(self, _: object, kind: IndexType) -> io.BytesIO:
        assert kind is IndexType.LEADER_EPOCH
        return io.BytesIO(format_leader_epochs(((0, 0),)))

    def bounds(self, stop: int | AtTime | None) -> tuple[int, int] | None:
        source = cast("RemoteStorageManager", self)
        spans = plan_spans(source, self.lineage, (0, self.lineage.end_offset), None, stop, open_transactions="cut")
        return (spans[0].start, spans[-1].stop) if spans else None


def at(offset: int, time_ms: int) -> bytes:
    return build_batch([Record(b"v", None, time_ms)], offset)


ONE = Producer(1, 0, transactional=True)
SECOND = Part(2, 4, [at(2, 40), at(3, 90)], max_timestamp_ms=90)


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        pytest.param([Part(0, 2, [at(0, 10), at(1, 20)], max_timestamp_ms=20), SECOND], 3, id="plain"),
        pytest.param([Part(0, 2, [at(0, 10), at(1, 20)]), SECOND], 3, id="unknown greatest time"),
        pytest.param([Part(0, 2, [at(0, 60), at(1, 20)]), SECOND], None, id="time goes backwards"),
        pytest.param([Part(0, 9, [at(0, 10), at(5, 99)], (0, 2), 99), SECOND], 3, id="superseded part is later"),
        pytest.param([Part(0, 2, [at(0, 10)], max_timestamp_ms=99), SECOND], 3, id="latest record compacted away"),
        pytest.param([Part(0, 2, [], max_timestamp_ms=99), SECOND], 3, id="without a batch"),
        pytest.param([Part(0, 2, [at(0, 10), at(1, 50)], max_timestamp_ms=50), SECOND], 1, id="exactly this time"),
        pytest.param(
            [
                Part(0, 1, [build_batch([Record(b"v", None, 10)], 0, producer=ONE)], None, 10, [(1, 0)]),
                Part(1, 2, [build_end_marker(1, ONE, commit=True, timestamp_ms=50)], max_timestamp_ms=50),
            ],
            None,
            id="a marker of this time",
        ),
    ],
)
def test_a_time_cuts_at_the_first_record_of_this_time(parts: list[Part], end: int | None) -> None:
    assert Stored(parts).bounds(AtTime(50)) == (end and (0, end))


BATCH = build_batch([Record(b"v")], 0, producer=ONE)
LATER = [at(offset, 0) for offset in (2, 3)]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [Part(0, 9, [BATCH, at(1, 0), build_end_marker(5, ONE, commit=True)], (0, 2)), Part(2, 4, LATER)],
            id="ended in a superseded part",
        ),
        pytest.param(
            [Part(0, 2, [BATCH, at(1, 0)], open_since=None), Part(2, 4, LATER, open_since=None)],
            id="no snapshots",
        ),
    ],
)
def test_a_transaction_is_open_although_the_last_segment_has_none_of_it(parts: list[Part]) -> None:
    stored = Stored([*parts[:-1], Part(2, 4, LATER, open_since=None)])
    assert stored.bounds(None) is None


class _Unreadable(Stored):
    def fetch_indexes(self, segment: RemoteLogSegmentMetadata, _: object) -> dict[IndexType, io.BytesIO]:
        raise IndexesCorruptError(f"the indexes of {segment} cannot be decrypted")


def test_batches_tell_what_is_open_if_no_index_can_be_read() -> None:
    """Nothing else of the indexes is needed, so a restore does without them."""
    assert _Unreadable([Part(0, 2, [at(0, 0), at(1, 0)]), SECOND]).bounds(None) == (0, 4)
    assert _Unreadable([Part(0, 2, [at(0, 0), build_batch([Record(b"v")], 1, producer=ONE)]), SECOND]).bounds(None) == (
        0, 1
    )  # fmt: skip


class _WrongFirst(Stored):
    def fetch_indexes(self, segment: RemoteLogSegmentMetadata, _: object) -> dict[IndexType, io.BytesIO]:
        state = ProducerState(1, 0, 0, 1, 0, 0, -1, 100)
        return {IndexType.PRODUCER_SNAPSHOT: io.BytesIO(format_producer_snapshot([state]))}


def test_a_snapshot_with_a_transaction_from_beyond_its_segment_is_not_used() -> None:
    """A cut at that offset would remove nothing, so the search for a cut would never end."""
    parts = [Part(0, 2, [at(0, 0), build_batch([Record(b"v")], 1, producer=ONE)])]
    assert _WrongFirst(parts).bounds(None) == (0, 1)


@given(
    steps=st.lists(st.tuples(st.sampled_from("ABCx"), st.integers(1, 3), st.booleans()), min_size=1, max_size=25),
    cuts=st.sets(st.integers(1, 60), max_size=5),
    stop=st.none() | st.integers(0, 70),
    has_snapshots=st.booleans(),
)
def test_a_cut_is_the_last_border_at_which_no_transaction_is_open(
    steps: list[tuple[str, int, bool]], cuts: set[int], stop: int | None, *, has_snapshots: bool
) -> None:
    """A step of A, B or C is a batch or the end marker of this producer's transaction. A step of x is a plain batch."""
    opened: dict[int, int] = {}
    parts: list[Part] = []
    batches: list[bytes] = []
    offset = first = best = 0

    def roll() -> None:
        nonlocal first, batches
        parts.append(Part(first, offset, batches, open_since=tuple(opened.items()) if has_snapshots else None))
        first, batches = offset, []

    for name, size, is_end in steps:
        producer = Producer(ord(name), 0, transactional=True)
        count = 1 if is_end and name != "x" else size
        if name == "x":
            batches.append(build_batch([Record(b"v")] * count, offset))
        elif is_end:
            batches.append(build_end_marker(offset, producer, commit=bool(size % 2)))
            opened.pop(producer.id, None)
        else:
            batches.append(build_batch([Record(b"v")] * count, offset, producer=producer))
            opened.setdefault(producer.id, offset)
        offset += count
        if not opened and (stop is None or offset <= stop):
            best = offset
        if offset in cuts:
            roll()
    if batches:
        roll()
    assert Stored(parts).bounds(stop) == ((0, best) if best else None)


@pytest.mark.parametrize(
    ("times_ms", "deleted"), [((10, 20, 95), 2), ((-1, 10), 0), ((10, -1, 10), 1), ((2**62, 10), 0)]
)
def test_retention_deletes_the_oldest_segments_up_to_one_that_is_young_or_has_no_time(
    times_ms: Sequence[int], deleted: int
) -> None:
    """A broker takes the age of a segment without a time from its file, which the restore has just written."""
    stored = Stored([Part(number, number + 1, (), max_timestamp_ms=one) for number, one in enumerate(times_ms)])
    spans = stored.lineage.spans_between(0, len(times_ms))
    settings = {"cleanup.policy": "delete", "retention.ms": "50", "retention.bytes": "-1"}
    assert len(select_deleted(spans, settings, 100)) == deleted
