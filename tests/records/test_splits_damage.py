"""Tests of damaged indexes and logs: a reader gets the right records or an error, never missing or repeated ones."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.records.split_reads import broker_index, copy_with_index, lineage_of, plan_splits, read_of
from tests.support.records.stored_records import StoredTopic, plain_batch
from tieredstore.errors import BatchCorruptError, CorruptDataError, IndexesCorruptError
from tieredstore.records.settings import ReadSettings

pytestmark = pytest.mark.slow

CHOSEN = ReadSettings(isolation="read_uncommitted")
BATCHES = [plain_batch(range(at, at + 5), 400) for at in range(0, 300, 5)]
BORDERS = [sum(map(len, BATCHES[:number])) for number in range(len(BATCHES))]
LOG_SIZE = sum(map(len, BATCHES))
ENTRIES = broker_index(BATCHES)
Entries = list[tuple[int, int]]


def offsets_in_splits(
    topic: StoredTopic, window: tuple[int, int], size: int, records: int | None = None, chosen: ReadSettings = CHOSEN
) -> list[int]:
    lineage = lineage_of(topic)
    plan = plan_splits(
        topic.manager, lineage, *window, chosen, max_split_bytes=size, max_split_records=records
    )  # fmt: skip
    return [row["offset"] for split in plan.splits for row in read_of(topic.manager, split, chosen)]


@st.composite
def wrong_entries(draw: st.DrawFn) -> Entries:
    """Draw a sorted index that has wrong entries: moved, shifted or dropped ones, or ones that point to other
    places.
    """
    positions, offsets = st.one_of(st.sampled_from(BORDERS), st.integers(0, LOG_SIZE + 10)), st.integers(0, 310)
    kept = list(ENTRIES)
    for place in draw(st.lists(st.integers(0, len(ENTRIES) - 1), min_size=1, max_size=6, unique=True)):
        offset, position = ENTRIES[place]
        changed = {
            "position": (offset, draw(positions)),
            "offset": (draw(offsets), position),
            "both": (draw(offsets), draw(positions)),
            "near": (offset + draw(st.integers(-12, 12)), position),
        }
        kept[place] = changed[draw(st.sampled_from(sorted(changed)))]
    for place in draw(st.lists(st.integers(0, len(ENTRIES) - 7), max_size=6)):
        del kept[place]
    in_order = zip(sorted({entry[0] for entry in kept}), sorted({entry[1] for entry in kept}), strict=False)
    return list(in_order) if draw(st.booleans()) else kept


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_whatever_an_index_says_the_records_are_right_or_there_is_an_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = data.draw(st.integers(0, 300))
    stop = data.draw(st.integers(start, 300))
    with closing(StoredTopic(tmp_path_factory.mktemp("log"))) as topic:
        copy_with_index(topic, BATCHES, data.draw(wrong_entries()))
        size = data.draw(st.sampled_from([1, 3000, 9000, 40_000, 1 << 20]))
        records = data.draw(st.one_of(st.none(), st.integers(10, 60)))
        try:
            offsets = offsets_in_splits(topic, (start, stop), size, records)
        except CorruptDataError as error:
            assert "events-0" in str(error)  # noqa: PT017 - the test also passes if the records are right
        else:
            assert offsets == list(range(start, stop))


def middle_entry(offset: int = 0, border: int = 0, byte: int = 0) -> Entries:
    """Return the broker's index with one changed entry. The entry has another offset, the position of another batch, or
    a position within a batch.
    """
    changed = list(ENTRIES)
    last, position = changed[len(changed) // 2]
    place = BORDERS.index(position) + border
    changed[len(changed) // 2] = (last + offset, BORDERS[place] + byte)
    return changed


@pytest.mark.parametrize("size", [4400, 6500], ids=["some found at planning", "found in reading"])
@pytest.mark.parametrize(
    "entries",
    [middle_entry(offset=-6), middle_entry(offset=6), middle_entry(border=1)],
    ids=["offset before", "offset behind", "border behind"],
)
def test_an_entry_with_a_border_and_an_offset_that_do_not_belong_together_is_an_error(
    topic: StoredTopic, entries: Entries, size: int
) -> None:
    copy_with_index(topic, BATCHES, entries)
    with pytest.raises(IndexesCorruptError, match="events-0"):
        offsets_in_splits(topic, (0, 300), size)


def test_each_of_two_parts_that_meet_at_a_wrong_offset_fails_by_itself(topic: StoredTopic) -> None:
    copy_with_index(topic, BATCHES, middle_entry(offset=6))
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, 300, CHOSEN, max_split_bytes=4400)
    failed: list[int] = []
    for number, split in enumerate(plan.splits):
        try:
            read_of(topic.manager, split, CHOSEN)
        except IndexesCorruptError:
            failed.append(number)
    place = len(ENTRIES) // 2 + 1
    # The entry is also wrong about its own batch. That is harmless, because a read begins before that batch.
    assert failed == [place, place + 1]


@pytest.mark.parametrize("shift", [20, 60])
def test_an_index_that_ends_a_window_too_early_is_an_error(topic: StoredTopic, shift: int) -> None:
    copy_with_index(topic, BATCHES, [(offset + shift, position) for offset, position in ENTRIES])
    with pytest.raises(IndexesCorruptError, match="events-0"):
        offsets_in_splits(topic, (0, 150), 1 << 20)


def test_batches_that_are_walked_at_planning_are_held_against_the_index_there(topic: StoredTopic) -> None:
    copy_with_index(topic, BATCHES, [middle_entry(offset=-6)[len(ENTRIES) // 2]])
    lineage = lineage_of(topic)
    with pytest.raises(IndexesCorruptError, match="the record batches have offset"):
        plan_splits(topic.manager, lineage, 0, 300, CHOSEN, max_split_bytes=4400)


def test_an_entry_for_two_batches_that_were_appended_together_is_no_damage(topic: StoredTopic) -> None:
    copy_with_index(topic, BATCHES, middle_entry(border=-1))
    assert offsets_in_splits(topic, (0, 300), 6500) == list(range(300))


@pytest.mark.parametrize("byte", [1, 8, 61, 100, -1, -61])
def test_of_two_parts_that_meet_within_a_batch_the_first_fails(topic: StoredTopic, byte: int) -> None:
    copy_with_index(topic, BATCHES, [middle_entry(byte=byte)[len(ENTRIES) // 2]])
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, 300, CHOSEN, max_split_bytes=LOG_SIZE - 3000)
    assert len(plan.splits) == 2
    with pytest.raises(CorruptDataError, match="events-0"):
        read_of(topic.manager, plan.splits[0], CHOSEN)


def test_entries_in_another_order_are_an_error_at_planning(topic: StoredTopic) -> None:
    copy_with_index(topic, BATCHES, [*ENTRIES[:4], ENTRIES[5], ENTRIES[4], *ENTRIES[6:]])
    lineage = lineage_of(topic)
    with pytest.raises(IndexesCorruptError, match="does not increase"):
        plan_splits(topic.manager, lineage, 0, 300, CHOSEN, max_split_bytes=9000)


@pytest.mark.parametrize("left", [0, 1, 5])
def test_an_index_that_was_cut_off_loses_nothing(topic: StoredTopic, left: int) -> None:
    copy_with_index(topic, BATCHES, ENTRIES[:left])
    assert offsets_in_splits(topic, (3, 297), 9000) == list(range(3, 297))
    assert offsets_in_splits(topic, (3, 297), 1 << 20, 40) == list(range(3, 297))


def test_a_broken_length_is_found_at_planning_where_batches_have_to_be_walked(topic: StoredTopic) -> None:
    broken = bytearray(BATCHES[20])
    broken[8:12] = (5).to_bytes(4, "big")
    copy_with_index(topic, BATCHES, [])
    topic.overwrite(".log", bytes(broken), BORDERS[20])
    with pytest.raises(BatchCorruptError, match=r"events-0 .*impossible length 5"):
        offsets_in_splits(topic, (0, 300), 9000)


@pytest.mark.parametrize("batches", range(1, 6))
def test_zeros_within_a_log_do_not_pass_for_its_end(topic: StoredTopic, batches: int) -> None:
    topic.copy(0, BATCHES)
    _, border = ENTRIES[15]
    zeros_from = BORDERS[BORDERS.index(border) - batches]
    topic.overwrite(".log", bytes(border - zeros_from), zeros_from)
    lineage = lineage_of(topic)
    plan = plan_splits(topic.manager, lineage, 0, 300, CHOSEN, max_split_bytes=4400)
    failed = 0
    for split in plan.splits:
        try:
            read_of(topic.manager, split, CHOSEN)
        except CorruptDataError:
            failed += 1
    assert failed


@pytest.mark.parametrize("batches", [0, 1, 30, 59])
def test_zeros_at_the_end_of_a_log_that_others_follow_lose_nothing_in_silence(topic: StoredTopic, batches: int) -> None:
    """The disk lost the end of a log, or all of it. A reader must not mistake lost records for compacted ones."""
    topic.copy(0, BATCHES)
    topic.overwrite(".log", bytes(LOG_SIZE - BORDERS[batches]), BORDERS[batches])
    topic.copy(300, [plain_batch(range(300, 310), 40)])
    for size in (1 << 20, 9000):
        with pytest.raises(CorruptDataError, match=r"events-0 .*zeros"):
            offsets_in_splits(topic, (0, 310), size)


def test_chunks_in_another_order_are_an_error(topic: StoredTopic) -> None:
    topic.copy(0, BATCHES)
    third = BATCHES[10] + BATCHES[11]
    topic.overwrite(".log", BATCHES[12] + BATCHES[13] + third, BORDERS[10])
    with pytest.raises(CorruptDataError, match="events-0"):
        offsets_in_splits(topic, (0, 300), 9000)


@pytest.mark.parametrize("number", [0, 1, 20, 58, 59])
@pytest.mark.parametrize("entries", [ENTRIES, []], ids=["index", "no index"])
def test_a_damaged_batch_fails_or_is_left_out_and_logged(
    topic: StoredTopic, number: int, entries: Entries, caplog: pytest.LogCaptureFixture
) -> None:
    copy_with_index(topic, BATCHES, entries)
    topic.overwrite(".log", b"XX", BORDERS[number] + 300)
    with pytest.raises(BatchCorruptError, match=r"events-0 at offset 0 .*CRC"):
        offsets_in_splits(topic, (0, 300), 9000)
    lost = range(5 * number, 5 * number + 5)
    skipping = ReadSettings(isolation="read_uncommitted", on_corrupt="skip")
    with caplog.at_level(logging.WARNING):
        offsets = offsets_in_splits(topic, (0, 300), 9000, chosen=skipping)
    assert offsets == [offset for offset in range(300) if offset not in lost]
    assert len(caplog.messages) == 1


def test_headers_that_do_not_hold_keep_a_log_whole_where_damage_is_to_be_left_out(topic: StoredTopic) -> None:
    copy_with_index(topic, BATCHES, [])
    topic.overwrite(
        ".log", (1000).to_bytes(4, "big"), BORDERS[30] + 57
    )  # the batch now claims more records than offsets
    skipping = ReadSettings(isolation="read_uncommitted", on_corrupt="skip")
    offsets = offsets_in_splits(topic, (0, 300), 9000, chosen=skipping)
    assert offsets == [offset for offset in range(300) if offset not in range(150, 155)]
