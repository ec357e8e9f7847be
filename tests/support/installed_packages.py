"""Installed packages that consist of metadata only, for tests of entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tieredstore.config.named_class import STORES


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    package: str,
    offered: Mapping[str, str],
    *,
    code: str = "",
    group: str = STORES,
) -> None:
    """Install a package with entry points in ``group`` (by default stores); ``offered`` maps names to ``module:Class``.

    ``code`` is the content of the package's only module, which has the same name.
    """
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {target}\n" for name, target in offered.items()]
    (metadata / "entry_points.txt").write_text("".join([f"[{group}]\n", *lines]))
    (folder / f"{package}.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
