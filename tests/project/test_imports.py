"""No entry point imports modules before it needs them. Modules are counted, because seconds depend on the machine."""

from __future__ import annotations

import json

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.paths import REPOSITORY

SDKS = {"azure", "boto3", "botocore", "confluent_kafka", "google", "pyarrow", "pyspark", "requests", "urllib3"}
NEEDED_LATER = SDKS | {"Crypto", "cryptography", "rich"}
LATER_STILL = NEEDED_LATER | {"prometheus_client", "pydantic", "typer"}


def modules_after(code: str) -> tuple[int, set[str]]:
    """Return the number of modules that the code imports, and their packages. The code itself may print."""
    printed = run_fresh(f"""
import json, sys
before = set(sys.modules)
{code}
print(json.dumps(sorted(set(sys.modules) - before)))
""")
    names: list[str] = json.loads(printed.splitlines()[-1])
    return len(names), {name.partition(".")[0] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "most", "needless"),
    [
        ("import tieredstore, tieredstore.types", 13, LATER_STILL),
        # Nearly all these modules are Python's own, so the import takes a tenth of a second.
        ("import tieredstore.cli.app.entry, tieredstore.cli.app.running", 90, LATER_STILL),
        # A shell waits for these while it completes a line.
        ("import tieredstore.cli.app.main, tieredstore.cli.records.cat", 250, NEEDED_LATER | {"pydantic"}),
        ("import tieredstore.cli.app.main", 250, NEEDED_LATER),
        ("import tieredstore.cli.bucket.upload", 400, NEEDED_LATER),
        ("import tieredstore.cli.bucket.fetch", 405, NEEDED_LATER),
        ("import tieredstore.cli.bucket.ls", 395, NEEDED_LATER),
        # The image of the sidecar has neither Arrow nor Avro.
        ("import tieredstore.uploader.service", 405, NEEDED_LATER | {"fastavro"}),
        ("from tieredstore.remote import RemoteStorageManager", 355, NEEDED_LATER | {"typer"}),
        ("import tieredstore.remote, tieredstore.errors, tieredstore.model", 60, NEEDED_LATER | {"pydantic"}),
    ],
    ids=["package", "version", "completion", "commands", "upload", "fetch", "ls", "uploader", "manager", "room"],
)
def test_nothing_is_imported_before_it_is_needed(code: str, most: int, needless: set[str]) -> None:
    count, packages = modules_after(code)
    assert packages & needless == set()
    assert count <= most


WINGS = {"tieredstore." + wing for wing in ("consumer", "pipelines", "pubsub", "restore", "spark", "uploader")}
SELDOM = {
    "tieredstore.config.clouds", "tieredstore.metrics.exposition", "javaproperties",
    "tieredstore.catalog.lineage", "tieredstore.places.layouts", "urllib.request", "http.client", "ssl", "asyncio",
}  # fmt: skip
"""Modules that most commands do not need: a cloud's settings, an exporter, read plans, Pinterest's layouts, HTTP."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "most", "needless"),
    [
        (["--version"], 20, {*LATER_STILL, *SELDOM, *WINGS, "importlib.metadata", "json", "logging", "socket"}),
        (["--help"], 175, {*NEEDED_LATER, *SELDOM, "pydantic", "tieredstore.config", "tieredstore.api"}),
        (["ls", "--store", str(REPOSITORY / "tests/golden/07-txn/store")], 345, {*NEEDED_LATER, *SELDOM, *WINGS}),
    ],
    ids=["version", "help", "ls"],
)
def test_a_command_imports_what_it_needs_alone(arguments: list[str], most: int, needless: set[str]) -> None:
    printed = run_fresh(f"""
import json, os, sys
before = set(sys.modules)
sys.argv = ["tieredstore", *{arguments!r}]
from tieredstore.cli.app.entry import run
try:
    run()
except SystemExit as end:
    assert end.code == 0
sys.__stdout__.write("\\n" + json.dumps(sorted(set(sys.modules) - before)))
""")
    names = set(json.loads(printed.splitlines()[-1]))
    assert {name for name in names if any(f"{name}.".startswith(f"{each}.") for each in needless)} == set()
    assert len(names) <= most


@pytest.mark.slow
def test_names_that_come_when_they_are_asked_for_are_all_there() -> None:
    printed = run_fresh("""
import tieredstore.metrics, tieredstore.remote
for module in (tieredstore.metrics, tieredstore.remote):
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert not hasattr(module, "nonsense")
print("all")
""")
    assert printed == "all\n"


@pytest.mark.slow
def test_each_public_name_can_be_the_first_one_that_is_asked_for() -> None:
    printed = run_fresh("""
import os
import tieredstore
for name in tieredstore.__all__:
    if (child := os.fork()) == 0:
        os._exit(getattr(tieredstore, name) is None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
print("all")
""")
    assert printed == "all\n"
