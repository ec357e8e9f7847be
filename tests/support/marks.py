"""What a test needs, told by the fixtures that it asks for: marks to choose tests by, and the worker it runs on.

A test that starts processes of its own, or a server past the fixtures, is marked by hand; so is one of `make soak`,
which runs only where the expression of ``-m`` names soak.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import pytest

from tests.support.paths import REPOSITORY

MARK_OF_FIXTURE: Final = {
    "seaweedfs": "server",
    "minio": "server",
    "fake_gcs": "server",
    "azurite": "server",
    "kafka": "broker",
    "zookeeper": "broker",
    "spark": "spark",
}


def marks_of(fixtures: Iterable[object]) -> set[str]:
    """The marks of a test that asks for these fixtures."""
    return {MARK_OF_FIXTURE[name] for name in fixtures if isinstance(name, str) and name in MARK_OF_FIXTURE}


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks, and before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            # A parameter that is a fixture's name is one that the test asks for by `request.getfixturevalue`.
            parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
            for mark in sorted(marks_of(item.fixturenames) | marks_of(parameters)):
                item.add_marker(mark)
    if "soak" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak") is not None])
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """The long ones first: whoever begins the last unit of work should soon be done with it."""
    return next((turn for turn, mark in enumerate(("spark", "slow", "broker")) if item.get_closest_marker(mark)), 3)


@pytest.fixture(autouse=True)
def needs_are_told(request: pytest.FixtureRequest) -> Iterator[None]:
    """A server that a test starts by `getfixturevalue` must be told by its marks: `make unit` goes by them."""
    yield
    untold = marks_of(request.fixturenames) - {mark.name for mark in request.node.iter_markers()}
    assert not untold, f"the test used a fixture of {', '.join(untold)}: mark it by hand with pytest.mark"


def pytest_configure(config: pytest.Config) -> None:
    # `pytest -n 2` is enough: the tests of a file stay together, and those that need Spark on the worker that has it.
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadfile"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """A worker takes all tests that need Spark, or the others of one file: what a module's tests share is made once.

    Of a file that says so (``UNIT_OF_WORK: Final = "test"``) a worker takes one test: it is more than the work of one.
    """
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order is the one above, not the number of tests
    scheduler: Any = importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)  # it has no types
    scheduler._split_scope = _unit_of
    return scheduler


def _unit_of(nodeid: str) -> str:
    """By the text: xdist 3.8 has groups of its own, but its workers cannot tell them any more since pytest 9.2."""
    file, _, test = nodeid.partition("::")
    if 'UNIT_OF_WORK: Final = "test"\n' in _text_of(file):
        return nodeid
    return "spark" if test.rpartition("::")[2].partition("[")[0] in _names_with_spark(file) else file


@cache
def _names_with_spark(file: str) -> set[str]:
    """The tests and fixtures of a file that ask for Spark, themselves or by a fixture of the file."""
    functions = [node for node in ast.walk(ast.parse(_text_of(file))) if isinstance(node, ast.FunctionDef)]
    names = {"spark"}
    while more := {one.name for one in functions if names & {each.arg for each in one.args.args}} - names:
        names |= more
    return names


@cache
def _text_of(file: str) -> str:
    return (REPOSITORY / file).read_text()
