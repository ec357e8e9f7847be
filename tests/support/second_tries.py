"""Reruns each failed test once and reports it: ``-p tests.support.second_tries``, used by `make test`.

Many thousands of tests with servers, processes and clocks share two processors. Without a second try, a single test
that is too strict would reject a whole change. The run lists tests that pass only at the second try, as faults to
investigate. With more than :data:`MOST` such tests, it fails.
"""

from __future__ import annotations

from typing import Final

import pytest

MOST: Final = 3
"""Maximum number of tests per run that pass only at the second try."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.reruns = 1
    config.option.reruns_delay = 1  # seconds, for leftovers of other tests to end


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not exitstatus and len(tried_again(session.config)) > MOST:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    again = tried_again(config)
    if again:
        terminalreporter.section("failed at the first try")
        for report in again:
            terminalreporter.write_line(f"{report.nodeid}\n{report.longreprtext}\n{report.capstderr}")
        verdict = "FAIL" if len(again) > MOST else "passed"
        terminalreporter.write_line(f"{len(again)} failed first; at most {MOST} may: {verdict}")


def tried_again(config: pytest.Config) -> list[pytest.TestReport]:
    """Return the first tries that failed; none in an xdist worker, which does not judge the run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get("rerun", []) if reporter else []
