"""The jars of Spark's own Kafka source, which PySpark does not contain."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

_POM: Final = Path(__file__).with_name("pom.xml")
_TIMEOUT_S: Final = 300


def source_jars(folder: Path) -> Path | None:
    """Return the folder with the jars, fetched by Maven if missing; None without Maven."""
    if any(folder.glob("*.jar")):
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        return None
    goal = "dependency:copy-dependencies"
    subprocess.run(
        [maven, "-q", "-f", str(_POM), goal, f"-DoutputDirectory={folder}"],
        check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return folder
