"""Tests of what a run selects: samples, new segments, and results of earlier runs. A run may be stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.damage.planted_bucket import OFFSETS, SEGMENTS, PlantedBucket
from tests.support.ops.tools import kinds_of
from tests.support.stores.catalog_stores import MadeSegment, partition_of, run_of
from tests.support.stores.doubles import CountingStore, ScriptedStore
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import ConfigError
from tieredstore.format.keys import Suffix
from tieredstore.ops.verification.findings import FindingKind
from tieredstore.ops.verification.selection import Level, Sample, Selection
from tieredstore.ops.verification.state import VerifyState
from tieredstore.ops.verification.verification import CheckedSegment, verify

DAY_MS = 86_400_000


class Clock:
    """The clock that the state reads."""

    now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def planted() -> PlantedBucket:
    return PlantedBucket.of("plain", CountingStore(MemoryObjectStore()))


def state_of(planted: PlantedBucket, folder: Path, clock: Clock | None = None) -> VerifyState:
    return VerifyState(folder / "state", planted.store.identity, "", now_ms=clock or Clock())


def run(planted: PlantedBucket, selection: Selection) -> list[CheckedSegment]:
    return list(verify(planted.bucket, selection=selection, parallel=2))


def levels(checked: list[CheckedSegment]) -> list[Level | None]:
    return [segment.subject.level for segment in checked]


def reads(planted: PlantedBucket) -> int:
    assert isinstance(planted.store, CountingStore)
    requests = planted.store.requests
    return requests["get"] + requests["get_into"] + requests["head"]


@pytest.mark.parametrize("level", Level)
def test_a_second_run_reads_nothing_of_what_the_state_knows(
    planted: PlantedBucket, tmp_path: Path, level: Level
) -> None:
    with state_of(planted, tmp_path) as state:
        assert levels(run(planted, Selection(level, state=state))) == [level] * (SEGMENTS + 1)
    before = reads(planted)
    with state_of(planted, tmp_path) as state:
        assert levels(run(planted, Selection(level, state=state))) == [None] * (SEGMENTS + 1)
    assert reads(planted) == before


def test_a_deeper_level_is_not_known_and_a_shallower_one_is(planted: PlantedBucket, tmp_path: Path) -> None:
    with state_of(planted, tmp_path) as state:
        run(planted, Selection(Level.INDEX, state=state))
        assert set(levels(run(planted, Selection(Level.LISTING, state=state)))) == {None}
        assert set(levels(run(planted, Selection(Level.DATA, state=state)))) == {Level.DATA}


def test_all_is_checked_again_after_a_month(planted: PlantedBucket, tmp_path: Path) -> None:
    clock = Clock()
    with state_of(planted, tmp_path, clock) as state:
        run(planted, Selection(state=state))
        clock.now_ms += 29 * DAY_MS
        assert set(levels(run(planted, Selection(state=state)))) == {None}
        clock.now_ms += 2 * DAY_MS
        assert set(levels(run(planted, Selection(state=state)))) == {Level.LISTING}


def test_a_check_by_a_clock_that_was_years_ahead_does_not_count(planted: PlantedBucket, tmp_path: Path) -> None:
    clock = Clock()
    clock.now_ms += 3000 * DAY_MS
    with state_of(planted, tmp_path, clock) as state:
        run(planted, Selection(state=state))
        clock.now_ms -= 3000 * DAY_MS
        assert set(levels(run(planted, Selection(state=state)))) == {Level.LISTING}
        assert set(levels(run(planted, Selection(state=state)))) == {None}


@pytest.mark.parametrize("suffix", Suffix)
def test_a_segment_of_which_any_object_was_written_again_is_checked_again(
    planted: PlantedBucket, tmp_path: Path, suffix: Suffix
) -> None:
    with state_of(planted, tmp_path) as state:
        run(planted, Selection(Level.DATA, state=state))
        planted.put(suffix, planted.get(suffix) + b" ")
        assert levels(run(planted, Selection(Level.DATA, state=state)))[:2] == [None, Level.DATA]


def test_damage_and_gaps_are_reported_each_time(planted: PlantedBucket, tmp_path: Path) -> None:
    planted.flip(Suffix.LOG, planted.headers(0)[2].position + 100, number=0)
    planted.delete(*Suffix, number=2)
    for known in (Level.DATA, None):
        with state_of(planted, tmp_path) as state:
            checked = run(planted, Selection(Level.DATA, state=state))
        assert kinds_of(checked) == [FindingKind.BATCH_CRC, FindingKind.GAP]
        assert levels(checked) == [Level.DATA, known, known, known]


def test_a_run_that_was_stopped_goes_on_where_it_was(planted: PlantedBucket, tmp_path: Path) -> None:
    with state_of(planted, tmp_path) as state:
        begun = verify(planted.bucket, selection=Selection(Level.DATA, state=state), parallel=1)
        for _ in range(3):
            next(begun)
        begun.close()
    with state_of(planted, tmp_path) as state:
        again = run(planted, Selection(Level.DATA, state=state))
    # The run yielded the third segment, but nothing shows that a caller used its findings.
    assert levels(again) == [None, None, Level.DATA, Level.DATA, Level.DATA]


def test_a_state_is_of_one_bucket(planted: PlantedBucket, tmp_path: Path) -> None:
    state_of(planted, tmp_path).close()
    with pytest.raises(ConfigError, match="another bucket"):
        VerifyState(tmp_path / "state", planted.store.identity, "prefix/")


def test_a_file_that_is_no_state_is_refused_and_stays(planted: PlantedBucket, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("what somebody else keeps here, which is no database of ours" * 20)
    with pytest.raises(ConfigError, match="cannot be used as a state file"):
        state_of(planted, tmp_path)
    assert (tmp_path / "state").read_text().startswith("what somebody else")


@pytest.mark.parametrize("level", [Level.INDEX, Level.DATA])
def test_a_run_over_a_part_does_not_hide_a_lost_end_from_the_next_run(
    planted: PlantedBucket, tmp_path: Path, level: Level
) -> None:
    """Only a run over the next segment knows where that segment begins."""
    last = SEGMENTS - 2
    planted.edit_metadata(last, endOffset=(SEGMENTS - 1) * OFFSETS + 2)
    with state_of(planted, tmp_path) as state:
        selection = Selection(level, state=state)

        def up_to_last(listed: Iterator[SegmentObjects]) -> Iterator[SegmentObjects]:
            return (objects for objects in listed if objects.start_offset <= last * OFFSETS)

        part = list(verify(planted.bucket, selection=selection, narrow=up_to_last))
        assert [finding.kind for checked in part for finding in checked.findings] == [FindingKind.ENDS_EARLY]
        assert [finding.kind for checked in run(planted, selection) for finding in checked.findings] == [
            FindingKind.END_OFFSET
        ]


@pytest.mark.parametrize("column", ["stamps", "epochs", "end_offset", "log_size"])
@pytest.mark.parametrize("value", ["[[", "[[1]]", "7", '{"a": 1}', "null", b"\xff"])
def test_a_damaged_row_of_a_state_is_refused_or_checked_again(
    planted: PlantedBucket, tmp_path: Path, column: str, value: str | bytes
) -> None:
    with state_of(planted, tmp_path) as state:
        run(planted, Selection(state=state))
    with contextlib.closing(sqlite3.connect(tmp_path / "state")) as database:
        database.execute(f"UPDATE sound SET {column} = ?", (value,))
        database.commit()
    is_number = value == "7" and column in {"end_offset", "log_size"}
    is_of_other_objects = column == "stamps" and value in {"[[1]]", '{"a": 1}'}
    refused = pytest.raises(ConfigError, match="cannot be used as a state file")
    with (
        state_of(planted, tmp_path) as state,
        contextlib.nullcontext() if is_number or is_of_other_objects else refused,
    ):
        run(planted, Selection(state=state))


def test_a_sample_is_the_same_for_a_seed_and_about_as_large_as_asked_for() -> None:
    objects = [listed(segment) for segment in run_of(2000, partition_of())]
    chosen = [segment.main_path for segment in objects if Sample(0.05, "a").has(segment)]
    assert chosen == [segment.main_path for segment in objects if Sample(0.05, "a").has(segment)]
    assert chosen != [segment.main_path for segment in objects if Sample(0.05, "b").has(segment)]
    assert 50 < len(chosen) < 160
    assert all(Sample(1.0).has(segment) for segment in objects)


def listed(segment: MadeSegment) -> SegmentObjects:
    return SegmentObjects(segment.metadata.remote_log_segment_id, segment.start, (), segment.path)


def test_segments_outside_the_sample_are_checked_by_their_listing(planted: PlantedBucket) -> None:
    sample = Sample(0.5, "seed")
    checked = run(planted, Selection(Level.INDEX, sample))
    expected = [Level.INDEX if sample.has(segment.subject.objects) else Level.LISTING for segment in checked]
    assert levels(checked) == expected
    assert set(expected) == {Level.INDEX, Level.LISTING}


@pytest.mark.parametrize("part", [0.0, -0.1, 1.5])
def test_a_sample_of_nothing_or_of_more_than_all_is_refused(part: float) -> None:
    with pytest.raises(ConfigError, match="a sample of"):
        Sample(part)


def test_a_sample_of_the_listing_is_refused() -> None:
    with pytest.raises(ConfigError, match="applies to the levels index and data"):
        Selection(Level.LISTING, Sample(0.1))


def dated_long_ago(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield a listing in which the first segments' manifests were written long ago."""
    old = tuple(f"/{start:020}-" for start in (0, OFFSETS, 2 * OFFSETS))
    for info in infos:
        yield dataclasses.replace(info, modified_ms=1000 if any(each in info.key for each in old) else 5000)


@pytest.fixture
def dated() -> PlantedBucket:
    return PlantedBucket.of("plain", ScriptedStore(MemoryObjectStore()).change("list", change=dated_long_ago))


def test_since_checks_what_is_new_and_the_segment_before_it_for_what_lies_between(dated: PlantedBucket) -> None:
    checked = run(dated, Selection(Level.DATA, since_ms=2000))
    events = [segment for segment in checked if segment.subject.objects.main_path.startswith("events")]
    assert levels(events) == [None, None, Level.LISTING, Level.DATA]
    assert kinds_of(checked) == []
    dated.edit_metadata(2, endOffset=3 * OFFSETS - 5)
    assert kinds_of(run(dated, Selection(Level.DATA, since_ms=2000))) == [FindingKind.GAP]


def test_since_looks_whether_the_objects_of_old_segments_are_there(dated: PlantedBucket) -> None:
    dated.delete(Suffix.LOG, number=0)
    assert kinds_of(run(dated, Selection(since_ms=2000))) == [FindingKind.LOG_MISSING]


def test_a_store_that_tells_no_time_has_all_checked(planted: PlantedBucket) -> None:
    def forget_times(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        return (dataclasses.replace(info, modified_ms=None) for info in infos)

    store = ScriptedStore(planted.store).change("list", change=forget_times)
    timeless = dataclasses.replace(planted, store=store)
    assert set(levels(run(timeless, Selection(since_ms=2**60)))) == {Level.LISTING}
