"""Wrong command lines with their messages: each names the problem and its fix, and exits with 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, tieredstore
from tests.support.cli.screens import all_commands

LINES = [
    ("ls --bucket x", "ls has no option --bucket; tieredstore ls --help lists its options"),
    ("ls --patitions 3", "ls has no option --patitions; did you mean --partitions?"),
    ("lst", "there is no command 'lst'; did you mean ls?"),
    ("dump x.log", "there is no command 'dump'; tieredstore show does that"),
    ("lifecycle show", "there is no command 'lifecycle'; tieredstore doctor does that"),
    ("version", "there is no command 'version'; tieredstore --version does that"),
    ("keys generate k", "there is no command 'keys generate'; tieredstore keys new does that"),
    ("keys add k", "there is no command 'keys add'; tieredstore keys new does that"),
    ("keys check", "there is no command 'keys check'; tieredstore keys list does that"),
    ("keys lst", "there is no command 'keys lst'; did you mean list?"),
    ("keys seal k", "keys seal needs --kms: tieredstore keys seal ID --kms NAME --kms-key KEY"),
    ("keys new k --activate", "--activate changes a settings file: give --settings FILE (-c)"),
    ("keys new", "keys new needs ID: tieredstore keys new ID"),
    ("keys rotate t -p x --store .", "-p is 'x': it must have the form 3, 0,2 or 4-7"),
    ("verify --level all", "--level is 'all': it must be one of listing, index, data"),
    ("verify --sample some --store .", "--sample is 'some': give a percentage such as 5%"),
    ("verify --from soon --store .", "--from is 'soon', not an offset or a time"),
    ("verify --recheck-after 7d --store .", "--recheck-after applies to segments in a state file: give --state too"),
    ("verify --parallel 300", "--parallel is '300': it must be at most 256"),
    ("doctor --yes --store .", "--yes is for --fix: give --fix too"),
    ("init no-such.properties --file new", "no-such.properties: there is no such settings file"),
    ("init pyproject.toml --file pyproject.toml", "pyproject.toml exists already, and init never changes a file"),
    ("init a b", "unexpected argument 'b' for init: tieredstore init [SERVER_PROPERTIES]"),
    (
        "show no-such-file",
        "there is no file no-such-file; for an object in a store give --settings FILE (-c) or --store URL",
    ),
    (f"ls -c {'x' * 300}", f"{'x' * 137}…{'x' * 45} (300 characters) cannot be used: File name too long"),
    ("show x.index --records", "--records does not apply to x.index"),
    ("show x.log --base-offset 5", "--base-offset does not apply to x.log: give it with Kafka's index files"),
    ("show x.snapshot --base-offset 5", "--base-offset does not apply to x.snapshot"),
    ("ls", "no store is named: give --settings FILE (-c) or --store URL"),
    ("fetch t b 0", "PARTITION is 'b': it must be a whole number"),
    ("fetch", "fetch needs TOPIC: tieredstore fetch TOPIC PARTITION OFFSET|ID"),
    ("cat", "cat needs TOPIC: tieredstore cat TOPIC"),
    ("cat t -n 0", "-n is '0': it must be at least 1"),
    ("cat t -n", "-n needs a value: -n N"),
    ("cat t --data-loss report", "cat has no option --data-loss"),
    ("copy", "there is no command 'copy'; tieredstore upload does that"),
    ("delete", "there is no command 'delete'; tieredstore rm does that"),
    ("export", "there is no command 'export'; tieredstore cat -o does that"),
    ("consume", "there is no command 'consume'; tieredstore cat --group does that"),
    ("nonsense", "there is no command 'nonsense'; tieredstore --help lists them"),
    ("x" * 1000, "there is no command 'xxx"),
    ("inspect a 0 0 \x1b[2J", "unexpected argument"),
    ("ls --\x1b[2J", "ls has no option"),
    *(
        (f"{command} --from 7 --to 3 --store .", "--from 7 is after --to 3: the window ends before it begins")
        for command in ("ls", "du", "verify", "holds place case")
    ),
]
IN_A_FOLDER = [
    ("ls --store nope", 2, "there is no file or folder 'nope'; URLs begin with file://, s3://"),
    ("ls --store ./nope", 2, "the store's root '{}/nope' is not an existing folder; create it"),
    ("ls --store store.properties", 2, "'store.properties' is a file, and a store is a URL or a folder; -c takes a"),
    ("query|select offset from none|--store|logs", 2, '"from"; offset is an SQL keyword: write "offset"\n'),
    ("query|select * from none where offset > 1|--store|logs", 2, 'offset is an SQL keyword: write "offset"\n'),
    ("query|select ofset from none|--store|logs", 2, 'column "ofset" not found in FROM clause! Candidate'),
    ("query|select * from nine|--store|logs", 3, "there is no topic nine; did you mean none?\n"),
    ("query|select * from of-two|--store|logs", 2, 'write "of-two", in double quotes\n'),
]
"""Run in a folder with a store of the topics ``none`` and ``of-two``."""


@pytest.mark.parametrize(("line", "sentence"), LINES, ids=[line for line, _ in LINES])
def test_a_wrong_line_is_told_in_one_sentence(line: str, sentence: str) -> None:
    done = tieredstore(*line.split())
    done.fails(2, f"tieredstore: {sentence}")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 300
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("arguments", [("--no-such-option",), ("-Z",), ("--no-such-option=1", "a", "b", "c", "d")])
@pytest.mark.parametrize("command", ["", "keys", "holds", *all_commands()])
def test_every_command_names_itself(command: str, arguments: tuple[str, ...]) -> None:
    done = tieredstore(*command.split(), *arguments)
    done.fails(2, f"tieredstore: {command or 'tieredstore'} ")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    (folder / "logs").mkdir()
    (folder / "store.properties").touch()
    for name in ("none-0", "of-two-0"):
        shutil.copytree(ORIGINALS / "single-0", folder / name)
        assert tieredstore("upload", folder / name, "--store", folder / "logs").code == 0
    return folder


@pytest.mark.parametrize(("line", "code", "sentence"), IN_A_FOLDER, ids=[line for line, *_ in IN_A_FOLDER])
def test_what_is_not_there_is_named(
    line: str, code: int, sentence: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs)
    done = tieredstore(*(line.split("|") if "|" in line else line.split()))
    done.fails(code, "tieredstore: ", sentence.format(logs))
    assert done.stderr.count("\n") == 1


def test_a_folder_that_is_there_is_a_store_by_its_name_alone(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(logs)
    assert [row["topic"] for row in tieredstore("ls", "--store", "logs", "--json").clean().rows[0]] == [
        "none",
        "of-two",
    ]
