"""Warnings and errors as written by Spark's Python processes."""

from __future__ import annotations

import re

import pytest

from tests.support.fresh_python import run_fresh

WARN = """
import importlib.machinery, logging, sys
from tieredstore.spark.source.workers import one_sentence

sys.stderr = sys.stdout
module, sets_logging_up = sys.argv[1:]
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec(module, None)
with one_sentence():
    pass
if sets_logging_up == "yes":
    logging.basicConfig(stream=sys.stdout, format="mine %(message)s")
logging.getLogger("tieredstore.spark.source.streaming").warning("orders is not there")
"""


@pytest.mark.parametrize(
    ("module", "sets_logging_up", "line"),
    [
        (
            "pyspark.daemon",
            "no",
            r"[\d/]{8} [\d:]{8} WARNING tieredstore\.spark\.source\.streaming: orders is not there",
        ),
        ("pyspark.daemon", "yes", "mine orders is not there"),
        ("somebodys.program", "no", "orders is not there"),
    ],
    ids=["in Spark", "where logging is set up", "elsewhere"],
)
def test_a_warning_has_its_loggers_name_in_processes_of_spark(module: str, sets_logging_up: str, line: str) -> None:
    assert re.fullmatch(f"{line}\n", run_fresh(WARN, module, sets_logging_up))


ERROR = """
import importlib.machinery, os, sys
from contextlib import suppress
from tieredstore.errors import ConfigError
from tieredstore.spark.source.workers import one_sentence

sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec(sys.argv[1], None)
with suppress(ConfigError), one_sentence():
    raise ConfigError("orders is not there")
print("SPARK_HIDE_TRACEBACK" in os.environ)
"""


@pytest.mark.parametrize(("module", "is_hidden"), [("pyspark.daemon", True), ("somebodys.program", False)])
def test_tracebacks_are_hidden_in_processes_of_spark_alone(module: str, is_hidden: bool) -> None:
    """A user's program that handles our error must not pass SPARK_HIDE_TRACEBACK on to workers of its next session."""
    assert run_fresh(ERROR, module) == f"{is_hidden}\n"
