"""Fixtures shared by all tests: servers, Spark and the golden buckets, created on first use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.support.examples import SOAK
from tests.support.paths import REPOSITORY
from tests.support.temporary_folders import folder_of

pytest_plugins = [
    "tests.support.bytecode",
    "tests.support.marks",
    "tests.support.golden.catalogs",
    "tests.support.inline_threads",
    "tests.support.servers.fixtures",
    "tests.support.toolchain",
]
if (REPOSITORY / "tests" / "support" / "spark").is_dir():  # not in `make core`
    pytest_plugins.append("tests.support.spark.spark_session")

# pytest reads the variable when a test or a worker first needs a folder.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder_of(REPOSITORY)))

# A shell starts background jobs with interrupts ignored, and the tests' processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Slow examples and slow draws on a busy machine are not failures; pytest's own timeout ends a hanging test.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tieredstore", _patient)
settings.register_profile("soak", _patient, max_examples=1000)
settings.load_profile("soak" if SOAK else "tieredstore")

if not SOAK:
    # Hypothesis also draws constants that it finds in the loaded modules. These depend on the tests that the worker ran
    # before, so a test would get other examples in each run, even with the same seed.
    providers._get_local_constants = Constants  # pyright: ignore[reportPrivateUsage]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, whose search for cycles takes a fifth of the time and frees nothing.

    Freeze the tests afterwards, because a full garbage collection over them takes 0.6 s, and in a fork copies memory.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
