"""Hourly snapshots: many uploaders write one per hour, and a failed snapshot does not stop an upload."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.kafka.kafka_topics import make_topic
from tests.support.servers.kafka import CLUSTER_ID, KafkaServer
from tests.support.service_process import within
from tests.support.uploader.uploader_disk import BrokerDisk, extents, uploader_of
from tests.support.waiting import wait_until
from tieredstore import schema_registry
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.uploader.hourly_snapshots import HourlySnapshots
from tieredstore.uploader.service import Pauses, uploader_service
from tieredstore.uploader.uploader import Uploader

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def uploaders(disk: BrokerDisk, tmp_path: Path, store: MemoryObjectStore) -> Iterator[Callable[..., Uploader]]:
    """Yield a function that makes an uploader of the same store."""
    made: list[Uploader] = []

    def make(servers: str, **settings: str) -> Uploader:
        log_dir = disk.log_dir if not made else disk.copy_to(tmp_path / f"logs-{len(made)}").log_dir
        if servers:
            settings["kafka.bootstrap.servers"] = servers
        made.append(uploader_of(log_dir, store, **settings))
        return made[-1]

    yield make
    for uploader in made:
        uploader.close()


def hourly(uploader: Uploader) -> HourlySnapshots:
    assert uploader.snapshots is not None
    return uploader.snapshots


def test_of_uploaders_that_race_for_an_hour_one_writes(
    kafka: KafkaServer, uploaders: Callable[..., Uploader], store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(kafka, {"retention.ms": "77"}, partitions=2)
    both, barrier = [uploaders(kafka.bootstrap_servers) for _ in range(2)], threading.Barrier(2)
    true_write = Snapshots.write

    def write(self: Snapshots, *arguments: Any, **how: Any) -> bool:
        barrier.wait(60)  # by now, both uploaders have seen that the hour has no snapshot
        return true_write(self, *arguments, **how)

    monkeypatch.setattr(Snapshots, "write", write)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: hourly(one).write(), both))
    assert sorted(one.counts.snapshots for one in both) == [0, 1]
    assert [one.counts.failed_snapshots for one in both] == [0, 0]
    (found,) = Snapshots(store, "", None).find_all()
    assert found.cluster_id == CLUSTER_ID
    held = {each.topic: each for each in Snapshots(store, "", None).read(found).topics}
    assert (held[topic].settings, held[topic].partition_count) == ({"retention.ms": "77"}, 2)
    hourly(both[0]).write()  # the hour has a snapshot, so no write reaches the barrier
    assert len(Snapshots(store, "", None).find_all()) == 1


def test_a_registry_that_is_down_costs_only_the_schemas(
    kafka: KafkaServer,
    uploaders: Callable[..., Uploader],
    store: MemoryObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = replace(schema_registry.RETRY_POLICY, sleep=lambda _: None)
    monkeypatch.setattr(schema_registry, "RETRY_POLICY", policy)
    file = tmp_path / "registry.properties"
    file.write_text(f"schema.registry.url=http://{NOWHERE}\nbasic.auth.user.info=me:secret-word\n")
    uploader = uploaders(kafka.bootstrap_servers, **{"snapshots.registry.config": str(file)})
    hourly(uploader).write()
    snapshot = Snapshots(store, "", None).find()
    assert snapshot.schemas is None
    (schemas,) = [each for each in snapshot.not_held if each.kind == "schemas"]
    assert "did not answer" in schemas.reason
    assert b"secret-word" not in snapshot.to_json()
    file.write_text("")
    with pytest.raises(ConfigError, match="no schema registry is named"):
        uploaders(kafka.bootstrap_servers, **{"snapshots.registry.config": str(file)})


def test_without_a_broker_or_if_it_is_off_there_is_none(uploaders: Callable[..., Uploader]) -> None:
    assert uploaders("").snapshots is None
    assert uploaders(NOWHERE, **{"snapshots.enabled": "false"}).snapshots is None
    assert uploaders(NOWHERE).snapshots is not None


def test_a_failure_is_counted_each_time_logged_once_and_stops_no_upload(
    uploaders: Callable[..., Uploader],
    store: MemoryObjectStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uploader = uploaders("")
    client = {"bootstrap.servers": NOWHERE}
    uploader.snapshots = HourlySnapshots(uploader.own, client, lambda: uploader.target.manager, uploader.counts)
    faults: list[Exception | None] = [BrokerUnavailableError("no broker"), RuntimeError("odd"), None]

    def fail(*_: object) -> bool:
        if (fault := faults[min(uploader.counts.failed_snapshots, len(faults) - 1)]) is not None:
            raise fault
        return True

    monkeypatch.setattr("tieredstore.uploader.hourly_snapshots.write_hourly", fail)
    with caplog.at_level(logging.WARNING), within(uploader_service(uploader, pauses=Pauses(snapshots=0.01))):
        wait_until(lambda: uploader.counts.snapshots and uploader.counts.segments)
    assert extents(store)
    assert uploader.counts.failed_snapshots == 2
    assert [each.message for each in caplog.records if "snapshot" in each.message] == [
        "the cluster's snapshot cannot be written; it is retried, and uploads go on: no broker"
    ]


def test_old_ones_are_deleted_after_a_new_one(
    uploaders: Callable[..., Uploader], monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[tuple[int, int]] = []
    monkeypatch.setattr("tieredstore.uploader.hourly_snapshots.time", SimpleNamespace(time=lambda: 7.5))
    monkeypatch.setattr("tieredstore.uploader.hourly_snapshots.write_hourly", lambda *_: True)
    monkeypatch.setattr(Snapshots, "expire", lambda _, age_ms, now_ms: expired.append((age_ms, now_ms)))
    hourly(uploaders(NOWHERE, **{"snapshots.retention.ms": "5000"})).write()
    hourly(uploaders(NOWHERE, **{"snapshots.retention.ms": "-1"})).write()
    assert expired == [(5000, 7500)]
