"""On real brokers, groups continue at the exact record; commits that cannot move are named."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import tieredstore as ts
from tests.restore.groups.restored_topics import (
    RestoredTopic,
    Server,
    commit,
    committed,
    read_values,
    restore_topic,
)
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import TIMEOUT_S, delete_topic, make_topic
from tests.support.kafka.other_groups import OTHER_GROUPS, make_other_groups
from tests.support.records.hourly_topics import NOON_MS
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.kafka_cluster import KAFKA, KAFKA_39, start_kafka_cluster
from tieredstore.format.cluster_snapshot import ClusterSnapshot, CommittedOffset, GroupOffsets, NotHeld
from tieredstore.ops.snapshots.storing import Snapshots

Commits = dict[str, dict[int, tuple[int, str]]]


def groups(topic: RestoredTopic, folder: Path, *words: object) -> Result:
    servers = ("--bootstrap-server", topic.server.bootstrap_servers)
    return tieredstore("restore", "groups", "r1", "--store", folder, *servers, *words)


def random_commits(topic: RestoredTopic, source: random.Random, count: int) -> Commits:
    """Return this many groups, each with a random offset and text in each partition."""
    return {
        f"{topic.target}-{number}": {
            partition: (source.randrange(max(0, start - 5), end + 5), source.choice(["", "text", "ключ"]))
            for partition, (start, end) in topic.bounds.items()
        }
        for number in range(count)
    }


def write_file(path: Path, topic: str, commits: Commits) -> Path:
    document = {
        group: {topic: {number: {"offset": offset, "metadata": text} for number, (offset, text) in each.items()}}
        for group, each in commits.items()
    }
    path.write_text(json.dumps(document))
    return path


def check_all_moved(topic: RestoredTopic, commits: Commits) -> int:
    """Check that each group's next record is the first one at or after its old offset; return the number checked."""
    count = 0
    values = [read_values(topic.server, topic.target, number) for number in range(len(topic.offsets))]
    for group, offsets in commits.items():
        moved = committed(topic.server, group, topic.target, len(topic.offsets))
        for partition, (offset, text) in offsets.items():
            there, metadata = moved[partition]
            following = next((value for at, value in values[partition].items() if at >= there), None)
            assert following == topic.expected(partition, offset), (group, partition, offset, there)
            assert (metadata or "") == text
            count += 1
    return count


def test_groups_of_a_file_go_on_at_the_exact_record(kafka: KafkaServer, tmp_path: Path) -> None:
    source = random.Random(52)
    topic = restore_topic(kafka, tmp_path, source, partitions=10, records=60)
    commits = random_commits(topic, source, 3)
    file = write_file(tmp_path / "groups.json", topic.source, commits)
    planned = groups(topic, tmp_path, "--from-file", file).clean()
    assert planned.text.splitlines()[-2:] == ["30 offsets would be moved", "nothing was moved: --yes does it"]
    assert not any(committed(kafka, group, topic.target, 10) for group in commits)
    rows, summary = groups(topic, tmp_path, "--from-file", file, "--yes", "--json").clean().rows
    assert (summary["done"], summary["codes"]) == (30, {"moved": 30})
    assert check_all_moved(topic, commits) == 30
    for row in rows:
        start, end = topic.bounds[row["partition"]]
        beyond = max(0, row["offset"] - end), max(0, start - row["offset"])
        assert row["difference"] == max(beyond)
        assert (row["reason"] is None) == (max(beyond) == 0)
    again = groups(topic, tmp_path, "--from-file", file, "--yes").clean()
    assert again.text.splitlines()[-2:] == ["no offsets moved", "left alone: 30 there already"]
    # A group that has read further in the target would move back; the plan says so.
    group = next(iter(commits))
    moved = committed(kafka, group, topic.target, 1)[0][0]
    commit(kafka, group, topic.target, {0: (moved + 1, "")})
    back = groups(topic, tmp_path, "--from-file", file).clean()
    assert f"→ {topic.target}-0 {moved}, instead of {moved + 1}" in back.text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_of_a_cluster_moves_and_its_members_go_on(kafka: KafkaServer, tmp_path: Path, protocol: str) -> None:
    source = random.Random(53)
    topic = restore_topic(kafka, tmp_path, source, partitions=2, records=20)
    group = f"{topic.target}-{protocol}"
    old = {partition: (topic.offsets[partition][7] + 1, "") for partition in range(2)}
    commit(kafka, group, topic.source, old)
    done = groups(topic, tmp_path, group, "--from-cluster", kafka.bootstrap_servers, "--yes").clean()
    assert f"moved  {group}  {topic.source}-1 {old[1][0]} → {topic.target}-1 " in done.text
    member = Consumer({
        "bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": protocol,
        "auto.offset.reset": "error", "isolation.level": "read_committed", "enable.auto.commit": False,
    })  # fmt: skip
    try:
        member.subscribe([topic.target])
        seen: dict[int, list[bytes]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 24:
            message: Any = member.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None, message.error()
            seen[message.partition()].append(message.value())
        assert seen == {p: [b"%d:%d" % (p, offset) for offset in topic.offsets[p][8:]] for p in range(2)}
        file = write_file(tmp_path / "groups.json", topic.source, {group: {0: (0, "")}})
        refused = groups(topic, tmp_path, "--from-file", file, "--yes")
        assert refused.code == 6, refused
        assert f"refused  {group} (stop its consumers: it has members in the new cluster)" in refused.text
        left = groups(topic, tmp_path, group, "--from-cluster", kafka.bootstrap_servers, "--yes")
        assert left.code == 6, left
        assert f"not movable  {group} (stop its consumers: it has members in the old cluster)" in left.text
    finally:
        member.close()


def test_where_keys_were_hashed_anew_no_record_is_skipped(kafka: KafkaServer, tmp_path: Path) -> None:
    source = random.Random(54)
    topic = restore_topic(kafka, tmp_path, source, partitions=4, records=60, is_rehashed=True)
    commits = random_commits(topic, source, 5)
    file = write_file(tmp_path / "groups.json", topic.source, commits)
    rows, _ = groups(topic, tmp_path, "--from-file", file, "--yes", "--json").clean().rows
    promised = {(row["name"], row["target_partition"]): row["read_again"] for row in rows}
    values = [read_values(kafka, topic.target, number) for number in range(4)]
    for group, offsets in commits.items():
        for partition, (there, _) in committed(kafka, group, topic.target, 4).items():
            is_unread = {
                at: int(value.split(b":")[1]) >= offsets[int(value.split(b":")[0])][0]
                for at, value in values[partition].items()
            }
            assert not any(unread for at, unread in is_unread.items() if at < there)
            assert sum(not unread for at, unread in is_unread.items() if at >= there) <= promised[group, partition]


def test_a_target_that_is_not_there_and_a_partition_that_was_not_restored_are_named(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = restore_topic(kafka, tmp_path, random.Random(55), partitions=1, records=5)
    file = write_file(tmp_path / "groups.json", topic.source, {"g": {0: (3, ""), 7: (1, "")}})
    partly = groups(topic, tmp_path, "--from-file", file).clean()
    assert f"not restored  g  {topic.source}-7 1 (the run r1 did not restore {topic.source}-7)" in partly.text
    delete_topic(kafka, topic.target)
    groups(topic, tmp_path, "--from-file", file, "--yes").fails(3, f"there is no {topic.target}-0")
    make_topic(kafka, name=topic.target)
    groups(topic, tmp_path, "--from-file", file, "--yes").fails(2, f"{topic.target}-0 ends at 0 in the target cluster")


def test_groups_of_a_snapshot_move(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = restore_topic(kafka, tmp_path / "store", random.Random(59), partitions=1, records=5)
    offset = topic.offsets[0][2]
    held = GroupOffsets(topic.target, "consumer", (CommittedOffset(topic.source, 0, offset, "text"),))
    left = NotHeld("group", "elsewhere", "its coordinator did not answer")
    with ts.open(tmp_path / "store") as bucket:
        for cluster_id, groups_held in (("c1", (held,)), ("c2", ())):
            snapshot = ClusterSnapshot(cluster_id, NOON_MS, groups=groups_held, not_held=(left,))
            assert Snapshots.of(bucket.manager).write(snapshot, is_hourly=True)
    store = tmp_path / "store"
    groups(topic, store, "--from-snapshot", "newest").fails(2, "2 clusters; name one: c1, c2")
    groups(topic, store, "--from-snapshot", "5", "--cluster-id", "c1").fails(2, "--from-snapshot is 5, an offset")
    before = ("--from-snapshot", f"@{NOON_MS - 1}", "--cluster-id", "c1")
    groups(topic, store, *before).fails(3, "no snapshot of the cluster c1 at or before")
    moved = groups(topic, store, "--from-snapshot", "newest", "--cluster-id", "c1", "--yes")
    assert moved.code == 6, moved
    assert "not movable  elsewhere (its coordinator did not answer)" in moved.text
    assert check_all_moved(topic, {topic.target: {0: (offset, "text")}}) == 1


@pytest.mark.slow
def test_share_and_streams_groups_are_named_on_both_sides(tmp_path: Path) -> None:
    with start_kafka(**OTHER_GROUPS) as server:
        topic = restore_topic(server, tmp_path, random.Random(60), partitions=1, records=5)
        make_other_groups(server.bootstrap_servers, topic.source)
        properties = tmp_path / "old.properties"
        properties.write_text(f"bootstrap.servers={server.bootstrap_servers}\n")
        left = groups(topic, tmp_path, "--from-cluster", properties, "--yes")
        file = write_file(tmp_path / "groups.json", topic.source, {"shared": {0: (1, "")}, "streaming": {0: (1, "")}})
        refused = groups(topic, tmp_path, "--from-file", file, "--yes")
        assert left.code == refused.code == 6
        for name in ("shared", "streaming"):
            assert f"not movable  {name} (it is neither a classic nor a consumer group" in left.text
            assert f"refused  {name} (it is neither a classic nor a consumer group" in refused.text


@pytest.fixture(params=[KAFKA, KAFKA_39], ids=["newest", "3.9"])
def broker(request: pytest.FixtureRequest) -> Iterator[Server]:
    with start_kafka_cluster(1, libs=request.param) as cluster:
        yield cluster


@pytest.mark.soak
def test_ten_thousand_random_offsets_move_exactly(broker: Server, tmp_path: Path) -> None:
    source = random.Random(56)
    topic = restore_topic(broker, tmp_path, source, partitions=200, records=300)
    commits = random_commits(topic, source, 50)
    for group, offsets in commits.items():
        commit(broker, group, topic.source, offsets)
    moved = groups(topic, tmp_path, "--from-cluster", broker.bootstrap_servers, "--yes")
    assert moved.code == 0, moved.stderr
    assert "10,000 offsets moved" in moved.text
    assert check_all_moved(topic, commits) == 10_000
