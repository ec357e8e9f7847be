"""The tools that scripts/toolchain.py provides, for the tests; and what is skipped where there is no Java."""

from __future__ import annotations

import os

import pytest

from scripts.toolchain import JAVA, environment, located, missing

NEED_JAVA = frozenset({"broker", "spark"})


def pytest_configure() -> None:
    """Spark finds its Java by these variables, in the processes that tests start as well."""
    variables = environment()
    os.environ["PATH"] = variables["PATH"]
    if "JAVA_HOME" not in variables:
        os.environ.pop("JAVA_HOME", None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without Java the tests that need it are skipped, and say so; in CI they run, and fail."""
    needing = [item for item in items if any(mark.name in NEED_JAVA for mark in item.iter_markers())]
    if needing and not os.environ.get("CI") and located(JAVA) is None:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=missing(JAVA)))
