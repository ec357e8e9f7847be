"""A pipeline's settings file: each of Secor's properties works, is ignored, or is refused with a remedy."""

from __future__ import annotations

import json
import logging
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.pipelines.pipeline_runs import listed, pipeline_of, run_once, texts, verify_output
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.partitions.selections import Subscribe, SubscribePattern, is_selected, select_topics
from tieredstore.pipelines import pipeline_from
from tieredstore.pipelines.config.settings import own_properties
from tieredstore.pipelines.files.formats import Text
from tieredstore.pipelines.filing.schemas import REGISTRY_NAMES
from tieredstore.pipelines.format_table import format_of
from tieredstore.pipelines.log.commit_log import CommitLog, LogState, Progress
from tieredstore.pipelines.parser_table import OffsetSettings, ThriftSettings, field_prefix_of
from tieredstore.pipelines.parsers import OffsetParser
from tieredstore.pipelines.run.recipes import fingerprint_of, naming_of, recipe_of
from tieredstore.pipelines.run.source import selection_of
from tieredstore.pipelines.upkeep.output_files import read_records
from tieredstore.schema_registry import RegistrySettings
from tieredstore.testing.segments import Record, build_batch

MINIMAL = "27deb23d051acfc4f13e5869a6a576a514332ae38c0529636f828e60f8fbada8"
"""Fingerprint of a file with only default settings."""
SECORS = "com.pinterest.secor.io.impl"
WHOLE_SAMPLE = """
secor.kafka.topic_filter=.* cloud.service=S3 aws.proxy.isEnabled=false aws.client.pathstyleaccess=false
secor.s3.filesystem=s3n swift.use.get.auth=true swift.port=8080 swift.public=true secor.gs.bucket=secor_gs
secor.gs.path=data secor.gs.upload.direct=false zookeeper.session.timeout.ms=3000 zookeeper.sync.time.ms=200
secor.zookeeper.path=/ kafka.consumer.timeout.ms=10000 kafka.consumer.auto.offset.reset=smallest
kafka.new.consumer.auto.offset.reset=earliest kafka.new.consumer.poll.timeout.seconds=10
kafka.partition.assignment.strategy=range kafka.seed.broker.port=9092 kafka.zookeeper.path=/
kafka.dual.commit.enabled=true kafka.offsets.storage=zookeeper include=kafka.properties secor.generation=1
secor.consumer.threads=7 secor.messages.per.second=10000 secor.offsets.per.partition=10000000
secor.offsets.prefix=offset= secor.topic_partition.forget.seconds=600 partitioner.granularity.hour=false
partitioner.granularity.minute=false partitioner.granularity.date.prefix=dt= partitioner.granularity.hour.prefix=hr=
partitioner.granularity.minute.prefix=min= partitioner.granularity.date.format=yyyy-MM-dd
partitioner.granularity.hour.format=HH partitioner.granularity.minute.format=mm
partitioner.finalizer.delay.seconds=3600 secor.local.log.delete.age.hours=-1 monitoring.prefix=secor
monitoring.interval.seconds=0 statsd.prefixWithConsumerGroup=true statsd.dogstatsd.tags.enabled=false
message.timestamp.name=timestamp message.timestamp.id=1 message.timestamp.type=i64 message.timestamp.required=true
secor.file.reader.writer.factory=com.pinterest.secor.io.impl.SequenceFileReaderWriterFactory
secor.file.reader.Delimiter=\\n secor.file.writer.Delimiter=\\n secor.max.message.size.bytes=100000
secor.upload.manager.class=com.pinterest.secor.uploader.HadoopS3UploadManager secor.parser.timezone=UTC
secor.message.transformer.class=com.pinterest.secor.transformer.IdentityMessageTransformer
secor.s3.prefix.md5hash=false secor.enable.qubole=true secor.qubole.timeout.ms=300000 secor.upload.minute_mark=0
secor.upload.on.shutdown=false secor.upload.secor.upload.last.seen.offset=false secor.upload.deterministic=false
secor.max.file.timestamp.range.millis=0 secor.max.input.payload.size.bytes=0 secor.file.age.youngest=true
secor.monitoring.metrics.collector.class=com.pinterest.secor.monitoring.OstrichMetricCollector
parquet.block.size=134217728 parquet.page.size=1048576 parquet.enable.dictionary=true parquet.validation=false
secor.orc.message.schema.*=struct<a:int,b:int,c:struct<d:int,e:string>,f:array<string>,g:int>
secor.orc.schema.provider=com.pinterest.secor.util.orc.schema.DefaultORCSchemaProvider
secor.swift.containers.for.each.topic=false secor.swift.container=logsContainer secor.max.file.size.bytes=200000000
secor.max.file.age.seconds=3600 secor.kafka.group=secor_partition secor.s3.path=raw_logs
secor.message.parser.class=com.pinterest.secor.parser.ThriftMessageParser secor.local.path=/mnt/secor_data
ostrich.port=9998
"""
"""Content of Secor's production files, with all includes."""
NOT_TAKEN = {"cloud.service", "secor.gs.bucket", "secor.gs.path", "secor.file.age.youngest", "secor.s3.path"}
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
    assert own.of_parser(OffsetSettings).offsets_per_partition == 10_000_000
    assert "secor.consumer.threads, zookeeper.session.timeout.ms" in caplog.text


def test_secors_files_for_production_run_once_what_is_refused_is_gone() -> None:
    pairs = (pair.partition("=") for pair in WHOLE_SAMPLE.split())
    sample = {name: text for name, _, text in pairs}
    with pytest.raises(ConfigError) as refused:
        pipeline_of(**texts(sample))
    for name in NOT_TAKEN:
        assert f"{name} is refused: " in str(refused.value)
    taken = {name: text for name, text in sample.items() if name not in NOT_TAKEN}
    own = pipeline_of(**texts({**taken, "secor.compression.codec": "gzip"})).own
    assert (own.filing.parser, own.format, own.of_parser(ThriftSettings).timestamp_id) == (
        "thrift",
        "sequencefile",
        "1",
    )
    assert "not known" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("secor.s3.bucket", "logs", "output.storage.s3.bucket.name"),
        ("cloud.service", "S3", "output.storage.backend.class"),
        ("aws.secret.key", "AKIA-secret", "output.storage.aws.secret.access.key"),
        ("secor.message.transformer.class", "mine.Class", "it must be"),
        ("secor.file.reader.writer.factory", f"{SECORS}.ThriftParquetFileReaderWriterFactory", "it must be"),
        (
            "secor.file.reader.writer.factory",
            "com.pinterest.secor.io.impl.JsonORCFileReaderWriterFactory",
            "json.schema.TOPIC",
        ),
        ("message.timestamp.skew.max.ms", "5000", "leave it out"),
        ("secor.topic.message.format.orders", "JSON", "the parser json"),
        ("secor.generaton", "2", "did you mean secor.generation"),
        (
            "kafka.new.consumer.topik.list",
            "orders",
            "topik.list is not known; did you mean kafka.new.consumer.topic.list",
        ),
        ("kafka.default.topic.config", "x", "kafka.default.topic.config is not known"),
        ("kafka.error_cb", "x", "kafka.error_cb is not known"),
        ("kafka.fetch_min_bytes", "1", "kafka.fetch_min_bytes is not known"),
        (
            "kafka.bootstrap.server",
            "h:1",
            "kafka.bootstrap.server is not known; did you mean kafka.bootstrap.servers",
        ),
        ("schema.registry.ulr", "http://h", "schema.registry.ulr is not known; did you mean schema.registry.url"),
        ("secor.message.parser.class", "com.pinterest.secor.parser.AvroMessageParser", "set schema.registry.url, or"),
        ("secor.message.parser.class", "protobuf", "secor.protobuf.message.class.TOPIC"),
        ("secor.protobuf.message.class.*", "events.Event", "protobuf.descriptor.set"),
        ("secor.thrift.message.class.*", "Event", "thrift.idl"),
        ("message.timestamp.id", "0", "it must be"),
        ("secor.message.parser.class", "regex", "message.timestamp.input.pattern"),
        ("partitioner.granularity.date.prefix", "a/b", "it must be"),
        ("partitioner.granularity.date.format", "EEE", "EEE"),
        ("pipeline.name", "../other", "it must be"),
        ("secor.parser.timezone", "Mars/Olympus", "it must be"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        pipeline_of(**texts({name: text}))
    assert "secret" not in str(refused.value).replace("secret.access.key", "").replace("secret.key", "")


@pytest.mark.parametrize(
    ("parser", "factory", "delimiter", "ending"),
    [
        ("OffsetMessageParser", "SequenceFileReaderWriterFactory", "", ".seq"),
        ("JsonMessageParser", "SequenceFileReaderWriterFactory", "\n", ".seq"),
        ("JsonMessageParser", "DelimitedTextFileReaderWriterFactory", "", ".txt"),
        ("JsonMessageParser", "DelimitedTextFileReaderWriterFactory", "|", ".txt"),
        ("JsonMessageParser", "DelimitedTextFileReaderWriterFactory", " ", ".txt"),
        ("OffsetMessageParser", "FlexibleDelimitedFileReaderWriterFactory", "", ".txt"),
        ("OffsetMessageParser", "FlexibleDelimitedFileReaderWriterFactory", "\t", ".txt"),
    ],
)
def test_secors_files_run_to_the_end_as_they_do_there(
    tmp_path: Path, parser: str, factory: str, delimiter: str, ending: str
) -> None:
    pairs = (pair.partition("=") for pair in WHOLE_SAMPLE.split())
    sample = {name: text for name, _, text in pairs if name not in NOT_TAKEN}
    sample |= {
        "secor.message.parser.class": f"com.pinterest.secor.parser.{parser}",
        "secor.file.reader.writer.factory": f"{SECORS}.{factory}",
        "secor.file.writer.Delimiter": delimiter,
        "secor.compression.codec": "",
        "secor.file.extension": "",
        "secor.local.path": str(tmp_path),
        "kafka.seed.broker.host": "",
    }
    pipeline, store = pipeline_of(**texts(sample)), MemoryObjectStore()
    values = [json.dumps({"timestamp": 1_405_970_352_123, "n": "x" * number}).encode() for number in range(5)]
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        topic.copy(0, [build_batch([Record(value) for value in values], 0)])
        run_once(topic, store, pipeline)
    key, sidecar = sorted(listed(store), key=lambda one: one.rpartition("/")[2].startswith("."))
    assert key.endswith(ending)
    assert [row["value"] for batch in read_records(pipeline, store, key) for row in batch.to_pylist()] == values
    content = store.get(key)
    if ending == ".txt":
        # Secor's DelimitedTextFile has no setting: it always writes a newline.
        end = b"\n" if factory.startswith("Delimited") else delimiter.encode()
        assert content == b"".join(value + end for value in values)
    else:
        assert values[-1] in content
    assert list(verify_output(pipeline, store)) == []
    store.put(sidecar, b"another")
    assert [one.kind for one in verify_output(pipeline, store)] == ["size"]


def test_a_codec_that_stands_empty_is_none_in_all_formats() -> None:
    registry = {"schema.registry.url": "http://localhost:1"}
    for name, codec in (
        ({}, "zstd"),
        ({"secor.compression.codec": ""}, "none"),
        ({"secor.compression.codec": " "}, "none"),
    ):
        assert pipeline_of(**texts(name)).own.codec == codec
    avro = {"secor.file.reader.writer.factory": f"{SECORS}.AvroFileReaderWriterFactory", "secor.compression.codec": ""}
    assert pipeline_of(**texts({**avro, **registry})).own.codec == "none"
    assert pipeline_of(**texts({"secor.file.writer.Delimiter": "\n"})).own.delimiter == pipeline_of().own.delimiter


def test_names_of_other_versions_of_secor() -> None:
    old = pipeline_of(**texts({"secor.hive.prefix": "a_", "secor.hive.table.name.orders": "b"}))
    assert (old.own.table.hive_prefix, old.tables) == ("a_", (("orders", "b"),))
    both = pipeline_of(**texts({"secor.hive.prefix": "a_", "hive.table.prefix": "c_"}))
    assert both.own.table.hive_prefix == "c_"


def test_source_and_output_have_to_be_named() -> None:
    with pytest.raises(ConfigError, match="the output is missing"):
        pipeline_from({"pipeline.name": "x", "storage.backend.class": "memory"})
    with pytest.raises(ConfigError, match="the source is missing"):
        pipeline_from({"pipeline.name": "x", "output.storage.backend.class": "memory"})
    live = pipeline_from(
        {"pipeline.name": "x", "output.storage.backend.class": "memory", "kafka.bootstrap.servers": "h:1"}
    )
    assert live.client == (("bootstrap.servers", "h:1"),)
    assert live.source is None


def test_properties_of_the_client_are_looked_at_with_a_broker_and_without(caplog: pytest.LogCaptureFixture) -> None:
    known = {
        "kafka.new.consumer.ssl.truststore.location": "/no/such.p12",
        "kafka.new.consumer.ssl.enabled.protocols": "TLSv1.3",
        "kafka.sasl.jaas.config": "no login",
        "kafka.receive.buffer.bytes": "no number",
        "kafka.statistics.interval.ms": "0",
    }
    with caplog.at_level(logging.INFO):
        assert pipeline_of(**texts(known)).client == ()
    assert all(name in caplog.text for name in known)
    client = pipeline_of(**texts({**known, "kafka.bootstrap.servers": "h:1"})).client
    assert dict(client)["statistics.interval.ms"] == "0"
    for servers in ({}, {"kafka.bootstrap.servers": "h:1"}):
        with pytest.raises(ConfigError) as refused:
            pipeline_of(**texts({**known, "kafka.new.consumer.topik.list": "orders", **servers}))
        (line,) = [line for line in str(refused.value).splitlines() if "not known" in line]
        assert "kafka.new.consumer.topik.list is not known; did you mean kafka.new.consumer.topic.list" in line


def test_names_of_a_registry_are_those_that_it_takes() -> None:
    with pytest.raises(ConfigError, match="the properties are ") as refused:
        RegistrySettings.from_properties({"schema.registry.none": "x"})
    named = str(refused.value).partition("the properties are ")[2].split(", ")
    assert {f"schema.registry.{name.removeprefix('schema.registry.')}" for name in named} == REGISTRY_NAMES


def test_topics_by_name_or_by_filter() -> None:
    assert selection_of(pipeline_of(**texts({"kafka.new.consumer.topic.list": "a, b"})).own) == Subscribe(("a", "b"))
    assert selection_of(pipeline_of(**texts({"secor.kafka.topic_filter": "ab.*"})).own) == SubscribePattern("ab.*")
    without = {"secor.kafka.topic_blacklist": "a|.*d"}
    named = pipeline_of(**texts({"kafka.new.consumer.topic.list": "a,ab, d", **without})).own
    assert selection_of(named) == Subscribe(("ab",))
    nothing = pipeline_of(**texts({"kafka.new.consumer.topic.list": "a,cd", **without})).own
    assert selection_of(nothing) == Subscribe(())
    patterned = selection_of(pipeline_of(**texts({"secor.kafka.topic_filter": "(?i)A.*", **without})).own)
    assert select_topics(patterned, ["a", "ab", "Abc", "and", "b"]) == ["Abc", "ab"]
    assert [is_selected(patterned, (topic, 0)) for topic in ("a", "ab", "and")] == [False, True, False]


def test_the_fingerprint_is_of_what_decides_names_and_bytes() -> None:
    plain = fingerprint_of(pipeline_of().own)
    assert fingerprint_of(pipeline_of(**texts({"secor.max.file.age.seconds": "5"})).own) == plain
    for changed in ({"secor.max.file.size.bytes": "5"}, {"secor.compression.codec": "gzip"}, {"secor.generation": "2"}):
        assert fingerprint_of(pipeline_of(**texts(changed)).own) != plain


def test_settings_that_come_with_another_version_change_no_fingerprint() -> None:
    # Unpublished files are rewritten only under the same fingerprint, so a changed fingerprint would orphan them.
    assert fingerprint_of(pipeline_of().own) == MINIMAL
    assert fingerprint_of(pipeline_of(**texts({"secor.compression.codec": "zstd"})).own) == MINIMAL
    finalizing = {"pipeline.finalize": "true", "partitioner.finalizer.delay.seconds": "5", "hive.table.prefix": "a."}
    assert fingerprint_of(pipeline_of(**texts(finalizing)).own) == MINIMAL


def test_an_extension_of_ones_own() -> None:
    naming = naming_of(pipeline_of(**texts({"secor.file.extension": ".part"})))
    assert naming.data_key("t", "base_offset=0", 3, 7) == f"out/t/base_offset=0/1_3_{7:020}.part"


def test_the_page_has_every_property() -> None:
    page = (REPOSITORY / "docs" / "reference" / "pipeline-settings.md").read_text()
    for name, _, _ in own_properties():
        assert f"\n`{name}` | " in page, name
    for name in [pair.split("=", 1)[0] for pair in WHOLE_SAMPLE.split()]:
        parts = name.split(".")
        wildcards = {".".join([*parts[:at], "*"]) for at in range(1, len(parts))}
        assert any(f"`{one}`" in page for one in {name, *wildcards}), name


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


COLUMNS = {"columns": "json", "json.schema.*": "dt STRING, id BIGINT", "secor.message.parser.class": "json"}


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (COLUMNS, "a column 'dt', and a directory level has the same name: set partitioner.granularity.date.prefix"),
        ({**COLUMNS, "json.schema.*": "HR INT", "partitioner.granularity.hour": "true"}, "granularity.hour.prefix"),
        (
            {"secor.message.parser.class": "split-by-field", "message.split.field.name": "Key"},
            "a column key, and a directory level has the same name: set partitioner.granularity.field.prefix",
        ),
        (
            {"secor.message.parser.class": "kafka-timestamp", "partitioner.granularity.date.prefix": "timestamp="},
            "set partitioner.granularity.date.prefix to another name",
        ),
        (
            {
                "secor.message.parser.class": "kafka-timestamp",
                "partitioner.granularity.date.prefix": "value=",
                "secor.file.reader.writer.factory": "text",
            },
            "text files have a column value",
        ),
    ],
)
def test_directories_and_columns_of_one_name_are_refused(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recipe_of(pipeline_of(**texts(properties)))


def test_secors_directories_of_offsets_are_a_warning_for_files_with_that_column(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secors = {"secor.offsets.prefix": "offset="}
    recipe_of(pipeline_of(**texts({**secors, "secor.file.reader.writer.factory": "sequencefile"})))
    assert not caplog.text
    recipe = recipe_of(pipeline_of(**texts({**secors, "secor.file.reader.writer.factory": "orc"})))
    assert recipe.parser == OffsetParser(prefix="offset=")
    assert "orc files have a column offset" in caplog.text


def test_columns_beside_a_frame_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"decode and transform in the frame function$"):
        pipeline_of(**texts({"frame": "a:b", "columns": "json", "json.schema.*": "id BIGINT"}))


def test_directories_by_a_field_are_named_for_it() -> None:
    by_field = {"secor.message.parser.class": "split-by-field", "message.split.field.name": "a/b"}
    assert field_prefix_of(pipeline_of(**texts(by_field)).own) == "a%2Fb="
    columns = {"columns": "json", "json.schema.*": "country STRING"}
    assert field_prefix_of(pipeline_of(**texts({**by_field, **columns})).own) == "by_a%2Fb="
    secors = {"partitioner.granularity.field.prefix": ""}
    assert field_prefix_of(pipeline_of(**texts({**by_field, **secors})).own) == ""


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("\\u0001", b"\x01"),
        ("\x01", b"\x01"),
        ("\\f", b"\f"),
        ("\\t", b"\t"),
        (" ", b" "),
        ("\\u00e9|", "é|".encode()),
        ("\\ud83d\\ude00", "😀".encode()),
        ("||", b"||"),
    ],
)
def test_delimiters_are_escapes_of_javas_properties(text: str, delimiter: bytes) -> None:
    own = pipeline_of(**texts({"secor.file.writer.Delimiter": text, "secor.file.reader.writer.factory": "text"})).own
    assert format_of(own) == Text("zstd", delimiter)


def test_half_a_character_is_no_delimiter() -> None:
    with pytest.raises(ConfigError, match=r"secor\.file\.writer\.Delimiter"):
        pipeline_of(**texts({"secor.file.writer.Delimiter": "\\ud83d", "secor.file.reader.writer.factory": "text"}))


@pytest.mark.parametrize("name", ["secor.kafka.topic_filter", "secor.kafka.topic_blacklist"])
def test_expressions_that_mean_something_else_in_java_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="nests character classes"):
        pipeline_of(**texts({name: r"[a-z&&[^q]]+"}))


@pytest.mark.parametrize("pattern", ["yyyy/", "/yyyy", "yyyy//MM"])
def test_a_date_format_with_an_empty_level_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="empty level"):
        pipeline_of(**texts({"partitioner.granularity.date.format": pattern}))
