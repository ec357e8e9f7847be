"""The command line on data of the plugin and of the broker.

tests/remote/test_golden.py reads all segments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.golden.segments import CASES, GoldenSegment, case_path, segments
from tests.support.golden.stored import manifest_of, original_indexes
from tests.support.records.small_segments import MODES
from tieredstore.model import IndexType

pytestmark = pytest.mark.slow

ONE_OF_EACH_CASE = [segments(case)[-1] for case in CASES]


def plugin_settings(segment: GoldenSegment) -> Path:
    return case_path(segment.case) / "rsm.properties"


def address(segment: GoldenSegment) -> tuple[str, int, int]:
    return segment.topic, segment.partition, segment.base_offset


@pytest.mark.parametrize("segment", ONE_OF_EACH_CASE, ids=str)
def test_fetch_writes_what_the_broker_wrote(segment: GoldenSegment) -> None:
    done = tieredstore("fetch", "-c", plugin_settings(segment), *address(segment)).clean()
    assert done.stdout == segment.original("log").read_bytes()


@pytest.mark.parametrize("segment", ONE_OF_EACH_CASE, ids=str)
def test_fetch_writes_each_index_and_exits_3_for_what_was_not_recorded(segment: GoldenSegment) -> None:
    expected = original_indexes(segment)
    for kind in IndexType:
        done = tieredstore("fetch", "-c", plugin_settings(segment), *address(segment), "--index", kind.value)
        if kind in expected:
            assert (done.code, done.stdout, done.stderr) == (0, expected[kind], "")
        else:
            assert (done.code, done.stdout) == (3, b"")
            assert done.stderr.startswith("tieredstore: ")


@pytest.mark.parametrize("segment", ONE_OF_EACH_CASE, ids=str)
def test_every_index_can_be_decoded(segment: GoldenSegment) -> None:
    rows: dict[IndexType, Any] = {}
    for kind in original_indexes(segment):
        words = ("inspect", "-c", plugin_settings(segment), *address(segment), "--index", kind.value)
        done = tieredstore(*words, "--json")
        assert done.code == 0
        rows[kind], _ = done.rows
        shown = tieredstore(*words)
        assert shown.code == 0
        assert all(str(value) in shown.text for row in rows[kind] for value in row.values())
    size = segment.original("log").stat().st_size
    assert all(segment.base_offset <= row["offset"] <= segment.end_offset for row in rows[IndexType.OFFSET])
    assert all(row["position"] < size for row in rows[IndexType.OFFSET])
    assert len(rows[IndexType.OFFSET]) == len(original_indexes(segment)[IndexType.OFFSET]) // 8


@pytest.mark.parametrize("case", CASES)
def test_ls_json_has_one_row_for_each_segment(case: str) -> None:
    rows = tieredstore("ls", "-c", case_path(case) / "rsm.properties", "-p", "all", "--json").rows[0]
    expected = segments(case)
    assert [(row["topic"], row["partition"], row["base_offset"]) for row in rows] == [address(s) for s in expected]
    for row, segment in zip(rows, expected, strict=True):
        manifest = manifest_of(segment)
        objects = [segment.stored(suffix).stat().st_size for suffix in ("log", "indexes", "rsm-manifest")]
        assert row["topic_id"] == segment.topic_id
        assert row["last_offset"] == segment.end_offset
        assert row["segment_id"] == segment.segment_id
        assert row["size"] == segment.original("log").stat().st_size
        assert row["stored_size"] == sum(objects)
        assert row["ratio"] == pytest.approx(row["size"] / row["stored_size"], abs=1e-3)
        assert (row["compressed"], row["encrypted"]) == (manifest.compression, manifest.encryption is not None)
        assert row["key_id"] == (manifest.encryption.key_id if manifest.encryption else None)
        assert manifest.metadata is not None
        assert row["max_timestamp_ms"] == manifest.metadata.max_timestamp_ms
        epochs = [(epoch["epoch"], epoch["start_offset"]) for epoch in row["leader_epochs"]]
        assert epochs == list(manifest.metadata.segment_leader_epochs)
        assert (row["complete"], row["missing"], row["damage"]) == (True, [], None)


@pytest.mark.parametrize("case", CASES)
def test_ls_json_has_one_row_for_each_partition(case: str) -> None:
    settings, topic = case_path(case) / "rsm.properties", segments(case)[0].topic
    rows, summary = tieredstore("ls", "-c", settings, topic, "--json").rows
    assert (summary["partitions"], summary["segments"]) == (len(rows), len(segments(case)))
    for partition, row in enumerate(rows):
        own = [segment for segment in segments(case) if segment.partition == partition]
        assert (row["topic"], row["topic_id"]) == (topic, own[0].topic_id)
        assert (row["partition"], row["segments"], row["lost"]) == (partition, len(own), [])
        assert (row["earliest_offset"], row["end_offset"]) == (own[0].base_offset, own[-1].end_offset + 1)
        assert row["size"] == sum(segment.original("log").stat().st_size for segment in own)
    shown = tieredstore("ls", "-c", settings, topic)
    assert all(f"{row['earliest_offset']} … {row['end_offset'] - 1}" in shown.text for row in rows)


@pytest.mark.parametrize("segment", ONE_OF_EACH_CASE, ids=str)
def test_inspect_finds_no_damage_in_what_the_plugin_wrote(segment: GoldenSegment) -> None:
    done = tieredstore("inspect", "-c", plugin_settings(segment), *address(segment), "--json", "--chunks").clean()
    ((view,), _) = done.rows
    assert view["damage"] == []
    assert sum(chunk["size"] for chunk in view["chunks"]) == view["size"] == segment.original("log").stat().st_size
    assert sum(chunk["stored_size"] for chunk in view["chunks"]) == segment.stored("log").stat().st_size
    assert view["metadata"]["last_offset"] == segment.end_offset
    assert tieredstore("inspect", "-c", plugin_settings(segment), *address(segment), "--chunks").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("case", "mode"), [("01-none", "none"), *((case, "zstd+enc") for case in CASES)])
def test_a_copy_of_the_originals_comes_back_equal(case: str, mode: str, tmp_path: Path) -> None:
    settings = write_settings(tmp_path, MODES[mode])
    tieredstore("upload", "-c", settings, case_path(case) / "original").clean()
    for segment in segments(case):
        where = ("-c", settings, *address(segment))
        assert tieredstore("fetch", *where).stdout == segment.original("log").read_bytes()
        for kind, content in original_indexes(segment).items():
            assert tieredstore("fetch", *where, "--index", kind.value).stdout == content
    rows = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]
    expected = [(*address(s), s.end_offset, s.topic_id) for s in segments(case)]
    assert [
        tuple(row[n] for n in ("topic", "partition", "base_offset", "last_offset", "topic_id")) for row in rows
    ] == expected


def test_a_masked_prefix_is_not_shown() -> None:
    segment = segments("10-prefix-masked-custommeta")[0]
    done = tieredstore("inspect", "-c", plugin_settings(segment), *address(segment), "--json")
    assert all(shown["object"].startswith("<prefix>/") for shown in done.rows[0][0]["objects"])
    assert b"pre fix" not in done.stdout
