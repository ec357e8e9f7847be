"""A test that fails is tried once more, as ``-p tests.support.second_tries`` has it in `make test`, and is told of.

Many thousands of tests with servers, processes and clocks share two processors: one of them that asks for more than it
may would turn away all that a change brings. What passes at the second try is named in the end, as a fault that someone
has to look for; and where it is more than :data:`MOST`, the run fails.
"""

from __future__ import annotations

from typing import Final

import pytest

MOST: Final = 3
"""Tests of a run that may have failed first and passed then."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.reruns = 1
    config.option.reruns_delay = 1  # s: what others left behind may end meanwhile


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not exitstatus and len(tried_again(session.config)) > MOST:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    again = tried_again(config)
    if again:
        terminalreporter.section("failed at the first try")
        for name in again:
            terminalreporter.write_line(name)
        verdict = "FAIL" if len(again) > MOST else "passed"
        terminalreporter.write_line(f"{len(again)} failed first; at most {MOST} may: {verdict}")


def tried_again(config: pytest.Config) -> list[str]:
    """The names of the tests that had a second try; none in a worker of xdist, which does not judge."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports: list[pytest.TestReport] = reporter.stats.get("rerun", []) if reporter else []
    return sorted({report.nodeid for report in reports})
