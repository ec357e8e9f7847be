"""``restore produce --dry-run`` names problems of a run; a real run with such a problem is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.restore.produce.restores import Restore, committed, interrupt_at, mixed_topics
from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import Produced, Transaction, delete_topic, make_topic
from tests.support.kafka.kafka_topics import produce as send
from tests.support.servers.kafka import KafkaServer
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.format.cluster_snapshot import ClusterSnapshot, TopicSettings
from tieredstore.live.cluster_state import ClusterState
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.restore.produce.runs import CONTROL_TOPIC
from tieredstore.testing.batches import Record, build_batch

OLD: Final = {"retention.ms": "3600000"}
RECORDS: Final = 2 * 3 * (19 + 10)


@pytest.fixture
def restore(kafka: KafkaServer, tmp_path: Path) -> Restore:
    topics = {"orders": make_topic(kafka, OLD, partitions=2)}
    return Restore(mixed_topics(tmp_path, "orders"), kafka, topics)


def produce(restore: Restore, *words: str, code: int = 0) -> tuple[list[str], str]:
    """Call the command; return the lines of stdout, and the text of stderr."""
    target = f"orders={restore.topics['orders']}"
    where = "--store", str(restore.source.bucket.root), "--bootstrap-server", restore.server.bootstrap_servers
    done = tieredstore("restore", "produce", target, *where, *words)
    assert done.code == code, done.stderr
    return done.stdout.decode().splitlines(), done.stderr


def test_a_plan_names_what_would_be_deleted(restore: Restore) -> None:
    lines, _ = produce(restore, "--dry-run", code=ConfigError.exit_code)
    topic = restore.topics["orders"]
    assert f"ok      partitions   {topic} has 2 partitions, as in the bucket" in lines
    (bad,) = (line for line in lines if line.startswith("bad"))
    assert bad.startswith(f"bad     retention    {topic} would delete ")
    assert "partition 0 up to offset 184, partition 1 up to offset 184" in bad
    assert any(line.startswith("skipped quotas") for line in lines)
    assert lines[-1].startswith(f"{RECORDS} records (")
    assert lines[-1].endswith("would be restored, in about 1 s at 100,000 records or 20.0 MiB a second")
    _, said = produce(restore, code=ConfigError.exit_code)
    assert f"{topic} would delete " in said
    assert committed(restore.server, topic, 0) == []


def test_a_plan_as_json(restore: Restore) -> None:
    lines, _ = produce(restore, "--dry-run", "--json", code=ConfigError.exit_code)
    *checks, last = map(json.loads, lines)
    assert {check["check"] for check in checks if check["outcome"] == "bad"} == {"retention"}
    assert last["summary"]["records"] == RECORDS
    assert last["summary"].keys() == {"records", "size", "expected_s", "lost"}
    assert last["summary"]["lost"] == []


def test_a_topic_is_created_and_restored(restore: Restore, tmp_path: Path) -> None:
    path = tmp_path / "topic.properties"
    path.write_text("retention.ms=-1\nmessage.timestamp.type=LogAppendTime\n")
    restore.topics = {"orders": f"{restore.topics['orders']}-new"}
    planned, _ = produce(restore, "--create-with", str(path), "--dry-run")
    assert f"warn    topic        {restore.topics['orders']} does not exist: the run creates" in "\n".join(planned)
    _, said = produce(restore, "--create-with", str(path))
    assert f"created {restore.topics['orders']}" in said
    restore.check()
    produce(restore, "--create-with", str(path))


def test_a_topic_is_created_as_the_bucket_has_it_in_a_snapshot(restore: Restore) -> None:
    new = f"{restore.topics['orders']}-new"
    restore.topics = {"orders": new}
    snapshots, topic_id = Snapshots.of(restore.source.bucket.manager), str(Uuid(b"orders".ljust(16)))
    _, said = produce(restore, "--create-with", "snapshot", code=ResourceNotFoundError.exit_code)
    assert "no snapshot in the bucket has the topic orders: give --create-with FILE" in said
    for taken_ms, count in ((1, 1), (2000, 3)):
        held = TopicSettings("orders", topic_id, count, 1, {"retention.ms": "-1", "segment.ms": "7200000"})
        snapshots.write(ClusterSnapshot("c1", taken_ms, (held,)), is_hourly=False)
        planned = f"{new} does not exist: the run creates {count} partitions with retention.ms=-1, segment.ms=7200000"
        lines, said = produce(restore, "--create-with", "snapshot", "--dry-run", code=2 if count == 1 else 0)
        assert (planned in "\n".join(lines)) is (count == 3)
        assert (f"{new} would get 1 partitions, but the bucket has 2" in "\n".join(lines)) is (count == 1)
    _, said = produce(restore, "--create-with", "snapshot")
    assert f"created {new}" in said
    restore.check()
    with ClusterState({"bootstrap.servers": restore.server.bootstrap_servers}) as state:
        (made,) = (each for each in state.topic_settings()[0] if each.topic == new)
    assert (made.partition_count, made.replication_factor, made.settings) == (3, 1, held.settings)


def test_a_plan_shows_what_is_left_of_a_run(kafka: KafkaServer, tmp_path: Path) -> None:
    restore = Restore.into(kafka, mixed_topics(tmp_path, "orders"))

    def run_line(code: int = 0) -> tuple[str, str]:
        lines, _ = produce(restore, "--dry-run", code=code)
        return next((line for line in lines if " run  " in line), ""), lines[-1]

    assert run_line()[0] == ""
    assert restore.die("commit", 3)
    done = sum(len(committed(kafka, restore.topics["orders"], number)) for number in range(2))
    # The transaction of the killed process is open until the next process ends it.
    line, last = run_line()
    assert line.startswith(
        f"skipped run          not all is known of the run {restore.name}: a transaction of another "
    )
    assert last.startswith(f"{RECORDS - done} records (")
    with pytest.raises(InterruptedError):
        restore.run(on_step=interrupt_at("begin", 1))
    line, last = run_line()
    assert line == f"ok      run          the run {restore.name} would continue after {done} records"
    assert last.startswith(f"{RECORDS - done} records (")
    assert not restore.die("")
    finished = (
        f"warn    run          the run {restore.name} is finished, with {RECORDS} records: nothing is left to restore"
    )
    assert run_line() == (
        finished,
        "no records (0 B) would be restored, in about 1 s at 100,000 records or 20.0 MiB a second",
    )
    delete_topic(kafka, restore.topics["orders"])
    line, _ = run_line(ResourceNotFoundError.exit_code - 1)
    assert line.startswith("bad     run          a target topic was deleted after the run ")
    (settings := tmp_path / "new.properties").write_text("retention.ms=-1\n")
    _, said = produce(restore, "--create-with", str(settings), code=ConfigError.exit_code)
    assert f"a target topic was deleted after the run {restore.name} began" in said
    assert "created" not in said
    make_topic(kafka, name=restore.topics["orders"], partitions=2)
    line, _ = run_line(ConfigError.exit_code)
    assert line.startswith(f"bad     run          topic {restore.topics['orders']} was created again after the run ")


def test_a_plan_names_records_of_others(kafka: KafkaServer, tmp_path: Path) -> None:
    restore = Restore.into(kafka, mixed_topics(tmp_path, "orders"))
    topic = restore.topics["orders"]
    send(kafka, topic, [Produced(b"k", b"foreign")], partition=1)
    lines, _ = produce(restore, "--dry-run", code=ConfigError.exit_code)
    line = (
        f"bad     run          {topic}-1 has a record at offset 0 that this run has not written: restore into a topic"
    )
    assert any(each.startswith(line) for each in lines)
    other = Restore(restore.source, kafka, {"orders": make_topic(kafka, partitions=2)})
    hung = Transaction(kafka)
    hung.send(CONTROL_TOPIC, [Produced(b"other", b"{}")])
    lines, _ = produce(other, "--dry-run")
    hung.end("abort")
    assert any(
        each.startswith(f"skipped run          not all is known of the run {other.name}: a transaction of another")
        for each in lines
    )


def test_a_topic_id_may_be_chosen_for_each_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    """The target's uploader adds the restored topic, with its new id, to the same bucket."""
    restore = Restore.into(kafka, mixed_topics(tmp_path, "orders"))
    assert restore.die("commit", 3)
    again = TopicIdPartition(Uuid(b"again".ljust(16)), "orders", 0)
    restore.source.bucket.copy(again, [build_batch([Record(b"v")], 0)], range(1))
    _, said = produce(restore, code=ConfigError.exit_code)
    old = str(Uuid(b"orders".ljust(16)))
    assert f"newest is {again.topic_id}: continue it with --topic-id orders={old}, or" in said
    produce(restore, "--topic-id", f"orders={old}")
    restore.check()
