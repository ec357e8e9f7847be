"""A pipeline's file: Secor's properties are honoured, without effect, or refused with the way out."""

from __future__ import annotations

import logging
import re

import pytest

from tests.support.paths import REPOSITORY
from tests.support.pipeline_runs import pipeline_of, texts
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config.fields import property_fields
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.partitions import Subscribe, SubscribePattern
from tieredstore.pipelines import PipelineSettings, pipeline_from
from tieredstore.pipelines.commit_log import CommitLog, LogState, Progress
from tieredstore.pipelines.secor import table
from tieredstore.pipelines.selection import selection_of
from tieredstore.pipelines.setup import fingerprint_of, naming_of

MINIMAL = "fa8acdd8ffcf399b59fc86783ef9d140084bddfec163aea308f81dfa687feabc"
"""The fingerprint of a file that leaves all as it is by default."""
SAMPLE = {
    "secor.kafka.topic_filter": ".*",
    "secor.kafka.topic_blacklist": "",
    "zookeeper.session.timeout.ms": "3000",
    "secor.consumer.threads": "7",
    "secor.offsets.per.partition": "10000000",
    "message.timestamp.required": "true",
    "secor.max.file.age.seconds": "3600",
    "secor.s3.prefix.md5hash": "false",
    "secor.message.transformer.class": "com.pinterest.secor.transformer.IdentityMessageTransformer",
    "kafka.seed.broker.port": "9092",
    "statsd.hostport": "",
}


def test_what_secors_own_file_says_is_taken_and_what_has_no_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        own = pipeline_of(**texts(SAMPLE)).own
    assert own.offsets_per_partition == 10_000_000
    assert "secor.consumer.threads, zookeeper.session.timeout.ms" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("secor.s3.bucket", "logs", "output.storage.s3.bucket.name"),
        ("cloud.service", "S3", "output.storage.backend.class"),
        ("aws.secret.key", "AKIA-secret", "output.storage.aws.secret.access.key"),
        ("secor.message.transformer.class", "mine.Class", "transformers are not built"),
        (
            "secor.file.reader.writer.factory",
            "com.pinterest.secor.io.impl.JsonORCFileReaderWriterFactory",
            "json.schema.TOPIC",
        ),
        ("secor.generaton", "2", "the nearest is secor.generation"),
        ("secor.message.parser.class", "com.pinterest.secor.parser.AvroMessageParser", "give schema.registry.url, or"),
        ("secor.message.parser.class", "protobuf", "secor.protobuf.message.class.TOPIC"),
        ("secor.protobuf.message.class.*", "events.Event", "protobuf.descriptor.set"),
        ("secor.thrift.message.class.*", "Event", "thrift.idl"),
        ("message.timestamp.id", "0", "expected"),
        ("secor.message.parser.class", "regex", "message.timestamp.input.pattern"),
        ("partitioner.granularity.date.prefix", "a/b", "expected"),
        ("partitioner.granularity.date.format", "EEE", "EEE"),
        ("pipeline.name", "../other", "expected"),
        ("secor.parser.timezone", "Mars/Olympus", "expected"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        pipeline_of(**texts({name: text}))
    assert "secret" not in str(refused.value).replace("secret.access.key", "").replace("secret.key", "")


def test_source_and_output_have_to_be_named() -> None:
    with pytest.raises(ConfigError, match="no output is named"):
        pipeline_from({"pipeline.name": "x", "storage.backend.class": "memory"})
    with pytest.raises(ConfigError, match="no source is named"):
        pipeline_from({"pipeline.name": "x", "output.storage.backend.class": "memory"})
    live = pipeline_from(
        {"pipeline.name": "x", "output.storage.backend.class": "memory", "kafka.bootstrap.servers": "h:1"}
    )
    assert live.client == (("bootstrap.servers", "h:1"),)
    assert live.source is None


def test_topics_by_name_or_by_filter() -> None:
    assert selection_of(pipeline_of(**texts({"kafka.new.consumer.topic.list": "a, b"})).own) == Subscribe(("a", "b"))
    assert selection_of(pipeline_of(**texts({"secor.kafka.topic_filter": "ab.*"})).own) == SubscribePattern("ab.*")


def test_the_fingerprint_is_of_what_decides_names_and_bytes() -> None:
    plain = fingerprint_of(pipeline_of().own)
    assert fingerprint_of(pipeline_of(**texts({"secor.max.file.age.seconds": "5"})).own) == plain
    for changed in ({"secor.max.file.size.bytes": "5"}, {"secor.compression.codec": "gzip"}, {"secor.generation": "2"}):
        assert fingerprint_of(pipeline_of(**texts(changed)).own) != plain


def test_settings_that_come_with_another_version_change_no_fingerprint() -> None:
    # What is committed and not published is written again under this one only: with another, it is orphaned.
    assert fingerprint_of(pipeline_of().own) == MINIMAL
    assert fingerprint_of(pipeline_of(**texts({"secor.compression.codec": "zstd"})).own) == MINIMAL
    finalizing = {"pipeline.finalize": "true", "partitioner.finalizer.delay.seconds": "5", "hive.table.prefix": "a."}
    assert fingerprint_of(pipeline_of(**texts(finalizing)).own) == MINIMAL


def test_an_extension_of_ones_own() -> None:
    naming = naming_of(pipeline_of(**texts({"secor.file.extension": ".part"})))
    assert naming.data_key("t", "offset=0", 3, 7) == f"out/t/offset=0/1_3_{7:020}.part"


def test_the_page_has_every_property() -> None:
    page = (REPOSITORY / "docs" / "pipelines.md").read_text()
    assert table() in page
    for name, _, _ in property_fields(PipelineSettings):
        assert f"| `{name}` |" in page, name


def test_a_snapshot_each_thousand_entries_says_what_they_say() -> None:
    store = MemoryObjectStore()
    log = CommitLog(store, "", "p", 1)
    log.read()
    log.state.positions["t", 0] = Progress(str(Uuid(bytes(16))), 5, 6, 1, 5)
    for _ in range(1002):
        log.append("begin", "f")
    (snapshot,) = store.list("_tieredstore/p/1/snapshots/")
    assert snapshot.key.endswith(f"{999:020}.json")
    again = CommitLog(store, "", "p", 1)
    assert again.read() == LogState(1001, -1, {("t", 0): Progress(str(Uuid(bytes(16))), 5, 6, 1, 5)})
