"""CONTRIBUTING.md names existing places; its map matches the import contracts; the hook is `make check`."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.room_map import layers, renew_page
from tests.project.test_docs import blocks
from tests.support.cli.cli_process import environment
from tests.support.core_alone import WINGS
from tests.support.paths import REPOSITORY

yaml: Any = importlib.import_module("yaml")  # yaml has no types
PAGE: Final = REPOSITORY / "CONTRIBUTING.md"
TEXT: Final = PAGE.read_text()
SPANS: Final = re.compile(r"`([^`\n]+)`")
PATH: Final = re.compile(r"[\w.-]+(/[\w.-]+)*/?")


def changes() -> list[list[str]]:
    """Return the rows of "To change X, go to Y": subject, files to edit, tests."""
    table = TEXT.partition("to change or add |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]


def places(text: str) -> Iterator[Path]:
    """Yield the files and folders that a text names. The text may omit ``tieredstore/`` from a path."""
    for span in SPANS.findall(text):
        is_room = span in {"backends", "config", "kms", "transform", "values"}
        if PATH.fullmatch(span) and (is_room or "/" in span or span.endswith((".md", ".py", ".toml"))):
            package = REPOSITORY / "tieredstore" / span
            yield package if package.exists() else REPOSITORY / span


def is_made(place: Path) -> bool:
    """Return True if a target of make creates the place."""
    return any(place.is_relative_to(REPOSITORY / folder) for folder in (".venv", "build", "dist"))


@pytest.mark.parametrize("row", changes(), ids=lambda row: row[0])
def test_a_change_leads_to_files_and_to_tests_that_exist(row: list[str]) -> None:
    what, edit, tests = row
    named = [*places(edit), *places(tests)]
    assert what
    assert list(places(edit))
    assert any("tests" in place.parts or "testing" in place.parts for place in places(tests))
    assert [place for place in named if not place.exists()] == []


@pytest.mark.parametrize("row", changes(), ids=lambda row: row[0])
def test_the_tables_and_classes_of_a_change_are_in_its_files(row: list[str]) -> None:
    files = [file for place in places(" ".join(row)) for file in ([place] if place.is_file() else place.glob("*.py"))]
    text = "".join(file.read_text() for file in files)
    names = [span for span in SPANS.findall(" ".join(row)) if re.fullmatch(r"_?[A-Z]\w+", span)]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_there_are_twenty_changes() -> None:
    assert len(changes()) >= 20


def test_every_file_that_the_page_names_exists() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    named = [place for place in places(prose) if "/" in str(place.relative_to(REPOSITORY))]
    assert len(named) > 60
    assert [place for place in named if not (place.exists() or is_made(place))] == []


def test_the_map_is_the_one_of_the_import_contracts() -> None:
    assert renew_page(TEXT) == TEXT, "python -m scripts.room_map"


def test_the_wings_of_the_map_are_those_without_which_the_core_is_tested() -> None:
    (sentence,) = re.findall(r"(`consumer`.*?) are the wings", TEXT)
    assert set(SPANS.findall(sentence)) == WINGS
    assert {room for layer in layers() for room in layer} > WINGS


def test_every_target_of_make_that_the_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", TEXT))
    assert {"test", "unit", "check", "soak", "docs", "wheel"} <= named <= targets


@pytest.mark.slow
def test_the_first_example_runs() -> None:
    (line,) = [line.removeprefix("$ ") for line in blocks(PAGE, "console")[0].splitlines()]
    python, *words = shlex.split(line)
    assert python == ".venv/bin/python"
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def yaml_of(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_hook_runs_what_make_check_runs() -> None:
    ((hook,),) = [repo["hooks"] for repo in yaml_of(REPOSITORY / ".pre-commit-config.yaml")["repos"]]
    assert (hook["entry"], hook["language"], hook["pass_filenames"]) == ("make check", "system", False)


def test_the_editor_breaks_lines_where_the_linter_does() -> None:
    length = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    assert f"max_line_length = {length}\n" in (REPOSITORY / ".editorconfig").read_text()


@pytest.mark.parametrize("name", ["bug", "change"])
def test_an_issue_template_is_one(name: str) -> None:
    form = yaml_of(REPOSITORY / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert form["name"]
    assert form["description"]
    assert all(field["attributes"] for field in form["body"])


def test_links_of_the_templates_lead_somewhere() -> None:
    template = REPOSITORY / ".github" / "PULL_REQUEST_TEMPLATE.md"
    links = re.findall(r"\]\(([^)#]+)", template.read_text())
    assert links
    assert [link for link in links if not (template.parent / link).exists()] == []
