from __future__ import annotations

import struct
from dataclasses import replace
from itertools import accumulate

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    ProducerState,
    format_leader_epochs,
    format_offset_checkpoint,
    format_partition_metadata,
    format_producer_snapshot,
    parse_broker_id,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
    parse_producer_snapshot,
    segment_leader_epochs,
    truncate_from_end,
)
from tieredstore.model import Uuid

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
STATES = st.builds(ProducerState, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64)
STATE = ProducerState(1000, 2, 30, 400, 9, 1_767_225_600_000, -1, -1)


@st.composite
def leader_epochs(draw: st.DrawFn) -> LeaderEpochs:
    steps = st.lists(st.integers(1, 50), max_size=8).map(lambda increments: [n - 1 for n in accumulate(increments)])
    return tuple(zip(draw(steps), draw(steps), strict=False))


@given(leader_epochs())
def test_leader_epochs_survive_being_written(epochs: LeaderEpochs) -> None:
    assert parse_leader_epochs(format_leader_epochs(epochs)) == epochs


def test_the_text_is_kafkas() -> None:
    assert format_leader_epochs(((0, 23), (5, 100))) == b"0\n2\n0 23\n5 100\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\n", b"0", b"0\n", b"1\n0\n", b"0\n-1\n", b"0\nx\n", b"0\n2\n0 0\n", b"0\n1\n0 0\n1 5\n", b"0\n1\n0\n",
        b"0\n1\n0 0 0\n", b"0\n1\n-1 0\n", b"0\n1\n0 -1\n", b"0\n1\n2147483648 0\n", b"0\n1\n0 9223372036854775808\n",
        b"0\n2\n1 0\n1 5\n", b"0\n2\n1 0\n0 5\n", b"0\n2\n0 5\n1 5\n", b"0\n2\n0 5\n1 4\n", b"0\n1\n\xff 0\n",
        b"0\n1\n\n", b"0\n9999999999\n0 0\n", "0\n1\n٠ 0\n".encode(),
    ],
)  # fmt: skip
def test_a_damaged_leader_epoch_checkpoint_is_corrupt(raw: bytes) -> None:
    with pytest.raises(BatchCorruptError):
        parse_leader_epochs(raw)


@given(st.binary(max_size=40) | st.text("0123456789 \n-", max_size=40).map(str.encode))
def test_arbitrary_text_raises_nothing_but_corruption(junk: bytes) -> None:
    try:
        epochs = parse_leader_epochs(junk)
    except BatchCorruptError:
        return
    assert parse_leader_epochs(format_leader_epochs(epochs)) == epochs


def test_the_epoch_in_force_at_the_start_begins_there() -> None:
    epochs = ((0, 0), (2, 1562), (3, 4000))
    assert segment_leader_epochs(epochs, 1243, 1883) == ((0, 1243), (2, 1562))
    assert segment_leader_epochs(epochs, 1884, 2499) == ((2, 1884),)
    assert segment_leader_epochs(epochs, 1562, 1562) == ((2, 1562),)
    assert truncate_from_end(epochs, 1561) == ((0, 0),)
    assert truncate_from_end(epochs, 1562) == ((0, 0), (2, 1562))
    assert truncate_from_end(epochs, 3999) == ((0, 0), (2, 1562))


@given(leader_epochs(), st.integers(0, 400), st.integers(0, 100))
def test_a_segments_epochs_say_of_each_offset_what_the_partitions_say(
    epochs: LeaderEpochs, start: int, length: int
) -> None:
    def in_force(at: int, known: LeaderEpochs) -> int | None:
        return max((epoch for epoch, first in known if first <= at), default=None)

    own = segment_leader_epochs(epochs, start, start + length)
    assert all(start <= first <= start + length for _, first in own)
    assert all(in_force(at, own) == in_force(at, epochs) for at in range(start, start + length + 1))
    assert all(in_force(at, truncate_from_end(epochs, start)) == in_force(at, epochs) for at in range(start + 1))


def test_partition_metadata_survives_being_written() -> None:
    topic_id = Uuid(bytes(range(16)))
    assert parse_partition_metadata(format_partition_metadata(topic_id)) == topic_id
    assert parse_partition_metadata(format_partition_metadata(topic_id) + b"\n") == topic_id


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"version: 0", b"version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", b"topic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        b"version: 0\ntopic_id: short", b"version: 0\ntopic_id", b"\xff\xfe", b"version: 0\n\ntopic_id: A",
    ],
)  # fmt: skip
def test_damaged_partition_metadata_is_corrupt(raw: bytes) -> None:
    with pytest.raises(BatchCorruptError, match=r"partition\.metadata"):
        parse_partition_metadata(raw)


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_golden_files_beside_the_log_are_read_and_written_back_byte_for_byte(segment: GoldenSegment) -> None:
    metadata = (segment.directory / "partition.metadata").read_bytes()
    epochs = (segment.directory / "leader-epoch-checkpoint").read_bytes()
    snapshot = segment.snapshot_path.read_bytes()
    assert str(parse_partition_metadata(metadata)) == segment.topic_id
    assert format_partition_metadata(parse_partition_metadata(metadata)) == metadata
    assert format_leader_epochs(parse_leader_epochs(epochs)) == epochs
    states = parse_producer_snapshot(snapshot)
    assert format_producer_snapshot(states) == snapshot
    assert states
    assert all(state.producer_id >= 0 and state.last_offset <= segment.end_offset for state in states)


@given(st.lists(STATES, max_size=5))
def test_producer_snapshots_survive_being_written(states: list[ProducerState]) -> None:
    raw = format_producer_snapshot(states)
    assert parse_producer_snapshot(raw) == tuple(states)
    assert len(raw) == 10 + 46 * len(states)


@given(st.data())
def test_any_changed_byte_of_a_producer_snapshot_is_found(data: st.DataObject) -> None:
    raw = bytearray(format_producer_snapshot([STATE, replace(STATE, producer_id=1001)]))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BatchCorruptError, match="producer snapshot"):
        parse_producer_snapshot(bytes(raw))


@given(st.integers(0, 101))
def test_a_producer_snapshot_cut_anywhere_is_corrupt(length: int) -> None:
    with pytest.raises(BatchCorruptError, match="producer snapshot"):
        parse_producer_snapshot(format_producer_snapshot([STATE, STATE])[:length])


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_a_count_that_does_not_fit_is_corrupt_though_the_crc_holds(count: int) -> None:
    covered = struct.pack(">i", count) + format_producer_snapshot([STATE])[10:]
    with pytest.raises(BatchCorruptError, match=f"states {count} entries"):
        parse_producer_snapshot(struct.pack(">hI", 1, crc32c.crc32c(covered)) + covered)


@pytest.mark.parametrize(
    ("text", "broker_id"),
    [
        ("#\n#Thu Jan 01 00:00:00 UTC 2026\nversion=1\nnode.id=7\ncluster.id=x", 7),
        ("version=0\nbroker.id=3\n", 3),
        ("version=1\ncluster.id=x\n", None),
        ("node.id = 5\nbroker.id=4\n", 5),
    ],
)
def test_the_brokers_id_is_read(text: str, broker_id: int | None) -> None:
    assert parse_broker_id(text.encode()) == broker_id


@pytest.mark.parametrize("raw", [b"node.id=x", b"node.id=-1", b"node.id=2147483648", b"node.id=\\u12", b"\xff"])
def test_damaged_meta_properties_are_corrupt(raw: bytes) -> None:
    with pytest.raises(BatchCorruptError, match=r"meta\.properties"):
        parse_broker_id(raw)


@given(
    st.dictionaries(
        st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)),
        st.integers(0, 2**63 - 1),
        max_size=5,
    )
)
def test_an_offset_checkpoint_comes_back(offsets: dict[tuple[str, int], int]) -> None:
    assert parse_offset_checkpoint(format_offset_checkpoint(offsets)) == offsets


def test_an_offset_checkpoint_is_as_brokers_write_it() -> None:
    assert format_offset_checkpoint({("a-b", 0): 7}) == b"0\n1\na-b 0 7\n"
    assert parse_offset_checkpoint(b"") == {}


@pytest.mark.parametrize("raw", [b"1\n0\n", b"0\n2\na 0 7\n", b"0\n1\na 0 7", b"0\n1\na 0 -1\n", b"0\nx\n", b"0\n"])
def test_a_damaged_offset_checkpoint_is_refused(raw: bytes) -> None:
    with pytest.raises(BatchCorruptError, match="checkpoint is not of version 0"):
        parse_offset_checkpoint(raw)
