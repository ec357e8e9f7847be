"""The short way to read a manifest: what it takes, the long way reads the same; what anybody writes, it takes."""

from __future__ import annotations

import base64
import json
import runpy
import sys
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.test_manifest import ENCRYPTED, METADATA, PLAIN
from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tests.support.manifest_mutations import KNOWN_SEGMENT, damaged_manifests, planned_of, read_both_ways
from tieredstore.errors import CorruptData, ManifestCorrupt, SegmentCorrupt
from tieredstore.format import canonical_manifest
from tieredstore.format._written import read_written, written_metadata
from tieredstore.format.canonical_manifest import read_canonical
from tieredstore.format.chunk_sizes import pack_chunk_sizes
from tieredstore.format.manifest import SegmentManifest
from tieredstore.format.manifest_rules import DEFAULT_RULES, KnownSegment, ManifestRules
from tieredstore.model import Uuid
from tieredstore.remote.manifest_object import parse_manifest

KNOWN = KnownSegment(METADATA.remote_log_segment_id, METADATA.start_offset, 200_000)
BARE = replace(ENCRYPTED, metadata=None, compression=True)


def both_ways(raw: bytes, known: KnownSegment = KNOWN, rules: ManifestRules = DEFAULT_RULES) -> SegmentManifest | None:
    return read_both_ways(raw, known, rules)


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_the_plugins_manifests_are_read_the_short_way(segment: GoldenSegment) -> None:
    raw = segment.stored("rsm-manifest").read_bytes()
    metadata = SegmentManifest.from_bytes(raw).metadata
    assert metadata is not None
    known = KnownSegment(metadata.remote_log_segment_id, metadata.start_offset, segment.stored("log").stat().st_size)
    short = both_ways(raw, known)
    assert short is not None
    assert read_written(raw, known, DEFAULT_RULES) == short
    assert short.metadata is not None
    for tells in (False, True):
        planned = written_metadata(raw, known.segment_id, known.start_offset, False, tells)
        assert planned == planned_of(short, tells=tells)
        assert planned is not None
    # One value for the segment, which a hundred thousand of them need not have twice.
    assert short.metadata.remote_log_segment_id is known.segment_id


@pytest.mark.parametrize("manifest", [ENCRYPTED, PLAIN, BARE], ids=["encrypted", "plain", "bare"])
def test_ours_are_too(manifest: SegmentManifest) -> None:
    assert read_written(manifest.to_bytes(), KNOWN, DEFAULT_RULES) == manifest
    assert both_ways(manifest.to_bytes()) == manifest
    assert both_ways(manifest.to_bytes() + b"\n") == manifest
    for tells in (False, True):
        planned = written_metadata(manifest.to_bytes(), KNOWN.segment_id, KNOWN.start_offset, False, tells)
        assert planned == planned_of(manifest, tells=tells)


def test_damaged_texts_are_read_as_the_long_way_reads_them() -> None:
    readable = sum(read_both_ways(raw, KNOWN_SEGMENT) is not None for raw in damaged_manifests(7, 1_200))
    assert 50 < readable < 600


def test_a_segment_whose_topic_has_no_utf_8_is_nobodys() -> None:
    where = replace(METADATA.topic_id_partition, topic="caf\udce9")
    known = replace(KNOWN, segment_id=replace(KNOWN.segment_id, topic_id_partition=where))
    assert read_written(PLAIN.to_bytes(), known, DEFAULT_RULES) is None
    assert read_canonical(PLAIN.to_bytes(), known, DEFAULT_RULES) is None


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "1", "0", "fixed", "variable", "AA==", "k1:AA==", "a:b:c", "\ud800", "é", "5000000000"]),
    st.sampled_from([[], {}, {"0": 23}, {"00": 1}, {"5": 100, "0": 23}, {"x": 1}, {"position": 0, "size": True}]),
)


def paths_of(document: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = [(*above, "surplus")]
    for name, value in document.items():
        paths.append((*above, name))
        if isinstance(value, dict):
            paths += paths_of(cast("dict[str, Any]", value), (*above, name))
    return paths


@given(st.data(), st.sampled_from([ENCRYPTED, PLAIN]))
def test_a_field_of_any_value_is_read_as_the_long_way_reads_it(data: st.DataObject, manifest: SegmentManifest) -> None:
    document = json.loads(manifest.to_bytes())
    for *folders, name in data.draw(st.lists(st.sampled_from(paths_of(document)), min_size=1, max_size=2)):
        inner: dict[str, Any] = document
        for folder in folders:
            within = inner.get(folder)
            inner = cast("dict[str, Any]", within) if isinstance(within, dict) else {}
        if data.draw(st.booleans()):
            inner[name] = deepcopy(data.draw(values))
        else:
            inner.pop(name, None)
    both_ways(json.dumps(document, separators=data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))).encode())


def test_a_field_that_stands_twice_hides_nothing_that_is_refused() -> None:
    # As text, since a dict has no field twice: of two the last one counts, and the first one is read all the same.
    for hidden, expected in (("9" * 1001, "1001 digits"), ("NaN", "NaN is not a number")):
        raw = PLAIN.to_bytes().replace(b'"compression":', f'"compression":{hidden},"compression":'.encode())
        assert read_canonical(raw, KNOWN, DEFAULT_RULES) is None
        with pytest.raises(ManifestCorrupt, match=expected):
            parse_manifest(raw, "x", KNOWN, DEFAULT_RULES)


@pytest.mark.parametrize(
    ("known", "rules", "error"),
    [
        (replace(KNOWN, start_offset=24), DEFAULT_RULES, SegmentCorrupt),
        (replace(KNOWN, segment_id=replace(KNOWN.segment_id, id=Uuid(bytes(16)))), DEFAULT_RULES, SegmentCorrupt),
        (KNOWN, ManifestRules(encryption_required=True), SegmentCorrupt),
    ],
)
def test_who_it_is_and_what_is_demanded_is_held_against_it(
    known: KnownSegment, rules: ManifestRules, error: type[CorruptData]
) -> None:
    raw = PLAIN.to_bytes()
    assert read_canonical(raw, known, rules) is None
    with pytest.raises(error):
        parse_manifest(raw, "x", known, rules)


def test_what_nobody_writes_is_left_to_the_long_way() -> None:
    for raw in (b"", b"[]", b"{}", b"null", PLAIN.to_bytes() + b" " * (64 << 10), b"\xff", b"{" * 5000):
        assert read_canonical(raw, KNOWN, DEFAULT_RULES) is None


def test_the_fields_alone_leave_no_room_for_a_number_of_a_thousand_digits() -> None:
    document = json.loads(BARE.to_bytes())
    del document["encryption"]
    document["segmentIndexes"] = {
        name: entry and {"position": 0, "size": 0} for name, entry in document["segmentIndexes"].items()
    } | {"transaction": None}
    document["chunkIndex"] |= {"originalChunkSize": 1, "originalFileSize": 1, "transformedChunks": ""}
    assert 300 < len(json.dumps(document, separators=(",", ":"))) < 330


sizes_of_chunks = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1), sizes_of_chunks)
def test_a_list_of_chunk_sizes_is_read_as_the_long_way_reads_it(chunk: int, file: int, sizes: list[int]) -> None:
    document = json.loads(BARE.to_bytes())
    del document["encryption"]
    text = base64.b64encode(pack_chunk_sizes(sizes)).decode()
    for size, total in ((chunk, file), (max(chunk // 2, 1), min(max(chunk // 2, 1) * len(sizes), 2**31 - 1))):
        document["chunkIndex"] |= {"originalChunkSize": size, "originalFileSize": total, "transformedChunks": text}
        both_ways(json.dumps(document, separators=(",", ":")).encode())


def test_without_the_compiled_part_all_is_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tieredstore.format._written", None)
    plain = runpy.run_path(canonical_manifest.__file__)
    assert plain["read_written"](PLAIN.to_bytes(), KNOWN, DEFAULT_RULES) is None
    assert plain["read_canonical"](PLAIN.to_bytes(), KNOWN, DEFAULT_RULES) == PLAIN
