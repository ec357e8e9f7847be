"""Groups after a real run of ``restore produce``, with aborted records, markers and gaps in the source."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.restore.groups.restored_topics import committed as committed_offsets
from tests.restore.produce.restores import Restore, committed, mixed_topics
from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import make_topic
from tests.support.servers.kafka import KafkaServer
from tieredstore.restore.produce.runs import ProduceOptions


def move(restore: Restore, folder: Path, offsets: dict[str, dict[int, int]]) -> None:
    """Move groups that stand at these offsets of the topic ``orders``."""
    file = folder / "groups.json"
    file.write_text(json.dumps({group: {"orders": each} for group, each in offsets.items()}))
    run = ProduceOptions(topics=restore.topics).run
    servers = restore.server.bootstrap_servers
    place = ("--store", restore.source.bucket.root, "--bootstrap-server", servers)
    tieredstore("restore", "groups", run, *place, "--from-file", file, "--yes").clean()


def random_offsets(source: random.Random, name: str) -> dict[str, dict[int, int]]:
    return {f"{name}-{number}": {p: source.randrange(200) for p in range(2)} for number in range(8)}


def test_the_next_record_of_each_group_is_the_one_it_was(kafka: KafkaServer, tmp_path: Path) -> None:
    restore = Restore.into(kafka, mixed_topics(tmp_path / "store", "orders"))
    restore.run()
    topic = restore.topics["orders"]
    offsets = random_offsets(random.Random(57), topic)
    move(restore, tmp_path, offsets)
    for partition in range(2):
        new, old = committed(kafka, topic, partition), restore.source.committed["orders", partition]
        for group, each in offsets.items():
            there, _ = committed_offsets(kafka, group, topic, 2)[partition]
            following = [record[1:] for record in new if record[0] >= there]
            assert following == [record[1:] for record in old if record[0] >= each[partition]]


def test_a_group_reads_each_record_that_it_had_not_read_if_keys_were_hashed_anew(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    source = mixed_topics(tmp_path / "store", "orders")
    # There are more partitions than keys, so some stay empty.
    topic = make_topic(kafka, partitions=50)
    restore = Restore(source, kafka, {"orders": topic})
    restore.run(options={"partitioner": "java"})
    offsets = random_offsets(random.Random(58), topic)
    move(restore, tmp_path, offsets)
    new = {partition: committed(kafka, topic, partition) for partition in range(50)}
    for group, each in offsets.items():
        there = committed_offsets(kafka, group, topic, 50)
        assert there.keys() == new.keys()
        following = [record[1:] for number in new for record in new[number] if record[0] >= there[number][0]]
        unread = [
            record[1:] for (_, number), old in source.committed.items() for record in old if record[0] >= each[number]
        ]
        assert all(record in following for record in unread)
        assert len(unread) <= len(following)
