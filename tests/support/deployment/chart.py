"""Helm, Kubernetes' schemas and the API server's admission code: pinned, built once for all clones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scripts.caches import cached, recipe_key
from scripts.toolchain import GO, environment, provide
from tests.support.deployment.dashboards import YAML
from tests.support.paths import REPOSITORY

CHART: Final = REPOSITORY / "examples" / "helm"
KUBERNETES: Final = ("1.36.0", "1.37.0")
_HELM: Final = "helm.sh/helm/v3/cmd/helm@v3.22.0"
_VALIDATE: Final = "kubernetes-validate==1.37.0"
_ADMISSION: Final = Path(__file__).with_name("admission")
_BUILD: Final = ("-trimpath", "-ldflags", "-s -w")
_TIMEOUT_S: Final = 3000  # Helm has 800 packages


def _go(*words: str, folder: Path = REPOSITORY, **variables: str) -> None:
    settings = {**environment(), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", **variables}
    jobs = f"-p={os.environ.get('TIEREDSTORE_GO_JOBS', '2')}"
    verb, *rest = words
    subprocess.run([provide(GO), verb, jobs, *_BUILD, *rest], cwd=folder, env=settings, check=True, timeout=_TIMEOUT_S)


def helm(*words: str | Path, fails: bool = False) -> str:
    """Run helm; return stdout. If ``fails``, assert that it fails, and return stderr."""
    program = cached(f"helm-{recipe_key(_HELM)}", lambda folder: _go("install", _HELM, GOBIN=str(folder))) / "helm"
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode != 0) is fails, (done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def rendered(*words: str | Path) -> list[dict[str, Any]]:
    """Return the chart's resources, rendered with these options of `helm template`."""
    text = helm("template", "demo", CHART, "--namespace", "kafka", "--kube-version", KUBERNETES[0], *words)
    return [document for document in YAML.safe_load_all(text) if document]


def validate(resources: list[dict[str, Any]], file: Path) -> None:
    """Check resources against the schemas of each version of Kubernetes; unknown fields are errors."""

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), _VALIDATE]
        subprocess.run(command, check=True, timeout=_TIMEOUT_S)

    library = cached(f"validate-{recipe_key(_VALIDATE, sys.version)}", install)
    file.write_text(YAML.safe_dump_all(resources))
    for version in KUBERNETES:
        command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, file]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(library)}, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr)


def admitted(expression: str, pod: Mapping[str, object]) -> dict[str, Any]:
    """Return the pod as an API server admits it: patched by a policy's expression."""

    def build(folder: Path) -> None:
        _go("build", "-o", str(folder / "admission"), ".", folder=_ADMISSION)

    key = recipe_key(*(file.read_bytes() for file in sorted(_ADMISSION.glob("*"))))
    program = cached(f"admission-{key}", build) / "admission"
    done = subprocess.run(
        [program], input=json.dumps({"expression": expression, "pod": pod}), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    patched: dict[str, Any] = json.loads(done.stdout)
    return patched
