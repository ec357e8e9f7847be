"""``du --prices`` on a folder: its table, JSON and picture, and its errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.paths import REPOSITORY
from tests.support.stores.catalog_stores import OTHER_ID, TOPIC_ID, MadeSegment, partition_of, run_of
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.cli.terminal.output import human_amount

PRICES = REPOSITORY / "examples" / "prices.toml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    store = FilesystemObjectStore(folder)
    for segment in [*run_of(4, partition_of()), *run_of(2, partition_of(partition=1)), *run_of(9, partition_of("z"))]:
        segment.put(store)
    return folder


def run(root: Path, *arguments: object, prices: Path = PRICES) -> Result:
    return tieredstore("du", "--prices", prices, *arguments, "--store", root.as_uri())


def test_the_dearest_topic_comes_first_and_all_that_is_assumed_is_said(root: Path) -> None:
    done = run(root)
    assert done.code == 0
    lines = done.text.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["z", "events"]
    assert lines[5].startswith("total ")
    assert len(lines) == 6
    assert done.stderr.startswith("tieredstore: per month by example of round figures (USD, as of 2024)\n")
    assert done.stderr.count("tieredstore: assumed: ") == 5
    assert "not of your contract" in done.stderr


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, "-"), (0, "0.00"), (0.0084, "<0.01"), (-0.0084, ">-0.01"), (0.01, "0.01"), (12.345, "12.35"),
        (1234.5, "1,234.50"), (-3, "-3.00"),
    ],
)  # fmt: skip
def test_amounts_have_fixed_decimals(amount: float | None, shown: str) -> None:
    assert human_amount(amount) == shown


def test_all_amounts_of_a_column_have_the_same_number_of_decimals(root: Path) -> None:
    cells = re.findall(r"(?<=  )[<>-]*[\d,]+\.\d+(?=  |\n)", run(root, "--wide").text)
    assert cells
    assert {len(cell.rpartition(".")[2]) for cell in cells} == {2}


def test_what_is_known_of_rows_adds_up_however_they_are_cut(root: Path) -> None:
    topics, summary = run(root, "--json").rows
    partitions, again = run(root, "--json", "--by", "partition").rows
    assert (len(topics), len(partitions)) == (2, 3)
    assert {row["partition"] for row in topics} == {None}
    for name in ("stored_size", "size", "segments", "objects", "lists", "storage_cost", "bucket_cost", "saved"):
        assert summary[name] == pytest.approx(sum(row[name] for row in topics), abs=1e-5), name
        assert summary[name] == pytest.approx(sum(row[name] for row in partitions), abs=1e-5), name
        assert again[name] == pytest.approx(summary[name], abs=1e-5)
    assert (summary["segments"], summary["objects"], summary["currency"]) == (15, 45, "USD")
    assert len(summary["assumptions"]) == 5


def test_growth_by_the_time_of_records_and_a_topic_alone(root: Path) -> None:
    """The records have timestamps of 1970, but were stored just now."""
    assert run(root, "--json").rows[1]["growth_segments"] == 0
    rows, summary = run(root, "--json", "events", "-p", "1").rows
    assert [(row["topic"], row["segments"]) for row in rows] == [("events", 2)]
    assert summary["segments"] == 2


def test_without_prices_of_brokers_there_is_no_saving(root: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("".join(PRICES.read_text().partition("[kafka]")[:1]))
    rows, summary = run(root, "--json", prices=prices).rows
    assert {row["saved"] for row in rows} == {None} == {summary["broker_cost"]}
    assert " - " in run(root, prices=prices).text
    picture = tmp_path / "cost.png"
    assert run(root, "--plot", picture, prices=prices).code == 0
    assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_a_picture_has_both_sides(root: Path, tmp_path: Path) -> None:
    for number in range(12):
        MadeSegment(partition_of(f"$topic_{number}"), 0, 9).put(FilesystemObjectStore(root))
    picture = tmp_path / "cost.png"
    done = run(root, "--plot", picture)
    assert done.code == 0
    read: Any = matplotlib.image.imread
    image = read(picture)
    for color in ("#3f90da", "#ffa90e"):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        assert (abs(image[:, :, :3] - parts) < 0.02).all(axis=2).sum() > 50, color


@pytest.mark.slow
def test_a_topic_that_was_created_again_has_bars_of_its_own(root: Path, tmp_path: Path) -> None:
    MadeSegment(partition_of(topic_id=OTHER_ID), 0, 9).put(FilesystemObjectStore(root))
    picture = tmp_path / "cost.svg"
    for words in (("--plot", picture), ("--plot", picture, "--sort", "name")):
        assert run(root, *words).code == 0
        drawn = picture.read_text()
        # matplotlib writes each text as a comment too. A long name is shortened in its middle, so look for its end.
        assert drawn.count("<!--  events ") == 2
        assert {f"{OTHER_ID}"[-6:] in drawn, f"{TOPIC_ID}"[-6:] in drawn} == {True}


def test_prices_are_looked_at_before_the_bucket(root: Path, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text('[store]\nstorage_gib_month = "cheap"\n')
    run(tmp_path / "no-such-folder", prices=tmp_path / "prices.toml").fails(
        2, "store.storage_gib_month is 'cheap', not a number"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--by day", "--prices works by topic or partition: leave out --by day"),
        ("--listing", "--prices needs the manifests: leave --listing out"),
    ],
)
def test_what_prices_do_not_go_with(line: str, words: str, root: Path) -> None:
    run(root, *line.split()).fails(2, words)


def test_an_empty_bucket_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    picture = tmp_path / "cost.png"
    done = run(tmp_path / "store", "--plot", picture)
    assert (done.code, done.text) == (0, "")
    assert "no segments found" in done.stderr
    assert "was not drawn" in done.stderr
    assert not picture.exists()
    assert run(tmp_path / "store", "--json").rows[1]["bucket_cost"] == 0


def test_a_damaged_manifest_is_named(root: Path) -> None:
    next(root.rglob("*.rsm-manifest")).write_text("{}")
    done = run(root)
    assert done.code == 0
    assert "1 segment with a damaged or archived manifest: only stored bytes are counted (run verify)" in done.stderr
