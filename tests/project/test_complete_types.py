"""All public names have complete types for users of the installed package, according to pyright.

`make static` checks by the same pyright, in strict mode, that no type of the package is missing or partly unknown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tieredstore as ts
from tests.support.paths import REPOSITORY
from tieredstore import types

pytestmark = [pytest.mark.soak, pytest.mark.slow]


def test_public_names_have_complete_types(tmp_path: Path) -> None:
    (tmp_path / "tieredstore").symlink_to(REPOSITORY / "tieredstore")  # as if installed from a wheel
    done = subprocess.run(
        [
            Path(sys.executable).with_name("pyright"), "--pythonpath", sys.executable, "--verifytypes", "tieredstore",
            "--ignoreexternal", "--outputjson",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    symbols: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    public = {f"tieredstore.{name}" for name in ts.__all__} | {f"tieredstore.types.{name}" for name in types.__all__}
    ours = ("tieredstore.api.", "tieredstore.errors.", "tieredstore.types.", "tieredstore.values.")
    asked = [symbol for symbol in symbols if symbol["name"] in public or symbol["name"].startswith(ours)]
    assert len(asked) > len(public)
    incomplete = {symbol["name"] for symbol in asked if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]}
    assert incomplete == set()
