"""``ls --plot``: contents of the pictures, and messages where there is none."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.cli.screens import session_of
from tests.support.golden.segments import case_path
from tests.support.kafka.kafka_topics import Produced, delete_records
from tests.support.kafka.live_topics import TieredTopic
from tests.support.records.disk_segments import write_segments
from tests.support.servers.kafka import KafkaServer
from tieredstore.api.rows import Partition
from tieredstore.cli.bucket.stored_pictures import draw_offsets, draw_stored
from tieredstore.cli.terminal.plots import COLORS, GREY, RED, Picture, label
from tieredstore.cli.terminal.tables import cell_count
from tieredstore.installation import install_command
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.ops.offsets import BrokerLog

pytestmark = pytest.mark.slow

read_image: Any = matplotlib.image.imread
BUCKET, BROKER = COLORS[:2]


def painted(picture: Path, color: str) -> Any:
    """Return a mask of the pixels of this colour: rows and columns."""
    image = read_image(picture)
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return (abs(image[:, :, :3] - parts) < 0.02).all(axis=2)


def colors_of(picture: Path) -> set[str]:
    return {color for color in (*COLORS, RED) if painted(picture, color).sum() > 50}


def two_topics(folder: Path) -> Path:
    """Store three golden topics, the largest two hundred times as large as the smallest."""
    settings = write_settings(folder)
    for case in ("01-none", "07-txn", "11-single-record"):
        assert tieredstore("upload", "-c", settings, case_path(case) / "original").code == 0
    return settings


def test_a_picture_comes_beside_the_same_table(tmp_path: Path) -> None:
    settings, picture = two_topics(tmp_path), tmp_path / "stored.png"
    table = tieredstore("ls", "-c", settings)
    drawn = tieredstore("ls", "-c", settings, "--plot", picture)
    assert (drawn.code, drawn.stdout, drawn.stderr) == (0, table.stdout, "")
    assert {COLORS[0], COLORS[1]} <= colors_of(picture)
    again = picture.read_bytes()
    assert tieredstore("ls", "-c", settings, "--plot", picture, "--json").code == 0
    assert picture.read_bytes() == again
    # At the right end of the picture, the heights of the two topics are in proportion to their stored bytes.
    columns = [painted(picture, color).sum(axis=0) for color in COLORS[:2]]
    end = max(at for at in range(len(columns[0])) if columns[0][at] > 100)
    sizes = sorted((row["stored_size"] for row in by_topic(settings)), reverse=True)
    assert columns[1][end - 3] / columns[0][end - 3] == pytest.approx(sizes[1] / sizes[0], abs=0.03)


def by_topic(settings: Path) -> list[dict[str, Any]]:
    rows = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]
    topics = {row["topic"] for row in rows}
    return [{"stored_size": sum(row["stored_size"] for row in rows if row["topic"] == topic)} for topic in topics]


def test_more_topics_than_colours_share_the_last_one(tmp_path: Path) -> None:
    settings, picture = write_settings(tmp_path), tmp_path / "stored.png"
    for number in range(len(COLORS) + 2):
        name = f"_topic.{number}"  # matplotlib would leave this out of a legend
        write_segments(tmp_path / "kafka", 1, TopicIdPartition(Uuid(bytes([number + 1] * 16)), name, 0))
    assert tieredstore("upload", "-c", settings, tmp_path / "kafka").code == 0
    tieredstore("ls", "-c", settings, "--plot", picture).clean()
    assert colors_of(picture) == set(COLORS[:-1])
    assert painted(picture, GREY).sum() > painted(picture, COLORS[-2]).sum()  # three topics


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_other_kinds_of_picture(kind: str, tmp_path: Path) -> None:
    picture = tmp_path / f"offsets.{kind}"
    assert tieredstore("ls", *GOLDEN, "-p", 0, "--plot", picture).code == 0
    assert picture.read_bytes().startswith({"svg": b"<?xml", "pdf": b"%PDF"}[kind])


GOLDEN = ("-c", case_path("07-txn") / "rsm.properties", "txn")


@pytest.mark.parametrize("name", ["orders", "_hidden", "a$b$c", "x" * 300, "tab\there"])
def test_a_topics_name_is_shown_as_it_is(name: str) -> None:
    shown = label(name)
    assert not shown.startswith("_")
    assert "$" not in shown.replace(r"\$", "")
    assert len(shown) < 40
    assert shown.isprintable()


@pytest.mark.parametrize("command", [("ls",), ("ls", "txn", "-p", "0"), ("du",)])
def test_what_cannot_be_drawn_is_said_before_anything_is_looked_up(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tieredstore(*command, "-c", tmp_path / "absent", "--plot", tmp_path / "plot.txt")
    assert (other.code, other.stdout) == (2, b"")
    assert other.stderr == (
        f"tieredstore: the name of a picture must end in .png, .svg or .pdf, but '{tmp_path / 'plot.txt'}' does not\n"
    )
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    without = tieredstore(*command, "-c", tmp_path / "absent", "--plot", tmp_path / "plot.png")
    assert (without.code, without.stdout) == (2, b"")
    assert without.stderr == f"tieredstore: --plot needs matplotlib.figure: {install_command('plot')}\n"


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    settings, picture = write_settings(tmp_path), tmp_path / "stored.png"
    done = tieredstore("ls", "-c", settings, "--plot", picture)
    assert done.code == 0
    assert f"{picture} was not drawn: no segment has a time" in done.stderr
    assert not picture.exists()


def test_segments_of_no_time_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, picture = two_topics(tmp_path), tmp_path / "stored.png"
    plots = importlib.import_module("tieredstore.cli.bucket.stored_pictures")
    # Simulate a time too far in the future to be shown, as if a producer had written nanoseconds.
    monkeypatch.setattr(plots, "iso_utc", lambda time: None if time > 1_767_225_610_000 else "2026")
    done = tieredstore("ls", "-c", settings, "--plot", picture)
    assert "segments are not in the picture: their manifests have no time" in done.stderr
    assert picture.exists()


def test_a_time_at_the_end_of_the_calendar_is_drawn(tmp_path: Path) -> None:
    draw_stored(Picture(tmp_path / "stored.png"), [("a", 1_767_225_600_000, 5), ("a", 253_402_300_799_999, 5)])
    assert COLORS[0] in colors_of(tmp_path / "stored.png")


def test_a_hole_is_red_and_where_there_is_none_nothing_is(tmp_path: Path) -> None:
    settings, picture = write_settings(tmp_path), tmp_path / "offsets.png"
    assert tieredstore("upload", "-c", settings, case_path("07-txn") / "original").code == 0
    assert tieredstore("ls", "-c", settings, "txn", "-p", 0, "--plot", picture).code == 0
    assert colors_of(picture) == {BUCKET}
    assert tieredstore("rm", "-c", settings, "txn", "-p", 0, "--segment", 605, "--yes").code == 0
    assert tieredstore("ls", "-c", settings, "txn", "-p", 0, "--plot", picture).code == 0
    assert colors_of(picture) == {BUCKET, RED}
    # Count pixels in the middle row of the picture: only the bar crosses it, and the legend is above.
    held, lost = (colored[len(colored) // 2].sum() for colored in (painted(picture, color) for color in (BUCKET, RED)))
    ((row,), _) = tieredstore("ls", "-c", settings, "txn", "--json").rows
    (gap,) = row["lost"]
    share = (gap["stop"] - gap["start"]) / (row["end_offset"] - row["earliest_offset"])
    assert lost / (lost + held) == pytest.approx(share, abs=0.02)


def test_hundreds_of_partitions_are_still_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "offsets.png"
    known = {
        ("orders", Uuid(bytes(16)), number): Partition(number, None, None, broker=BrokerLog(0, 100))
        for number in range(100)
    }
    draw_offsets(Picture(picture), known, broker=True)
    height, *_ = read_image(picture).shape
    assert height < 4_000
    assert painted(picture, BROKER).any(axis=1).sum() > height / 4


def test_the_brokers_offsets_are_beside_the_buckets(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = TieredTopic(kafka, tmp_path, partitions=2)
    for partition in range(2):
        topic.produce([Produced(b"%d" % at, b"v" * 100) for at in range(600)], partition=partition)
    topic.tier()
    ends = {n: max(m.end_offset for (number, _), m in topic.copied.items() if number == n) + 1 for n in (0, 1)}
    delete_records(topic.server, topic.topic, ends[0] + 5)
    settings, picture = write_settings(tmp_path, {**topic.store, "chunk.size": "8192"}), tmp_path / "offsets.png"
    asked = ("ls", "-c", settings, topic.topic, "--bootstrap-server", topic.server.bootstrap_servers)
    (first, second), summary = tieredstore(*asked, "--json", "--plot", picture).rows
    assert (first["broker_earliest_offset"], first["broker_end_offset"]) == (ends[0] + 5, 600)
    assert (first["lost"], first["not_stored"]) == ([{"start": ends[0], "stop": ends[0] + 5}], 595 - ends[0])
    assert (second["broker_end_offset"], second["lost"], second["not_stored"]) == (600, [], 600 - ends[1])
    assert summary["not_stored"] == first["not_stored"] + second["not_stored"]
    assert colors_of(picture) == {BUCKET, BROKER, RED}
    heading, _, line, *_ = tieredstore(*asked, "-p", 0, "--wide").text.splitlines()
    assert "BROKER FROM  BROKER END  NOT STORED  LOST" in heading
    assert str(ends[0] + 5) in line.split()
    # All records up to the newest stored one are stored. So --until finds nothing missing up to that record's time.
    for row in (first, second):
        assert row["complete_up_to"] == row["newest_timestamp"]
        until = (*asked, "-p", row["partition"], "--until")
        assert tieredstore(*until, row["complete_up_to"]).code == 0
        assert tieredstore(*until, f"@{row['complete_up_to_ms'] + 1}").code == 3
    assert "COMPLETE UP TO" in heading
    # --from and --to limit the counts of bucket and broker. They exclude segments, so COMPLETE UP TO is missing.
    window = (*asked, "-p", 1, "--from", 590, "--to")
    ((one,), of_window) = tieredstore(*window, 595, "--json").rows
    assert (one["segments"], one["lost"], one["complete_up_to"]) == (0, [], None)
    assert (one["not_stored"], of_window["not_stored"]) == (5, 5)
    assert (one["broker_earliest_offset"], one["broker_end_offset"]) == (590, 595)
    assert tieredstore(*asked, "-p", 1, "--to", ends[1], "--json").rows[1]["not_stored"] == 0
    heading, _, line, *_ = tieredstore(*window, 595).text.splitlines()
    assert "BROKER END  NOT STORED  LOST  SEGMENTS" in heading
    assert line.split()[:6] == [topic.topic, "1", "590", "595", "5", "none"]
    assert tieredstore(*asked, "-p", 1, "--from", "now", "--json").rows[1]["not_stored"] == 0
    tieredstore(*asked, "-p", 1, "--from", 601).fails(2, f"offset 601 is beyond the end of {topic.topic}-0 (600)")
    # The important columns fit 80 columns, with times in full.
    (tmp_path / "narrow").mkdir()
    shutil.copy(settings, tmp_path / "narrow" / "store.properties")
    line = " ".join(("ls", *asked[3:]))
    for screen, columns in zip(
        session_of(tmp_path / "narrow", [line, f"{line} --from 590"]),
        (["NOT STORED", "LOST", "COMPLETE UP TO"], ["NOT STORED", "LOST", "STORED"]),
        strict=True,
    ):
        heading, *lines = screen.text.splitlines()
        assert all(column in heading for column in columns)
        assert max(map(cell_count, (heading, *lines))) <= 80
        assert (":" in lines[1]) == ("COMPLETE UP TO" in columns)
    # Up to the first record the answer is complete, up to now it is not, and for a deleted topic it is unknown.
    complete = tieredstore(*asked, "-p", 1, "--until", "@1", "--json")
    assert (complete.code, [row["complete_until"] for row in complete.rows[0]]) == (0, [True])
    now = tieredstore(*asked, "--until", "-0s", "--json")
    assert (now.code, [row["complete_until"] for row in now.rows[0]]) == (3, [False, False])
    alone = f"{topic.topic}-1 is not complete: offsets {ends[1]} to 599 are on the broker alone; a segment is stored"
    assert alone in now.stderr
    assert " segment.ms=" in now.stderr
    assert [len(row["why_missing"]) for row in now.rows[0]] == [1, 1]
    (tmp_path / "elsewhere").mkdir()
    elsewhere = write_settings(tmp_path / "elsewhere")
    write_segments(tmp_path / "kafka", 1, TopicIdPartition(Uuid(bytes([1] * 16)), "gone", 0))
    assert tieredstore("upload", "-c", elsewhere, tmp_path / "kafka").code == 0
    gone = tieredstore("ls", "-c", elsewhere, *asked[4:], "--until", "yesterday", "--json")
    assert (gone.code, [row["complete_until"] for row in gone.rows[0]]) == (75, [None])
    assert "gone-0 is not known to be complete: the brokers do not have it" in gone.stderr
    topic.close()
