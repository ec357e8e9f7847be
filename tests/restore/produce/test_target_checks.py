"""Checks for records that a target would refuse or delete: a table of cases, and the same faults in real brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.restore.produce.restores import Restore, SourceBucket, mixed_topics
from tests.support.kafka.kafka_topics import make_topic
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.servers.kafka_cluster import KAFKA_39, start_kafka_cluster
from tieredstore.catalog.lineage import Span
from tieredstore.errors import BrokerError, ConfigError, ResourceNotFoundError
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.ops.doctor.checkup import Check, Verdict
from tieredstore.restore.produce.dry_run import (
    ScannedRecords,
    SourceTopic,
    add_records,
    check_target,
    check_transactions,
    examine,
    prepare_target,
)
from tieredstore.restore.produce.runs import CONTROL_TOPIC, ProduceOptions
from tieredstore.restore.produce.source import BucketTopics
from tieredstore.restore.produce.target import NewTopic, TargetCluster, TargetTopic

NOW_MS: Final = 1_800_000_000_000
DAY_MS: Final = 86_400_000
LONGEST: Final = str(2**63 - 1)
SETTINGS: Final = {
    "cleanup.policy": "delete", "max.message.bytes": "1048588", "message.timestamp.after.max.ms": LONGEST,
    "message.timestamp.before.max.ms": LONGEST, "message.timestamp.type": "CreateTime", "min.insync.replicas": "1",
    "retention.bytes": "-1", "retention.ms": "-1",
}  # fmt: skip
SCANNED: Final = ScannedRecords(10, 1000, 200, NOW_MS - DAY_MS, NOW_MS)


def span(start: int, size: int, latest_ms: int) -> Span:
    where = TopicIdPartition(Uuid(bytes(16)), "orders", 0)
    segment_id = RemoteLogSegmentId(where, Uuid(bytes([start]) * 16))
    return Span(RemoteLogSegmentMetadata(segment_id, start, start + 9, size, latest_ms), start, start + 10)


SOURCE: Final = SourceTopic(
    "orders", {0: (span(0, 500, NOW_MS - DAY_MS), span(10, 500, NOW_MS)), 1: (span(0, 300, NOW_MS - 9),)}
)
TARGET: Final = TargetTopic("new", 2, 1, SETTINGS, {}, frozenset({"DESCRIBE", "READ", "WRITE", "CREATE"}))


def findings(source: SourceTopic, target: TargetTopic, *, is_rehashed: bool = False) -> dict[str, Check]:
    checks = check_target(source, target, is_rehashed=is_rehashed, now_ms=NOW_MS)
    return {check.check: check for check in checks if check.outcome is not Verdict.GOOD}


def test_nothing_is_wrong() -> None:
    assert findings(replace(SOURCE, scanned=SCANNED), TARGET) == {}
    assert findings(SOURCE, TARGET).keys() == {"sizes"}


@pytest.mark.parametrize(
    ("settings", "more", "check", "sentence"),
    [
        (
            {"max.message.bytes": "260"},
            {},
            "sizes",
            "new takes messages of 260 B (max.message.bytes=260), and the larg",
        ),
        ({"message.timestamp.before.max.ms": "3600000"}, {}, "times", "new refuses records that are too old (message"),
        ({"message.timestamp.difference.max.ms": "3600000"}, {}, "times", "too old (message.timestamp.difference.max."),
        ({"message.timestamp.after.max.ms": "-1"}, {}, "times", "of the future (message.timestamp.after.max.ms=-1)"),
        ({"min.insync.replicas": "2"}, {}, "replicas", "a partition of new has 1 replicas in sync, and min.insync.rep"),
        ({}, {"least_live": 0}, "replicas", "a partition of new has 0 replicas in sync"),
        ({"retention.ms": "3600000"}, {}, "retention", "new would delete 500 B at once (retention.ms=3600000, retent"),
        ({"retention.bytes": "400"}, {}, "retention", "partition 0 up to offset 9. Raise retention"),
        ({"cleanup.policy": "compact"}, {}, "compaction", "all but the last record of each key, and would refuse 3"),
        ({"cleanup.policy": "compact,delete"}, {}, "compaction", "new has cleanup.policy=compact,delete"),
        ({}, {"operations": frozenset({"READ", "DESCRIBE"})}, "rights", "the login may not WRITE new: allow it"),
        ({}, {"partition_count": 1}, "partitions", "new has 1 partitions in the target, but 2 in the bucket: add"),
    ],
)
def test_a_fault_is_named(settings: Mapping[str, str], more: dict[str, Any], check: str, sentence: str) -> None:
    source = replace(SOURCE, scanned=replace(SCANNED, without_key=3))
    found = findings(source, replace(TARGET, settings={**SETTINGS, **settings}, **more))
    assert found.keys() == {check}
    assert found[check].outcome is Verdict.BAD
    assert sentence in found[check].detail


def test_a_newer_limit_of_times_hides_the_older_one() -> None:
    limits = {"message.timestamp.before.max.ms": str(9 * DAY_MS), "message.timestamp.difference.max.ms": "1"}
    after = {"message.timestamp.after.max.ms": "3600000"}
    source = replace(SOURCE, scanned=SCANNED)
    assert findings(source, replace(TARGET, settings={**SETTINGS, **limits, **after})) == {}


def test_hashed_keys_need_room_in_all_partitions_together() -> None:
    target = replace(TARGET, partition_count=1, settings={**SETTINGS, "retention.bytes": "1000"})
    assert findings(replace(SOURCE, scanned=SCANNED), target, is_rehashed=True).keys() == {"retention"}
    wide = replace(target, partition_count=4)
    assert findings(replace(SOURCE, scanned=SCANNED), wide, is_rehashed=True) == {}


def test_what_only_needs_attention() -> None:
    rights = frozenset({"DESCRIBE", "READ", "WRITE", "ALTER_CONFIGS"})
    append = replace(TARGET, settings={**SETTINGS, "message.timestamp.type": "LogAppendTime"}, operations=rights)
    source = replace(SOURCE, scanned=SCANNED)
    found = findings(source, append)
    assert {name: check.outcome for name, check in found.items()} == {"times": Verdict.WARN}
    assert "the run sets CreateTime, and LogAppendTime again at its end" in found["times"].detail
    assert findings(source, replace(append, operations=TARGET.operations))["rights"].outcome is Verdict.BAD
    short = replace(TARGET, settings={**SETTINGS, "retention.ms": str(DAY_MS // 2)})
    newer = replace(source, partitions={0: SOURCE.partitions[0][1:], 1: SOURCE.partitions[1]})
    assert findings(replace(newer, scanned=None), short).keys() == {"sizes"}
    assert findings(newer, short)["retention"].outcome is Verdict.WARN
    assert "and the oldest record is from 2027-01-14" in findings(newer, short)["retention"].detail
    assert findings(source, replace(TARGET, operations=None))["rights"].outcome is Verdict.SKIPPED
    assert findings(source, replace(TARGET, partition_count=3))["partitions"].outcome is Verdict.WARN
    assert (
        "5 records of orders have the timestamp 0"
        in findings(replace(SOURCE, scanned=replace(SCANNED, at_epoch=5)), TARGET)["times"].detail
    )
    assert [check_transactions(9, longest).outcome for longest in (None, 8, 9)] == ["skipped", "bad", "ok"]


@pytest.mark.parametrize(
    ("times", "expected"), [([5, -1, 9], (5, 9, 0)), ([-1], (None, None, 0)), ([0, -7, 0, 3], (-7, 3, 2))]
)
def test_negative_times_are_old_except_for_no_time(
    times: list[int], expected: tuple[int | None, int | None, int]
) -> None:
    """A broker refuses the time -7 by ``message.timestamp.before.max.ms``, but takes -1."""
    fields: dict[str, pa.Array] = {
        "offset": pa.array(range(len(times)), pa.int64()),
        "timestamp": pa.array(times, pa.timestamp("ms")),
        "key": pa.array([b"k"] * len(times)),
        "value": pa.array([b"v"] * len(times)),
        "headers": pa.array([[]] * len(times), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    found = add_records(ScannedRecords(), pa.RecordBatch.from_pydict(fields))
    assert (found.earliest_ms, found.latest_ms, found.at_epoch) == expected


@pytest.fixture
def source(tmp_path: Path) -> SourceBucket:
    return mixed_topics(tmp_path, "orders")


def bad_checks(servers: str, source: SourceBucket, topic: str) -> set[str]:
    properties = {"bootstrap.servers": servers}
    with BucketTopics(source.bucket.manager, ProduceOptions(topics={"orders": topic})) as topics:
        found = examine(topics, properties, scan=True)
    assert found.records == 2 * 3 * (19 + 10)
    with_errors = {check.check for check in found.checks if check.outcome is Verdict.BAD}
    if with_errors:
        with pytest.raises((ConfigError, ResourceNotFoundError), match=topic):
            found.refuse()
    else:
        found.refuse()
    return with_errors


FAULTS: Final = [
    ({}, set[str]()),
    ({"max.message.bytes": "300"}, {"sizes"}),
    ({"message.timestamp.before.max.ms": "3600000"}, {"times"}),
    ({"retention.ms": "3600000"}, {"retention"}),
    ({"cleanup.policy": "compact"}, {"compaction"}),
]


@pytest.mark.parametrize(("settings", "expected"), FAULTS)
def test_a_broker_has_the_faults_that_are_named(
    kafka: KafkaServer, source: SourceBucket, settings: Mapping[str, str], expected: set[str]
) -> None:
    topic = make_topic(kafka, settings, partitions=2)
    assert bad_checks(kafka.bootstrap_servers, source, topic) == expected
    if expected not in (set(), {"times"}):
        return
    restore = Restore(source, kafka, {"orders": topic})
    if not expected:
        restore.run()
        restore.check()
        return
    # The broker refuses what the check names.
    with pytest.raises((BrokerError, ConfigError)):
        restore.run()


@pytest.mark.soak
@pytest.mark.broker
def test_the_faults_are_those_of_kafka_39(source: SourceBucket) -> None:
    older = {"message.timestamp.difference.max.ms": "3600000"}
    with start_kafka_cluster(1, libs=KAFKA_39) as cluster:
        for number, (settings, expected) in enumerate([*FAULTS, (older, {"times"})]):
            topic = f"orders-{number}"
            with TargetCluster({"bootstrap.servers": cluster.bootstrap_servers}) as target:
                target.create(topic, NewTopic({"message.timestamp.before.max.ms": LONGEST, **settings}, 2))
            assert bad_checks(cluster.bootstrap_servers, source, topic) == expected, settings


def test_a_missing_topic_is_created_as_a_file_says(kafka: KafkaServer, source: SourceBucket, tmp_path: Path) -> None:
    path, name = tmp_path / "orders.json", f"{tmp_path.name}-{kafka.bootstrap_servers[-5:]}"
    path.write_text(
        '{"partition_count": 3, "settings": {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}}'
    )
    assert bad_checks(kafka.bootstrap_servers, source, name) == {"topic"}
    new, properties = NewTopic.read(path), {"bootstrap.servers": kafka.bootstrap_servers}
    with BucketTopics(source.bucket.manager, ProduceOptions(topics={"orders": name})) as topics:
        assert prepare_target(topics, properties, lambda _topic, _topic_id: new) == [name]
        assert prepare_target(topics, properties, lambda _topic, _topic_id: new) == []
    with TargetCluster(properties) as cluster:
        topic = cluster.target(name)
    assert topic is not None
    assert (topic.partition_count, dict(topic.own)) == (3, new.settings)


@pytest.mark.slow
def test_the_control_topic_has_the_replicas_that_one_broker_can_have() -> None:
    # test_brokers_killed_during_a_run covers three brokers, where the control topic has three replicas.
    with (
        start_kafka(**{"default.replication.factor": "3"}) as server,
        TargetCluster({"bootstrap.servers": server.bootstrap_servers}) as target,
    ):
        assert target.control_topic() == target.control_topic()
        assert target.control_topic().settings["max.message.bytes"] == str(8 * 1024 * 1024)


@pytest.mark.slow
def test_a_position_that_the_control_topic_refuses_is_named(tmp_path: Path) -> None:
    with start_kafka() as server:
        make_topic(server, {"cleanup.policy": "compact", "max.message.bytes": "150"}, name=CONTROL_TOPIC)
        restore = Restore.into(server, mixed_topics(tmp_path, "orders"))
        words = rf"for {CONTROL_TOPIC} \[0\] .* Message size too large .*; raise max\.message\.bytes of this topic$"
        with pytest.raises(BrokerError, match=words):
            restore.run(give_up_s=0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.properties", "retention.ms=5\n", NewTopic({"retention.ms": "5"})),
        ("a.json", '{"settings": {"retention.ms": "5"}}', NewTopic({"retention.ms": "5"})),
        (
            "a.json",
            '{"settings": {}, "partition_count": 0}',
            "cannot be used as a topic's settings: its partition_count is 0",
        ),
        ("a.json", "{", "a.json cannot be used as a topic's settings: Invalid JSON"),
        ("a.json", None, "a.json cannot be read"),
    ],
)
def test_files_of_settings(tmp_path: Path, name: str, content: str | None, expected: NewTopic | str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    if isinstance(expected, NewTopic):
        assert NewTopic.read(path) == expected
        return
    with pytest.raises(ConfigError, match=expected):
        NewTopic.read(path)
