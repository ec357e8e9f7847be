"""``restore snapshot`` with a real broker: snapshots hold what the command prints, and are found by time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.golden.segments import settings_text
from tests.support.kafka.kafka_topics import make_topic
from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService
from tests.support.servers.kafka import CLUSTER_ID, KafkaServer
from tieredstore.format.cluster_snapshot import ClusterSnapshot
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.remote import RemoteStorageManager

TAKEN_MS = 1_795_867_200_000


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Return the settings of a bucket whose data are encrypted."""
    path = tmp_path / "store.properties"
    (tmp_path / "bucket").mkdir()
    properties = settings_text("08-keyring") | {"storage.root": str(tmp_path / "bucket"), "key.prefix": "pre/"}
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def test_a_snapshot_is_written_listed_and_shown(kafka: KafkaServer, settings: Path) -> None:
    topic = make_topic(kafka, {"retention.ms": "86400000"}, partitions=3)
    servers = "--bootstrap-server", kafka.bootstrap_servers

    def run(*words: str) -> Result:
        return tieredstore("restore", "snapshot", "-c", settings, *words).clean()

    service = RegistryService()
    service.register("orders-value", '"int"')
    with serving(service):
        planned = run(*servers, "--registry", service.url, "--dry-run").text
        assert f"topic {topic}: 3 partitions; retention.ms=86400000" in planned
        assert "1 schema version\nwould be written" in planned
        assert "no snapshots found" in tieredstore("restore", "snapshot", "-c", settings, "--list").stderr
        assert "\nwritten\n" in run(*servers, "--registry", service.url).text
    rows, summary = run("--list", "--json").rows
    assert summary == {"snapshots": 1}
    assert rows[0]["cluster_id"] == CLUSTER_ID
    assert rows[0]["name"][:11] in run("--list").text
    with RemoteStorageManager(settings) as manager:
        held = Snapshots.of(manager).find()
        (stored,) = Snapshots.of(manager).find_all()
        assert topic.encode() not in manager.store.get(stored.key), "it is encrypted"
        Snapshots.of(manager).write(ClusterSnapshot(CLUSTER_ID, TAKEN_MS - 86_400_000), is_hourly=True)
    shown = run("--show", "--json").json["snapshot"]
    assert shown == json.loads(held.to_json())
    assert shown["schemas"]["versions"][0]["id"] == 1
    assert run("--show", "--at", "2026-11-27T23:00Z").text == (f"cluster {CLUSTER_ID} at 2026-11-27 12:00:00\n")


def test_a_wrong_line_is_refused(settings: Path) -> None:
    def refused(code: int, sentence: str, *words: str) -> None:
        tieredstore("restore", "snapshot", "-c", settings, *words).fails(code, sentence)

    refused(2, "a running cluster is needed: give --bootstrap-server HOST:PORT")
    refused(2, "give them with --show", "--at", "-1h")
    refused(2, "give them with --show", "--list", "--cluster-id", "c")
    refused(2, "give either --list or --show", "--list", "--show")
    refused(3, "the bucket has no snapshot: `tieredstore restore snapshot` writes one", "--show")
