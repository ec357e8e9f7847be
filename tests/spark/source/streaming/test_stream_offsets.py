"""A stream's read position: its checkpoint's JSON, and the offsets to read from logs that have changed since."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import ConfigError, DataLossError
from tieredstore.live import EpochEnd
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.reading.losses import Loss
from tieredstore.spark.source.streaming import OnLoss, StreamOffsets
from tieredstore.spark.source.trigger_limits import Windows

OLD, NEW = Uuid(bytes(range(16))), Uuid(bytes(range(16, 32)))
A, B = ("orders", 0), ("orders", 1)


def log(earliest: int, end: int, topic_id: Uuid = OLD, live_epoch: int | None = None) -> PartitionLog:
    """Return the log of a partition as the stream sees it: its bounds, topic id and epoch."""
    return PartitionLog("orders", 0, topic_id, None, 0, earliest, end, live_epoch=live_epoch)


Logs = dict[TopicPartition, PartitionLog]
places = st.tuples(st.sampled_from(["a", "ü", "x.y_z-3"]), st.integers(0, 2**31 - 1))


@st.composite
def stands(draw: st.DrawFn) -> StreamOffsets:
    offsets = draw(st.dictionaries(places, st.integers(0, 2**63 - 1)))
    initial = draw(st.none() | st.sets(st.sampled_from(sorted(offsets)) if offsets else st.nothing()))
    ids = {topic: Uuid(draw(st.binary(min_size=16, max_size=16))) for topic, _ in offsets}
    known = draw(st.sets(st.sampled_from(sorted(offsets)) if offsets else st.nothing()))
    return StreamOffsets(offsets, ids, None if initial is None else dict.fromkeys(initial, 3), dict.fromkeys(known, 4))


def at(offsets: dict[TopicPartition, int], topic_id: Uuid = OLD) -> StreamOffsets:
    return StreamOffsets(offsets, {topic: topic_id for topic, _ in offsets})


def refuse(loss: Loss) -> None:
    raise DataLossError(loss.sentence)


def told_of(call: Callable[[OnLoss], Any]) -> tuple[Any, list[str]]:
    """Return the call's result and the losses that it reports. Assert that a strict stream fails at the first loss."""
    losses: list[str] = []
    result = call(lambda loss: losses.append(loss.sentence))
    if losses:
        with pytest.raises(DataLossError) as error:
            call(refuse)
        assert str(error.value) == losses[0]
    else:
        assert call(refuse) == result
    return result, losses


@given(stands())
def test_the_json_says_all(stand: StreamOffsets) -> None:
    assert StreamOffsets.from_json(json.loads(json.dumps(stand.to_json()))) == stand


@given(stands())
def test_equal_offsets_are_the_same_text(stand: StreamOffsets) -> None:
    offsets = {where: stand.offsets[where] for where in reversed(list(stand.offsets))}
    ids = {topic: stand.topic_ids[topic] for topic in reversed(list(stand.topic_ids))}
    epochs = {where: stand.epochs[where] for where in reversed(list(stand.epochs))}
    backwards = StreamOffsets(offsets, ids, stand.initial, epochs)
    assert json.dumps(backwards.to_json()) == json.dumps(stand.to_json())


def test_the_json_is_what_the_documentation_shows() -> None:
    stand = StreamOffsets({("orders", 10): 4, ("orders", 2): 17}, {"orders": OLD}, epochs={("orders", 2): 5})
    text = '{"version": 1, "offsets": {"orders": {"2": 17, "10": 4}}, "topicIds": {"orders": "AAECAwQFBgcICQoLDA0ODw"}'
    text += ', "epochs": {"orders": {"2": 5}}}'
    assert json.dumps(stand.to_json()) == text
    first = json.dumps(stand.as_initial().to_json())
    assert first == text[:-1] + ', "initialOffsets": {"orders": {"2": 17, "10": 4}}}'


ID = str(OLD)
GOOD: dict[str, Any] = {"version": 1, "offsets": {"t": {"0": 1}}, "topicIds": {"t": ID}, "epochs": {}}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "latest",
        {},
        {"orders": {"0": 17}},
        {"offset": 4},
        {name: value for name, value in GOOD.items() if name != "epochs"},
        GOOD | {"version": 0},
        GOOD | {"epochs": {"t": {"1": 5}}},
        GOOD | {"epochs": {"t": {"0": "5"}}},
        GOOD | {"version": None},
        GOOD | {"version": True},
        GOOD | {"version": "1" * 5000},
        GOOD | {"more": 1},
        GOOD | {f"field {n}": n for n in range(100)},
        {"version": 1, "offsets": {}},
        GOOD | {"offsets": None},
        GOOD | {"offsets": {"t": 5}},
        GOOD | {"offsets": {"t": {"-1": 5}}},
        GOOD | {"offsets": {"t": {"01": 5}}},
        GOOD | {"offsets": {"t": {"": 5}}},
        GOOD | {"offsets": {"t": {"²": 5}}},
        GOOD | {"offsets": {"t": {"2147483648": 5}}},
        GOOD | {"offsets": {"t": {"9" * 5000: 5}}},
        GOOD | {"offsets": {"t": {"0": -1}}},
        GOOD | {"offsets": {"t": {"0": 2**63}}},
        GOOD | {"offsets": {"t": {"0": True}}},
        GOOD | {"offsets": {"t": {"0": "1"}}},
        GOOD | {"offsets": {"t": {"0": 1.0}}},
        GOOD | {"topicIds": {}},
        GOOD | {"topicIds": {"t": ID, "u": ID}},
        GOOD | {"topicIds": {"t": 5}},
        GOOD | {"topicIds": {"t": "short"}},
        GOOD | {"initialOffsets": {"t": {"1": 0}}},
        GOOD | {"initialOffsets": {"t": {"0": -2}}},
        GOOD | {"initialOffsets": None},
    ],
)
def test_a_checkpoint_of_something_else_is_one_sentence(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^this source did not write the checkpoint's offsets .*checkpointLocation of its own$"
    ) as error:
        StreamOffsets.from_json(value)
    assert len(str(error.value)) < 300


READ_OF_OLD = "orders-0 17", "orders-1 3", "orders-2 1"
# For each case: offsets already read, the logs, the offsets to begin at, and the losses reported.
BEGINS: dict[str, tuple[dict[TopicPartition, int], Logs, dict[TopicPartition, int], list[str]]] = {
    "where it was": ({A: 17, B: 9}, {A: log(0, 50), B: log(3, 9)}, {A: 17, B: 9}, []),
    "a new partition and a new topic": (
        {A: 17}, {A: log(0, 50), B: log(0, 9), ("other", 0): log(0, 4, NEW)}, {A: 17, B: 0, ("other", 0): 0}, [],
    ),
    "a new partition that has lost its beginning": (
        {A: 17}, {A: log(0, 50), B: log(5, 9)}, {A: 17, B: 5},
        ["orders-1 is new, but begins at offset 5 instead of 0"],
    ),
    "retention that passed by": (
        {A: 17}, {A: log(18, 50)}, {A: 18}, [f"orders-0 ({OLD}) begins at offset 18, but was read up to 17"],
    ),
    "a log that ends before what was read": (
        {A: 17}, {A: log(0, 16)}, {A: 16}, [f"orders-0 ({OLD}) ends at offset 16, but was read up to 17"],
    ),
    "a topic that was created again": (
        {A: 17, B: 3, ("orders", 2): 1}, {A: log(0, 50, NEW), B: log(4, 9, NEW)}, {A: 0, B: 4},
        [f"topic orders was created again as {NEW}, and {OLD} was read up to offsets {', '.join(READ_OF_OLD)}"],
    ),
    "partitions that are gone": (
        {A: 17, B: 4, ("x", 0): 5}, {A: log(0, 50)}, {A: 17},
        [f"orders-1 ({OLD}) is gone, but was read up to offset 4",
         f"x-0 ({OLD}) is gone, but was read up to offset 5"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BEGINS)
def test_where_reading_goes_on_and_what_is_lost(case: str) -> None:
    known, logs, begins, losses = BEGINS[case]
    assert told_of(lambda loss: at(known).begins(logs, loss)) == (begins, losses)


def test_a_partition_that_is_gone_keeps_its_place() -> None:
    moved = at({A: 17, B: 4, ("x", 0): 5}).with_ends({A: 50}, {A: log(0, 50)})
    assert moved.offsets == {A: 50, B: 4, ("x", 0): 5}
    assert set(moved.topic_ids) == {"orders", "x"}


def test_of_a_topic_that_was_created_again_nothing_stays() -> None:
    moved = at({A: 17, B: 4}).with_ends({A: 5}, {A: log(0, 5, NEW)})
    assert moved == at({A: 5}, NEW)


def read(start: StreamOffsets, end: StreamOffsets, logs: Logs) -> tuple[Windows, list[str]]:
    return told_of(lambda loss: start.windows_to(end, logs, loss))


# For each case: start and end of a batch, the logs when Spark reads it, the offsets read, and the losses reported.
BATCHES: dict[str, tuple[dict[TopicPartition, int], dict[TopicPartition, int], Logs, Windows, list[str]]] = {
    "from its start to its end": ({A: 17, B: 4}, {A: 20, B: 4}, {A: log(0, 99), B: log(0, 99)}, {A: (17, 20)}, []),
    "a new partition": ({A: 17}, {A: 17, B: 4}, {A: log(0, 99), B: log(0, 99)}, {B: (0, 4)}, []),
    "retention of its beginning": (
        {A: 17}, {A: 30}, {A: log(20, 99)}, {A: (20, 30)},
        [f"orders-0 ({OLD}) begins at offset 20, but was read up to 17"],
    ),
    "retention of all of it": (
        {A: 17}, {A: 30}, {A: log(40, 99)}, {}, [f"orders-0 ({OLD}) begins at offset 40, but was read up to 17"],
    ),
    "another topic of the name": (
        {A: 17}, {A: 30}, {A: log(0, 99, NEW)}, {},
        [f"orders-0 ({OLD}) is {NEW} now, but offsets 17 to 29 were requested"],
    ),
    "a partition that is gone": (
        {A: 17, B: 2}, {A: 30, B: 2}, {}, {}, [f"orders-0 ({OLD}) is gone, but offsets 17 to 29 were requested"],
    ),
    "a shorter log": (
        {A: 17}, {A: 30}, {A: log(0, 25)}, {A: (17, 25)},
        [f"orders-0 ({OLD}) ends at offset 25, but offsets up to 29 were requested"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BATCHES)
def test_what_a_batch_reads_the_first_time_or_again(case: str) -> None:
    start, end, logs, windows, losses = BATCHES[case]
    assert read(at(start), at(end), logs) == (windows, losses)


def test_a_batch_from_a_place_to_itself_is_empty() -> None:
    first = at({A: 17}).as_initial().with_ends({A: 30}, {A: log(0, 30)})
    assert read(first, first, {A: log(0, 30)}) == ({}, [])


def test_a_topic_created_again_that_is_as_long_as_the_old_one_is_read() -> None:
    start, logs = at({A: 17}), Logs({A: log(0, 17, NEW)})
    end = start.with_ends({A: 17}, logs)
    assert not end.is_at(start)
    assert read(start, end, logs) == ({A: (0, 17)}, [])


def test_the_first_batch_read_again_begins_where_it_did() -> None:
    start = at({A: 17}).as_initial()
    end = start.with_ends({A: 30, B: 3}, {A: log(0, 99), B: log(0, 3)})
    # After the restart, ``latest`` may mean a later offset, or the very offset at which the first batch ended.
    for again in (at({A: 99, B: 5}), at({A: 30, B: 3})):
        assert read(again.as_initial(), end, {A: log(0, 120), B: log(0, 9)}) == ({A: (17, 30), B: (0, 3)}, [])


def test_where_it_began_is_kept_until_something_was_read() -> None:
    logs: Logs = {A: log(0, 99)}
    start = at({A: 17}).as_initial()
    waited = start.with_ends({A: 17}, logs)
    assert waited == start
    first = waited.with_ends({A: 30}, logs)
    assert first.initial == {A: 17}
    assert first.with_ends({A: 30}, logs).is_at(first)
    assert first.with_ends({A: 31}, logs).initial is None


ends = st.integers(0, 40)


@given(st.lists(st.tuples(ends, ends, st.integers(1, 40)), min_size=1))
def test_batch_after_batch_reads_each_offset_once_whatever_retention_does(steps: list[tuple[int, int, int]]) -> None:
    """Each step consists of the number of offsets written, the number deleted, and the limit of a batch."""
    stand, seen, earliest, end = at({A: 0}), list[int](), 0, 0
    for grown, gone, most in steps:
        end += grown
        earliest = min(end, earliest + gone)
        logs: Logs = {A: log(earliest, end)}
        begins = stand.begins(logs, lambda _: None)
        moved = stand.with_ends({A: min(end, begins[A] + most)}, logs)
        for start, stop in stand.windows_to(moved, logs, lambda _: None).values():
            seen += range(start, stop)
        stand = moved
    assert seen == sorted(set(seen))
    assert stand.offsets[A] <= end


def test_an_election_that_cut_what_was_read_is_data_loss_and_reads_on_from_there() -> None:
    """A repeated batch reports the same loss. The next batch reports nothing."""
    stand = replace(at({A: 600}), epochs={A: 5})
    logs: Logs = {A: log(0, 900, live_epoch=6)}
    answers = {A: EpochEnd(5, 250)}
    begins, losses = told_of(lambda on_loss: stand.begins(logs, on_loss, answers))
    assert begins == {A: 250}
    assert "an election truncated the log at offset 250" in losses[0]
    moved = stand.with_ends({A: 400}, logs)
    assert (moved.offsets, moved.epochs) == ({A: 400}, {A: 6})
    assert told_of(lambda on_loss: stand.windows_to(moved, logs, on_loss, answers)) == ({A: (250, 400)}, losses)
    assert moved.begins(logs, refuse, {}) == {A: 400}


def test_what_is_known_of_a_position_stays_while_nothing_is_read() -> None:
    stand = replace(at({A: 600, B: 7}), epochs={A: 5})
    logs: Logs = {A: log(0, 900, live_epoch=6), B: log(0, 900, live_epoch=6)}
    assert stand.with_ends({A: 600, B: 7}, logs).to_json() == stand.to_json()
