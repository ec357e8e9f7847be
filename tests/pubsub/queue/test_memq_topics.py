"""MemQ's JSON of topics: paths, limits, queue, invalid files. One setting gives it to all readers and writers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import make_topic
from tests.support.pubsub.memq_topic import rows_in
from tests.support.pubsub.pubsub_topics import topics_on
from tests.support.servers.kafka import KafkaServer
from tieredstore.backends.wrappers.stack import open_wrapped
from tieredstore.config import load_settings
from tieredstore.errors import ConfigError
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.memq_topics import (
    load_topic_config,
    open_configured_topics,
    parse_topic_config,
    topics_in_store,
)
from tieredstore.pubsub.queue.topics import Topic
from tieredstore.pubsub.settings import BatchSettings

HANDLER: dict[str, Any] = {
    "bucket": "logs", "path": "prod/topics/orders", "region": "us-east-1", "notificationTopic": "orders_told",
    "notificationServerset": "brokers.txt", "retryTimeoutMillis": "5000",
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "topic": "orders", "topicOrder": 7, "storageHandlerName": "s3v2", "storageHandlerConfig": HANDLER,
    "batchSizeMB": 8, "batchMilliSeconds": "2000", "maxDispatchCount": 50, "outputParallelism": 3, "inputTrafficMB": 10,
}  # fmt: skip


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in WHOLE.items() if key != name}


def test_all_of_it_is_as_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "brokers.txt").write_text("kafka-1:9092\nkafka-2:9092\n\n")
    (tmp_path / "orders.json").write_text(json.dumps(WHOLE))
    config = load_topic_config(tmp_path / "orders.json")
    assert config.topic == Topic("orders", 1, "prod/topics/orders", True, "kafka", "orders_told")
    plain = topics_on()
    topics = open_configured_topics(plain.store, plain.settings, config)
    assert topics.get("orders") == config.topic
    pubsub = topics.batches
    assert (pubsub.batch_bytes, pubsub.batch_ms, pubsub.batch_messages, pubsub.uploads) == (8 << 20, 2000, 50, 3)
    assert [(name, text.get_secret_value()) for name, text in pubsub.kafka] == [
        ("bootstrap.servers", "kafka-1:9092,kafka-2:9092")
    ]
    assert topics.bucket_name == "logs"
    own = topics_on(None, kafka_bootstrap_servers="mine:9092")
    applied = open_configured_topics(own.store, own.settings, config).settings.section(BatchSettings)
    assert [text.get_secret_value() for _, text in applied.kafka] == ["mine:9092"]


def test_absent_fields_have_memqs_defaults() -> None:
    least = {
        "topic": "orders", "outputHandler": "customs3aync2",
        "outputHandlerConfig": {"bucket": "logs", "notificationTopic": "told", "enableHashing": "false"},
    }  # fmt: skip
    config = parse_topic_config(json.dumps(least).encode(), "orders.json", Path())
    assert (config.topic.path, config.topic.is_hashed) == ("orders", False)
    assert config.limits == {"batch_bytes": 104857600, "batch_ms": 60000, "batch_messages": 100, "uploads": 2}
    assert config.brokers == ()


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "not a JSON object"),
        (without("topic"), "topic is missing; set it to a text"),
        ({**WHOLE, "topic": "../secrets"}, "invalid topic name"),
        ({**WHOLE, "storageHandlerName": "filesystem"}, "is not one of customs3"),
        (without("storageHandlerConfig"), "storageHandlerConfig is not a JSON object"),
        ({**WHOLE, "storageHandlerConfig": {**HANDLER, "disableNotifications": True}}, "notifications are disabled"),
        ({**WHOLE, "storageHandlerConfig": {**HANDLER, "path": "a//b"}}, "invalid path"),
        (
            {**WHOLE, "storageHandlerConfig": {**HANDLER, "enableHashing": "perhaps"}},
            "enableHashing is 'perhaps'; set it to true or false",
        ),
        ({**WHOLE, "batchMilliSeconds": "soon"}, "batchMilliSeconds is 'soon'; set it to a whole number"),
        ({**WHOLE, "batchMilliSeconds": -1}, "set it to a whole number that is not negative"),
    ],
)
def test_a_file_that_is_no_topic_of_memqs_is_refused(document: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_topic_config(json.dumps(document).encode(), "orders.json", Path())


def test_what_ours_does_not_take_is_refused() -> None:
    plain = topics_on()
    large = parse_topic_config(json.dumps({**WHOLE, "batchSizeMB": 4096}).encode(), "orders.json", Path())
    with pytest.raises(ConfigError, match=r"JSON sets pubsub\.batch\.bytes to 4294967296; set it to"):
        open_configured_topics(plain.store, plain.settings, large)
    with pytest.raises(ConfigError, match="is not JSON"):
        parse_topic_config(b"{", "orders.json", Path())
    with pytest.raises(ConfigError, match="cannot read the topic configuration no-such-file"):
        load_topic_config(Path("no-such-file.json"))


@pytest.fixture
def settings(tmp_path: Path, kafka: KafkaServer) -> Path:
    """Return settings that name MemQ's JSON of a topic; the topic has three records."""
    (tmp_path / "store").mkdir()
    told = make_topic(kafka, partitions=1)
    handler = {"bucket": "logs", "path": "prod/orders", "notificationTopic": told, "enableHashing": False}
    document = {"topic": "orders", "storageHandlerName": "s3v2", "storageHandlerConfig": handler}
    (tmp_path / "orders.json").write_text(json.dumps(document))
    path = tmp_path / "store.properties"
    path.write_text(
        f"storage.backend.class=filesystem\nstorage.root={tmp_path / 'store'}\nchunk.size=4194304\n"
        f"pubsub.topic.config=orders.json\npubsub.kafka.bootstrap.servers={kafka.bootstrap_servers}\n"
    )
    loaded = load_settings(path)
    with BatchProducer(topics_in_store(open_wrapped(loaded), loaded), "orders") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    assert list((tmp_path / "store" / "prod" / "orders").iterdir())
    return path


@pytest.mark.slow
def test_each_reader_reads_it(settings: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    from tieredstore.duckdb import attach  # noqa: PLC0415  needs an extra
    from tieredstore.polars import scan  # noqa: PLC0415  needs an extra

    values = [b"0", b"1", b"2"]
    rows = rows_in({"topic": "orders", "settings": str(settings)})
    assert sorted(row["value"] for row in rows) == values
    connection = duckdb.connect()
    with attach(connection, settings, topics=["orders"]):
        assert connection.sql("SELECT value FROM orders ORDER BY value").fetchall() == [
            (each.decode(),) for each in values
        ]
    frame = scan(settings, "orders$batches").select("value").collect()
    assert sorted(frame.get_column("value").to_list()) == values
    asked = tieredstore("query", "-c", settings, "SELECT count(*) AS n FROM orders", "--json")
    assert json.loads(asked.text)["n"] == 3
    consumed = tieredstore("pubsub", "cat", "orders", "-c", settings, "--json", "-n", "3")
    assert (consumed.code, len(consumed.text.splitlines())) == (0, 3)


@pytest.mark.parametrize("change", [("--create",), ("--create", "--read-partitions", "2"), ("--read-partitions", "2")])
@pytest.mark.parametrize("by", ["option", "setting"])
def test_it_is_not_made_here(tmp_path: Path, change: tuple[str, ...], by: str) -> None:
    (tmp_path / "store").mkdir()
    handler = {"bucket": "logs", "path": "prod/orders", "notificationTopic": "told"}
    document = {"topic": "orders", "storageHandlerName": "s3v2", "storageHandlerConfig": handler}
    config = tmp_path / "orders.json"
    config.write_text(json.dumps(document))
    path = tmp_path / "store.properties"
    given = f"storage.backend.class=filesystem\nstorage.root={tmp_path / 'store'}\nchunk.size=4194304\n"
    path.write_text(given + ("pubsub.topic.config=orders.json\n" if by == "setting" else ""))
    option = ("--topic-config", config) if by == "option" else ()
    refused = tieredstore("pubsub", "topics", "orders", "-c", path, *change, *option)
    assert refused.code == 2
    assert "topic orders is defined by MemQ's configuration file" in refused.stderr
    assert "Kafka's tools" in refused.stderr
    assert not [each for each in (tmp_path / "store").rglob("*") if each.is_file()]


def test_a_file_that_is_no_topic_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store.properties"
    path.write_text(
        f"storage.backend.class=filesystem\nstorage.root={tmp_path / 'store'}\nchunk.size=4194304\n"
        "pubsub.topic.config=nothing.json\n"
    )
    loaded = load_settings(path)
    with pytest.raises(ConfigError, match=r"cannot read the topic configuration .*nothing\.json"):
        topics_in_store(open_wrapped(loaded), loaded)
