"""The table of commands: commands of a wing, an absent wing, and the imports of a listing."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint

import pytest

from tests.support.fresh_python import run_fresh
from tieredstore.cli.app.main import program
from tieredstore.cli.app.table import Entry, all_entries, load_of_core, wing_entries
from tieredstore.installation import load_attached

WINGS = {"pipeline", "pubsub", "restore", "uploader"}
ROOMS = ("consumer", "pipelines", "pubsub", "spark", "uploader")


def point(value: str, name: str = "wing") -> EntryPoint:
    return EntryPoint(name, value, "tieredstore.commands")


def test_the_wings_commands_come_by_entry_points() -> None:
    assert {entry.name for entry in wing_entries()} == WINGS
    names = [entry.name for entry in all_entries()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("entry", all_entries(), ids=lambda entry: entry.name)
def test_a_summary_is_the_first_paragraph_of_the_help(entry: Entry) -> None:
    assert " ".join((program().commands[entry.name].help or "").split("\n\n")[0].split()) == entry.summary


@pytest.mark.parametrize("entry", all_entries(), ids=lambda entry: entry.name)
def test_only_the_program_itself_installs_completion(entry: Entry) -> None:
    assert "install_completion" not in {option.name for option in program().commands[entry.name].params}


def test_an_absent_wing_is_skipped() -> None:
    absent = [point("tieredstore.no_such_wing.cli:COMMANDS"), point("tieredstore.uploader.no_cli:COMMANDS")]
    assert load_attached([*absent, point("tieredstore.uploader.cli:COMMANDS")]) == [
        tuple(entry for entry in wing_entries() if entry.name == "uploader")
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [("import no_such_package_of_anybody", ModuleNotFoundError), ("1 / 0", ZeroDivisionError), ("", AttributeError)],
)
def test_any_other_failure_of_a_wing_is_an_error(
    text: str, error: type[Exception], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("wing")
    name = f"{folder.name}_module"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(error):
        load_attached([point(f"{name}:COMMANDS")])


@pytest.mark.parametrize(
    "code",
    ['main(["--help"])', "list(program().commands)", 'main(["ls", "--help"])'],
    ids=["help", "names", "command"],
)
def test_no_wing_is_imported_before_it_is_named(code: str) -> None:
    printed = run_fresh(f"""
import json, sys
from tieredstore.cli.app.main import main, program
{code}
print(json.dumps(sorted(sys.modules)))
""")
    modules: set[str] = set(json.loads(printed.splitlines()[-1]))
    wings = {name for name in modules if name.startswith(tuple(f"tieredstore.{wing}." for wing in ROOMS))}
    assert wings <= {f"tieredstore.{wing}.cli" for wing in ROOMS}
    assert not modules & {"confluent_kafka", "pyarrow", "pyspark"}


def test_a_summary_without_a_command_is_an_error() -> None:
    with pytest.raises(LookupError, match="has a summary of the command 'lifecycle', but no case"):
        load_of_core("lifecycle")
