"""A verification in parts finds what one run finds."""

from __future__ import annotations

import pytest

from tests.support.damage.planted_bucket import PlantedBucket
from tests.support.damage.planted_faults import PLANTED_FAULTS, PlantedFault
from tieredstore.catalog.listing import list_segments
from tieredstore.ops.verification import Finding, FindingKind, Level, Selection, plan_parts, verify, verify_part


def in_parts(planted: PlantedBucket, selection: Selection, most_segments: int) -> list[Finding]:
    parts = list(plan_parts(list_segments(planted.store), most_segments))
    findings = [finding for part in parts for finding in part.known]
    return findings + [finding for part in parts for finding in verify_part(planted.bucket, part, selection)]


@pytest.mark.parametrize("most_segments", [1, 3])
@pytest.mark.parametrize("fault", PLANTED_FAULTS[::3], ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_in_one_of_the_parts(fault: PlantedFault, most_segments: int) -> None:
    planted = PlantedBucket.of(fault.mode)
    fault.plant(planted)
    selection = Selection(fault.level)
    whole = [finding for checked in verify(planted.bucket, selection=selection) for finding in checked.findings]
    assert in_parts(planted, selection, most_segments) == whole


@pytest.mark.parametrize("name", ["key in Arabic digits", "topic created again", "segment is gone"])
def test_what_the_plan_tells_is_told_once(name: str) -> None:
    (fault,) = (fault for fault in PLANTED_FAULTS if fault.name == name)
    planted = PlantedBucket.of(fault.mode)
    fault.plant(planted)
    assert [finding.kind for finding in in_parts(planted, Selection(Level.INDEX), 1)] == [fault.kind]


def test_segments_at_one_offset_are_of_one_part() -> None:
    (fault,) = (fault for fault in PLANTED_FAULTS if fault.kind is FindingKind.COPIED_TWICE)
    planted = PlantedBucket.of("plain")
    fault.plant(planted)
    parts = [part for part in plan_parts(list_segments(planted.store), 1) if not part.is_between]
    assert [(part.first_offset, part.stop_offset) for part in parts] == [
        (0, 32),
        (32, 64),
        (64, 96),
        (96, None),
        (0, None),
    ]
