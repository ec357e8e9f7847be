"""Tools from scripts/toolchain.py for the tests. Without Java, the tests that need it are skipped."""

from __future__ import annotations

import os

import pytest

from scripts.toolchain import JAVA, environment, located, missing

NEED_JAVA = frozenset({"broker", "spark"})


def pytest_configure() -> None:
    """Set the variables that let Spark find Java, also in processes that tests start."""
    variables = environment()
    os.environ["PATH"] = variables["PATH"]
    if "JAVA_HOME" not in variables:
        os.environ.pop("JAVA_HOME", None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need Java if it is missing; in CI, they run and fail instead."""
    needing = [item for item in items if any(mark.name in NEED_JAVA for mark in item.iter_markers())]
    if needing and not os.environ.get("CI") and located(JAVA) is None:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=missing(JAVA)))
