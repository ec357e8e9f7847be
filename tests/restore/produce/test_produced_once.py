"""Each committed record is produced once, whatever kills a run, and whatever else the source contains."""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from tests.restore.produce.restores import STEPS, TIMEOUT_S, Restore, committed, mixed_topics
from tests.support.kafka.kafka_topics import (
    Produced,
    Transaction,
    delete_topic,
    end_offset,
    make_topic,
    produce,
)
from tests.support.network.connections import break_connections
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.kafka_cluster import start_kafka_cluster
from tests.support.waiting import wait_until
from tieredstore.errors import BrokerUnavailableError, ConfigError, FencedError
from tieredstore.model import Uuid
from tieredstore.restore.produce.offset_map import OffsetMapFile, load_map
from tieredstore.restore.produce.runs import CONTROL_TOPIC, OffsetRun
from tieredstore.restore.produce.target import NewTopic, TargetCluster
from tieredstore.restore.produce.transactions import Transactions


@pytest.fixture
def restore(kafka: KafkaServer, tmp_path: Path) -> Restore:
    return Restore.into(kafka, mixed_topics(tmp_path, "orders", "payments"))


def test_every_record_comes_once_and_as_it_was(restore: Restore) -> None:
    steps: list[str] = []
    done = restore.run(on_step=steps.append)
    assert [outcome.code for outcome in done] == ["restored"] * 4
    assert [str(outcome).split(", ")[1] for outcome in done] == ["orders-0", "orders-1", "payments-0", "payments-1"]
    assert set(steps) == {"resume", *STEPS}
    restore.check()
    # The source has some of these records twice: in an aborted and in a committed transaction.
    assert len(committed(restore.server, restore.topics["orders"], 0)) == 3 * (19 + 10)


def test_a_finished_run_does_nothing(restore: Restore) -> None:
    restore.run()
    steps: list[str] = []
    again = restore.run(on_step=steps.append)
    assert [(outcome.status, outcome.code) for outcome in again] == [("kept", "there")] * 4
    assert steps == ["resume"]
    restore.check()


def test_a_run_killed_before_each_operation(restore: Restore) -> None:
    restore.die_before_each_step()
    restore.check()


@pytest.mark.soak
@pytest.mark.broker
def test_runs_killed_two_hundred_times(tmp_path: Path) -> None:
    kills, source = 0, random.Random(48)
    with start_kafka() as server:
        for number in itertools.count():
            folder = tmp_path / str(number)
            restore = Restore.into(server, mixed_topics(folder, "orders", "payments", segments=8, seed=number))
            for _ in range(30):
                process = restore.spawn(source.choice(("", *STEPS)), source.randrange(1, 6))
                process.join(source.uniform(0.1, 3.0))
                process.kill()
                process.join(TIMEOUT_S)
                if process.exitcode == 0:
                    break
                kills += 1
            else:
                assert not restore.die("")
            restore.check()
            if kills >= 200:
                return


def has_replicas(target: TargetCluster, topic: str) -> bool:
    return target.existing_target(topic).least_live == 3


SAFE: Final = {
    "min.insync.replicas": "2", "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}  # fmt: skip


def test_connections_broken_during_a_run(restore: Restore) -> None:
    """This test is a quick substitute for the soak tests that kill brokers."""
    left, port = ["produce", "flush", "commit"], int(restore.server.bootstrap_servers.rpartition(":")[2])

    def break_here(step: str) -> None:
        # The client may not have reconnected since the previous step; then there is no connection to break.
        if left[:1] == [step] and break_connections(port):
            left.pop(0)

    restore.run(on_step=break_here, most_records=1)
    assert left == []
    restore.check()


@pytest.mark.soak
@pytest.mark.broker
def test_brokers_killed_during_a_run(tmp_path: Path) -> None:
    """All three brokers have all replicas. At each chosen step, another broker is killed; it restarts after the run."""
    with (
        start_kafka_cluster(3, **SAFE) as cluster,
        TargetCluster({"bootstrap.servers": cluster.bootstrap_servers}) as target,
    ):
        wait_until(partial(has_replicas, target, target.control_topic().topic))
        for victim, step in enumerate(("flush", "commit"), 1):
            source = mixed_topics(tmp_path / step, "orders")
            target.create(step, NewTopic({}, source.topics["orders"], 3))
            restore, steps = Restore(source, cluster, {"orders": step}), list[str]()

            def kill(name: str, wanted: str = step, seen: list[str] = steps, node: int = victim) -> None:
                seen.append(name)
                # Kill at the second of these steps: the run has then committed some transactions, but not all.
                if name == wanted and seen.count(name) == 2:
                    cluster.brokers[node].kill()

            restore.run(on_step=kill, most_records=1)
            assert cluster.brokers[victim].process is None
            assert steps[-1] == "committed"
            restore.check()
            cluster.brokers[victim].start()
            # Wait until the broker has caught up, because two dead brokers would be too many.
            for topic in (step, CONTROL_TOPIC, "__transaction_state"):
                wait_until(partial(has_replicas, target, topic))


@pytest.mark.soak
@pytest.mark.broker
def test_the_only_broker_killed_during_a_run(tmp_path: Path) -> None:
    # Shorten the session: the controller lets a killed broker register again only after its old session has expired.
    with start_kafka(**{"broker.session.timeout.ms": "9000"}) as server:
        process = server.process
        assert process is not None
        for step in ("begin", "flush", "commit", "map"):
            folder, left = tmp_path / step, 2 if step != "map" else 1
            restore = Restore.into(server, mixed_topics(folder, "orders", "payments"))

            def restart(name: str, wanted: str = step) -> None:
                nonlocal left
                left -= name == wanted
                if left == 0:
                    left = -1
                    process.kill()
                    Thread(target=process.start).start()

            restore.run(on_step=restart, most_records=1)
            assert left < 0
            restore.check()


def test_a_commit_without_an_answer_is_counted(restore: Restore, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, left, counted = Transactions.commit, 3, list[int]()

    def commit_unheard(transactions: Transactions) -> None:
        nonlocal left
        commit(transactions)
        left -= 1
        if left == 0:
            raise BrokerUnavailableError("the answer was lost")

    monkeypatch.setattr(Transactions, "commit", commit_unheard)
    restore.run(on_progress=counted.append, most_records=1)
    assert left < 0
    assert sum(counted) == sum(map(len, restore.source.committed.values()))
    restore.check()


def test_two_runs_of_one_name_fence_each_other(restore: Restore) -> None:
    begun = 0

    def interrupt(step: str) -> None:
        nonlocal begun
        begun += step == "flush"
        if begun == 2:
            begun = 10
            restore.run(most_records=1)

    with pytest.raises(FencedError, match="another process has begun the run orders="):
        restore.run(on_step=interrupt, most_records=1)
    assert begun == 10
    restore.check()


def test_a_target_with_records_is_refused(restore: Restore, kafka: KafkaServer) -> None:
    topic = restore.topics["payments"]
    produce(kafka, topic, [Produced(b"k", b"foreign")], partition=1)
    with pytest.raises(ConfigError, match=rf"^{topic}-1 has a record at offset 0 that this run has not written"):
        restore.run()
    assert committed(kafka, topic, 0) == []


def test_a_foreign_open_transaction_is_waited_for(restore: Restore, kafka: KafkaServer) -> None:
    hung, topic = Transaction(kafka), restore.topics["payments"]
    hung.send(topic, [Produced(b"k", b"foreign")])
    with pytest.raises(
        BrokerUnavailableError, match=f"a transaction of another producer is open in {topic}-0, from of"
    ):
        restore.run(give_up_s=0)
    hung.end("abort")
    restore.run()
    restore.check()


def test_a_foreign_record_is_named_when_a_run_goes_on(restore: Restore, kafka: KafkaServer) -> None:
    assert restore.die("begin", 3)
    topic = restore.topics["orders"]
    end = committed(kafka, topic, 0)[-1][0] + 2
    produce(kafka, topic, [Produced(b"k", b"foreign")])
    with pytest.raises(ConfigError, match=rf"^{topic}-0 has a record at offset {end} that this run has not written"):
        restore.run()


@pytest.mark.parametrize(("step", "number"), [("produce", 5), ("positions", 2), ("commit", 2), ("committed", 3)])
def test_a_foreign_record_during_the_run_is_named(restore: Restore, kafka: KafkaServer, step: str, number: int) -> None:
    smaller: dict[str, Any] = {} if step == "produce" else {"most_records": 1}
    topic, left = restore.topics["orders"], number

    def interfere(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0:
            left = -1
            # The fifth batch of the run is the second batch of this partition.
            wait_until(lambda: end_offset(kafka, topic) >= 29)
            produce(kafka, topic, [Produced(b"k", b"foreign")])

    with pytest.raises(ConfigError, match=rf"^{topic}-0 has a record at offset \d+ that this run has not written"):
        restore.run(on_step=interfere, **smaller)
    assert committed(kafka, topic, 0)[-1][3] == b"foreign"


def test_an_open_transaction_in_the_control_topic_is_waited_for(restore: Restore, kafka: KafkaServer) -> None:
    assert restore.die("commit", 2)
    hung = Transaction(kafka)
    hung.send(CONTROL_TOPIC, [Produced(b"other", b"{}")])
    waiting = restore.spawn()
    waiting.join(3)
    assert waiting.is_alive()
    hung.end("abort")
    waiting.join(TIMEOUT_S)
    assert waiting.exitcode == 0
    restore.check()


def test_writers_may_come_before_the_offset_map_is_written(restore: Restore, kafka: KafkaServer) -> None:
    assert restore.die("map")
    produce(kafka, restore.topics["orders"], [Produced(b"k", b"foreign")])
    assert [outcome.code for outcome in restore.run()] == ["there"] * 4
    assert committed(kafka, restore.topics["orders"], 0)[-1][3] == b"foreign"
    offsets = load_map(restore.source.bucket.manager.store, "", restore.name)
    assert offsets.records == sum(map(len, restore.source.committed.values()))


@pytest.mark.parametrize("step", ["", "map", "flush"])
def test_a_target_created_again_has_not_the_records(restore: Restore, kafka: KafkaServer, step: str) -> None:
    """A finished run answers "there already" only for the topic that it has written."""
    assert restore.die(step) is bool(step)
    topic = restore.topics["payments"]
    delete_topic(kafka, topic)
    make_topic(kafka, name=topic, partitions=2)
    with pytest.raises(ConfigError, match=f"topic {topic} was created again after the run "):
        restore.run()
    assert committed(kafka, topic, 0) == []


def test_a_target_that_lost_records_is_not_restored(
    restore: Restore, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of early releases do not know the ids of their target topics."""
    monkeypatch.setattr("tieredstore.restore.produce.target.uuid_of", lambda _: Uuid(bytes(16)))
    restore.run()
    topic = restore.topics["payments"]
    delete_topic(kafka, topic)
    make_topic(kafka, name=topic, partitions=2)
    with pytest.raises(ConfigError, match=rf"{topic}-0 ends at offset 0, but the run has written up to \d+"):
        restore.run()


def test_the_offset_map_of_another_cluster_is_not_extended(restore: Restore, kafka: KafkaServer) -> None:
    restore.run()
    store, before = restore.source.bucket.manager.store, restore.name
    for topic in (*restore.topics.values(), CONTROL_TOPIC):  # as in another cluster
        delete_topic(kafka, topic)
    for topic in restore.topics.values():
        make_topic(kafka, name=topic, partitions=2)
    with pytest.raises(ConfigError, match=f"the bucket has the offset map of an earlier run {before}, into another"):
        restore.run()
    assert committed(kafka, restore.topics["orders"], 0) == []
    restore.run(options={"name": "second"})
    assert load_map(store, "", "second").records == load_map(store, "", before).records


@pytest.mark.parametrize(
    "other", [OffsetRun("orders", 7, 500, 7, 900, 9), OffsetRun("orders", 0, 0, 0, 900, 9)], ids=["more", "contradicts"]
)
def test_a_map_that_does_not_match_is_named(restore: Restore, other: OffsetRun) -> None:
    def change(step: str) -> None:
        if step == "map":  # a run of the same name into another cluster has stored its map
            file = OffsetMapFile(restore.source.bucket.manager.store, "", restore.name)
            for topic, target in restore.topics.items():
                file.map.add_topic(topic, target)
            file.map.extend([other])
            file.save()

    sentence = f"the offset map of the run {restore.name} in the bucket does not match.* by a run of another name"
    with pytest.raises(ConfigError, match=sentence):
        restore.run(on_step=change)


def test_a_topic_created_again_is_refused(restore: Restore, kafka: KafkaServer) -> None:
    restore.run(options={"name": "first"})
    restore.topics = {**restore.topics, "orders": make_topic(kafka, partitions=2)}
    with pytest.raises(ConfigError, match="the run first began with other topics"):
        restore.run(options={"name": "first"})
