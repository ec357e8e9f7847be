"""Tests that compare the brokers' records with the bucket: the golden buckets' own records, and faults on both
sides.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from confluent_kafka import Producer

from tests.support.damage.planted_bucket import EVENTS, PlantedBucket
from tests.support.golden.segments import case_path
from tests.support.golden.stored import settings_of
from tests.support.kafka.kafka_topics import make_topic
from tests.support.records.metadata_records import delete_record, segment_record, update_record
from tests.support.servers.kafka import KafkaServer
from tieredstore.catalog.listing import Scope
from tieredstore.catalog.metadata_topic import PartitionDelete, PartitionDeleteState, SegmentState, SegmentUpdate
from tieredstore.errors import ResourceNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.live import LiveReader
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.ops.brokers import MetadataTopic
from tieredstore.ops.bucket import Bucket, open_bucket
from tieredstore.ops.verification.brokers import BrokersBelief
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.verification import verify

ALL = Scope()
K = FindingKind
CASES = ["01-none", "07-txn", "10-prefix-masked-custommeta"]


@cache
def golden_values(case: str) -> list[bytes]:
    lines = (case_path(case) / "rlmm.jsonl").read_text().splitlines()
    return [base64.b64decode(json.loads(line)["value"]) for line in lines]


def moved_on(metadata: RemoteLogSegmentMetadata, state: SegmentState) -> bytes:
    return update_record(SegmentUpdate(metadata.remote_log_segment_id, 1, 5, None, state))


def copied(*segments: RemoteLogSegmentMetadata) -> list[bytes]:
    """Return the records that brokers write for segments they copied."""
    finished = SegmentState.COPY_SEGMENT_FINISHED
    return [value for segment in segments for value in (segment_record(segment), moved_on(segment, finished))]


def numbered(values: Iterable[bytes]) -> Iterator[tuple[int, int, bytes]]:
    return ((0, offset, value) for offset, value in enumerate(values))


def compared(bucket: Bucket, before: Iterable[bytes], after: Iterable[bytes] = (), scope: Scope = ALL) -> list[Finding]:
    """Compare the bucket with records from before the run and records from during it."""
    with BrokersBelief() as belief:
        findings = list(belief.take(numbered(before)))
        for checked in verify(bucket, scope):
            findings += belief.compare(checked)
        findings += belief.take(numbered(after))
        return findings + list(belief.rest(bucket, [scope]))


def kinds(findings: Iterable[Finding]) -> list[FindingKind]:
    return [finding.kind for finding in findings]


@pytest.fixture
def planted() -> PlantedBucket:
    """Return a bucket with only the topic ``EVENTS``, which the brokers know."""
    planted = PlantedBucket.of("plain")
    planted.store.delete([info.key for info in planted.store.list() if not info.key.startswith(EVENTS.topic)])
    return planted


@pytest.mark.parametrize("case", CASES)
def test_the_brokers_of_a_golden_bucket_believe_what_is_there(case: str) -> None:
    with open_bucket(settings_of(case)) as bucket:
        assert compared(bucket, golden_values(case)) == []


def test_a_segment_that_only_the_brokers_have(planted: PlantedBucket) -> None:
    planted.delete(*Suffix, number=2)
    values = copied(*planted.segments)
    (finding,) = compared(planted.bucket, values)
    assert (finding.kind, finding.segment_id) == (K.NOT_IN_BUCKET, planted.segments[2].remote_log_segment_id.id)
    assert finding.offsets == (64, 95)
    assert compared(planted.bucket, values, scope=Scope("other")) == []


def test_a_segment_whose_manifest_alone_is_gone_is_not_in_the_bucket(planted: PlantedBucket) -> None:
    planted.delete(Suffix.MANIFEST, number=2)
    assert kinds(compared(planted.bucket, copied(*planted.segments))) == [K.NOT_IN_BUCKET]


@pytest.mark.parametrize("state", [None, SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED])
def test_a_segment_that_only_the_bucket_has(planted: PlantedBucket, state: SegmentState | None) -> None:
    *known, last = planted.segments
    values = copied(*known, *([last] if state else [])) + ([moved_on(last, state)] if state else [])
    (finding,) = compared(planted.bucket, values)
    assert (finding.kind, finding.start_offset) == (K.UNKNOWN_TO_BROKERS, last.start_offset)


def test_a_copy_that_the_brokers_do_not_take_for_finished(planted: PlantedBucket) -> None:
    *known, last = planted.segments
    values = [*copied(*known), segment_record(last)]
    assert kinds(compared(planted.bucket, values)) == [K.UNKNOWN_TO_BROKERS]
    assert compared(planted.bucket, values, [moved_on(last, SegmentState.COPY_SEGMENT_FINISHED)]) == []


@pytest.mark.parametrize("field", ["end_offset", "segment_size_in_bytes"])
def test_numbers_that_the_brokers_have_otherwise(planted: PlantedBucket, field: str) -> None:
    first, *others = planted.segments
    wrong = dataclasses.replace(first, **{field: getattr(first, field) + 1})
    (finding,) = compared(planted.bucket, copied(wrong, *others))
    assert (finding.kind, finding.start_offset) == (K.BROKERS_DIFFER, 0)


def test_segments_copied_and_deleted_during_the_run_are_no_finding(planted: PlantedBucket) -> None:
    first, *others, last = planted.segments
    finished = SegmentState.DELETE_SEGMENT_FINISHED
    planted.delete(*Suffix, number=0)
    after = [moved_on(first, SegmentState.DELETE_SEGMENT_STARTED), moved_on(first, finished), *copied(last)]
    assert compared(planted.bucket, copied(first, *others), after) == []


def test_a_deleted_topic_has_nothing_left(planted: PlantedBucket) -> None:
    mark = delete_record(PartitionDelete(EVENTS, 1, 5, PartitionDeleteState.DELETE_PARTITION_MARKED))
    values = [*copied(*planted.segments), mark]
    assert kinds(compared(planted.bucket, values)) == [K.UNKNOWN_TO_BROKERS] * len(planted.segments)
    planted.store.delete([info.key for info in planted.store.list()])
    assert compared(planted.bucket, values) == []


def test_records_may_come_twice_and_those_of_nobody_are_named(planted: PlantedBucket) -> None:
    values = copied(*planted.segments)
    (finding,) = compared(planted.bucket, [*values, b"\1\x09\0", *values])
    assert (finding.kind, finding.offsets) == (K.BROKERS_RECORD, (len(values), len(values)))


def test_the_topic_of_a_real_broker_is_read_and_read_on(kafka: KafkaServer) -> None:
    topic = make_topic(kafka, partitions=2)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer(client)
    values = golden_values("01-none")

    def produce(some: list[bytes]) -> None:
        for value in some:
            producer.produce(topic, value, partition=1)
        assert producer.flush(60) == 0

    produce(values[:3])
    with LiveReader(client, isolation="read_uncommitted") as reader:
        metadata = MetadataTopic(reader, topic)
        assert list(metadata.read_on()) == [(1, offset, value) for offset, value in enumerate(values[:3])]
        assert list(metadata.read_on()) == []
        produce(values[3:])
        with open_bucket(settings_of("01-none")) as bucket, BrokersBelief(topic) as belief:
            assert not list(belief.take(numbered(values[:3])))
            checked = [finding for segment in verify(bucket) for finding in belief.compare(segment)]
            assert not list(belief.take(metadata.read_on()))
            assert checked + list(belief.rest(bucket, [ALL])) == []
        with pytest.raises(ResourceNotFoundError):
            list(MetadataTopic(reader, f"{topic}-that-is-not-there").read_on())
