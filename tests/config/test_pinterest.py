"""Pinterest's properties file read as ours."""

from __future__ import annotations

import pytest

from tieredstore.config import settings_from
from tieredstore.config.pinterest import TABLE, translate
from tieredstore.errors import ConfigError
from tieredstore.uploader.retention import RemoteRetention
from tieredstore.uploader.settings import uploader_settings_from

FILE = {
    "ts.segment.uploader.kafka.topics.include": "a.*,b",
    "ts.segment.uploader.kafka.topics.exclude": "",
    "ts.segment.uploader.offset.reset.strategy": "LATEST",
    "ts.segment.uploader.upload.thread.count": "5",
    "ts.segment.uploader.upload.timeout.ms": "70000",
    "ts.segment.uploader.upload.max.retries": "3",
    "ts.segment.uploader.leadership.watcher.class": "com.pinterest.uploader.ZookeeperLeadershipWatcher",
    "ts.segment.uploader.segment.manager.class": "com.pinterest.S3SegmentManager",
    "ts.segment.uploader.segment.manager.gc.a.b.retention.seconds": "100",
    "ts.segment.uploader.s3.prefix.entropy.bits": "5",
    "ts.segment.uploader.dlq.handler.class": "x",
    "metrics.reporter.class": "x",
    "storage.service.endpoint.s3.bucket": "bucket",
    "storage.service.endpoint.s3.prefix": "retention",
    "kafka.cluster.id": "kafkaCluster1",
    "storage.s3.region": "us-east-1",
    "uploader.log.dirs": "/logs",
}


def test_a_file_of_pinterests_is_settings() -> None:
    settings, uploader = settings_from(FILE), uploader_settings_from(FILE)
    assert settings.s3 is not None
    assert (settings.s3.bucket_name, settings.key_prefix) == ("bucket", "retention/")
    assert (settings.endpoint.is_raw, settings.endpoint.entropy_bits) == (True, 5)
    assert settings.endpoint.cluster == "kafkaCluster1"
    assert (uploader.include, uploader.exclude, uploader.start) == (("a.*", "b"), (), "latest")
    assert (uploader.concurrent_uploads, uploader.upload_timeout_ms, uploader.leadership) == (5, 70000, "zookeeper")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("ts.segment.uploader.segment.manager.gc.a.retention.seconds", "soon", "a retention of 'soon' seconds"),
        ("ts.segment.uploader.upload.thread.cuont", "3", "neither a property of"),
        ("ts.segment.uploader.leadership.watcher.class", "com.x.Own", "remove the property"),
    ],
)
def test_what_would_lead_elsewhere_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings_from({**FILE, name: text})


REAL = {
    "ts.segment.uploader.kafka.topics.include": ".*",
    "ts.segment.uploader.kafka.topics.exclude": "__.*",
    "ts.segment.uploader.offset.reset.strategy": "EARLIEST",
    "ts.segment.uploader.s3.prefix.entropy.bits": "5",
    "ts.segment.uploader.upload.timeout.ms": "60000",
    "ts.segment.uploader.upload.thread.count": "3",
    "ts.segment.uploader.upload.max.retries": "10",
    "ts.segment.uploader.leadership.watcher.poll.interval.seconds": "1",
    "ts.segment.uploader.leadership.watcher.class":
        "com.pinterest.kafka.tieredstorage.uploader.leadership.ZookeeperLeadershipWatcher",
    "ts.segment.uploader.segment.manager.class":
        "com.pinterest.kafka.tieredstorage.uploader.management.S3SegmentManager",
    "ts.segment.uploader.segment.manager.gc.interval.seconds": "0",
    "storage.service.endpoint.provider.class": "own.Endpoint",
    "metrics.reporter.class": "com.pinterest.kafka.tieredstorage.common.metrics.NoOpMetricsReporter",
}  # fmt: skip
"""An unchanged file of Pinterest's uploader."""
README = {
    "bootstrap.servers": "localhost:9092",
    "group.id": "test",
    "tiered.storage.mode": "KAFKA_PREFERRED",
    "kafka.cluster.id": "test-cluster",
    "offset.reset.policy": "EARLIEST",
    "storage.service.endpoint.provider.class": "MockS3StorageServiceEndpointProvider",
}
"""Settings from the README of Pinterest's consumer."""


@pytest.mark.parametrize("file", [REAL, README])
def test_a_class_of_java_is_refused_with_the_lines_to_write_and_has_no_effect_beside_them(file: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"storage.service.endpoint.provider.class is refused") as refused:
        settings_from(file)
    words = str(refused.value).replace(",", " ").split()
    lines = dict(word.split("=") for word in words if word.count("=") == 1 and "module" not in word)
    assert lines == {"storage.s3.bucket.name": "BUCKET", "key.prefix": "PREFIX/", "endpoint.cluster": "CLUSTER"}
    settings = settings_from({**file, **lines})
    assert settings.s3 is not None
    assert (settings.s3.bucket_name, settings.key_prefix) == ("BUCKET", "PREFIX/")
    assert (settings.endpoint.is_raw, settings.endpoint.cluster) == (True, "CLUSTER")


def test_their_retention_is_ours_by_topic_and_a_dry_run() -> None:
    gc = "ts.segment.uploader.segment.manager.gc."
    uploader = uploader_settings_from(FILE | {f"{gc}retention.seconds": "7", f"{gc}interval.seconds": "60"})
    retention = RemoteRetention.of(uploader)
    assert (retention.retention_ms, retention.topics_ms) == (7000, {"a.b": 100_000})
    assert (retention.dry_run, retention.is_on, uploader.retention_interval_ms) == (True, True, 60_000)
    assert RemoteRetention.of(uploader_settings_from(FILE)).is_on, "a topic's own is enough"
    off = RemoteRetention.of(uploader_settings_from(FILE | {f"{gc}interval.seconds": "0"}))
    assert (off.is_on, off.topics_ms) == (False, {})
    with pytest.raises(ConfigError, match=r"uploader.retention.topics"):
        uploader_settings_from({"uploader.log.dirs": "/logs", "uploader.retention.topics": "orders=1d"})


def test_more_bits_than_sixteen_stay_refused() -> None:
    with pytest.raises(ConfigError, match=r"endpoint.prefix.entropy.bits"):
        settings_from(FILE | {"ts.segment.uploader.s3.prefix.entropy.bits": "17"})


def test_our_names_count_and_other_files_are_left_alone() -> None:
    assert translate({**FILE, "endpoint.cluster": "other"}, "x")["endpoint.cluster"] == "other"
    own = {"storage.backend.class": "memory"}
    assert translate(own, "x") is own


def test_the_table_has_each_name_once() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
