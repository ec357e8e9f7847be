"""examples/helm: Helm renders it, Kubernetes accepts it, its commands run, and the API server's code applies its
policy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import tieredstore as ts
from tests.support.cli.cli_process import environment, tieredstore
from tests.support.deployment.chart import CHART, admitted, helm, rendered, validate
from tests.support.deployment.compose import EXAMPLE, services_of
from tests.support.deployment.dashboards import DASHBOARDS, YAML
from tests.support.paths import REPOSITORY
from tests.support.servers.probe import answers
from tests.support.servers.process import free_port
from tests.support.waiting import wait_until

BLOCKS: Final = dict(
    re.findall(r"```yaml\n# (values-\w+\.yaml).*?\n(.*?)```", (CHART / "README.md").read_text(), re.DOTALL)
)
PIPELINE: Final = (
    "pipelines: {by-hour: {settings: {secor.kafka.topic_filter: orders, secor.max.file.size.bytes: 200000000}}}\n"
)
PODS: Final[dict[str, dict[str, Any]]] = {
    "values-kafka.yaml": {"data-0": "/var/lib/kafka/data-0/kafka-log3"},
    "values-statefulset.yaml": {"data": "/var/lib/kafka/data"},
}
"""The volume of a broker's pod and its log directory, for each values file of the page."""


def test_versions_are_those_of_the_package() -> None:
    chart, values = (YAML.safe_load((CHART / name).read_text()) for name in ("Chart.yaml", "values.yaml"))
    image = services_of(EXAMPLE / "compose.yaml")["uploader"]["image"]
    found = {chart["version"], chart["appVersion"], values["image"]["tag"], image.rpartition(":")[2]}
    assert found == {ts.__version__}
    assert values["image"]["sparkTag"] == f"{ts.__version__}-spark"


def test_the_page_has_values_for_strimzi_and_for_a_statefulset() -> None:
    assert BLOCKS.keys() == PODS.keys()


@pytest.fixture(params=["", *PODS])
def values(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a values file: the default values or those of the page, plus a pipeline and a Secret."""
    file = tmp_path / "values.yaml"
    file.write_text(PIPELINE + re.sub(r"^credentialsSecret.*\n", "", BLOCKS.get(request.param, ""), flags=re.MULTILINE))
    with file.open("a") as more:
        more.write("credentialsSecret: logs-credentials\n")
    return file


def of_kind(resources: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in resources if each["kind"] == kind]


@pytest.mark.soak
@pytest.mark.slow
def test_the_chart_is_valid(values: Path, tmp_path: Path) -> None:
    helm("lint", "--strict", CHART, "--values", values)
    resources = rendered("--values", values)
    kinds = [each["kind"] for each in resources]
    assert sorted(kinds) == [
        "ConfigMap", "ConfigMap", "CronJob", "CronJob", "Deployment", "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    ]  # fmt: skip
    validate(resources, tmp_path / "resources.yaml")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("value", ["uploader.runAsUsr=5", "uploader.logDirs[0]=log", "pipelines.By_Hour.settings.a=b"])
def test_unknown_and_invalid_values_are_refused(value: str) -> None:
    assert "values don't meet the specifications of the schema" in helm(
        "template", "demo", CHART, "--kube-version", "1.36.0", "--set", value, fails=True
    )


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("settings", ["{}", "{uploader.hold.dir: /var/lib/kafka/data-0/held}"])
def test_the_uploader_can_write_to_the_volumes_only_if_it_makes_links(settings: str, tmp_path: Path) -> None:
    (file := tmp_path / "values.yaml").write_text(f"uploader: {{settings: {settings}}}")
    (policy,) = of_kind(rendered("--values", file), "MutatingAdmissionPolicy")
    (mutation,) = policy["spec"]["mutations"]
    is_read_only = str("hold" not in settings).lower()
    mount = f'mountPath: "/var/lib/kafka/data-0", name: "data-0", readOnly: {is_read_only}, '
    assert mount in mutation["jsonPatch"]["expression"]


@pytest.mark.soak
@pytest.mark.slow
def test_dashboards_are_the_files() -> None:
    (found,) = (each["data"] for each in rendered() if each["metadata"]["name"] == "demo-dashboards")
    assert {name: json.loads(text) for name, text in found.items()} == {
        file.name: json.loads(file.read_text()) for file in DASHBOARDS
    }


@pytest.mark.soak
@pytest.mark.slow
def test_commands_of_pipelines_and_jobs_are_understood(values: Path) -> None:
    resources = rendered("--values", values)
    (settings,) = (each["data"] for each in resources if each["metadata"]["name"] == "demo-settings")
    assert "\nsecor.max.file.size.bytes=200000000\n" in settings["pipeline-by-hour.properties"]
    specs = [each["spec"]["template"]["spec"] for each in of_kind(resources, "Deployment")]
    specs += [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in of_kind(resources, "CronJob")]
    assert len(specs) == 3
    for spec in specs:
        (container,) = spec["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "logs-credentials"}}]
        (file,) = (word for word in container["args"] if word.endswith(".properties"))
        assert file.removeprefix("/etc/tieredstore/") in settings
        done = tieredstore(*container["args"])
        assert (done.code, file in done.stderr) == (2, True), done.stderr


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", PODS)
def test_brokers_pods_get_an_uploader_that_uploads(name: str, tmp_path: Path) -> None:
    """The API server's code adds the container; then the container's command runs with this machine's paths."""
    file = tmp_path / "values.yaml"
    file.write_text(BLOCKS[name])
    port = free_port()
    resources = rendered("--values", file)
    (policy,), (binding,) = (
        of_kind(resources, "MutatingAdmissionPolicy"),
        of_kind(resources, "MutatingAdmissionPolicyBinding"),
    )
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    ((volume, log_dir),) = PODS[name].items()
    (mutation,) = policy["spec"]["mutations"]
    pod = admitted(mutation["jsonPatch"]["expression"], {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kafka-3", "namespace": "kafka"},
        "spec": {
            "containers": [{"name": "kafka", "image": "kafka"}],
            "volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": "log-kafka-3"}}],
        },
    })  # fmt: skip
    validate([pod], tmp_path / "pod.yaml")
    broker, uploader = pod["spec"]["containers"]
    assert broker["name"] == "kafka"
    mounts = {mount["name"]: mount["mountPath"] for mount in uploader["volumeMounts"]}
    assert mounts.keys() == {each["name"] for each in pod["spec"]["volumes"]}

    folders = {path: tmp_path / mount for mount, path in mounts.items()}
    for folder in folders.values():
        folder.mkdir()
    (tmp_path / "store").mkdir()
    shutil.copytree(REPOSITORY / "examples/sample/kafka-logs", Path(local(log_dir, folders)), dirs_exist_ok=True)
    (settings,) = (each["data"] for each in resources if each["metadata"]["name"] == "demo-settings")
    own = f"storage.backend.class=filesystem\nstorage.root={tmp_path / 'store'}\nuploader.leadership=static\n"
    kept = re.sub(r"^(?:storage|uploader\.kafka)\..*\n", "", settings["uploader.properties"], flags=re.MULTILINE)
    assert "uploader.listen=0.0.0.0:9464" in kept
    text = kept.replace("0.0.0.0:9464", f"127.0.0.1:{port}") + own
    (folders["/etc/tieredstore"] / "uploader.properties").write_text(text)
    words = [local(word, folders) for word in (*uploader["command"], *uploader["args"])]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(words, env=environment(PATH=path), stderr=log) as process,
    ):
        try:
            wait_until(lambda: answers(port, uploader["livenessProbe"]["httpGet"]["path"]))
            wait_until(lambda: list((tmp_path / "store").rglob("*.rsm-manifest")))
        finally:
            process.kill()


def local(text: str, folders: dict[str, Path]) -> str:
    """Return a text with the container's folders replaced by those of this machine, in one pass."""
    targets = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    text = text.replace("/var/lib/kafka/data-*/", "/var/lib/kafka/data-0/")
    return re.sub(rf"(?<![\w/])(?:{targets})(?![\w-])", lambda found: str(folders[found[0]]), text)
