"""A reader's cost for a manifest is bounded by its bytes, whatever its contents: memory and calls, never seconds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.stores.catalog_stores import MadeSegment, partition_of
from tests.support.work import measured
from tieredstore.errors import CorruptDataError
from tieredstore.format.chunk_index import pack_chunk_sizes
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, KnownSegment, ManifestRules, SegmentManifest

SEGMENT = MadeSegment(partition_of(), 0, 9)
KNOWN = KnownSegment(SEGMENT.metadata.remote_log_segment_id, 0)
FRAGMENTS = (b"[]", b"{}", b"0", b"1.5", b"null", b'""', b'"a"', b'"aa\\n"', b'"\\u0141"', '"é"'.encode(), b'{"a":[0]}')
TEXTS = ("chunkIndex.transformedChunks", "encryption.dataKey", "encryption.aad", "version", "x", "chunkIndex.type",
         "remoteLogSegmentMetadata.remoteLogSegmentId.id",
         "remoteLogSegmentMetadata.remoteLogSegmentId.topicIdPartition.topicPartition.topic")  # fmt: skip
sizes = st.integers(0, 24).flatmap(lambda power: st.integers(0, 2**power))


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(SEGMENT.manifest())
    document["encryption"] = {"dataKey": "key1:AAAA", "aad": "AAAA"}
    return document


def _set(path: str, value: object) -> bytes:
    document = _document()
    *folders, name = path.split(".")
    inner = document
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _repeated(fragment: bytes, size: int, path: str) -> bytes:
    """Return a manifest in which a field's value is a list of as many fragments as fit into ``size`` bytes."""
    value = b"[" + (fragment + b",") * (size // (len(fragment) + 1)) + b"0]"
    return _set(path, "@@").replace(b'"@@"', value)


def _named(size: int, value: str) -> bytes:
    """Return a manifest of this size filled with leader epochs."""
    epochs = ",".join(f'"{number}":{value}' for number in range(size // 16))
    return _set("remoteLogSegmentMetadata.segmentLeaderEpochs", "@@").replace(b'"@@"', f"{{{epochs}}}".encode())


def _listed(count: int, width: int, chunk_size: int) -> bytes:
    """Return a manifest whose packed list has at most ``count`` chunk sizes of ``width`` bytes each."""
    stored = [1 << 8 * (width - 1)] * count or [1]
    stored[0] = 1
    packed = base64.b64encode(pack_chunk_sizes(stored[: (10 << 20) // width - 20])).decode()
    index = {
        "type": "variable",
        "originalChunkSize": chunk_size,
        "originalFileSize": min(chunk_size * len(stored), 2**31 - 1),
        "transformedChunks": packed,
    }
    document = _document() | {"chunkIndex": index, "compression": True}
    del document["encryption"]
    return json.dumps(document).encode()


manifests = st.one_of(
    st.builds(_repeated, st.sampled_from(FRAGMENTS), sizes, st.sampled_from(TEXTS)),
    st.builds(
        lambda path, letter, size: _set(path, letter * (size // len(letter.encode("utf-8", "surrogatepass")))),
        st.sampled_from(TEXTS),
        st.sampled_from(["A", "é", "😀", ":", "\n", "\ud800"]),
        sizes,
    ),
    st.builds(_named, sizes, st.sampled_from(["0", "1", "9" * 30, "null"])),
    st.builds(_listed, sizes, st.integers(1, 4), st.sampled_from([1, 1023, 1024, 65536])),
    st.builds(lambda mark, size: mark * (size // len(mark)), st.sampled_from([b"[", b" ", b"9"]), sizes),
).map(lambda raw: raw[:MAX_MANIFEST_SIZE])


def _read(raw: bytes, rules: ManifestRules) -> None:
    try:
        manifest = SegmentManifest.from_bytes(raw, KNOWN, rules)
    except CorruptDataError as error:
        assert len(str(error)) < 1000  # noqa: PT017  # foreign texts are shortened in it
        return
    positions = manifest.chunk_index.positions()
    assert positions[-1] == manifest.chunk_index.stored_size
    assert positions[0] <= positions[len(positions) // 2]


ANY_CHUNKS = ManifestRules(min_chunk_size=1)


@settings(max_examples=examples(100), deadline=None)
@given(manifests, st.sampled_from([ManifestRules(), ANY_CHUNKS]))
def test_no_manifest_costs_more_than_its_bytes_may(raw: bytes, rules: ManifestRules) -> None:
    _check_cost(raw, rules)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (lambda: _repeated(b"[]", 15 << 20, "x"), ANY_CHUNKS),
        (lambda: _repeated(b"{}", 15 << 20, "remoteLogSegmentMetadata"), ANY_CHUNKS),
        (lambda: _named(1_500_000, "0"), ANY_CHUNKS),
        (lambda: _set("x", "😀" + "a" * (15 << 20)), ANY_CHUNKS),
        (lambda: _set("encryption.aad", "A" * (15 << 20)), ANY_CHUNKS),
        (lambda: _listed(3_000_000, 1, 1), ANY_CHUNKS),
        (lambda: _listed(2_000_000, 4, 1024), ManifestRules()),
    ],
    ids=["lists", "objects", "epochs", "wide text", "aad", "chunks of a byte", "chunks of 1 KiB"],
)
def test_those_that_cost_most_do_not_either(make: Callable[[], bytes], rules: ManifestRules) -> None:
    _check_cost(make(), rules)


def _check_cost(raw: bytes, rules: ManifestRules) -> None:
    with measured() as work:
        _read(raw, rules)
    # A list of chunk sizes is 10 MiB at most, however few bytes it is packed in, and is read in blocks.
    assert work.calls < 6 * len(raw) + 3_000_000
    assert work.peak_bytes < 6 * len(raw) + (48 << 20)
