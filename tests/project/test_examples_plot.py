"""The example that counts a topic by minute."""

from __future__ import annotations

import subprocess
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
from examples.topic_by_minute import MINUTE, plot, shown_times, steps
from tests.support.cli_process import environment, write_settings
from tests.support.paths import REPOSITORY
from tests.support.spark_session import jvm_of_seconds
from tieredstore.config import load_settings
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, Record, build_batch, write_segment

START = datetime(2026, 1, 31, 23, 58, tzinfo=UTC)
PER_MINUTE = [120, 0, 30, 45, 0, 0, 7]
"""Records of each minute from the start on: over midnight, with gaps."""

read_image: Any = matplotlib.image.imread


def fill_store(folder: Path) -> Path:
    """A store with one segment of ``PER_MINUTE``; its settings file."""
    settings = write_settings(folder)
    first = int(START.timestamp()) * 1000
    times = [first + minute * 60_000 + i * 400 for minute, count in enumerate(PER_MINUTE) for i in range(count)]
    batches = [build_batch([Record(b"v", timestamp_ms=time)], offset) for offset, time in enumerate(times)]
    segment = write_segment(folder / "log", batches)
    with RemoteStorageManager(load_settings(settings)) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
    return settings


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "examples/topic_by_minute.py", *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment(**jvm_of_seconds(folder)),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.slow
def test_a_topic_is_counted_by_minute_and_plotted(tmp_path: Path) -> None:
    output = tmp_path / "by-minute.png"
    done = run(tmp_path, fill_store(tmp_path), PARTITION.topic, output)
    assert done.returncode == 0, done.stderr
    head, *table, blank, last = done.stdout.splitlines()
    assert (head.split(), blank) == (["minute", "(UTC)", "records"], "")
    counted = [(START + minute * MINUTE, count) for minute, count in enumerate(PER_MINUTE) if count]
    assert [line.split() for line in table] == [[*f"{at:%Y-%m-%d %H:%M}".split(), str(n)] for at, n in counted]
    assert last == f"{sum(PER_MINUTE)} records, plotted to {output}"
    assert output.read_bytes().startswith(b"\x89PNG")


def test_a_topic_that_is_not_there_is_said_in_one_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "by-minute.png"
    monkeypatch.setattr(topic_by_minute, "local_spark", lambda _: nullcontext(spark))
    monkeypatch.setattr(sys, "argv", ["topic_by_minute.py", str(fill_store(tmp_path)), "nope", str(output)])
    with pytest.raises(SystemExit) as ended:
        topic_by_minute.main()
    assert isinstance(ended.value.code, str)  # which Python prints, and exits with 1
    assert "there is no topic 'nope' in the bucket" in ended.value.code
    assert "Traceback" not in ended.value.code
    assert not output.exists()


@given(st.dictionaries(st.integers(0, 200), st.integers(1, 9), min_size=1, max_size=30))
def test_steps_have_every_minute_at_its_place_and_gaps_at_zero(records: dict[int, int]) -> None:
    counted = [(START + MINUTE * minute, records[minute]) for minute in sorted(records)]
    edges, values = steps(counted)
    assert len(edges) == len(values) + 1
    assert edges == sorted(set(edges))
    shown = {edge: value for edge, value in zip(edges, values, strict=False) if value}
    assert shown == dict(counted)
    for begin, end, value in zip(edges, edges[1:], values, strict=False):
        assert value == 0 or end - begin == MINUTE


@pytest.mark.parametrize("minutes", [1, 9, 1000])
def test_a_minute_never_fills_the_picture(minutes: int) -> None:
    first, last = shown_times([START, START + minutes * MINUTE])
    assert first < START
    assert last > START + minutes * MINUTE
    assert last - first >= timedelta(minutes=10)


def test_the_picture_has_a_bar_for_each_minute_with_records(tmp_path: Path) -> None:
    output = tmp_path / "plot.png"
    plot([(START, 100), (START + 9 * MINUTE, 50)], "orders", output)
    image = read_image(output)
    height, width, _ = image.shape
    bars = (abs(image[:, :, :3] - [0x2A / 255, 0x6F / 255, 0x97 / 255]) < 0.02).all(axis=2)
    high, low = bars[:, : width // 2].any(axis=1).sum(), bars[:, width // 2 :].any(axis=1).sum()
    assert high > height / 2
    assert abs(low / high - 0.5) < 0.02
    assert not bars[:, int(width * 0.3) : int(width * 0.7)].any()
