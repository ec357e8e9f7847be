"""What all tests share: servers, Spark and the golden buckets, there when a test first asks for one."""

from __future__ import annotations

import signal

from hypothesis import settings

from tests.support.examples import SOAK

pytest_plugins = [
    "tests.support.marks",
    "tests.support.golden.catalogs",
    "tests.support.inline_threads",
    "tests.support.servers.fixtures",
    "tests.support.spark_session",
    "tests.support.toolchain",
]

# A shell starts what runs in its background with interrupts ignored, and so would be the processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure; pytest's own time-out ends a test that hangs.
settings.register_profile("tieredstore", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile("soak" if SOAK else "tieredstore")
