"""``restore produce``: its arguments, golden topics record by record, and one-sentence errors for bad sources."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

import tieredstore as ts
from tests.restore.logdir.test_real_broker import GOLDEN_LOGS, records, stored
from tests.restore.produce.restores import TIMEOUT_S, committed
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import admin_of, make_topic
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.kafka_cluster import KAFKA_39, KafkaCluster, start_kafka_cluster
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.produce.offset_map import load_map
from tieredstore.restore.produce.runs import Partitioning
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a bucket with all golden logs."""
    folder = tmp_path_factory.mktemp("golden")
    with ts.open(folder) as bucket:
        for log_dir in GOLDEN_LOGS:
            bucket.upload(log_dir)
    return folder


def produce(store: Path, server: KafkaServer | KafkaCluster | None, *words: object) -> Result:
    servers = [] if server is None else ["--bootstrap-server", server.bootstrap_servers]
    return tieredstore("restore", "produce", *words, "--store", store, *servers)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["orders"], "a running cluster is needed"),
        (["orders=", "-X", "a=b", "--bootstrap-server", "h:1"], "'orders=' is not a topic"),
        (["=a", "--bootstrap-server", "h:1"], "'=a' is not a topic"),
        (["a", "a=b", "--bootstrap-server", "h:1"], "topic a is named twice"),
        (["a=c", "b=c", "--bootstrap-server", "h:1"], "two topics would be restored into c"),
        (["a", "--run", "a/b", "--bootstrap-server", "h:1"], "the run's name (--run) is 'a/b'"),
        (
            ["a", "b", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAA", "--bootstrap-server", "h:1"],
            "--topic-id applies to one topic",
        ),
        (
            ["a", "--topic-id", "b=AAAAAAAAAAAAAAAAAAAAAA", "--bootstrap-server", "h:1"],
            "names 'b', which is not restored",
        ),
        (
            ["a", *["--topic-id", "AAAAAAAAAAAAAAAAAAAAAA"] * 2, "--bootstrap-server", "h:1"],
            "'a', which is named twice",
        ),
        (["a", "--to", "17", "--bootstrap-server", "h:1"], "--to 17 is not a time"),
    ],
)
def test_wrong_arguments(tmp_path: Path, words: list[str], sentence: str) -> None:
    produce(tmp_path, None, *words).fails(2, sentence)


def check_golden(golden: Path, server: KafkaServer | KafkaCluster, targets: dict[str, str]) -> None:
    done = produce(golden, server, *(f"{topic}={target}" for topic, target in targets.items()), "--json")
    assert done.code == 0, done.stderr
    rows, summary = done.rows
    assert {row["code"] for row in rows} == {"restored"}
    with ts.open(golden) as bucket:
        expected = {
            (topic.name, each.number): stored(bucket, topic.name, each.number, "read_committed")
            for topic in bucket.topics()
            for each in topic.partitions
        }
    for (topic, partition), read in expected.items():
        served = records(server, targets[topic], partition, "read_committed")
        assert [record[1:] for record in served] == [record[1:] for record in read], (topic, partition)
    assert summary["records"] == sum(map(len, expected.values())) == 40635


def test_golden_topics_are_equal_record_for_record(golden: Path, kafka: KafkaServer) -> None:
    with ts.open(golden) as bucket:
        targets = {topic.name: make_topic(kafka, partitions=len(topic.partitions)) for topic in bucket.topics()}
    check_golden(golden, kafka, targets)
    again = produce(golden, kafka, *(f"{topic}={target}" for topic, target in targets.items()))
    assert again.code == 0
    assert again.text.endswith("\nno partitions restored\nleft alone: 18 there already\n")


@pytest.mark.soak
@pytest.mark.broker
def test_golden_topics_on_kafka_39(golden: Path) -> None:
    with start_kafka_cluster(1, libs=KAFKA_39) as cluster, ts.open(golden) as bucket:
        targets = {topic.name: topic.name for topic in bucket.topics()}
        client = admin_of(cluster)
        new = [NewTopic(topic.name, len(topic.partitions), 1) for topic in bucket.topics()]
        for future in client.create_topics(new).values():
            future.result(TIMEOUT_S)
        check_golden(golden, cluster, targets)


def test_keys_are_hashed_anew(golden: Path, kafka: KafkaServer, tmp_path: Path) -> None:
    target, run = make_topic(kafka, partitions=3), f"java-{next(NUMBERS)}"
    done = produce(golden, kafka, f"none={target}", "--partitioner", "java", "--run", run)
    assert done.code == 0, done.stderr
    placed = {number: committed(kafka, target, number) for number in range(3)}
    with ts.open(golden) as bucket:
        source = {number: stored(bucket, "none", number, "read_committed") for number in range(2)}
        offset_map = load_map(bucket.opened().store, bucket.opened().prefix, run)
    expected: dict[int, list[tuple[int, object]]] = {number: [] for number in range(3)}
    for number, read in source.items():
        for record, place in zip(
            read, Partitioning("java", 3).partitions([one[2] for one in read], number), strict=True
        ):
            expected[place].append((number, record[2:]))
    for number in range(3):
        values = [record[2:] for record in placed[number]]
        for of_source in range(2):
            wanted = [record for from_source, record in expected[number] if from_source == of_source]
            ours = iter(values)
            assert all(any(value == each for each in ours) for value in wanted), "in order"
        assert len(values) == len(expected[number])
        found = sum(
            run.length
            for of in range(2)
            for run in offset_map.mapped_runs(("none", of))
            if run.target_partition == number
        )
        assert found == len(values)


def test_a_cut_leaves_out_what_came_later(golden: Path, kafka: KafkaServer, tmp_path: Path) -> None:
    target, file = make_topic(kafka), tmp_path / "cut.json"
    with ts.open(golden) as bucket:
        read = stored(bucket, "txn", 0, "read_committed")
    moment = sorted(record[1] for record in read)[len(read) // 2]
    moment_ms = int(moment.timestamp() * 1000)
    first = next(record[0] for record in read if record[1] >= moment)
    words = ["--to", f"@{moment_ms}", "--cut-file", file]
    done = produce(golden, kafka, f"txn={target}", *words)
    assert done.code == 0, done.stderr
    assert "the restore of txn-0 ends before " in done.stderr
    restored = committed(kafka, target, 0)
    assert 0 < len(restored) <= sum(record[0] < first for record in read)
    other = make_topic(kafka)
    assert produce(golden, kafka, f"txn={other}", "--cut-file", file).code == 0
    assert [record[1:] for record in committed(kafka, other, 0)] == [record[1:] for record in restored]


LARGE = TopicIdPartition(Uuid(b"large-records---"), "large", 0)


def large_topic(folder: Path) -> Path:
    """Return the folder of a bucket whose topic has records of a megabyte, in three segments."""
    for segment in range(3):
        batches = [
            build_batch([Record(bytes([at]) * 1_000_000, b"k", 1_700_000_000_000)], at)
            for at in range(3 * segment, 3 * segment + 3)
        ]
        write_segment(folder / "disk", batches, partition=LARGE, base_offset=3 * segment, end_offset=3 * segment + 2)
    (folder / "disk" / "large-0" / f"{9:020d}.log").touch()
    (folder / "store").mkdir()
    with ts.open(folder / "store") as bucket:
        bucket.upload(folder / "disk")
    return folder / "store"


def logs(store: Path) -> list[Path]:
    return sorted(store.rglob("*.log"))


def test_records_of_a_megabyte_and_a_topic_that_refuses_them(kafka: KafkaServer, tmp_path: Path) -> None:
    store, small = large_topic(tmp_path), make_topic(kafka, {"max.message.bytes": "1000"})
    refused = produce(store, kafka, f"large={small}", "-X", "compression.type=none")
    refused.fails(6, f"{small}-0", "too large")
    assert committed(kafka, small, 0) == []
    target = make_topic(kafka)
    assert produce(store, kafka, f"large={target}").code == 0
    assert [record[3] for record in committed(kafka, target, 0)] == [bytes([at]) * 1_000_000 for at in range(9)]


@pytest.mark.parametrize(
    ("fault", "code", "words"), [("damaged", 4, "large-0"), ("missing", 3, "offsets 3 to 5 of large-0")]
)
def test_a_bad_source_is_named_and_a_later_run_completes(
    kafka: KafkaServer, tmp_path: Path, fault: str, code: int, words: str
) -> None:
    store, target = large_topic(tmp_path), make_topic(kafka)
    victim = logs(store)[1]
    manifest = victim.with_suffix(".rsm-manifest")
    content, kept = victim.read_bytes(), manifest.read_bytes()
    if fault == "damaged":
        victim.write_bytes(content[:1000] + bytes(100) + content[1100:])
    else:
        manifest.unlink()
    failed = produce(store, kafka, f"large={target}")
    failed.fails(code, words)
    assert words in failed.stderr.splitlines()[-1]
    victim.write_bytes(content)
    manifest.write_bytes(kept)
    assert produce(store, kafka, f"large={target}").code == 0
    assert [record[3] for record in committed(kafka, target, 0)] == [bytes([at]) * 1_000_000 for at in range(9)]


def test_what_is_missing_may_be_left_out(kafka: KafkaServer, tmp_path: Path) -> None:
    store, target = large_topic(tmp_path), make_topic(kafka)
    logs(store)[1].with_suffix(".rsm-manifest").unlink()
    lost = [{"topic": "large", "partition": 0, "start": 3, "stop": 6}]
    planned = produce(store, kafka, f"large={target}", "--on-loss", "report", "--dry-run", "--json")
    assert planned.rows[1]["lost"] == lost
    done = produce(store, kafka, f"large={target}", "--on-loss", "report", "--json")
    assert (done.code, done.rows[1]["lost"]) == (0, lost)
    again = produce(store, kafka, f"large={target}", "--on-loss", "report", "--json")
    assert (again.code, again.rows[1]["lost"]) == (0, [])
    assert [record[3][:1] for record in committed(kafka, target, 0) if record[3]] == [
        bytes([at]) for at in (0, 1, 2, 6, 7, 8)
    ]


def test_topics_that_do_not_fit(golden: Path, kafka: KafkaServer) -> None:
    produce(golden, kafka, "none=nothing-of-the-kind").fails(3, "there is no topic nothing-of-the-kind in the cluster")
    target = make_topic(kafka)
    produce(golden, kafka, f"none={target}").fails(2, f"{target} has 1 partitions in the target, but 2 in the bucket")
    produce(golden, kafka, f"nine={target}").fails(3, "nine")
