"""``make sbom``: a component for each pin of requirements.lock."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


@pytest.mark.soak
def test_every_pin_is_a_component_with_its_hashes(tmp_path: Path) -> None:
    command = ["make", "-o", ".venv/installed", "sbom", f"DIST={tmp_path}"]
    subprocess.run(command, check=True, timeout=600, cwd=REPOSITORY)
    bill = json.loads((tmp_path / "tieredstore.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "tieredstore")
    pins = re.findall(
        r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE
    )
    assert len(pins) > 100
    components = bill["components"]
    assert sorted((each["name"], each["version"]) for each in components) == sorted(pins)
    assert all(reference["hashes"] for each in components for reference in each["externalReferences"])
