"""``restore offsets``: lists runs, shows a run's map, translates offsets, and refuses unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieredstore as ts
from tests.support.cli.cli_process import Result, tieredstore
from tieredstore.restore.produce.offset_map import OffsetMapFile
from tieredstore.restore.produce.runs import OffsetRun


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    with ts.open(folder) as bucket:
        kept = OffsetMapFile(bucket.opened().store, "", "r1")
        kept.map.add_topic("orders", "orders.new")
        kept.map.begin(("orders", 3), 100)
        kept.map.begin(("orders", 4), 7)
        kept.map.extend([OffsetRun("orders", 3, 102, 3, 0, 10), OffsetRun("orders", 3, 112, 3, 11, 8)])
        kept.map.advance(("orders", 3), 125)
        kept.save()
        hashed = OffsetMapFile(bucket.opened().store, "", "r2,a=b")
        hashed.map.add_topic("orders", "orders", is_rehashed=True)
        hashed.map.extend([OffsetRun("orders", 0, 0, 0, 0, 5), OffsetRun("orders", 0, 5, 1, 0, 5)])
        hashed.map.extend([OffsetRun("orders", 0, 10, 0, 6, 5), OffsetRun("orders", 1, 0, 0, 11, 2)])
        hashed.save()
    return folder


def offsets(store: Path, *words: object) -> Result:
    return tieredstore("restore", "offsets", *words, "--store", store)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "RUN|r1|r2,a=b"),
        (
            ["r1"],
            (
                "TOPIC  PARTITION FIRST LAST NEW TOPIC  PARTITION FIRST LAST RECORDS"
                "|orders 3 100 124 orders.new 3 0 18 18|orders 4 - - orders.new - - - 0"
            ),
        ),
        (
            ["r1", "orders", 3],
            (
                "TOPIC PARTITION FIRST LAST NEW TOPIC PARTITION FIRST LAST RECORDS"
                "|orders 3 102 111 orders.new 3 0 9 10|orders 3 112 119 orders.new 3 11 18 8"
            ),
        ),
        (
            ["r1", "orders", 3, 0, 101, 102, 112, 119, 120, 125, 130],
            (
                "TOPIC PARTITION OFFSET NEW TOPIC PARTITION OFFSET IS BY"
                "|orders 3 0 orders.new 3 0 before 100|orders 3 101 orders.new 3 0 gap 0"
                "|orders 3 102 orders.new 3 0 at 0"
                "|orders 3 112 orders.new 3 11 at 0|orders 3 119 orders.new 3 18 at 0"
                "|orders 3 120 orders.new 3 19 gap 0"
                "|orders 3 125 orders.new 3 19 at 0|orders 3 130 orders.new 3 19 beyond 5"
            ),
        ),
        (
            ["r2,a=b", "orders"],
            (
                "TOPIC PARTITION FIRST LAST NEW TOPIC PARTITION FIRST LAST RECORDS"
                "|orders 0 0 14 orders 0 0 10 10|orders 0 0 14 orders 1 0 4 5|orders 1 0 1 orders 0 11 12 2"
            ),
        ),
        (
            ["r2,a=b", "orders", 0, 7],
            (
                "TOPIC PARTITION OFFSET NEW TOPIC PARTITION OFFSET IS BY"
                "|orders 0 7 orders 0 6 first_unread 0|orders 0 7 orders 1 2 first_unread 0"
            ),
        ),
    ],
)
def test_what_a_person_sees(store: Path, words: list[object], shown: str) -> None:
    lines = offsets(store, *words).clean().text.splitlines()
    rows = [line.split() for line in lines if not set(line) <= set("─ ")]
    assert rows == [line.split() for line in shown.split("|")]


def test_a_script_gets_the_same_as_json(store: Path) -> None:
    rows, summary = offsets(store, "r1", "orders", 3, 126, "--json").clean().rows
    assert rows == [
        {
            "topic": "orders", "partition": 3, "offset": 126, "target_topic": "orders.new", "target_partition": 3,
            "target_offset": 19, "where": "beyond", "difference": 1,
        }
    ]  # fmt: skip
    assert summary == {"offsets": 1}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["r9"], 3, "no offset map of a run r9"),
        (["../r1"], 2, "the run's name (--run) is '../r1'"),
        (["r1", "returns"], 3, "the run r1 did not restore returns: see tieredstore restore offsets r1"),
        (["r1", "orders", 9], 3, "the run r1 did not restore orders-9"),
        (["r1", "orders", 9, 5], 3, "the run r1 did not restore orders-9"),
        (["r1", "orders", 3, -1], 2, "-1"),
        (["r1", "orders", 3, "soon"], 2, "OFFSET is 'soon'"),
    ],
)
def test_what_is_not_there_is_named(store: Path, words: list[object], code: int, said: str) -> None:
    offsets(store, *words).fails(code, said)


def test_a_damaged_map_is_named(tmp_path: Path) -> None:
    path = tmp_path / "!tieredstore" / "restores" / "r1" / "offsets"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"version":1}\nx')
    offsets(tmp_path, "r1").fails(4, "restores/r1/offsets is not a valid restore offset map")
    path.write_bytes(b'{"version":2}\nx')
    offsets(tmp_path, "r1").fails(2, "is a restore offset map of version 2", "upgrade tieredstore")
