"""What all tests share: servers, Spark and the golden buckets, there when a test first asks for one."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["tests.golden_catalogs", "tests.servers.fixtures", "tests.spark_session"]

# A busy machine is no failure; pytest's own time-out ends a test that hangs.
settings.register_profile("tieredstore", deadline=None)
settings.load_profile("tieredstore")
