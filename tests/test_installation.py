"""The package's own version and way of installation."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.support.paths import REPOSITORY
from tieredstore.installation import install_command

Recorded = Callable[[str | None], None]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Simulate the package installed as in pip's ``direct_url.json``, or from an index."""

    class Distribution:
        def __init__(self, text: str | None) -> None:
            self.text = text

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.text

    def record(text: str | None) -> None:
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Distribution(text))

    return record


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'tieredstore[s3]'"),
        ({"url": "file:///src/a%20clone", "dir_info": {}}, "pip install '/src/a clone[s3]'"),
        ({"url": "file:///src/clone", "dir_info": {"editable": True}}, "pip install -e '/src/clone[s3]'"),
        (
            {"url": "https://u:secret@host/x.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "pip install 'tieredstore[s3] @ git+https://…@host/x.git@c0ffee'",
        ),
        (
            {"url": "ssh://git@host/x.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "pip install 'tieredstore[s3] @ git+ssh://git@host/x.git@c0ffee'",
        ),
        (
            {"url": "https://host/t.whl?sig=secret", "archive_info": {}},
            "pip install 'tieredstore[s3] @ https://host/t.whl?…'",
        ),
    ],
    ids=["index", "clone", "editable", "repository", "by ssh", "wheel"],
)
def test_an_extra_is_installed_as_the_package_was(origin: Any, command: str, recorded: Recorded) -> None:
    recorded(None if origin is None else json.dumps(origin))
    assert install_command("s3") == command


def test_who_stands_in_the_clone_types_a_dot(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(json.dumps({"url": tmp_path.as_uri(), "dir_info": {}}))
    assert install_command("arrow") == "pip install '.[arrow]'"


def test_what_is_run_from_its_source_is_installed_from_there(
    not_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert install_command("arrow") == f"pip install '{REPOSITORY}[arrow]'"


def test_the_package_tells_its_version() -> None:
    assert tieredstore.__version__ == importlib.metadata.version("tieredstore")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tieredstore.nonsense
