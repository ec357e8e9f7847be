"""A topic that MemQ's JSON describes, by a setting: as every reader and writer of topics of batches has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import make_topic
from tests.support.pubsub.memq_topic import rows_in
from tests.support.servers.kafka import KafkaServer
from tieredstore.backends.wrappers.stack import open_wrapped
from tieredstore.config import load_settings
from tieredstore.errors import ConfigError
from tieredstore.pubsub.produce.producer import Producer
from tieredstore.pubsub.queue.memq_topics import open_topics


@pytest.fixture
def settings(tmp_path: Path, kafka: KafkaServer) -> Path:
    """Of a folder with a topic of MemQ's, which has three records."""
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
    with Producer(open_topics(open_wrapped(loaded), loaded), "orders") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    assert list((tmp_path / "store" / "prod" / "orders").iterdir())
    return path


@pytest.mark.slow
def test_each_reader_reads_it(settings: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    from tieredstore.duckdb import attach  # noqa: PLC0415  an extra
    from tieredstore.polars import scan  # noqa: PLC0415  an extra

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
    consumed = tieredstore("pubsub", "consume", "orders", "-c", settings, "--json", "-n", "3")
    assert (consumed.code, len(consumed.text.splitlines())) == (0, 3)


@pytest.mark.parametrize("change", [("--create",), ("--create", "--partitions", "2"), ("--partitions", "2")])
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
    assert "topic orders is MemQ's" in refused.stderr
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
    with pytest.raises(ConfigError, match=r"nothing\.json cannot be read"):
        open_topics(open_wrapped(loaded), loaded)
