"""Tests of transactions across segments: verification reports only an index that lacks a transaction's first part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.records.small_segments import ENC
from tests.support.records.stored_records import StoredTopic
from tests.support.records.transaction_scripts import STEPS, Partition, Segment, Step, store
from tieredstore.catalog.listing import list_segments
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import Uuid
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import FindingKind
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.state import VerifyState
from tieredstore.ops.verification.verification import Narrow, verify
from tieredstore.ops.verification.verify_parts import plan_parts, verify_part
from tieredstore.testing.segments import Record, build_batch, write_segment

OPEN: list[Step] = [("plain", 0, 2), ("send", 1, 3)]
PLAIN: list[Step] = [("plain", 0, 4)]
K = FindingKind


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with closing(StoredTopic(tmp_path)) as topic:
        yield topic


def kinds_of(
    topic: StoredTopic, state: VerifyState | None = None, narrow: Narrow | None = None
) -> list[tuple[int | None, FindingKind]]:
    selection = Selection(Level.DATA, state=state)
    checked = verify(Bucket(topic.manager.settings, topic.store), selection=selection, narrow=narrow)
    return [(finding.start_offset, finding.kind) for segment in checked for finding in segment.findings]


def kinds_in_parts(topic: StoredTopic, most_segments: int) -> list[tuple[int | None, FindingKind]]:
    bucket = Bucket(topic.manager.settings, topic.store)
    parts = plan_parts(list_segments(topic.store), most_segments)
    found = (finding for part in parts for finding in verify_part(bucket, part, Selection(Level.DATA)))
    return [(finding.start_offset, finding.kind) for finding in found]


def manifests(topic: StoredTopic) -> list[str]:
    return [info.key for info in topic.store.list() if info.key.endswith(".rsm-manifest")]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param([("plain", 0, 1), ("abort", 1, 1)], id="no entry"),
        pytest.param([("send", 1, 2), ("abort", 1, 1)], id="an entry that begins too late"),
    ],
)
def test_an_index_that_does_not_know_the_first_part_is_named(topic: StoredTopic, last: list[Step]) -> None:
    store(topic, [OPEN, last, PLAIN], [0, 1, 1])
    assert kinds_of(topic) == [(5, K.TRANSACTION_INDEX)]
    assert all(kinds_in_parts(topic, most) == [(5, K.TRANSACTION_INDEX)] for most in (1, 2, 3))
    leftover = re.sub("0{20}-.*", f"{3:020d}-{Uuid.random()}.log", manifests(topic)[0])
    topic.store.put(leftover, b"of a failed copy")
    for found in (kinds_of(topic), kinds_in_parts(topic, 1), kinds_in_parts(topic, 2)):
        assert found == [(3, K.UNCOMMITTED), (5, K.TRANSACTION_INDEX)]


def test_so_is_a_snapshot_that_does_not_know_what_is_open(topic: StoredTopic) -> None:
    last: list[Step] = [("plain", 0, 1), ("abort", 1, 1)]
    store(topic, [OPEN, PLAIN, last], [0, 1, 1])
    assert kinds_of(topic) == [(5, K.PRODUCER_SNAPSHOT), (9, K.TRANSACTION_INDEX)]


def test_a_snapshot_that_a_power_failure_left_empty_is_named(topic: StoredTopic) -> None:
    """A broker does not sync its snapshots, and copies them without reading them. Readers of committed records refuse
    an empty one.
    """
    segment = write_segment(topic.folder, [build_batch([Record(b"v")])])
    (snapshot,) = topic.folder.rglob("*.snapshot")
    snapshot.write_bytes(b"")
    topic.manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
    assert kinds_of(topic) == [(0, K.PRODUCER_SNAPSHOT)]


def test_the_segment_before_may_have_been_checked_earlier(topic: StoredTopic, tmp_path: Path) -> None:
    with VerifyState(tmp_path / "state", topic.store.identity, "") as state:
        store(topic, [OPEN])
        assert kinds_of(topic, state) == []
        partition, segment = Partition(5), Segment(5)
        partition.play(("plain", 0, 1), segment)
        partition.play(("abort", 1, 1), segment)
        topic.copy(5, segment.batches, producers=partition.snapshot(), leader_epochs=((0, 5),), broker_id=2)
        assert kinds_of(topic, state) == [(5, K.TRANSACTION_INDEX)]
        assert kinds_of(topic, state) == [(5, K.TRANSACTION_INDEX)]


def test_a_segment_is_checked_again_once_a_key_opens_the_one_before(tmp_path: Path) -> None:
    last: list[Step] = [("plain", 0, 1), ("abort", 1, 1)]
    with (
        closing(StoredTopic(tmp_path, mode=ENC)) as topic,
        VerifyState(tmp_path / "state", topic.store.identity, "") as state,
    ):
        store(topic, [OPEN, last], [0, 1])
        key = manifests(topic)[0]
        sound = topic.store.get(key)
        document = json.loads(sound)
        text = document["encryption"]["dataKey"]
        document["encryption"]["dataKey"] = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
        topic.store.put(key, json.dumps(document).encode())
        assert kinds_of(topic, state) == [(0, K.WRONG_KEY)]
        topic.store.put(key, b"{")
        assert kinds_of(topic, state) == [(0, K.MANIFEST_DAMAGED)]
        assert kinds_of(topic, state, lambda listed: (one for one in listed if one.start_offset)) == []
        topic.store.put(key, sound)
        assert kinds_of(topic, state) == [(5, K.TRANSACTION_INDEX)]


def test_in_an_overlap_what_lies_behind_it_is_checked(topic: StoredTopic) -> None:
    partition, first, rest = Partition(), Segment(0), Segment(8)
    steps: list[Step] = [*OPEN, ("plain", 0, 2), ("send", 1, 1)]
    for step in steps:
        partition.play(step, first)
    topic.copy(0, first.batches, producers=partition.snapshot())
    partition.play(("abort", 1, 1), rest)
    batches = [*first.batches[2:], *rest.batches]
    topic.copy(5, batches, aborted=[AbortedTransaction(1, 7, 8, 9)], leader_epochs=((0, 5),), broker_id=2)
    assert kinds_of(topic) == [(5, K.OVERLAP), (5, K.TRANSACTION_INDEX)]


def test_a_segment_of_an_abandoned_epoch_leaves_nothing_open_for_a_part(topic: StoredTopic) -> None:
    log, abandoned, left = Partition(), Partition(6), Segment(6)
    last: list[Step] = [("abort", 1, 1)]
    for base, steps in ((0, OPEN), (5, PLAIN), (9, last)):
        part, epoch = Segment(base), 5 if base else 0
        for step in steps:
            log.play(step, part)
        batches = [batch[:15] + bytes([epoch]) + batch[16:] for batch in part.batches]
        topic.copy(base, batches, aborted=part.aborted, producers=log.snapshot(), leader_epochs=((epoch, base),))
    abandoned.play(("send", 2, 3), left)
    topic.copy(6, left.batches, producers=abandoned.snapshot(), broker_id=2)
    assert kinds_of(topic) == kinds_in_parts(topic, 1) == [(6, K.LEFT_BEHIND_COVERED)]


def test_a_transaction_that_no_segment_before_leaves_open_is_no_earlier_one(topic: StoredTopic) -> None:
    committed: list[Step] = [("send", 1, 3), ("commit", 1, 1)]
    store(topic, [committed])
    partition, segment = Partition(4), Segment(4)
    partition.play(("send", 1, 1), segment)
    partition.play(("abort", 1, 1), segment)
    topic.copy(4, segment.batches, aborted=[AbortedTransaction(1, 0, 5, 6)])
    assert kinds_of(topic) == [(4, K.TRANSACTION_INDEX)]


@settings(max_examples=examples(40), deadline=None)
@given(plan=st.lists(st.lists(STEPS, min_size=1, max_size=10), min_size=1, max_size=5))
def test_what_one_broker_copies_has_no_findings(
    plan: Sequence[Sequence[Step]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(StoredTopic(tmp_path_factory.mktemp("log"), chunk_size=200)) as topic:
        store(topic, plan)
        assert kinds_of(topic) == []
