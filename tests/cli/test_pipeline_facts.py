"""What ``pipeline`` says in its text it says in JSON too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_process import Result, tieredstore
from tests.support.spark_pipelines import ROOT, Kept
from tieredstore.pipelines.transforming import Message

TRANSFORMER = "secor__message__transformer__class"


def thirds(message: Message) -> Message | None:
    """Of three messages one is bad, for one reason or another, one is left out, and one is filed."""
    number = number_of(message)
    if number % 6 == 0:
        raise ValueError("even")
    if number % 3 == 0:
        raise KeyError("odd")
    return message if number % 3 == 1 else None


def halves(message: Message) -> Message | None:
    """Knows what to do with those of the one reason."""
    if number_of(message) % 2 == 0:
        raise ValueError("even")
    return message if number_of(message) % 4 == 1 else None


def number_of(message: Message) -> int:
    assert message.value is not None
    return int(message.value.rpartition(b"@")[2])


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with closing(Kept(tmp_path)) as kept:
        kept.write(12, partitions=(0,))
        yield kept


def rows(done: Result) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines, and the summary behind them."""
    assert done.code == 0, done
    *lines, last = [json.loads(line) for line in done.text.splitlines()]
    return lines, last["summary"]


def by(transformer: str) -> dict[str, str]:
    return {TRANSFORMER: f"{__name__}:{transformer}"}


def test_a_run_counts_the_same_in_both(kept: Kept) -> None:
    text = tieredstore("pipeline", "run", "--once", kept.file(**by("thirds"))).text
    line, sums = text.splitlines()
    assert line == "orders-0 0 … 11: 4 records in 2 files, 4 left out, 4 put aside"
    assert re.fullmatch(r"4 records in 2 new files \(\S+ \w+\)", sums)
    other = kept.file(**by("thirds"), secor__generation="2")
    (window,), summary = rows(tieredstore("pipeline", "run", "--once", other, "--json"))
    assert (window["records"], window["filtered"], window["quarantined"]) == (4, 4, 4)
    sizes = {info.key: info.size for info in kept.store.list(ROOT)}
    stored = sum(sizes[key] for key in window["output_keys"])
    assert summary == {"records": 4, "filtered": 4, "quarantined": 4, "files": 2, "stored_size": stored}
    backfill = "pipeline", "backfill", kept.file(**by("thirds")), "--topic", "orders", "--generation", 7, "--json"
    assert rows(tieredstore(*backfill))[1] == summary


def test_changes_tell_sizes(kept: Kept) -> None:
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    change = json.loads(tieredstore("pipeline", "changes", file, "--json").text)
    assert change["sizes"] == [kept.store.head(key).size for key in change["output_keys"]]


@pytest.mark.parametrize("transformer", ["thirds", "halves"])
def test_redriving_tells_of_what_stays_bad_where_and_why(kept: Kept, transformer: str) -> None:
    assert tieredstore("pipeline", "run", "--once", kept.file(**by("thirds"))).code == 0
    (before,) = [info.key for info in kept.store.list(f"{ROOT}_tieredstore/kept/1/quarantine/")]
    redrive = "pipeline", "redrive", kept.file(**by(transformer)), "--yes"
    text = tieredstore(*redrive).text.splitlines()
    if transformer == "thirds":
        assert text[0] == f"orders-0 0 … 9: no messages filed, 4 stay bad in {before}"
        assert [re.sub(": .*", "", line) for line in text[1:3]] == ["  2 from offset 0 on", "  2 from offset 3 on"]
        assert text[3:] == ["1 file parsed once more: no messages filed; 4 stay bad"]
        (row,), summary = rows(tieredstore(*redrive, "--json"))
        assert (row["quarantine_key"], row["output_keys"], row["quarantined"]) == (before, [], 4)
        assert [(why["quarantined"], why["first_offset"]) for why in row["reasons"]] == [(2, 0), (2, 3)]
        assert all(f": {why['reason']}" in line for why, line in zip(row["reasons"], text[1:3], strict=True))
        assert summary == {"records": 0, "filtered": 0, "quarantined": 4, "parsed_files": 1}
        return
    (after,) = [info.key for info in kept.store.list(f"{ROOT}_tieredstore/kept/1/quarantine/")]
    assert text[0] == f"orders-0 0 … 9: 1 message filed, 1 left out, 2 stay bad in {after}"
    assert text[2:] == ["1 file parsed once more: 1 message filed; 1 left out; 2 stay bad"]
    assert after != before
    kept.file()
    text = tieredstore(*redrive).text.splitlines()
    assert text == ["orders-0 0 … 6: 2 messages filed", "1 file parsed once more: 2 messages filed; none stays bad"]
    assert tieredstore(*redrive).text == "no bad messages are put aside\n"
    assert rows(tieredstore(*redrive, "--json")) == (
        [], {"records": 0, "filtered": 0, "quarantined": 0, "parsed_files": 0},
    )  # fmt: skip


def test_an_output_of_which_there_is_nothing_is_not_as_it_was_committed(kept: Kept) -> None:
    file = kept.file()
    for options in ((), ("--json",), ("--sizes-only",)):
        done = tieredstore("pipeline", "verify", file, *options)
        assert (done.code, done.text) == (3, "")
        assert re.search(
            r"generation 1 of kept has neither a commit log nor files below out/.*pipeline\.name", done.stderr
        )
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    assert tieredstore("pipeline", "verify", file).text == "all is as it was committed\n"
    assert tieredstore("pipeline", "verify", kept.file(pipeline__name="others", secor__generation="2")).code == 3
    whose = tieredstore("pipeline", "verify", kept.file(pipeline__name="others"))
    assert whose.code == 2
    assert "belongs to the pipeline 'kept'" in whose.stderr
