"""Pinterest's properties file read as ours."""

from __future__ import annotations

import pytest

from tests.support.paths import REPOSITORY
from tieredstore.config import settings_from
from tieredstore.config.loading import uploader_settings_from
from tieredstore.config.pinterest import TABLE, table, translated
from tieredstore.errors import ConfigError

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
        ("storage.service.endpoint.provider.class", "com.x.Y", "is refused"),
        ("ts.segment.uploader.upload.thread.cuont", "3", "not known"),
        ("ts.segment.uploader.leadership.watcher.class", "com.x.Own", "leave it out"),
    ],
)
def test_what_would_lead_elsewhere_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings_from({**FILE, name: text})


def test_our_names_count_and_other_files_are_left_alone() -> None:
    assert translated({**FILE, "endpoint.cluster": "other"}, "x")["endpoint.cluster"] == "other"
    own = {"storage.backend.class": "memory"}
    assert translated(own, "x") is own


def test_the_page_has_the_table() -> None:
    assert table() in (REPOSITORY / "docs" / "layout.md").read_text()
    assert len({row.name for row in TABLE}) == len(TABLE)
