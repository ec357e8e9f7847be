"""Methods that change a bucket: plans change nothing, a second run changes nothing more, and failures are reported."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tieredstore as ts
from tests.support.cli.cli_process import tieredstore
from tests.support.paths import GOLDEN
from tests.support.stores.catalog_stores import OTHER_ID, TOPIC_ID, partition_of, run_of
from tieredstore.api import copying
from tieredstore.api.outcomes import Totals
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import ConfigError, PartlyDoneError, PreconditionFailedError
from tieredstore.kafka.logdir import Discovery, discover


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_uploading_twice_stores_once(root: Path, disk: Path) -> None:
    with ts.open(root) as bucket:
        assert bucket.upload(disk, dry_run=True).planned == 5
        assert content(root) == {}
        seen: list[ts.Outcome] = []
        totals = bucket.upload(disk, "t*", on_outcome=seen.append)
        assert (totals.done, totals.stored_size) == (5, sum(one.stored_size or 0 for one in seen))
        assert [one.base_offset for one in seen] == [0, 605, 1209, 1815, 2420]
        before = content(root)
        again = bucket.upload(disk)
        assert (again.kept, again.done) == (5, 0)
        assert content(root) == before


def test_what_fails_does_not_keep_the_others(root: Path, disk: Path) -> None:
    (disk / "txn-0" / "00000000000000000605.log").write_bytes(b"no batch")
    with (
        ts.open(root) as bucket,
        pytest.raises(PartlyDoneError, match="1 of 5 items failed") as caught,
    ):
        bucket.upload(disk)
    assert isinstance(totals := caught.value.totals, Totals)
    assert (totals.done, totals.failed, totals.failures[0].base_offset) == (4, 1, 605)


def test_a_plan_changes_nothing_before_it_is_applied(bucket: ts.Bucket, root: Path) -> None:
    before = content(root)
    plans = [
        bucket.remove("txn"), bucket.remove("txn", stop=1300, partitions=0), bucket.remove("t*", stop="2030-01-01"),
        bucket.gc(min_age=timedelta(days=1)),
    ]  # fmt: skip
    everything = [0, 605, 1209, 1815, 2420]
    assert [[one.base_offset for one in plan] for plan in plans] == [everything, [0, 605], everything, []]
    assert {one.status for plan in plans for one in plan} == {"planned"}
    assert repr(plans[1]) == "<Plan: remove txn [0], stop 1300; apply() does it>"
    assert repr(plans[2]).startswith("<Plan: remove t*, stop 2030-01-01 00:00:00+00:00; ")
    assert ", min_age 1d; " in repr(plans[3])
    assert content(root) == before
    assert plans[1].apply().done == 2
    assert [one.base_offset for one in bucket.segments("txn")] == [1209, 1815, 2420]
    assert plans[1].apply().done == 0


def test_each_item_is_judged_again_when_a_plan_is_applied(bucket: ts.Bucket, disk: Path, tmp_path: Path) -> None:
    plan = bucket.remove("txn")
    assert len(list(plan)) == 5
    bucket.place_hold("case-17", "txn", partitions=0, start=1209, stop=1300, reason="case 17")
    totals = plan.apply()
    assert (totals.done, totals.kept) == (4, 1)
    assert [hold.name for hold in bucket.holds()] == ["case-17"]
    release = bucket.release_hold("case-17")
    assert [one.status for one in release] == ["planned"]
    assert len(bucket.holds()) == 1
    bucket.release_hold("case-17").apply()
    bucket.place_hold("case-17", "txn")
    with pytest.raises(PartlyDoneError, match="changed"):
        release.apply()
    assert [hold.partition for hold in bucket.holds()] == [None]
    bucket.release_hold("case-17").apply()
    assert bucket.holds() == []
    assert plan.apply().done == 1


def test_a_hold_from_a_time_on_begins_with_the_first_segment_that_reaches_it(bucket: ts.Bucket) -> None:
    times = [segment.last_time for segment in bucket.segments("txn")]
    assert times[1] is not None
    hold = bucket.place_hold("since", "txn", partitions=0, start=times[1])
    assert (hold.first_offset, hold.last_offset) == (605, None)
    assert [one.base_offset for one in bucket.remove("txn") if one.code == "held"] == [605, 1209, 1815, 2420]
    with pytest.raises(ConfigError, match=r"no segment of txn-0 has records since 2040-01-01; choose another start"):
        bucket.place_hold("later", "txn", partitions=0, start="2040-01-01")


def test_a_hold_from_a_time_on_covers_each_life_of_a_topic(tmp_path: Path) -> None:
    store = FilesystemObjectStore(tmp_path)
    for segment in [*run_of(2, partition_of(), first=5), *run_of(2, partition_of(topic_id=OTHER_ID))]:
        segment.put(store)
    with ts.open(tmp_path) as bucket:
        bucket.place_hold("since", "events", partitions=0, start=datetime.fromtimestamp(0.005, UTC))
        planned = [one for each in (TOPIC_ID, OTHER_ID) for one in bucket.remove("events", topic_id=each)]
        assert [one.code for one in planned] == ["held"] * 4


def test_a_dry_run_places_no_hold_and_finds_the_same_faults(bucket: ts.Bucket, root: Path) -> None:
    before = content(root)
    hold = bucket.place_hold("case-17", "txn", partitions=0, start=1209, stop=1300, dry_run=True)
    assert (hold.topic, hold.partition, hold.first_offset, hold.last_offset) == ("txn", 0, 1209, 1299)
    assert content(root) == before
    assert bucket.place_hold("case-17", "txn", partitions=0, start=1209, stop=1300) == hold
    for dry_run in (True, False):
        with pytest.raises(PreconditionFailedError, match="there is a hold 'case-17' already; release it, or"):
            bucket.place_hold("case-17", "txn", dry_run=dry_run)
    assert bucket.holds() == [hold]


def test_a_store_without_rules_of_its_own_says_so(bucket: ts.Bucket, root: Path) -> None:
    before = content(root)
    plan = bucket.abort_rule(min_age="9d")
    (outcome,) = plan
    assert (outcome.action, outcome.status, outcome.code) == ("abort_rule", "kept", "no_rules")
    assert plan.apply().kept == 1
    assert content(root) == before


def test_a_plan_of_a_closed_bucket_deletes_nothing(bucket: ts.Bucket, root: Path) -> None:
    plans = [bucket.remove("txn"), bucket.gc(), bucket.abort_rule()]
    bucket.place_hold("case-17")
    plans.append(bucket.release_hold("case-17"))
    before = content(root)
    bucket.close()
    for plan in plans:
        for use in (list, ts.Plan.show, ts.Plan.apply):
            with pytest.raises(ts.errors.AlreadyClosedError, match="the bucket was closed"):
                use(plan)
    assert content(root) == before


def test_an_outcome_is_a_line_for_a_person(bucket: ts.Bucket) -> None:
    lines = [str(outcome) for outcome in bucket.remove("txn", partitions=0, stop=700)]
    assert lines[0].startswith("planned (deleted), txn-0, offsets 0…604, ")
    bucket.place_hold("later", "txn", partitions=0, start=1209)
    lines += map(str, bucket.release_hold("later"))
    assert lines[-1].startswith("planned (released), txn-0, offsets 1209…, later, ")
    assert "None" not in "".join(lines)


def test_one_segment_is_removed_by_its_offset_or_its_id(bucket: ts.Bucket, root: Path) -> None:
    at_605 = bucket.inspect("txn", 0, 605)
    bucket.place_hold("later", "txn", partitions=0, start=1209, stop=1300)
    plan = bucket.remove("txn", partitions=0, segment=605)
    assert plan.bounds == {"segment": at_605.segment_id}
    (planned,) = plan
    assert planned.name == f"txn-{at_605.topic_id}/0/{605:020}-{at_605.segment_id}.{{indexes,log,rsm-manifest}}"
    with pytest.raises(ts.errors.SegmentNotFoundError, match="no segment of txn-0 begins at 604; nearest 0, 605"):
        bucket.remove("txn", partitions=0, segment=604)
    assert plan.apply().done == 1
    assert plan.apply().done == 0
    bucket.release_hold("later").apply()
    assert [one.base_offset for one in bucket.segments("txn")] == [0, 1209, 1815, 2420]
    (half,) = bucket.segments("txn", start=2420)
    next(root.rglob("*2420-*.rsm-manifest")).unlink()
    with pytest.raises(ts.errors.SegmentNotFoundError, match="an unfinished copy or delete left objects"):
        bucket.remove("txn", partitions=0, segment=2420)
    assert bucket.remove("txn").apply().done == 3
    assert bucket.remove("txn", partitions=[0], segment=half.segment_id).apply().done == 1
    assert content(root) == {}


@pytest.mark.slow
def test_a_rotation_takes_every_segment_and_the_old_pair_is_needed_no_more(tmp_path: Path) -> None:
    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "08-keyring", case)
    with ts.open(case / "rsm.properties") as bucket:
        old = sum(one.segments for one in bucket.keys("key1"))
        before = content(case)
        plan = bucket.rotate_keys()
        assert [one.key_id for one in plan if one.status == "planned"] == ["key1"] * old != []
        assert content(case) == before
        assert plan.apply().done == old
        assert bucket.keys("key1") == []
        assert plan.apply().done == 0
        assert bucket.read(bucket.topics()[0].name).to_arrow().num_rows > 0


def test_a_pair_is_needed_by_what_may_be_committed_under_it(tmp_path: Path) -> None:
    case = tmp_path / "case"
    shutil.copytree(GOLDEN / "08-keyring", case)
    with ts.open(case / "rsm.properties") as bucket:
        bucket.rotate_keys().apply()
        manifest = next(case.rglob("*.rsm-manifest"))
        whole = manifest.read_bytes()
        for left in (b"{", None):
            if left is None:
                manifest.unlink()
            else:
                manifest.write_bytes(left)
            needs: list[object] = []
            (use,) = bucket.keys("key1", on_need=needs.append)
            assert (use.key_id, use.segments, use.may_need, use.oldest_time) == ("key1", 0, 1, None)
            assert len(needs) == 2  # the segment, and readers' caches, which count as one more need but add no row
        manifest.write_bytes(whole)
        assert bucket.keys("key1") == []


def test_a_mirror_is_completed_by_a_second_run(bucket: ts.Bucket, tmp_path: Path) -> None:
    target = tmp_path / "mirror"
    target.mkdir()
    assert bucket.mirror(target, dry_run=True).planned == 5
    assert content(target) == {}
    assert bucket.mirror(target).done == 5
    again = bucket.mirror(target, "txn")
    assert (again.kept, again.done) == (5, 0)
    with ts.open(target) as other:
        assert [one.segment_id for one in other.segments("txn")] == [one.segment_id for one in bucket.segments("txn")]


def test_a_mirror_named_by_its_place_has_the_settings_of_its_source(
    bucket: ts.Bucket, root: Path, tmp_path: Path
) -> None:
    source, target, plain = (tmp_path / name for name in ("source.properties", "target", "plain.properties"))
    for name in ("source", "target", "plain"):
        (tmp_path / name).mkdir()
    source.write_text("storage.backend.class=filesystem\nstorage.root=source\ncompression.enabled=true\n")
    plain.write_text("storage.backend.class=filesystem\nstorage.root=plain\n")
    with ts.open(source, chunk_size=1 << 20) as opened:
        bucket.mirror(opened)
        ids = [one.segment_id for one in opened.segments("txn")]
        assert ids != [one.segment_id for one in bucket.segments("txn")]
        opened.mirror(str(target.as_uri()))
        opened.mirror(target)
        opened.mirror(plain)
        assert not (set(ids) & {one.segment_id for one in ts.open(plain).segments("txn")})
    with ts.open(target) as other:
        assert [one.segment_id for one in other.segments("txn")] == ids
    with ts.open(bucket.settings) as read, pytest.raises(ConfigError, match="give the target's settings too"):
        read.mirror(str(target))


def test_a_disk_is_looked_through_once(root: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []

    def look(path: Path) -> Discovery:
        looked.append(path)
        return discover(path)

    monkeypatch.setattr(copying, "discover", look)
    done = tieredstore("upload", "--store", root, disk, "--json").clean()
    assert done.lines[-1]["summary"]["done"] == 5
    assert looked == [disk]
