"""Faults planted one each: each is found as what it is, where it is, and nothing is found where there is none."""

from __future__ import annotations

import pytest

from tests.support.damage.planted_bucket import MODES, PlantedBucket
from tests.support.damage.planted_faults import PLANTED_FAULTS, PlantedFault
from tests.support.golden.segments import CASES, segments
from tests.support.golden.stored import settings_of
from tests.support.paths import REPOSITORY
from tieredstore.ops.bucket import Bucket, open_bucket
from tieredstore.ops.verification import Finding, FindingKind, Level, Selection, verify
from tieredstore.ops.verification.table import BEGIN, END, table_of_kinds

assert len(PLANTED_FAULTS) >= 40


def findings_of(bucket: Bucket, level: Level) -> list[Finding]:
    return [finding for checked in verify(bucket, selection=Selection(level)) for finding in checked.findings]


@pytest.mark.parametrize("fault", PLANTED_FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_one_finding(fault: PlantedFault) -> None:
    planted = PlantedBucket.of(fault.mode)
    fault.plant(planted)
    (finding,) = findings_of(planted.bucket, fault.level)
    assert finding.kind is fault.kind
    assert finding.meaning
    assert finding.advice
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
    assert [finding for segment in checked for finding in segment.findings] == []


def test_every_kind_is_planted_but_for_those_of_other_tests() -> None:
    elsewhere = {
        FindingKind.UNCOMMITTED,
        FindingKind.LEFT_BEHIND_COVERED,
        FindingKind.ENDS_EARLY,
        FindingKind.MANY_MORE,
        FindingKind.NOT_IN_BUCKET,
        FindingKind.UNKNOWN_TO_BROKERS,
        FindingKind.BROKERS_DIFFER,
        FindingKind.BROKERS_RECORD,
    }
    assert {fault.kind for fault in PLANTED_FAULTS} | elsewhere == set(FindingKind)


def test_the_document_has_the_table_of_kinds() -> None:
    text = (REPOSITORY / "docs" / "verify.md").read_text()
    assert f"{BEGIN}{table_of_kinds()}{END}" in text, "run python -m tieredstore.ops.verification.table docs/verify.md"
