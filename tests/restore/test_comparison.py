"""The records that a restore has produced are compared with the bucket; each kind of difference is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
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
from tieredstore.restore.comparison import ComparedPartition, Comparison, MappedOffsets
from tieredstore.restore.pairs import RecordDifference
from tieredstore.restore.produce.offset_map import OffsetMap, load_map
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import SPARSE_RECORDS, OffsetRun, Partitioning, ProduceOptions
from tieredstore.restore.produce.source import BucketTopics
from tieredstore.restore.produce.time_cut import PartitionCut, TimeCut
from tieredstore.testing.segments import Record, build_batch

WHERE = TopicIdPartition(Uuid(b"a topic of plain"), "plain", 0)
TIME_MS = 1_700_000_000_000
ROWS = 3000
"""Enough records for several batches of the producer, and for three segments."""


def record(at: int) -> Produced:
    headers = (("h", b"1"), ("h", None)) if at % 7 == 0 else ()
    return Produced(None if at % 5 == 0 else b"k%d" % at, b"v%d" % at, headers, TIME_MS + at)


def batch_of(offsets: range, changed: Mapping[int, Produced] | None = None) -> bytes:
    made = [(changed or {}).get(at, record(at)) for at in offsets]
    return build_batch([Record(one.value, one.key, one.timestamp_ms, one.headers or ()) for one in made], offsets[0])


def plain_bucket(
    folder: Path, changed: Mapping[int, Produced] | None = None, segments: Iterable[int] = range(3)
) -> Bucket:
    """Return a bucket with the records in one partition; those in ``changed`` replace the originals."""
    folder.mkdir(exist_ok=True)
    bucket, size = Bucket(folder), ROWS // 3
    for number in segments:
        offsets = range(number * size, (number + 1) * size)
        bucket.copy(WHERE, [batch_of(offsets, changed)], offsets)
    return bucket


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    return plain_bucket(tmp_path_factory.mktemp("plain"))


# Runs of restore produce


@pytest.fixture
def restore(kafka: KafkaServer, tmp_path: Path) -> Restore:
    made = Restore.into(kafka, mixed_topics(tmp_path, "orders", "payments"))
    made.run()
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
    """Return a copy of the map with the first partition alone; ``keep`` changes or drops each of its runs."""
    made, where = OffsetMap(whole.run), ("orders", 0)
    made.add_topic("orders", whole.topics["orders"].target)
    made.begin(where, whole.partitions("orders")[0].start)
    made.extend(changed for run in whole.mapped_runs(where) if (changed := keep(run)) is not None)
    made.advance(where, whole.partitions("orders")[0].stop)
    return made


def test_a_map_that_lacks_records_or_names_others(restore: Restore) -> None:
    whole = map_of(restore)
    first, second, *_ = whole.mapped_runs(("orders", 0))
    lacking, other, *_ = compare_run(restore, copy_of(whole, lambda run: None if run.start == second.start else run))
    assert lacking.difference == RecordDifference("not_restored", second.start, None)
    assert lacking.not_restored == second.length
    assert lacking.target_records == lacking.records + second.length
    # The map lacks this partition, but the run's position in the cluster has it, so its records count as not restored.
    assert (other.not_restored, other.records, other.difference) == (87, 0, RecordDifference("not_restored", 25, None))
    # The map is off by one, so the comparison finds another record in the first record's place.
    late, *_ = compare_run(
        restore, copy_of(whole, lambda run: run._replace(target_start=run.target_start + 1, length=run.length - 1)
                         if run.start == first.start else run),
    )  # fmt: skip
    assert late.difference is not None
    assert (late.difference.offset, late.difference.target_offset) == (first.start, first.target_start + 1)
    assert late.difference.what in {"timestamp", "key", "value", "headers"}
    assert late.digest != late.target_digest


def test_what_the_cut_of_a_run_left_out_is_named(kafka: KafkaServer, tmp_path: Path) -> None:
    source = mixed_topics(tmp_path, "orders", partitions=1)
    made = Restore.into(kafka, source)
    topic_id = str(load_catalog(source.bucket.manager).incarnation("orders").topic_id)
    # Leave out the committed transaction of the second segment.
    cut = PartitionCut("orders", topic_id, 0, stop=150, left_out=((85, 104),))
    made.run(cut=TimeCut(TIME_MS, (cut,)))
    (one,) = compare_run(made, map_of(made))
    assert (one.difference, one.left_out, one.last_offset) == (None, [(85, 103)], 149)
    assert one.records == one.target_records > 0


# Runs that hash keys


@pytest.fixture(scope="module")
def rehashed(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, OffsetMap]:
    """Restore the plain bucket by key into a topic with two partitions; return the topic, and the map of the run."""
    bucket, target = plain_bucket(tmp_path_factory.mktemp("rehashed")), make_topic(kafka, partitions=2)
    options = ProduceOptions(topics={"plain": target}, partitioner="java", name=f"rehashed-{target}")
    with BucketTopics(bucket.manager, options) as source:
        list(ProduceRun(source, {"bootstrap.servers": kafka.bootstrap_servers}).outcomes())
    return target, load_map(bucket.manager.store, "", options.run)


def compare_rehashed(bucket: Bucket, kafka: KafkaServer, offset_map: OffsetMap) -> ComparedPartition:
    (one,) = Comparison(bucket.manager, {"bootstrap.servers": kafka.bootstrap_servers}).run(offset_map)
    return one


def place_of(offset: int) -> tuple[int, int]:
    """Return the partition and offset of a plain record in the topic with two partitions."""
    partitions = _partitions_of_records()
    return partitions[offset], partitions[:offset].count(partitions[offset])


@cache
def _partitions_of_records() -> list[int]:
    return Partitioning("java", 2).partitions([record(at).key for at in range(ROWS)], 0)


def test_hashed_records_equal_their_source(plain: Bucket, kafka: KafkaServer, rehashed: tuple[str, OffsetMap]) -> None:
    one = compare_rehashed(plain, kafka, rehashed[1])
    assert (one.difference, one.lost, one.not_restored, one.target_partition) == (None, [], 0, None)
    assert (one.records, one.target_records) == (ROWS, ROWS)
    assert one.digest == one.target_digest
    runs = list(rehashed[1].mapped_runs(("plain", 0)))
    assert len(runs) <= 2 * -(-ROWS // SPARSE_RECORDS)
    assert sum(run.length for run in runs) == ROWS


@pytest.mark.parametrize(
    ("at", "changes", "what"),
    [
        (0, {"value": None}, "value"),
        (1717, {"timestamp_ms": TIME_MS}, "timestamp"),
        (ROWS - 1, {"headers": (("h", b"1"),)}, "headers"),
    ],
)
def test_a_field_of_a_hashed_record_that_differs(
    kafka: KafkaServer, rehashed: tuple[str, OffsetMap], tmp_path: Path, at: int, changes: dict[str, Any], what: Any
) -> None:
    one = compare_rehashed(plain_bucket(tmp_path, {at: replace(record(at), **changes)}), kafka, rehashed[1])
    partition, offset = place_of(at)
    assert one.difference == RecordDifference(what, at, offset, partition)
    assert one.digest != one.target_digest
    assert (one.records, one.target_records) == (ROWS, ROWS)


def test_a_key_that_belongs_to_another_partition(
    kafka: KafkaServer, rehashed: tuple[str, OffsetMap], tmp_path: Path
) -> None:
    at = 1717
    other = next(record(near).key for near in range(1, ROWS) if place_of(near)[0] != place_of(at)[0])
    one = compare_rehashed(plain_bucket(tmp_path, {at: replace(record(at), key=other)}), kafka, rehashed[1])
    # The changed key belongs to another partition, so from there on the run's records are shifted.
    assert one.difference is not None
    assert one.difference.what == "timestamp"
    assert at <= (one.difference.offset or 0) < at + 20
    assert one.digest != one.target_digest


def test_hashed_records_that_a_map_lacks(kafka: KafkaServer, rehashed: tuple[str, OffsetMap], plain: Bucket) -> None:
    target, whole = rehashed
    own = [at for at in range(ROWS) if place_of(at)[0] == 0]
    lacking = OffsetMap(whole.run)
    lacking.add_topic("plain", target, is_rehashed=True)
    lacking.extend(run for run in whole.mapped_runs(("plain", 0)) if run.target_partition == 1)
    for first, stop in ((0, 300), (600, 900)):
        gaps = own[stop - 1] + 1 - own[first] - (stop - first)
        lacking.extend([OffsetRun("plain", 0, own[first], 0, first, stop - first, gaps)])
    one = compare_rehashed(plain, kafka, lacking)
    assert one.difference == RecordDifference("not_restored", own[300], None)
    assert one.not_restored == len(own) - 600
    # Records after a partition's last run may have been produced after the restore, so they are no difference.
    assert one.target_records == one.records + 300 == ROWS - one.not_restored + 300


def test_hashed_records_that_one_side_lost(kafka: KafkaServer, plain: Bucket, tmp_path: Path) -> None:
    bucket, target = plain_bucket(tmp_path / "whole"), make_topic(kafka, partitions=2)
    options = ProduceOptions(topics={"plain": target}, partitioner="librdkafka", name=f"lost-{target}")
    with BucketTopics(bucket.manager, options) as source:
        list(ProduceRun(source, {"bootstrap.servers": kafka.bootstrap_servers}).outcomes())
    offset_map = load_map(bucket.manager.store, "", options.run)
    one = compare_rehashed(plain_bucket(tmp_path / "part", segments=(0, 2)), kafka, offset_map)
    assert (one.difference, one.lost) == (None, [(1000, 1999)])
    assert 0 < one.records == one.target_records < ROWS
    assert one.digest == one.target_digest
    delete_records(kafka, target, 10)
    one = compare_rehashed(plain, kafka, offset_map)
    assert one.difference is not None
    assert (one.difference.what, one.difference.target_offset, one.difference.target_partition) == ("missing", 0, 0)
    assert one.target_records == ROWS - 10


def test_hashed_keys_need_the_runs_position(kafka: KafkaServer, plain: Bucket) -> None:
    offset_map = OffsetMap("no-such-run")
    offset_map.add_topic("plain", make_topic(kafka), is_rehashed=True)
    with pytest.raises(ConfigError, match="the run no-such-run hashed keys again, but __tieredstore_restores of this"):
        compare_rehashed(plain, kafka, offset_map)


# Rules


@pytest.mark.parametrize(
    ("offsets", "pieces"),
    [
        (range(10), [(0, 2, None), (2, 5, 100), (5, 7, None), (7, 9, 101), (9, 10, None)]),
        (range(3, 5), [(0, 2, 100)]),
        ([0, 8, 20], [(0, 1, None), (1, 2, 101), (2, 3, None)]),
    ],
)
def test_rows_of_a_batch_by_the_runs_of_a_map(
    offsets: Iterable[int], pieces: list[tuple[int, int, int | None]]
) -> None:
    rule = MappedOffsets([OffsetRun("t", 0, 2, 0, 100, 3), OffsetRun("t", 0, 7, 0, 101, 2)])
    found = [(first, stop, run and run.target_start) for first, stop, run in rule.pieces(list(offsets))]
    assert found == pieces


@pytest.mark.parametrize(
    ("start", "stop", "span"),
    [(0, 10, (100, 112)), (3, 8, (101, 111)), (5, 7, (0, 0)), (9, 20, (0, 0)), (0, 3, (100, 101))],
)
def test_the_target_of_some_offsets(start: int, stop: int, span: tuple[int, int]) -> None:
    rule = MappedOffsets([OffsetRun("t", 0, 2, 0, 100, 3), OffsetRun("t", 0, 7, 0, 110, 2)])
    assert rule.span(start, stop) == span


# Equal offsets


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
    # A broker may not know a new topic yet, so the comparison retries for 5 s.
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
    assert summary == {
        "summary": {"partitions": 1, "records": ROWS, "different": 1, "with_losses": 0, "not_compared": []}
    }
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
        (["plain=", "--same-offsets"], "'plain=' is not a topic: give TOPIC, or TOPIC=NEW"),
        (["no-run"], "the bucket has no offset map of a run no-run"),
    ],
)
def test_wrong_lines(words: list[str], sentence: str, plain: Bucket, kafka: KafkaServer) -> None:
    refused = verify(*words, kafka=kafka, store=plain.root)
    assert refused.code in {2, 3}
    assert sentence in refused.stderr
