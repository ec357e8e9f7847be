"""The package's own version and way of installation."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.support.fresh_python import run_fresh
from tests.support.module_imports import product_sources
from tests.support.paths import REPOSITORY
from tieredstore.errors import ConfigError
from tieredstore.installation import PACKAGES, Extra, install_command


@dataclass
class Installed:
    """The package as one tool installed it: its records in the metadata, and the environment."""

    prefix: Path
    origin: str | None = None
    installer: str = "pip"

    def read_text(self, name: str) -> str | None:
        return {"direct_url.json": self.origin, "INSTALLER": f"{self.installer}\n"}[name]

    def put(self, name: str, text: str) -> None:
        path = self.prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Simulate an installation by pip, from an index, into the active environment."""
    prefix = tmp_path / "project" / ".venv"
    (prefix / "bin").mkdir(parents=True)
    pip = prefix / "bin" / "pip"
    pip.write_text("")
    pip.chmod(0o700)
    one = Installed(prefix)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: one)
    at(monkeypatch, prefix)
    monkeypatch.setenv("PATH", str(prefix / "bin"))
    return one


def at(monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))


def of_folder(url: str, **info: bool) -> str:
    return json.dumps({"url": url, "dir_info": info})


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'tieredstore[s3]'"),
        (of_folder("file:///src/a%20clone"), "pip install '/src/a clone[s3]'"),
        (of_folder("file:///src/clone", editable=True), "pip install -e '/src/clone[s3]'"),
        (
            json.dumps({"url": "https://u:secret@host/x.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}),
            "pip install 'tieredstore[s3] @ git+https://…@host/x.git@c0ffee'",
        ),
        (
            json.dumps({"url": "ssh://git@host/x.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}),
            "pip install 'tieredstore[s3] @ git+ssh://git@host/x.git@c0ffee'",
        ),
        (
            json.dumps({"url": "https://host/t.whl?sig=secret", "archive_info": {}}),
            "pip install 'tieredstore[s3] @ https://host/t.whl?…'",
        ),
    ],
    ids=["index", "clone", "editable", "repository", "by ssh", "wheel"],
)
def test_an_extra_is_installed_as_the_package_was(origin: str | None, command: str, installed: Installed) -> None:
    installed.origin = origin
    assert install_command("s3") == command


def test_a_relative_path_is_used_inside_the_clone(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(installed.prefix)
    installed.origin = of_folder(installed.prefix.as_uri())
    assert install_command("arrow") == "pip install '.[arrow]'"


def test_the_pip_of_an_environment_that_is_not_active_is_named(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert install_command("s3") == f"{installed.prefix}/bin/python -m pip install 'tieredstore[s3]'"


def test_what_runs_from_its_source_is_installed_from_there(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    monkeypatch.chdir(installed.prefix)
    assert install_command("arrow") == f"pip install '{REPOSITORY}[arrow]'"


def test_pipx_repeats_the_extras_that_are_there(installed: Installed) -> None:
    installed.put("pipx_metadata.json", json.dumps({"main_package": {"package_or_url": "tieredstore[query, s3]==0.1"}}))
    assert install_command("avro") == "pipx install --force 'tieredstore[avro,query,s3]'"
    installed.put("pipx_metadata.json", json.dumps({"main_package": {"package_or_url": "/src/clone"}}))
    installed.installer, installed.origin = "uv", of_folder("file:///src/clone")  # pipx may use uv as its installer
    assert install_command("avro") == "pipx install --force '/src/clone[avro]'"


RECEIPT = """
[tool]
requirements = [{ name = "tieredstore", extras = ["query"] }, { name = "pandas" }]
entrypoints = [{ name = "tieredstore", install-path = "/home/x/.local/bin/tieredstore", from = "tieredstore" }]
"""


def test_a_tool_of_uv_s_keeps_its_extras_and_the_packages_beside_it(installed: Installed) -> None:
    installed.installer = "uv"
    installed.put("uv-receipt.toml", RECEIPT)
    assert install_command("s3") == "uv tool install 'tieredstore[query,s3]' --with pandas"
    installed.put("uv-receipt.toml", '[tool]\nrequirements = [{ name = "tieredstore" }]\n')
    assert install_command("s3") == "uv tool install 'tieredstore[s3]'"


def test_a_project_of_uv_s_adds_the_extra(installed: Installed) -> None:
    installed.installer = "uv"
    assert install_command("s3") == "uv pip install 'tieredstore[s3]'"
    installed.put("../uv.lock", "")
    assert install_command("s3") == "uv add 'tieredstore[s3]'"
    installed.origin = of_folder(installed.prefix.parent.as_uri(), editable=True)
    assert install_command("s3") == "uv sync --inexact --extra s3"


@pytest.mark.parametrize("cache", ["archive-v0", "builds-v0", "environments-v2"])
def test_a_single_run_of_uvx_is_repeated_with_the_extra(
    cache: str, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.installer = "uv"
    at(monkeypatch, installed.prefix / cache / "x")
    assert install_command("s3") == "uvx --with 'tieredstore[s3]' tieredstore"


# Missing packages


def declared_extras() -> dict[str, list[str]]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def test_all_has_every_extra_of_users() -> None:
    extras = declared_extras()
    (everything,) = extras["all"]
    users = sorted(extras.keys() - {"all", "servers", "test", "dev"})
    assert everything == f"tieredstore[{','.join(users)}]"


def test_each_optional_package_has_an_extra_that_installs_it() -> None:
    extras = declared_extras()
    distributions = importlib.metadata.packages_distributions()
    needed = {re.split(r"[^\w.-]", one)[0].lower(): extra for extra, listed in extras.items() for one in listed}
    for package, extra in PACKAGES.items():
        installed_by = {re.split(r"[^\w.-]", one)[0].lower() for one in extras[extra]}
        named = {name.lower() for name in distributions.get(package, ())} or {package}
        assert named & installed_by or package == "botocore", (package, extra)
    assert needed.keys() >= {"boto3", "pyarrow"}


def test_a_missing_package_is_one_sentence(installed: Installed) -> None:
    with pytest.raises(ConfigError) as raised, Extra("reading Avro", "avro"):
        raise ModuleNotFoundError(name="fastavro.schema")
    assert str(raised.value) == "reading Avro needs fastavro.schema: pip install 'tieredstore[avro]'"
    with pytest.raises(ConfigError, match=r"this needs duckdb: pip install 'tieredstore\[query\]'"), Extra("this"):
        raise ModuleNotFoundError(name="duckdb")


def test_other_missing_modules_and_errors_are_left_alone() -> None:
    with pytest.raises(ModuleNotFoundError, match="mine"), Extra("this", "s3"):
        raise ModuleNotFoundError("mine", name="mine")
    with pytest.raises(ImportError, match="broken"), Extra("this", "s3"):
        raise ImportError("broken", name="boto3")


WITHOUT = """
import importlib, json, os, sys
from tieredstore.errors import ConfigError
from tieredstore.installation import PACKAGES

sys.modules |= dict.fromkeys(PACKAGES)
os.environ |= {"AWS_REGION": "here", "AZURE_STORAGE_ACCOUNT": "mine"}
import tieredstore as ts

said = {}


def ask(label, call):
    try:
        call()
    except ConfigError as error:
        said[label] = str(error)


packages = ["", ".types", ".polars", ".duckdb", ".spark", ".pipelines", ".pubsub", ".uploader", ".values", ".consumer"]
for package in packages:
    def load(name="tieredstore" + package):
        module = importlib.import_module(name)
        for public in module.__all__:
            ask(f"{name}.{public}", lambda: getattr(module, public))

    ask("tieredstore" + package, load)
bucket = ts.open(sys.argv[1])
(topic,) = {topic.name for topic in bucket.topics()}
live = ts.open(sys.argv[1], broker="127.0.0.1:1")
ask("read", lambda: bucket.read(topic))
ask("query", lambda: bucket.query("SELECT 1"))
ask("export", lambda: bucket.export(topic, "nowhere"))
ask("to_arrow", lambda: bucket.topics().to_arrow())
ask("to_pandas", lambda: bucket.topics().to_pandas())
ask("topics", lambda: live.topics())
ask("verify", lambda: live.verify())
ask("remove", lambda: list(live.remove(topic)))
for url in ("s3://bucket", "gs://bucket", "az://bucket"):
    ask(url, lambda: ts.open(url).topics())
for service in ("aws", "gcp", "azure", "vault"):
    from tieredstore.kms.base import key_source
    ask(service, lambda: key_source(service, "key"))
print(json.dumps(said))
"""


@pytest.mark.slow
def test_without_optional_packages_every_entry_names_the_extra() -> None:
    """Each import of an optional package is inside :class:`Extra`. Otherwise the user would see Python's own error."""
    said: dict[str, str] = json.loads(run_fresh(WITHOUT, REPOSITORY / "tests/golden/07-txn/store").splitlines()[-1])
    assert {
        name: sentence for name, sentence in said.items() if not re.search(r" needs [\w.]+: .*install", sentence)
    } == {}
    asked = {"read", "query", "export", "to_arrow", "to_pandas", "topics", "verify", "remove"}
    services = {"s3://bucket", "gs://bucket", "az://bucket", "aws", "gcp", "azure", "vault"}
    packages = {f"tieredstore.{name}" for name in ("polars", "duckdb", "spark", "values")}
    names = {"tieredstore.Consumer", "tieredstore.BatchProducer", "tieredstore.BatchConsumer", "tieredstore.types.Json"}
    assert asked | services | packages | names <= said.keys()


FALL_BACK = {"tieredstore.installation", "tieredstore.pubsub.format.messages"}
"""Modules that may catch the error of a missing optional package: the module of ``Extra``, and one that falls back to
an equal function of the standard library.
"""


def test_no_module_reports_a_missing_package_by_itself() -> None:
    """Only ``Extra`` tells the user to install an extra. Other modules may catch import errors, but only those of
    modules that the settings name.
    """
    for name, path in product_sources().items():
        if path.suffix != ".py" or name in FALL_BACK:
            continue
        text = path.read_text()
        assert "install_command" not in text, name
        assert not re.search(
            r"except \(?(ImportError|ModuleNotFoundError)\b.*:\n\s+raise ConfigError\(f?\".*needs", text
        ), name


def test_the_package_tells_its_version() -> None:
    assert tieredstore.__version__ == importlib.metadata.version("tieredstore")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tieredstore.nonsense
