"""Line and branch coverage of product code: ``-p tests.support.coverage``, used by `make test`.

Slipcover puts a probe at each line and branch when a module is imported, and removes those that are reached often. We
do not use a tracer such as coverage.py's for Python 3.11, because it takes time at every line of all code. It doubled
the processor time of the tests. This is a ``-p`` plugin, because pytest loads such plugins before any conftest.py, and
so before the product is imported. Each xdist worker sends its coverage to the process that started the run. This
process adds up the coverage and checks the limit. Processes that tests start are measured by
:mod:`tests.support.measured_process`.
"""

from __future__ import annotations

import marshal
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.paths import COVERAGE_VARIABLE
from tests.support.probed_code import keep_all
from tests.support.probes import SETTINGS, reached, slipcover
from tests.support.removed_probes import Probes

_WORKER_OUTPUT: Final = "coverage"
_UNMEASURED: Final = re.compile(
    r"tieredstore/testing/\w+_(tests|reads|writes)\.py|tieredstore/cli/__main__\.py|pyspark_\w+/__init__\.py"
)
"""Modules not measured: the contract's test suites, which pytest itself loads to rewrite assertions, and modules that
only start a process.
"""


def _product() -> Iterator[Path]:
    for folder in SETTINGS["source"]:
        yield from Path(folder).rglob("*.py")


class Coverage:
    """Coverage of all processes of the run, and the check against the limit."""

    def __init__(self) -> None:
        self._sum = Probes(SETTINGS["exclude-also"])

    def add(self, reached: bytes) -> None:
        """Add the coverage of one process."""
        for name, (lines, branches, places) in marshal.loads(reached).items():
            file = str(Path(name).resolve())  # a file may have two names: tieredstore/backends is a link
            self._sum.code_lines[file] |= lines
            self._sum.code_branches[file] |= branches
            self._sum.all_seen[file] |= places

    @cached_property
    def _reached(self) -> dict[str, Any]:
        """Slipcover's report, once all coverage is added."""
        reached: dict[str, Any] = self._sum.get_coverage()
        return reached

    @property
    def percent(self) -> float:
        """Covered lines and branches of all imported modules, in percent."""
        percent: float = self._reached["summary"]["percent_covered"]
        return percent

    def never_imported(self) -> list[str]:
        """Return the modules that no test imports. ``percent`` does not count their lines."""
        reached = {Path(path).resolve() for path in self._reached["files"]}
        return sorted(
            str(path) for path in _product() if path.resolve() not in reached and not _UNMEASURED.fullmatch(str(path))
        )

    def write_table(self, file: object) -> None:
        """Write the uncovered lines and branches of each file."""
        slipcover.print_coverage(self._reached, outfile=file, skip_covered=True, missing_width=60)


class CoverageOfRun:
    """Plugin of the process that started the run."""

    def __init__(self, *, judged: bool) -> None:
        self._judged = judged
        # Set the variable before the workers start, because they inherit it.
        self._folder = tempfile.TemporaryDirectory()
        os.environ[COVERAGE_VARIABLE] = self._folder.name
        self._coverage = Coverage()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        reached = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT)
        if reached is not None:  # None: the worker died
            self._coverage.add(reached)

    @pytest.hookimpl(trylast=True)  # after all workers have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._coverage.add(reached())
        for path in Path(self._folder.name).glob("*.reached"):
            self._coverage.add(path.read_bytes())
        self._folder.cleanup()
        enough = self._coverage.percent >= SETTINGS["fail-under"] and not self._coverage.never_imported()
        if self._judged and not exitstatus and not enough:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        floor = SETTINGS["fail-under"]
        terminalreporter.section("coverage by line and branch")
        self._coverage.write_table(terminalreporter)
        if self._judged:
            for path in self._coverage.never_imported():
                terminalreporter.write_line(f"FAIL: no test imports {path}")
            verdict = "FAIL" if self._coverage.percent < floor else "reached"
            terminalreporter.write_line(f"{self._coverage.percent:.2f} % of lines and branches; {floor} %: {verdict}")


class CoverageOfWorker:
    """Plugin of an xdist worker."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config: Any = session.config  # set by xdist
        config.workeroutput[_WORKER_OUTPUT] = reached()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-floor", action="store_true", help="a part of the tests need not reach the floor of coverage")


def pytest_configure(config: pytest.Config) -> None:
    worker = hasattr(config, "workerinput")
    if not worker:
        keep_all(_product())  # before the workers start
    config.pluginmanager.register(
        CoverageOfWorker() if worker else CoverageOfRun(judged=not config.getoption("no_floor"))
    )
