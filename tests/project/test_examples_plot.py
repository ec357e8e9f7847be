"""The example that counts topics over time."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from examples import topic_by_minute
from examples.topic_by_minute import BUCKETS, fitting_bucket, plot, shown_times, steps
from tests.support.cli.cli_process import write_settings
from tieredstore.config import load_settings
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch, write_segment

START = datetime(2026, 1, 31, 23, 58, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PER_MINUTE = {"orders": [120, 0, 30, 45, 0, 0, 7], "payments": [0, 0, 0, 5]}
"""Number of records, 400 ms apart, in each minute from ``START``. The minutes pass midnight, and some are empty."""

read_image: Any = matplotlib.image.imread


def times_of(topic: str) -> list[datetime]:
    per_minute = enumerate(PER_MINUTE[topic])
    return [START + n * MINUTE + i * timedelta(milliseconds=400) for n, count in per_minute for i in range(count)]


def fill_store(folder: Path) -> Path:
    """Make a store with one segment of each topic of ``PER_MINUTE``; return its settings file."""
    settings = write_settings(folder)
    with RemoteStorageManager(load_settings(settings)) as manager:
        for topic in PER_MINUTE:
            batches = [
                build_batch([Record(b"v", timestamp_ms=int(time.timestamp() * 1000))], offset)
                for offset, time in enumerate(times_of(topic))
            ]
            partition = TopicIdPartition(Uuid.random(), topic, 0)
            segment = write_segment(folder / topic, batches, partition=partition)
            manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
    return settings


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example's ``main``, in the session of the tests."""
    monkeypatch.setattr(topic_by_minute, "local_spark", lambda _: nullcontext(spark))

    def run_main(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["topic_by_minute.py", *map(str, arguments)])
        topic_by_minute.main()

    return run_main


def test_topics_are_counted_over_time_and_plotted(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "over-time.png"
    run(fill_store(tmp_path), "orders", "payments", output)
    head, *table, blank, last = capsys.readouterr().out.splitlines()
    assert (head.split(), blank) == (["10", "seconds", "(UTC)", "orders", "payments"], "")
    expected: dict[str, list[int]] = {}
    for number, topic in enumerate(PER_MINUTE):
        for time in times_of(topic):
            line = expected.setdefault(f"{time.replace(second=time.second // 10 * 10):%Y-%m-%d %H:%M:%S}", [0, 0])
            line[number] += 1
    assert [line.split() for line in table] == [[*at.split(), *map(str, expected[at])] for at in sorted(expected)]
    assert last == f"207 records, plotted to {output}"
    assert output.read_bytes().startswith(b"\x89PNG")


def test_a_topic_that_is_not_there_is_said_in_one_sentence(run: Any, tmp_path: Path) -> None:
    output = tmp_path / "over-time.png"
    with pytest.raises(SystemExit) as ended:
        run(fill_store(tmp_path), "nope", output)
    assert isinstance(ended.value.code, str)  # Python prints the message, and exits with 1
    assert "'nope'" in ended.value.code
    assert "in the bucket" in ended.value.code
    assert "Traceback" not in ended.value.code
    assert not output.exists()


@pytest.mark.parametrize(
    ("span", "bucket"),
    [
        (timedelta(), "second"),
        (timedelta(minutes=3), "second"),
        (timedelta(minutes=7), "10 seconds"),
        (timedelta(hours=3), "minute"),
        (timedelta(days=2), "hour"),
        (timedelta(days=30), "6 hours"),
        (timedelta(days=100), "day"),
        (timedelta(days=20 * 365), "week"),
    ],
)
def test_what_is_counted_together_goes_by_the_span(span: timedelta, bucket: str) -> None:
    assert fitting_bucket(span) == bucket


@given(st.dictionaries(st.integers(0, 200), st.integers(1, 9), min_size=1, max_size=30), st.sampled_from([*BUCKETS]))
def test_steps_have_every_bucket_at_its_place_and_gaps_at_zero(records: dict[int, int], bucket: str) -> None:
    length = BUCKETS[bucket]
    counted = {START + length * number: records[number] for number in sorted(records)}
    edges, values = steps(counted, length)
    assert len(edges) == len(values) + 1
    assert edges == sorted(set(edges))
    assert {edge: value for edge, value in zip(edges, values, strict=False) if value} == counted
    for begin, end, value in zip(edges, edges[1:], values, strict=False):
        assert value == 0 or end - begin == length


@pytest.mark.parametrize("count", [1, 9, 1000])
def test_one_bucket_never_fills_the_picture(count: int) -> None:
    first, last = shown_times(START, START + count * MINUTE, MINUTE)
    assert first < START
    assert last > START + count * MINUTE
    assert last - first >= 10 * MINUTE


def painted(image: Any, color: tuple[int, int, int]) -> Any:
    """Return a mask of the pixels of this colour."""
    return (abs(image[:, :, :3] - [part / 255 for part in color]) < 0.02).all(axis=2)


BLUE, ORANGE = (0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E)


def test_the_picture_has_a_bar_for_each_bucket_with_records(tmp_path: Path) -> None:
    output = tmp_path / "plot.png"
    plot("minute", {"orders": {START: 100, START + 9 * MINUTE: 50}}, output)
    image = read_image(output)
    height, width, _ = image.shape
    bars = painted(image, BLUE)
    high, low = bars[:, : width // 2].any(axis=1).sum(), bars[:, width // 2 :].any(axis=1).sum()
    assert high > height / 2
    assert abs(low / high - 0.5) < 0.02
    assert not bars[:, int(width * 0.3) : int(width * 0.7)].any()


def test_each_topic_has_a_line_and_a_label(tmp_path: Path) -> None:
    output = tmp_path / "plot.png"
    plot("minute", {"orders": {START: 100}, "none": {}, "payments": {START + 5 * MINUTE: 50}}, output)
    image = read_image(output)
    assert painted(image, BLUE).any()
    assert not painted(image, ORANGE).any()  # the topic without records
    assert painted(image, (0x2C, 0xA0, 0x2C)).any()
