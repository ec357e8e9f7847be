"""Damaged manifests: each bit flipped, and random changes. The reader raises one of our errors, or the change is
harmless.

A manifest is not authenticated. If the reader does not notice a flipped bit, the authenticated encryption of the data
must detect it later. This happens for the last index's size, the data key and the AAD.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.format.test_manifest import ENCRYPTED, PLAIN, document
from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tieredstore.errors import ManifestCorruptError
from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex
from tieredstore.format.manifest import SegmentManifest, WrappedDataKey

FLIPPED_CASES = {
    "03-enc", "07-zstd-enc-txn", "08-keyring", "11-single-record", "01-none", "02-zstd-onechunk"
}  # fmt: skip
FLIPPED = list({segment.case: segment for segment in ALL_SEGMENTS if segment.case in FLIPPED_CASES}.values())


def read(raw: bytes | bytearray) -> SegmentManifest | None:
    """Return the manifest, or None if it is refused; any other exception fails the test."""
    try:
        return SegmentManifest.from_bytes(raw)
    except ManifestCorruptError:
        return None


def noticed_by_decryption(damaged: SegmentManifest, whole: SegmentManifest) -> bool:
    """Return True if decryption authenticates each field that differs, or if nothing depends on the field."""
    if damaged.encryption is None or damaged.compression != whole.compression:
        return False
    if isinstance(whole.chunk_index, FixedChunkIndex) and damaged.chunk_index != whole.chunk_index:
        return False  # a bit flip changes only one number of the chunk index, so it must be refused
    before = [entry for _, entry in whole.segment_indexes.entries()]
    after = [entry for _, entry in damaged.segment_indexes.entries()]
    # Only the last index's size may differ, because no index follows it to contradict its end.
    return (
        isinstance(damaged.chunk_index, type(whole.chunk_index))
        and before[:-1] == after[:-1]
        and [entry.position for entry in before] == [entry.position for entry in after]
    )


@pytest.mark.slow
@pytest.mark.parametrize("segment", FLIPPED, ids=str)
def test_every_single_bit_flip_is_refused_or_noticed_later_or_harmless(segment: GoldenSegment) -> None:
    raw = segment.stored("rsm-manifest").read_bytes()
    whole = SegmentManifest.from_bytes(raw)
    refused = 0
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        parsed = read(damaged)
        if parsed is None:
            refused += 1
        elif whole.encryption is not None:
            assert noticed_by_decryption(parsed, whole), f"bit {bit}: {damaged!r}"
        else:
            assert parsed.encryption is None, f"bit {bit}"
            assert parsed.compression == whole.compression, f"bit {bit}"
    assert refused > 2 * len(raw)


def test_a_flip_in_the_metadata_changes_nothing_else() -> None:
    raw = ENCRYPTED.to_bytes()
    start = raw.index(b'"remoteLogSegmentMetadata":') + len(b'"remoteLogSegmentMetadata":')
    for bit in range(8 * start, 8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        parsed = read(damaged)
        assert parsed is None or replace(parsed, metadata=None) == replace(ENCRYPTED, metadata=None), f"bit {bit}"


@pytest.mark.parametrize("manifest", [ENCRYPTED, PLAIN], ids=["encrypted", "plain"])
def test_a_manifest_cut_off_anywhere_is_refused(manifest: SegmentManifest) -> None:
    raw = manifest.to_bytes()
    assert [length for length in range(len(raw)) if read(raw[:length]) is not None] == []


odd_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text()
    | st.sampled_from(["1", "fixed", "variable", "true", "a:AAAA", "\ud800", "9" * 400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def fields_of(document: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return every field of every object: the object that contains it, and its name."""
    here = [(document, name) for name in document]
    return here + [place for value in document.values() if isinstance(value, dict) for place in fields_of(value)]


@settings(max_examples=400)
@given(st.sampled_from([ENCRYPTED, PLAIN]), st.lists(st.tuples(st.integers(0), odd_values), min_size=1, max_size=3))
def test_random_values_in_random_fields_are_read_or_refused(
    manifest: SegmentManifest, changes: list[tuple[int, Any]]
) -> None:
    fields = document(manifest)
    for choice, value in changes:
        places = fields_of(fields)
        holder, name = places[choice % len(places)]
        holder[name] = value
    parsed = read(json.dumps(fields).encode())
    if parsed is not None:
        assert SegmentManifest.from_bytes(parsed.to_bytes()) == parsed


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_random_bytes_are_refused(raw: bytes) -> None:
    assert read(raw) is None
    assert read(b"{" + raw) is None


@given(st.sampled_from([ENCRYPTED, PLAIN]), st.integers(0), st.integers(0, 8), st.binary(max_size=8))
def test_spliced_bytes_are_read_or_refused(manifest: SegmentManifest, at: int, gone: int, new: bytes) -> None:
    raw = manifest.to_bytes()
    at %= len(raw)
    parsed = read(raw[:at] + new + raw[at + gone :])
    assert parsed is None or SegmentManifest.from_bytes(parsed.to_bytes()) == parsed


manifests_of_lists = st.builds(
    lambda chunk_size, sizes, encrypted: SegmentManifest(
        VariableChunkIndex.from_sizes(chunk_size, chunk_size * len(sizes), sizes),
        ENCRYPTED.segment_indexes,
        compression=True,
        encryption=WrappedDataKey("k", b"key", b"aad") if encrypted else None,
    ),
    st.integers(1, 2**25),
    st.lists(st.integers(29, 1024), min_size=1, max_size=50),
    st.booleans(),
)


@given(manifests_of_lists)
def test_any_list_of_chunks_comes_back(manifest: SegmentManifest) -> None:
    assert SegmentManifest.from_bytes(manifest.to_bytes()) == manifest
