"""Tests of planted faults: verification finds each with its kind and place, and finds nothing in a sound bucket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.damage.planted_bucket import MODES, PlantedBucket
from tests.support.damage.planted_faults import PLANTED_FAULTS, PlantedFault, fault_named
from tests.support.golden.segments import CASES, segments
from tests.support.golden.stored import settings_of
from tests.support.ops.tools import findings_of, found_in
from tests.support.records.small_segments import memory_settings
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.model import Uuid
from tieredstore.ops.bucket import Bucket, open_bucket
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import verify
from tieredstore.ops.verification.verify_parts import plan_parts, verify_part
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch, write_segment

assert len(PLANTED_FAULTS) >= 40


K = FindingKind


def in_parts(planted: PlantedBucket, level: Level, most_segments: int) -> list[Finding]:
    parts = list(plan_parts(list_segments(planted.store), most_segments))
    findings = [finding for part in parts for finding in part.known]
    return findings + [finding for part in parts for finding in verify_part(planted.bucket, part, Selection(level))]


@pytest.mark.parametrize("fault", PLANTED_FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_one_finding(fault: PlantedFault) -> None:
    (finding,) = findings_of(fault.planted().bucket, fault.level)
    assert finding.kind is fault.kind
    assert finding.kind.meaning
    assert finding.kind.advice
    if fault.suffix is not None:
        assert finding.object_key is not None
        assert finding.object_key.endswith(fault.suffix.value)
    if fault.byte is not None:
        assert finding.byte_range is not None
        assert finding.byte_range.start <= fault.byte < finding.byte_range.stop
    if fault.offsets is not None:
        assert finding.offsets == fault.offsets


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", Level)
def test_a_clean_bucket_has_no_findings(mode: str, level: Level) -> None:
    assert findings_of(PlantedBucket.of(mode).bucket, level) == []


@pytest.mark.parametrize("case", CASES)
def test_a_golden_bucket_has_no_findings(case: str) -> None:
    with open_bucket(settings_of(case)) as bucket:
        checked = list(verify(bucket, selection=Selection(Level.DATA)))
    assert len(checked) == len(segments(case))
    assert found_in(checked) == []


@pytest.mark.parametrize(
    "fault", [fault for fault in PLANTED_FAULTS if fault.level is not Level.DATA], ids=lambda fault: fault.name
)
def test_what_a_shallow_level_finds_ends_no_deep_run(fault: PlantedFault) -> None:
    """The deep checks of the next segments read the damaged one again."""
    kinds = {finding.kind for finding in findings_of(fault.planted().bucket, Level.DATA)}
    # A deep run tells a wrong end offset in place of the gap or overlap that it makes.
    assert kinds & {fault.kind, K.END_OFFSET}


def test_a_batch_of_another_epoch_is_told_with_both_epochs() -> None:
    (finding,) = findings_of(fault_named("batch of another leader epoch").planted().bucket, Level.DATA)
    assert finding.detail.endswith("has the leader epoch 5, but 1 was in force")


def test_a_segment_without_timestamps_may_have_the_time_of_its_last_change(tmp_path: Path) -> None:
    """Kafka's LogSegment.largestTimestamp returns the file's time if no record has a timestamp."""
    segment = write_segment(tmp_path, [build_batch([Record(b"v", timestamp_ms=-1)])])
    metadata = replace(segment.to_metadata(Uuid.random()), max_timestamp_ms=1_700_000_000_000)
    with RemoteStorageManager(memory_settings(), store=MemoryObjectStore()) as manager:
        manager.copy_log_segment_data(metadata, segment.files)
        assert findings_of(Bucket(manager.settings, manager.store), Level.DATA) == []


def test_every_kind_is_planted_but_for_those_of_other_tests() -> None:
    elsewhere = {
        K.UNCOMMITTED, K.LEFT_BEHIND_COVERED, K.ENDS_EARLY, K.MANY_MORE,
        K.ARCHIVED, K.NOT_IN_BUCKET, K.UNKNOWN_TO_BROKERS, K.BROKERS_DIFFER, K.BROKERS_RECORD,
    }  # fmt: skip
    assert {fault.kind for fault in PLANTED_FAULTS} | elsewhere == set(FindingKind)


@pytest.mark.slow
@pytest.mark.parametrize("most_segments", [1, 3])
@pytest.mark.parametrize("fault", PLANTED_FAULTS[::3], ids=lambda fault: fault.name)
def test_a_verification_in_parts_finds_what_one_run_finds(fault: PlantedFault, most_segments: int) -> None:
    planted = fault.planted()
    assert in_parts(planted, fault.level, most_segments) == findings_of(planted.bucket, fault.level)


@pytest.mark.parametrize("name", ["key in Arabic digits", "topic created again", "segment is gone"])
def test_what_the_plan_of_parts_tells_is_told_once(name: str) -> None:
    fault = fault_named(name)
    assert [finding.kind for finding in in_parts(fault.planted(), Level.INDEX, 1)] == [fault.kind]


def test_segments_at_one_offset_are_of_one_part() -> None:
    (fault,) = (fault for fault in PLANTED_FAULTS if fault.kind is FindingKind.COPIED_TWICE)
    parts = [part for part in plan_parts(list_segments(fault.planted().store), 1) if not part.is_between]
    assert [(part.first_offset, part.stop_offset) for part in parts] == [
        (0, 32), (32, 64), (64, 96), (96, None), (0, None),
    ]  # fmt: skip
