"""Start of a new generation, by a rule or at a consumer group's offsets; and commits of progress to a group."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.kafka.kafka_topics import Produced, delete_records, make_topic, producer_of, send
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed_offsets, pipeline_of, run_once, verify_output
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.zookeeper import ZooKeeperServer, zookeeper_client
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import BrokerUnavailableError, ConfigError, CorruptDataError, DataLossError
from tieredstore.live import LiveCluster
from tieredstore.live.cluster import GroupCommit
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.pipelines import Entry, Parts, Pipeline, Runner
from tieredstore.pipelines.log.commit_log import Progress, changes_since
from tieredstore.pipelines.run import windows
from tieredstore.pipelines.run.finalizing import watermarks
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.progress import GroupProgress
from tieredstore.pipelines.run.source import open_parts, query_of
from tieredstore.pipelines.run.windows import Starts
from tieredstore.pipelines.upkeep.inspection import partition_statuses
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.survey import survey_logs

LATEST = {"kafka__new__consumer__auto__offset__reset": "latest", "secor__max__file__size__bytes": "9000"}
WAIT_S = 120


def test_latest_begins_at_the_end_of_the_first_look_and_stays_there(topic: StoredTopic, store: ObjectStore) -> None:
    (entry,) = run_once(topic, store, pipeline_of(**LATEST))
    assert [(window.start, window.stop, window.files) for window in entry.windows] == [(300, 300, ())]
    topic.copy_plain(300, 50, size=100)
    run_once(topic, store, pipeline_of(**LATEST))
    assert listed_offsets(store) == list(range(300, 350))
    assert list(verify_output(pipeline_of(**LATEST), store)) == []
    # Run without LATEST. The default start has no effect, because the generation has already begun.
    assert run_once(topic, store, pipeline_of(secor__max__file__size__bytes="9000")) == []


def test_a_driver_may_die_at_each_operation_before_and_behind_the_mark(topic: StoredTopic) -> None:
    sweep = OperationSweep(MemoryObjectStore, lambda store: run_once(topic, store, pipeline_of(**LATEST)))
    for _, inner, store in sweep.die("after"):
        with pytest.raises(Killed):
            run_once(topic, store, pipeline_of(**LATEST))
        run_once(topic, inner, pipeline_of(**LATEST))
        (progress,) = commit_log_of(pipeline_of(**LATEST), inner).read().positions.values()
        assert progress.next_offset == 300


def log_of(end: int, earliest: int = 0, topic: str = TOPIC) -> PartitionLog:
    return PartitionLog(topic, NUMBER, Uuid(bytes(16)), None, 0, earliest, end)


def test_a_partition_whose_beginning_is_not_committed_keeps_directories_open() -> None:
    snapshot = LogSnapshot({(TOPIC, NUMBER): PartitionLog(TOPIC, NUMBER, Uuid(bytes(16)), None, 0, 0, 9, live_start=0)})
    assert watermarks(snapshot, {}, now_ms=10**12, delay_ms=0, begins_elsewhere=True) == {TOPIC: -1}


class FromBroker:
    """Pipeline over one topic of a broker."""

    def __init__(self, kafka: KafkaServer, partitions: int = 2) -> None:
        self._kafka, self._producer = kafka, producer_of(kafka)
        self.topic = make_topic(kafka, partitions=partitions)
        self.group, self.told = f"secor-{self.topic}", f"told-{self.topic}"
        self.store = MemoryObjectStore()

    def produce(self, count: int, partition: int) -> None:
        send(self._producer, self.topic, [Produced(None, b"x")] * count, partition=partition)

    def pipeline(self, **changes: str) -> Pipeline:
        return pipeline_of(
            kafka__bootstrap__servers=self._kafka.bootstrap_servers,
            kafka__new__consumer__topic__list=self.topic,
            **{"startingOffsets": f"group:{self.group}", "commit__to__group": self.told, **changes},
        )

    @contextmanager
    def cluster(self) -> Generator[LiveCluster]:
        servers = {"bootstrap.servers": self._kafka.bootstrap_servers}
        with LiveCluster(servers, isolation="read_committed") as cluster:
            yield cluster

    def stand(self, **offsets: int) -> None:
        with self.cluster() as cluster:
            cluster.commit_offsets(self.group, {(self.topic, int(name[1:])): at for name, at in offsets.items()})

    def run(self, **changes: str) -> list[Entry]:
        pipeline = self.pipeline(**changes)
        with open_parts(pipeline) as parts, Runner(pipeline, Parts(self.store, parts.source)) as runner:
            return list(runner.run_once())

    def committed(self, group: str) -> dict[int, int | None]:
        with self.cluster() as cluster:
            offsets = cluster.committed_offsets(group, [(self.topic, 0), (self.topic, 1)])
        return {partition: at for (_, partition), at in offsets.items()}

    def statuses(self) -> list[tuple[int, int, int | None]]:
        pipeline = self.pipeline()
        with open_parts(pipeline) as parts:
            snapshot = survey_logs(parts.source, query_of(pipeline))
            rows = partition_statuses(pipeline, self.store, snapshot)
        return [(row.partition, row.next_offset, row.lag) for row in rows]


@pytest.mark.broker
def test_a_generation_goes_on_where_a_group_stands_and_another_is_told_of_it(kafka: KafkaServer) -> None:
    kept = FromBroker(kafka)
    for partition in (0, 1):
        kept.produce(20, partition)
    with pytest.raises(ConfigError, match="has no committed offset of any of the 2 partitions in Kafka"):
        kept.run()
    kept.stand(p0=7)
    assert kept.statuses() == [(0, 7, 13), (1, 0, 20)]
    entries = kept.run()
    assert [(window.partition, window.start, window.stop) for entry in entries for window in entry.windows] == [
        (0, 7, 7), (1, 0, 0), (0, 7, 20), (1, 0, 20),
    ]  # fmt: skip
    assert kept.committed(kept.told) == {0: 20, 1: 20}
    # From now on only the commit log decides where the pipeline continues. The group's offsets have no effect.
    kept.stand(p0=3, p1=15)
    kept.produce(5, 0)
    kept.run()
    assert kept.statuses() == [(0, 25, 0), (1, 20, 0)]
    assert kept.committed(kept.told) == {0: 25, 1: 20}
    assert listed_offsets(kept.store) == sorted([*range(7, 25), *range(20)])
    assert list(verify_output(kept.pipeline(), kept.store)) == []
    log = commit_log_of(kept.pipeline(), kept.store)
    assert [len(change.added) for change in changes_since(log, -1)] == [2, 1]


@pytest.mark.broker
def test_a_group_that_stands_where_nothing_is_any_more_is_data_loss(kafka: KafkaServer) -> None:
    kept = FromBroker(kafka)
    for partition in (0, 1):
        kept.produce(20, partition)
    kept.stand(p0=21, p1=20)
    with pytest.raises(DataLossError, match=r"is at offset 21 of .*-0, whose log ends before offset 20"):
        kept.run()
    kept.stand(p0=5)
    delete_records(kafka, kept.topic, 6)
    with pytest.raises(DataLossError, match=r"is at offset 5 of .*-0, whose log begins at 6"):
        kept.run()
    kept.stand(p0=6)
    kept.run()
    assert listed_offsets(kept.store) == list(range(6, 20))


@pytest.mark.broker
def test_offsets_of_secor_in_zookeeper_are_gone_on_with(zookeeper: ZooKeeperServer, topic: StoredTopic) -> None:
    quorum, _, root = zookeeper.chroot().partition("/")
    secor = {
        "zookeeper__quorum": quorum, "kafka__zookeeper__path": f"/{root}/", "kafka__offsets__storage": "zookeeper",
        "startingOffsets": "group:secor_backup", "secor__max__file__size__bytes": "9000",
    }  # fmt: skip
    node, store = f"/{root}/consumers/secor_backup/offsets/{TOPIC}/{NUMBER}", MemoryObjectStore()
    with zookeeper_client(quorum) as client:
        with pytest.raises(ConfigError, match="no committed offset of any of the 1 partitions in ZooKeeper"):
            run_once(topic, store, pipeline_of(**secor))
        client.create(node, b"12a", makepath=True)
        with pytest.raises(CorruptDataError, match="which is not an offset"):
            run_once(topic, store, pipeline_of(**secor))
        # The group's offset is beyond the end of the bucket, because the records in between are not uploaded yet.
        client.set(node, b"310")
        assert run_once(topic, store, pipeline_of(**secor)) == []
        topic.copy_plain(300, 50, size=100)
        run_once(topic, store, pipeline_of(**secor))
    assert listed_offsets(store) == list(range(310, 350))


def test_partitions_without_an_offset_begin_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"startingOffsets": "group:g", "kafka__bootstrap__servers": "localhost:1"}
    logs = [log_of(10), log_of(20, 5, "other")]

    class Cluster(ScriptedCluster):
        """Cluster in which the group has an offset of the first partition only."""

        def committed_offsets(
            self, group: str, partitions: Iterable[TopicPartition]
        ) -> dict[TopicPartition, int | None]:
            assert group == "g"
            return {where: 10 if where == (TOPIC, NUMBER) else None for where in partitions}

    monkeypatch.setattr(windows, "query_of", lambda _: SimpleNamespace(open_cluster=lambda: Cluster(0)))
    for rule, begin in (("earliest", 5), ("latest", 20)):
        pipeline = pipeline_of(kafka__new__consumer__auto__offset__reset=rule, **group)
        assert Starts(pipeline).of(logs, is_new=True) == {(TOPIC, NUMBER): 10, ("other", NUMBER): begin}


class ScriptedCluster(LiveCluster):
    """Cluster that accepts commits after the given number of failures."""

    def __init__(self, failures: int) -> None:
        super().__init__({"bootstrap.servers": "localhost:1"}, isolation="read_committed", timeout_s=1)
        self._failures, self.commits_made = failures, list[Mapping[TopicPartition, int | GroupCommit]]()
        self.tried = threading.Semaphore(0)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int | GroupCommit]) -> None:
        self._failures -= 1
        self.tried.release()
        if self._failures >= 0:
            raise BrokerUnavailableError("the broker is away")
        self.commits_made.append(dict(offsets))


def progress(offset: int) -> Progress:
    return Progress("id", offset, -1, 0, 0)


def test_a_broker_that_is_away_is_a_warning_and_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ScriptedCluster(3)
    watched = GroupProgress("g", cluster, again_s=0.01)
    watched.note({("a", 0): progress(5)})
    for _ in range(4):
        assert cluster.tried.acquire(timeout=WAIT_S)
    watched.note({("a", 0): progress(5), ("b", 0): progress(2)})
    watched.close(within_s=WAIT_S)
    assert cluster.commits_made == [{("a", 0): 5}, {("b", 0): 2}]
    assert [record.message for record in caplog.records if "away" in record.message] == [
        "commit.to.group: the broker is away; retrying"
    ]


def test_the_end_tries_once_more_and_waits_for_no_broker() -> None:
    cluster = ScriptedCluster(10**6)
    watched = GroupProgress("g", cluster, again_s=WAIT_S)
    watched.note({("a", 0): progress(5)})
    assert cluster.tried.acquire(timeout=WAIT_S)
    watched.close(within_s=WAIT_S)
    assert cluster.commits_made == []
    cluster = ScriptedCluster(1)
    watched = GroupProgress("g", cluster, again_s=WAIT_S)
    watched.note({("a", 0): progress(5)})
    assert cluster.tried.acquire(timeout=WAIT_S)
    watched.close(within_s=WAIT_S)
    assert cluster.commits_made == [{("a", 0): 5}]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"startingOffsets": "latest"}, r"startingOffsets .*group:NAME"),
        ({"startingOffsets": "group:"}, r"startingOffsets .*group:NAME"),
        ({"startingOffsets": "group:g"}, "startingOffsets needs a broker"),
        ({"commit__to__group": "g"}, r"commit\.to\.group needs a broker"),
        ({"startingOffsets": "group:g", "kafka__offsets__storage": "zookeeper"}, r"zookeeper\.quorum is missing"),
        ({"kafka__offsets__storage": "memory"}, r"kafka\.offsets\.storage .*kafka, zookeeper"),
        ({"kafka__zookeeper__path": "a"}, r"kafka\.zookeeper\.path"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pipeline_of(**changes)
