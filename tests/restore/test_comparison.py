"""What a restore has put into a cluster is compared with the bucket, and each kind of difference is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.restore.produce.restores import Restore, mixed_topics
from tests.support.cli.cli_process import tieredstore
from tests.support.kafka.kafka_topics import Produced, delete_records, make_topic, produce
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import KafkaServer
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.comparison import ComparedPartition, Comparison, MappedOffsets, RecordDifference
from tieredstore.restore.produce.offset_map import MappedRun, OffsetMap, load_map
from tieredstore.restore.produce.runs import OffsetRun, ProduceOptions
from tieredstore.restore.produce.time_cut import PartitionCut, TimeCut
from tieredstore.testing.segments import Record, build_batch

WHERE = TopicIdPartition(Uuid(b"a topic of plain"), "plain", 0)
TIME_MS = 1_700_000_000_000
ROWS = 3000
"""Some batches of the cluster's client, and three segments."""


def record(at: int) -> Produced:
    headers = (("h", b"1"), ("h", None)) if at % 7 == 0 else ()
    return Produced(None if at % 5 == 0 else b"k%d" % at, b"v%d" % at, headers, TIME_MS + at)


def batch_of(offsets: range) -> bytes:
    made = map(record, offsets)
    return build_batch([Record(one.value, one.key, one.timestamp_ms, one.headers or ()) for one in made], offsets[0])


# Runs of restore produce


@pytest.fixture
def restore(kafka: KafkaServer, tmp_path: Path) -> Restore:
    made = Restore.into(kafka, mixed_topics(tmp_path, "orders", "payments"))
    list(made.run().outcomes())
    return made


def map_of(restore: Restore) -> OffsetMap:
    store, run = restore.source.bucket.manager.store, ProduceOptions(topics=dict(restore.topics)).run
    return load_map(store, "", run)


def compare_run(restore: Restore, offset_map: OffsetMap) -> list[ComparedPartition]:
    properties = {"bootstrap.servers": restore.server.bootstrap_servers}
    return list(Comparison(restore.source.bucket.manager, properties).run(offset_map))


def test_a_run_equals_its_source(restore: Restore) -> None:
    compared = compare_run(restore, map_of(restore))
    assert [(one.topic, one.partition) for one in compared] == [
        ("orders", 0), ("orders", 1), ("payments", 0), ("payments", 1),
    ]  # fmt: skip
    for one in compared:
        assert (one.difference, one.lost, one.not_restored) == (None, [], 0)
        assert one.records == one.target_records == 3 * (19 + 10)
        assert one.digest == one.target_digest
    assert len({one.digest for one in compared}) == 4


def copy_of(whole: OffsetMap, keep: Callable[[OffsetRun], OffsetRun | None]) -> OffsetMap:
    """Return a map of the first partition alone, with other runs."""
    made, where = OffsetMap(whole.run), ("orders", 0)
    made.add_topic("orders", whole.topics["orders"].target)
    runs = [OffsetRun(*where, run.source, number, run.target, run.records) for number, run in whole.mapped_runs(where)]
    made.begin(where, whole.partitions("orders")[0].start)
    made.extend(changed for run in runs if (changed := keep(run)) is not None)
    made.advance(where, whole.partitions("orders")[0].stop)
    return made


def test_a_map_that_lacks_records_or_names_others(restore: Restore) -> None:
    whole = map_of(restore)
    first, second, *_ = (run for _, run in whole.mapped_runs(("orders", 0)))
    lacking, other, *_ = compare_run(restore, copy_of(whole, lambda run: None if run.start == second.source else run))
    assert lacking.difference == RecordDifference("not_restored", second.source, None)
    assert lacking.not_restored == second.records
    assert lacking.target_records == lacking.records + second.records
    # The run's position in the cluster names the partitions that the map lacks altogether.
    assert (other.not_restored, other.records, other.difference) == (87, 0, RecordDifference("not_restored", 25, None))
    # Off by one: another record is where the first one should be.
    late, *_ = compare_run(
        restore, copy_of(whole, lambda run: run._replace(target_start=run.target_start + 1, length=run.length - 1)
                         if run.start == first.source else run),
    )  # fmt: skip
    assert late.difference is not None
    assert (late.difference.offset, late.difference.target_offset) == (first.source, first.target + 1)
    assert late.difference.what in {"timestamp", "key", "value", "headers"}
    assert late.digest != late.target_digest


def test_what_the_cut_of_a_run_left_out_is_named(kafka: KafkaServer, tmp_path: Path) -> None:
    source = mixed_topics(tmp_path, "orders", partitions=1)
    made = Restore.into(kafka, source)
    topic_id = str(load_catalog(source.bucket.manager).incarnation("orders").topic_id)
    # The committed transaction of the second segment.
    cut = PartitionCut("orders", topic_id, 0, stop=150, left_out=((85, 104),))
    list(made.run(options={"cut": TimeCut(1, TIME_MS, (cut,))}).outcomes())
    (one,) = compare_run(made, map_of(made))
    assert (one.difference, one.left_out, one.last_offset) == (None, [(85, 103)], 149)
    assert one.records == one.target_records > 0


def test_keys_that_were_hashed_anew_are_refused(restore: Restore) -> None:
    offset_map = OffsetMap("r")
    offset_map.add_topic("orders", "elsewhere", is_rehashed=True)
    with pytest.raises(ConfigError, match="the run r hashed the keys of orders anew"):
        compare_run(restore, offset_map)


@pytest.mark.parametrize(
    ("offsets", "pieces"),
    [
        (range(10), [(0, 2, None), (2, 5, 98), (5, 7, None), (7, 9, 94), (9, 10, None)]),
        (range(3, 5), [(0, 2, 98)]),
        ([0, 8, 20], [(0, 1, None), (1, 2, 94), (2, 3, None)]),
    ],
)
def test_rows_of_a_batch_by_the_runs_of_a_map(
    offsets: Iterable[int], pieces: list[tuple[int, int, int | None]]
) -> None:
    rule = MappedOffsets([MappedRun(2, 5, 100, 103, 3), MappedRun(7, 9, 101, 103, 2)])
    assert list(rule.pieces(list(offsets))) == pieces


@pytest.mark.parametrize(
    ("start", "stop", "span"),
    [(0, 10, (100, 112)), (3, 8, (101, 111)), (5, 7, (0, 0)), (9, 20, (0, 0)), (0, 3, (100, 101))],
)
def test_the_target_of_some_offsets(start: int, stop: int, span: tuple[int, int]) -> None:
    rule = MappedOffsets([MappedRun(2, 5, 100, 103, 3), MappedRun(7, 9, 110, 112, 2)])
    assert rule.span(start, stop) == span


# Equal offsets


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    bucket = Bucket(tmp_path_factory.mktemp("plain"))
    for start in range(0, ROWS, ROWS // 3):
        offsets = range(start, start + ROWS // 3)
        bucket.copy(WHERE, [batch_of(offsets)], offsets)
    return bucket


def compare(bucket: Bucket, kafka: KafkaServer, target: str, *window: int) -> ComparedPartition:
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    (one,) = Comparison(bucket.manager, properties).same_offsets({"plain": target}, *window)
    return one


def target_of(kafka: KafkaServer, changed: dict[int, Produced], rows: Iterable[int] = range(ROWS)) -> str:
    topic = make_topic(kafka)
    produce(kafka, topic, [changed.get(at, record(at)) for at in rows])
    return topic


def test_equal_offsets(plain: Bucket, kafka: KafkaServer) -> None:
    one = compare(plain, kafka, target_of(kafka, {}, range(ROWS + 10)))
    assert (one.difference, one.records, one.target_records) == (None, ROWS, ROWS)
    assert one.digest == one.target_digest
    assert (one.first_offset, one.last_offset) == (0, ROWS - 1)


@pytest.mark.parametrize(
    ("at", "changes", "what"),
    [
        (0, {"value": None}, "value"),
        (1, {"value": b""}, "value"),
        (1717, {"key": b"another"}, "key"),
        (5, {"key": b""}, "key"),
        (ROWS - 1, {"timestamp_ms": TIME_MS}, "timestamp"),
        (7, {"headers": (("h", None), ("h", b"1"))}, "headers"),
        (7, {"headers": (("h", b"1"), ("h", b""))}, "headers"),
        (8, {"headers": (("h", b"1"),)}, "headers"),
    ],
)
def test_a_field_that_differs(plain: Bucket, kafka: KafkaServer, at: int, changes: dict[str, Any], what: Any) -> None:
    later = {} if at == ROWS - 1 else {ROWS - 1: replace(record(ROWS - 1), value=b"later")}
    one = compare(plain, kafka, target_of(kafka, {at: replace(record(at), **changes), **later}))
    assert one.difference == RecordDifference(what, at, at)
    assert one.digest != one.target_digest
    assert one.records == one.target_records == ROWS


def test_records_that_the_target_lost_at_its_ends(plain: Bucket, kafka: KafkaServer) -> None:
    short = compare(plain, kafka, target_of(kafka, {}, range(ROWS - 2)))
    assert short.difference == RecordDifference("missing", ROWS - 2, ROWS - 2)
    topic = target_of(kafka, {})
    delete_records(kafka, topic, 100)
    assert compare(plain, kafka, topic).difference == RecordDifference("missing", 0, 0)
    assert compare(plain, kafka, topic, 100, ROWS).difference is None


def test_offsets_that_the_bucket_lost_are_named(kafka: KafkaServer, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    for start in (0, 20):
        bucket.copy(WHERE, [batch_of(range(start, start + 10))], range(start, start + 10))
    one = compare(bucket, kafka, target_of(kafka, {}, range(30)))
    assert (one.difference, one.lost, one.records, one.target_records) == (None, [(10, 19)], 20, 20)


def test_a_topic_that_is_on_one_side_only(plain: Bucket, kafka: KafkaServer) -> None:
    with pytest.raises(ResourceNotFoundError):
        compare(plain, kafka, "no-such-topic")
    comparison = Comparison(plain.manager, {"bootstrap.servers": kafka.bootstrap_servers})
    with pytest.raises(ResourceNotFoundError):
        list(comparison.same_offsets({"no-such-topic": target_of(kafka, {}, range(1))}))


# The command


def verify(*words: object, kafka: KafkaServer, store: object) -> Any:
    return tieredstore("restore", "verify", *words, "--store", store, "--bootstrap-server", kafka.bootstrap_servers)


def test_the_command_names_the_first_difference(plain: Bucket, kafka: KafkaServer) -> None:
    topic = target_of(kafka, {7: replace(record(7), value=b"another")})
    line = (f"plain={topic}", "--same-offsets")
    done = verify(*line, kafka=kafka, store=plain.root)
    assert done.code == 4, done
    assert done.text.splitlines()[-2:] == [
        "plain-0: first difference at offset 7, offset 7 of the target: another value",
        "1 partition: 0 equal, 1 different",
    ]
    as_json = verify(*line, "--json", kafka=kafka, store=plain.root)
    row, summary = map(json.loads, as_json.text.splitlines())
    assert (row["difference"], row["difference_offset"], row["lost"]) == ("value", 7, [])
    assert summary == {"summary": {"partitions": 1, "records": ROWS, "different": 1, "with_losses": 0}}
    assert verify(*line, "--from", 8, kafka=kafka, store=plain.root).code == 0


def test_the_command_compares_a_run_by_its_name(restore: Restore, kafka: KafkaServer) -> None:
    run = ProduceOptions(topics=dict(restore.topics)).run
    done = verify(run, kafka=kafka, store=restore.source.bucket.root)
    assert (done.code, done.text.splitlines()[-1]) == (0, "4 partitions: 4 equal, 0 different")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "b"], "several topics, --from and --to need --same-offsets"),
        (["a", "--to", "3"], "several topics, --from and --to need --same-offsets"),
        (["plain=", "--same-offsets"], "'plain=' is not TOPIC or TOPIC=NEW"),
        (["no-run"], "the bucket has no map of offsets of a run no-run"),
    ],
)
def test_wrong_lines(words: list[str], sentence: str, plain: Bucket, kafka: KafkaServer) -> None:
    refused = verify(*words, kafka=kafka, store=plain.root)
    assert refused.code in {2, 3}
    assert sentence in refused.stderr
