"""Wrong command lines with their sentences: each names the thing and the way out, and exits with 2."""

from __future__ import annotations

import pytest

from tests.support.cli.cli_process import tieredstore

LINES = [
    ("ls --bucket x", "ls has no option --bucket; tieredstore ls --help lists what it has"),
    ("ls --patitions 3", "ls has no option --patitions; did you mean --partitions?"),
    ("lst", "there is no command 'lst'; did you mean ls?"),
    ("dump x.log", "there is no command 'dump'; tieredstore show is what does that"),
    ("lifecycle show", "there is no command 'lifecycle'; tieredstore doctor is what does that"),
    ("version", "there is no command 'version'; tieredstore --version is what does that"),
    ("keys generate k", "there is no command 'keys generate'; tieredstore keys new is what does that"),
    ("keys add k", "there is no command 'keys add'; tieredstore keys new is what does that"),
    ("keys check", "there is no command 'keys check'; tieredstore keys list is what does that"),
    ("keys lst", "there is no command 'keys lst'; did you mean list?"),
    ("keys seal k", "keys seal needs --kms: tieredstore keys seal ID --kms NAME --kms-key KEY"),
    ("keys new k --activate", "--activate changes a settings file: give --settings FILE (-c)"),
    ("keys new", "keys new needs ID: tieredstore keys new ID"),
    ("keys rotate t -p x --store .", "-p is 'x': it must be as 3, as 0,2 or as 4-7"),
    ("verify --level all", "--level is 'all': it must be one of listing, index, data"),
    ("verify --sample some --store .", "--sample is 'some': give a percentage, as 5%"),
    ("verify --from soon --store .", "--from is 'soon', which is neither an offset nor a time"),
    ("verify --parallel 300", "--parallel is '300': it must be at most 256"),
    ("doctor --yes --store .", "--yes is for --fix: give that too"),
    (
        "show no-such-file",
        "there is no file no-such-file; for a key of a store give --settings FILE (-c) or --store URL",
    ),
    ("show x.index --records", "--records is not for x.index"),
    ("ls", "no store is named: give --settings FILE (-c) or --store URL"),
]


@pytest.mark.parametrize(("line", "sentence"), LINES, ids=[line for line, _ in LINES])
def test_a_wrong_line_is_told_in_one_sentence(line: str, sentence: str) -> None:
    done = tieredstore(*line.split())
    done.fails(2, f"tieredstore: {sentence}")
    assert done.stderr.count("\n") == 1
