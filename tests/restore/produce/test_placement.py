"""Restores that hash keys into another number of partitions, and restores up to a point in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.restore.produce.restores import Kept, Restore, committed, interrupt_at, mixed_topics
from tests.support.kafka.kafka_topics import add_partitions, make_topic
from tests.support.servers.kafka import KafkaServer
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.restore.produce.offset_map import load_map
from tieredstore.restore.produce.runs import Partitioning, ProduceOptions
from tieredstore.restore.produce.target import TargetCluster
from tieredstore.restore.produce.time_cut import PartitionCut, TimeCut

TYPE: Final = "message.timestamp.type"


def content(records: list[Kept]) -> list[tuple[object, ...]]:
    return [record[1:] for record in records]


@pytest.mark.parametrize("count", [3, 1])
def test_keys_are_hashed_anew(kafka: KafkaServer, tmp_path: Path, count: int) -> None:
    options = {"partitioner": "java"}
    source = mixed_topics(tmp_path, "orders")
    restore = Restore(source, kafka, {"orders": make_topic(kafka, partitions=count)})
    with pytest.raises(InterruptedError):
        restore.run(options=options, on_step=interrupt_at("commit", 3), most_records=40)
    restore.run(options=options, most_records=40)
    found = {number: committed(kafka, restore.topics["orders"], number) for number in range(count)}
    partitioning = Partitioning("java", count)
    for (_, number), records in source.committed.items():
        targets = partitioning.partitions([record[2] for record in records], number)
        for target in range(count):
            expected = [record for record, own in zip(content(records), targets, strict=True) if own == target]
            # Records of the other source partition lie in between, so ``expected`` is only a subsequence of
            # ``found[target]``.
            left = iter(content(found[target]))
            assert all(record in left for record in expected)
    assert sum(map(len, found.values())) == sum(map(len, source.committed.values()))
    offsets = load_map(source.bucket.manager.store, "", ProduceOptions(topics=restore.topics).run)
    assert offsets.topics["orders"].is_rehashed
    assert offsets.partitions("orders") == {0: range(5, 185), 1: range(5, 185)}


def test_a_run_does_not_go_on_with_more_partitions(kafka: KafkaServer, tmp_path: Path) -> None:
    restore = Restore(mixed_topics(tmp_path, "orders"), kafka, {"orders": make_topic(kafka, partitions=2)})
    with pytest.raises(InterruptedError):
        restore.run(options={"partitioner": "librdkafka"}, on_step=interrupt_at("commit", 2))
    add_partitions(kafka, restore.topics["orders"], 3)
    with pytest.raises(
        ConfigError, match="has 3 partitions, but had 2 when the run began, so keys would go to other partitions"
    ):
        restore.run(options={"partitioner": "librdkafka"})


def test_a_cut_leaves_out_what_it_names(kafka: KafkaServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = mixed_topics(tmp_path, "orders")
    topic_id = str(load_catalog(source.bucket.manager).incarnation("orders").topic_id)
    left_out = ((0, 30), (33, 36), (60, 90), (119, 125))
    cut = TimeCut(
        0, (PartitionCut("orders", topic_id, 0, 120, left_out), PartitionCut("orders", topic_id, 1, 0)),
    )  # fmt: skip
    restore = Restore.into(kafka, source)
    with pytest.raises(InterruptedError):
        restore.run(cut=cut, on_step=interrupt_at("committed", 2), most_records=20)
    other = replace(cut, partitions=(replace(cut.partitions[0], stop=60), cut.partitions[1]))
    with pytest.raises(ConfigError, match="ends at offset 120 of orders-0, as when it began, but --to or --cut-file e"):
        restore.run(cut=other)
    # The repeated run keeps the cut of the interrupted one, and says so.
    restore.run(most_records=20)
    ends = (
        "ends at offset 120 of orders-0, as when it began: the source now ends at offset 185; 1 more partitions differ"
    )
    assert ends in caplog.text
    expected = [
        record
        for record in source.committed["orders", 0]
        if record[0] < 120 and not any(start <= record[0] < stop for start, stop in left_out)
    ]
    assert len(expected) > 20
    assert content(committed(kafka, restore.topics["orders"], 0)) == content(expected)
    assert committed(kafka, restore.topics["orders"], 1) == []


def type_of_times(kafka: KafkaServer, topic: str) -> tuple[str, str | None]:
    with TargetCluster({"bootstrap.servers": kafka.bootstrap_servers}) as cluster:
        target = cluster.target(topic)
    assert target is not None
    return target.settings[TYPE], target.own.get(TYPE)


def test_records_keep_their_times_in_a_topic_with_its_own(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = make_topic(kafka, {TYPE: "LogAppendTime"}, partitions=2)
    restore = Restore(mixed_topics(tmp_path, "orders"), kafka, {"orders": topic})
    assert restore.die("flush")
    assert type_of_times(kafka, topic) == ("CreateTime", "CreateTime")
    assert restore.die("times")
    assert not restore.die("")
    assert type_of_times(kafka, topic) == ("LogAppendTime", "LogAppendTime")
    restore.check()


def test_a_changed_kind_of_times_stops_a_run(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = make_topic(kafka, partitions=2)
    restore = Restore(mixed_topics(tmp_path, "orders"), kafka, {"orders": topic})

    def change(step: str) -> None:
        if step == "begin":
            with TargetCluster({"bootstrap.servers": kafka.bootstrap_servers}) as cluster:
                cluster.set_times({topic: "LogAppendTime"})

    with pytest.raises(BrokerUnavailableError, match=f"{topic} replaced the records' times"):
        restore.run(on_step=change, give_up_s=0)
    assert committed(kafka, topic, 0) == []
