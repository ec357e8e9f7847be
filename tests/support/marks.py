"""Requirements of each test, derived from its fixtures: marks for the choice of tests, and the worker that runs it.

Tests of files that sweep over operations get the mark "sweep"; `make soak` sweeps over all operations.

A test that starts processes, or a server without a fixture, is marked by hand. So is a test of `make soak`, which runs
only if the expression of ``-m`` names soak.
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
    """Return the marks of a test that uses these fixtures."""
    return {MARK_OF_FIXTURE[name] for name in fixtures if isinstance(name, str) and name in MARK_OF_FIXTURE}


@pytest.hookimpl(tryfirst=True)  # so that pytest can choose by these marks, and xdist can read the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            # If a parameter is the name of a fixture, the test requests it by `request.getfixturevalue`.
            parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
            for mark in sorted(marks_of(item.fixturenames) | marks_of(parameters)):
                item.add_marker(mark)
            if {"OperationSweep", "at_each_operation", "numbers_to_sweep"} & vars(item.module).keys():
                item.add_marker("sweep")
    if "soak" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak") is not None])
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Order long tests first, so that the last unit of work is a short one."""
    return next((turn for turn, mark in enumerate(("spark", "slow", "broker")) if item.get_closest_marker(mark)), 3)


@pytest.fixture(autouse=True)
def needs_are_told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Assert that a test is marked for each server that it gets by `getfixturevalue`. `make unit` leaves out tests with
    these marks.
    """
    yield
    untold = marks_of(request.fixturenames) - {mark.name for mark in request.node.iter_markers()}
    assert not untold, f"the test used a fixture of {', '.join(untold)}: mark it by hand with pytest.mark"


def pytest_configure(config: pytest.Config) -> None:
    # Let `pytest -n 2` be enough to keep a file's tests on one worker, and all tests that need Spark on the worker with
    # Spark.
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadfile"
    # Do not replace a worker that died. xdist 3.8 assigns its replacement a single unit, and a worker does not run its
    # last test before it gets another one. So if the unit has one test, the run never ends.
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a worker a unit: all tests that need Spark, or a file's other tests, so that module fixtures are made once.

    In a file with ``UNIT_OF_WORK: Final = "test"``, which is too much for one worker, each test is a unit.
    """
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # keep the order of ``_turn``
    scheduler: Any = importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)  # it has no types
    scheduler._split_scope = _unit_of
    return scheduler


def _unit_of(nodeid: str) -> str:
    """Return a test's unit by its node id. xdist 3.8 has groups, but workers do not pass these on since pytest 9.2."""
    file, _, test = nodeid.partition("::")
    if 'UNIT_OF_WORK: Final = "test"\n' in _text_of(file):
        return nodeid
    return "spark" if test.rpartition("::")[2].partition("[")[0] in _names_with_spark(file) else file


@cache
def _names_with_spark(file: str) -> set[str]:
    """Return a file's tests and fixtures that use Spark, directly or through a fixture of the file."""
    functions = [node for node in ast.walk(ast.parse(_text_of(file))) if isinstance(node, ast.FunctionDef)]
    names = {"spark"}
    while more := {one.name for one in functions if names & {each.arg for each in one.args.args}} - names:
        names |= more
    return names


@cache
def _text_of(file: str) -> str:
    return (REPOSITORY / file).read_text()
