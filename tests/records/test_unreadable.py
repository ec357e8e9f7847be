"""Tests of unreadable segments: one rule decides which readers get an error."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.records.record_reader import RecordReader
from tests.support.records.stored_records import StoredTopic, plain_batch
from tests.support.records.topic_reads import read_topic
from tieredstore.errors import DataLossError, ResourceNotFoundError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import AtTime, Last
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.losses import Losses
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.testing.segments import PARTITION

Window = int | AtTime | None


def offsets(
    topic: StoredTopic, start: Window | Last = None, stop: Window = None, policy: OnDataLoss = "fail"
) -> list[int]:
    with read_topic(topic.manager, "events", start=start, stop=stop, columns=["offset"], on_data_loss=policy) as read:
        return [offset for batch in read for offset in int64_values(batch, "offset")]


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
    start: Window,
    stop: Window,
    caplog: pytest.LogCaptureFixture,
) -> None:
    four_segments(topic, damaged)
    with pytest.raises(DataLossError, match=rf"at offset {100 * damaged} is ignored: .*on_data_loss") as raised:
        offsets(topic, start, stop)
    assert raised.value.exit_code == 3
    with caplog.at_level(logging.WARNING):
        assert not set(offsets(topic, start, stop, "report")) & set(range(damaged * 100, damaged * 100 + 100))
    assert any(f"at offset {100 * damaged} is ignored" in message for message in caplog.messages)


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
    topic: StoredTopic, damaged: int, start: Window, stop: Window
) -> None:
    four_segments(topic, damaged)
    first, last = (place.timestamp_ms if isinstance(place, AtTime) else place for place in (start, stop))
    assert offsets(topic, start, stop) == list(range(first or 0, last or 400))


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_last_segment_that_has_lost_an_object_is_lost_data(topic: StoredTopic, suffix: str) -> None:
    four_segments(topic)
    topic.store.delete(topic.keys(suffix)[-1:])
    with pytest.raises(DataLossError, match=rf"at offset 300 is ignored: it has no {suffix}"):
        offsets(topic)
    assert offsets(topic, policy="report") == offsets(topic, None, 300) == list(range(300))


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_time_within_a_middle_segment_that_has_lost_an_object_is_lost_data(topic: StoredTopic, suffix: str) -> None:
    """The look-up of the time does not see the segment, so the read begins right behind the gap."""
    four_segments(topic)
    topic.store.delete(topic.keys(suffix)[1:2])
    with pytest.raises(DataLossError, match=rf"at offset 100 is ignored: it has no {suffix}"):
        offsets(topic, AtTime(150))
    assert offsets(topic, AtTime(150), policy="report") == offsets(topic, 200) == list(range(200, 400))
    assert offsets(topic, AtTime(250)) == list(range(250, 400))
    with pytest.raises(DataLossError, match=r"offsets 100 to 199 of events-0 are not available"):
        offsets(topic)


def test_last_records_right_behind_an_unreadable_segment_are_all_there(topic: StoredTopic) -> None:
    four_segments(topic, 1)
    assert offsets(topic, Last(200)) == list(range(200, 400))
    with pytest.raises(DataLossError, match="at offset 100 is ignored"):
        offsets(topic, Last(201))


def test_a_time_within_a_missing_segment_is_lost_data(topic: StoredTopic) -> None:
    four_segments(topic)
    topic.manager.delete_log_segment_data(topic.copied[1])
    with pytest.raises(DataLossError, match="offsets 100 to 199 of events-0 are not available"):
        offsets(topic, AtTime(150))
    assert offsets(topic, AtTime(150), policy="report") == offsets(topic, 200) == list(range(200, 400))
    assert offsets(topic, AtTime(250)) == list(range(250, 400))


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
    assert offsets(topic) == list(range(100, 300))


def test_one_whose_offsets_another_copy_holds_is_no_loss(topic: StoredTopic) -> None:
    four_segments(topic, 3)
    topic.copy_plain(300, 100, size=10)
    assert offsets(topic) == list(range(400))


@pytest.mark.parametrize(("since", "is_loss"), [(320, True), (250, False)])
def test_a_filter_by_time_that_only_an_unreadable_last_segment_may_pass(
    topic: StoredTopic, since: int, *, is_loss: bool
) -> None:
    four_segments(topic, 3)
    later = ds.field("timestamp") >= pa.scalar(since, pa.timestamp("ms", "UTC"))
    stop = None if is_loss else 300
    with pytest.raises(DataLossError, match="at offset 300 is ignored") if is_loss else nullcontext():
        read_topic(topic.manager, "events", filter=later, stop=stop).close()
    read_topic(topic.manager, "events", filter=later & (ds.field("offset") < 100)).close()


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
        RecordReader(topic.manager, topic.catalog(), ReadSettings()).read("events", 0)
    with pytest.raises(ResourceNotFoundError) as raised:
        RecordReader(topic.manager, topic.catalog(), ReadSettings()).read("others", 0)
    assert not isinstance(raised.value, DataLossError)
    assert PARTITION.topic == "events"


def test_an_end_beyond_a_log_whose_last_segment_nobody_can_read_is_a_loss(topic: StoredTopic) -> None:
    """Another partition has offset 400, so 400 is a valid end. This partition may have lost records before it."""
    four_segments(topic, 3)
    topic.copy(0, [plain_batch(range(400), 10)], partition=replace(PARTITION, partition=1))
    for filter_, loss in ((None, True), (ds.field("offset") < 250, False)):
        with pytest.raises(DataLossError, match="at offset 300 is ignored") if loss else nullcontext():
            read_topic(topic.manager, "events", stop=400, filter=filter_).close()
