"""Tests of unreadable segments: one rule decides which readers get an error."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace

import pyarrow.dataset as ds
import pytest

from tests.support.records.record_reader import RecordReader
from tests.support.records.split_reads import plan_splits
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.records.topic_reads import read_topic
from tieredstore.errors import DataLossError, ResourceNotFoundError
from tieredstore.model import AtTime
from tieredstore.partitions import Subscribe
from tieredstore.reading.losses import Losses
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.records.columns import int64_values
from tieredstore.records.settings import ReadSettings
from tieredstore.testing.segments import PARTITION

REPORT = ReadSettings(columns=["offset"], on_data_loss="report")
FAIL = ReadSettings(columns=["offset"])


def four_segments(topic: StoredTopic, *damaged: int) -> None:
    """Store offsets 0 to 399 in four segments. The timestamp of each record is its offset. The manifests of the
    ``damaged`` segments are invalid.
    """
    for base in (0, 100, 200, 300):
        topic.copy_plain(base, 100, size=10)
    manifests = topic.keys(".rsm-manifest")
    for number in damaged:
        topic.store.put(manifests[number], b"{}")


LOSSES = [
    pytest.param(0, None, None, id="first, from the beginning"),
    pytest.param(0, None, 150, id="first, from the beginning up to an offset"),
    pytest.param(0, 0, None, id="first, by its offset"),
    pytest.param(0, 50, 200, id="first, by an offset within"),
    pytest.param(0, AtTime(20), None, id="first, by a time within"),
    pytest.param(3, None, None, id="last, up to the end"),
    pytest.param(3, 150, None, id="last, from an offset up to the end"),
    pytest.param(3, 150, 301, id="last, by its offset"),
    pytest.param(3, 350, 360, id="last, behind what there is"),
    pytest.param(3, 150, AtTime(320), id="last, by a time within"),
    pytest.param(3, AtTime(320), None, id="last, from a time within"),
    pytest.param(1, None, None, id="a middle one"),
    pytest.param(1, AtTime(150), None, id="a middle one, by a time within"),
    pytest.param(1, 120, 130, id="a middle one, within"),
]


@pytest.mark.parametrize(("damaged", "start", "stop"), LOSSES)
def test_an_unreadable_segment_fails_the_read_that_asks_for_it_or_is_reported(
    topic: StoredTopic,
    damaged: int,
    start: int | AtTime | None,
    stop: int | AtTime | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    four_segments(topic, damaged)
    with pytest.raises(DataLossError, match=rf"at offset {100 * damaged} is ignored: .*on_data_loss") as raised:
        topic.offsets(FAIL, start, stop)
    assert raised.value.exit_code == 3
    with caplog.at_level(logging.WARNING), topic.reader(REPORT).read("events", 0, start, stop) as read:
        assert [problem.start_offset for problem in read.report.unreadable] == [100 * damaged]
        assert not {o for batch in read for o in int64_values(batch, "offset")} & set(range(damaged * 100, 100))
    assert any("is ignored" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("damaged", "start", "stop"),
    [
        (0, 100, None),
        (0, 250, 260),
        (0, AtTime(150), None),
        (3, None, 300),
        (3, 100, 200),
        (3, None, AtTime(250)),
        (1, 200, None),
        (1, None, 100),
        (1, AtTime(250), None),
    ],
)
def test_an_unreadable_segment_elsewhere_is_nobodys_loss(
    topic: StoredTopic, damaged: int, start: int | AtTime | None, stop: int | AtTime | None
) -> None:
    four_segments(topic, damaged)
    with topic.reader(FAIL).read("events", 0, start, stop) as read:
        assert sum(batch.num_rows for batch in read) == read.stop - read.start
        assert read.report.unreadable == ()


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_last_segment_that_has_lost_an_object_is_lost_data(topic: StoredTopic, suffix: str) -> None:
    four_segments(topic)
    topic.store.delete(topic.keys(suffix)[-1:])
    with pytest.raises(DataLossError, match=rf"at offset 300 is ignored: it has no {suffix}"):
        topic.offsets(FAIL)
    assert topic.offsets(REPORT) == topic.offsets(FAIL, None, 300) == list(range(300))


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_time_within_a_middle_segment_that_has_lost_an_object_is_lost_data(topic: StoredTopic, suffix: str) -> None:
    """The look-up of the time does not see the segment, so the read begins right behind the gap."""
    four_segments(topic)
    topic.store.delete(topic.keys(suffix)[1:2])
    with pytest.raises(DataLossError, match=rf"at offset 100 is ignored: it has no {suffix}"):
        topic.offsets(FAIL, AtTime(150))
    with pytest.raises(DataLossError, match=rf"at offset 100 is ignored: it has no {suffix}"):
        read_topic(topic.manager, "events", start=AtTime(150)).close()
    assert topic.offsets(REPORT, AtTime(150)) == topic.offsets(FAIL, 200) == list(range(200, 400))
    assert topic.offsets(FAIL, AtTime(250)) == list(range(250, 400))
    with pytest.raises(DataLossError, match=r"offsets 100 to 199 of .* are in no segment"):
        topic.offsets(FAIL)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_filter_may_exclude_an_unreadable_segment_right_before_the_rest(
    topic: StoredTopic, *, is_damaged: bool
) -> None:
    four_segments(topic, *([1] if is_damaged else []))
    if not is_damaged:
        topic.store.delete(topic.keys(".log")[1:2])
    with read_topic(topic.manager, "events", filter=ds.field("offset") >= 200) as read:
        assert sum(batch.num_rows for batch in read) == 200


def test_a_copy_that_is_under_way_and_a_first_segment_that_is_being_deleted_are_none(topic: StoredTopic) -> None:
    four_segments(topic)
    manifests = topic.keys(".rsm-manifest")
    topic.store.delete([manifests[3], manifests[0].replace(".rsm-manifest", ".log")])
    assert topic.offsets(FAIL) == list(range(100, 300))


def test_one_whose_offsets_another_copy_holds_is_no_loss(topic: StoredTopic) -> None:
    four_segments(topic, 3)
    topic.copy_plain(300, 100, size=10)
    assert topic.offsets(FAIL) == list(range(400))


@pytest.mark.parametrize("damaged", [0, 1, 3])
def test_splits_are_planned_by_the_same_rule(topic: StoredTopic, damaged: int) -> None:
    four_segments(topic, damaged)
    lineage = topic.catalog().lineage("events", 0)
    first, end = lineage.earliest_offset, lineage.end_offset
    with pytest.raises(DataLossError, match=f"at offset {100 * damaged} is ignored"):
        plan_splits(topic.manager, lineage, first, end, FAIL, max_split_bytes=1 << 20)
    assert plan_splits(topic.manager, lineage, first, end, REPORT, max_split_bytes=1 << 20).splits


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_snapshot_is_judged_by_the_same_rule(topic: StoredTopic, damaged: int) -> None:
    four_segments(topic, damaged)
    query = LogQuery(Subscribe(("events",)), isolation="read_uncommitted")
    snapshot = survey_logs(topic.manager, query)
    where = ("events", 0)
    log = snapshot.logs[where]
    named = {"starts_there": [where]} if damaged == 0 else {"stops_there": [where]}
    with pytest.raises(DataLossError, match=f"at offset {100 * damaged} is ignored"):
        Losses(query).check_readable(snapshot, {where: (log.earliest, log.end)})
    Losses(query).check_readable(snapshot, {where: (log.earliest, log.end)}, **named)


def test_a_topic_of_which_nothing_can_be_read_is_lost_and_not_absent(topic: StoredTopic) -> None:
    four_segments(topic, 0, 1, 2, 3)
    with pytest.raises(DataLossError, match=r"no stored segment can be read: segment .* of events-0"):
        RecordReader(topic.manager, topic.catalog(), REPORT).read("events", 0)
    with pytest.raises(ResourceNotFoundError) as raised:
        RecordReader(topic.manager, topic.catalog(), REPORT).read("others", 0)
    assert not isinstance(raised.value, DataLossError)
    assert PARTITION.topic == "events"


def test_an_end_beyond_a_log_whose_last_segment_nobody_can_read_is_a_loss(topic: StoredTopic) -> None:
    """Another partition has offset 400, so 400 is a valid end. This partition may have lost records before it."""
    four_segments(topic, 3)
    topic.copy(0, [plain_batch(range(400), 10)], partition=replace(PARTITION, partition=1))
    for filter_, loss in ((None, True), (ds.field("offset") < 250, False)):
        with pytest.raises(DataLossError, match="at offset 300 is ignored") if loss else nullcontext():
            read_topic(topic.manager, "events", stop=400, filter=filter_).close()
