"""What all tests share: servers, Spark and the golden buckets, there when a test first asks for one."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

from tests.support.examples import SOAK
from tests.support.paths import REPOSITORY
from tests.support.temporary_folders import folder_of

pytest_plugins = [
    "tests.support.marks",
    "tests.support.golden.catalogs",
    "tests.support.inline_threads",
    "tests.support.servers.fixtures",
    "tests.support.toolchain",
]
if (REPOSITORY / "tests" / "support" / "spark").is_dir():  # not in `make core`
    pytest_plugins.append("tests.support.spark.spark_session")

# pytest asks for it when a test, or a worker, first needs a folder.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder_of(REPOSITORY)))

# A shell starts what runs in its background with interrupts ignored, and so would be the processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure, neither of an example nor of drawing it; pytest's own time-out ends a test that hangs.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tieredstore", _patient)
settings.register_profile("soak", _patient, max_examples=1000)
settings.load_profile("soak" if SOAK else "tieredstore")
